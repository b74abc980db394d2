"""Logs in the schema of Every Eval Ever 0.3: the results of each variant, and a line for each sample and score.

The files have the names and places that the data store of Every Eval Ever expects, with ids derived from the run: the same
records give the same bytes. Scores that are labels have no mean, so they are not included; nor are trials with an error, which
the mean excludes, too: their number is among the details of each result.
"""

import re
from collections.abc import Iterator
from datetime import datetime
from hashlib import sha256
from typing import Any, Final
from uuid import UUID

import orjson

from evaljournal.replay.export.formats import Directory
from evaljournal.replay.export.model_call import TaskModels
from evaljournal.replay.export.source import Source
from evaljournal.replay.results.summary import score_of
from evaljournal.replay.runs.trial import ScoreDetails, TrialDetails
from evaljournal.replay.state.totals import Totals
from evaljournal.replay.text import as_text

_VERSION: Final = "0.3.0"
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")
_UNKNOWN: Final = "unknown"


def eee(source: Source) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Return the files: of each variant the samples, then the results, which have the checksum of the samples."""
    for variant in source.variants or [""]:
        log = _Log(source, variant or None)
        yield f"{log.path}_samples.jsonl", log.samples()
        yield f"{log.path}.json", log.results()


class _Log:
    def __init__(self, source: Source, variant: str | None) -> None:
        self._source, self._variant = source, variant
        run_started = source.state.started
        self._evaluation = run_started.evaluation if run_started is not None else _UNKNOWN
        self._dataset = run_started.dataset if run_started is not None else _UNKNOWN

        call = TaskModels(run_started and run_started.definition).for_variant(variant or "").call(None)
        served = next((model for model, _ in source.totals(variant).models.most_common(1)), "")

        self._model, self._provider = call.model or served or _UNKNOWN, call.provider or _UNKNOWN
        self._model_id = self._model if "/" in self._model else f"{_name(self._provider)}/{self._model}"
        self._id = f"{_name(self._evaluation)}/{_name(self._model_id)}/{source.run_id}{f'/{variant}' if variant else ''}"

        digest = sha256(f"{source.run_id}/{variant or ''}".encode()).digest()
        developer, _, model = self._model_id.partition("/")
        self.path = f"data/{_name(self._evaluation)}/{_name(developer)}/{_name(model)}/{UUID(bytes=digest[:16], version=4)}"

        self._checksum, self._rows = sha256(), 0

    def samples(self) -> Iterator[bytes]:
        for trial in self._source.trials("completed", variant=self._variant):
            for score in trial.scores.values():
                if isinstance(score.value, bool | int | float):
                    line = orjson.dumps(self._sample(trial, score), option=orjson.OPT_APPEND_NEWLINE)
                    self._checksum.update(line)
                    self._rows += 1
                    yield line

    def _sample(self, trial: TrialDetails, score: ScoreDetails) -> dict[str, Any]:
        attempt, value = trial.attempts[-1], float(score.value or 0)
        output, tools = as_text(trial.output), sum(step.kind == "tool" for step in attempt.steps)
        turns = [
            {"turn_idx": 0, "role": "user", "content": as_text(trial.input)},
            {"turn_idx": 1, "role": "assistant", "content": output},
        ]
        is_agent = bool(attempt.steps)
        answer = {"extracted_value": output, "extraction_method": score.scorer, "is_terminal": True}
        reference = [] if trial.expected is None else [as_text(trial.expected)]

        return {
            "schema_version": _VERSION,
            "evaluation_id": self._id,
            "model_id": self._model_id,
            "evaluation_name": self._evaluation,
            "evaluation_result_id": f"{self._id}#{score.scorer}",
            "sample_id": trial.case,
            "interaction_type": "agentic" if is_agent else "single_turn",
            "input": {"raw": as_text(trial.input), "reference": reference},
            "output": None if is_agent else {"raw": [output]},
            "messages": turns if is_agent else None,
            "answer_attribution": [{"turn_idx": int(is_agent), "source": "messages" if is_agent else "output.raw", **answer}],
            "evaluation": {"score": value, "is_correct": value == 1, **({"tool_calls_count": tools} if is_agent else {})},
            "performance": {"latency_ms": round(1_000 * trial.latency, 3)} if trial.latency is not None else None,
            "metadata": {"repeat": str(trial.repeat), "attempts": str(len(trial.attempts))},
        }

    def results(self) -> Iterator[bytes]:
        """The samples must have been written: the results contain their checksum."""
        source, totals = self._source, self._source.totals(self._variant)
        state, sessions = source.state, source.state.sessions
        started_at = sessions[0].at if sessions else "1970-01-01T00:00:00Z"
        log = {
            "schema_version": _VERSION,
            "evaluation_id": self._id,
            "evaluation_timestamp": started_at,
            "retrieved_timestamp": _epoch(sessions[-1].at if sessions else started_at),
            "source_metadata": {
                "source_name": "evaljournal",
                "source_type": "evaluation_run",
                "source_organization_name": _UNKNOWN,
                "evaluator_relationship": "other",
                "additional_details": {"run": source.run_id, "head": state.head, "records": str(state.seq)},
            },
            "eval_library": {"name": "evaljournal", "version": _version(source)},
            "model_info": {
                "name": self._model,
                "id": self._model_id,
                "inference_platform": self._provider,
                "additional_details": {
                    "deployment_type": _UNKNOWN,
                    "model_availability": _UNKNOWN,
                    "variant": self._variant or "",
                },
            },
            "evaluation_results": list(self._score_results(totals)),
            "detailed_evaluation_results": {
                "format": "jsonl",
                "file_path": f"{self.path}_samples.jsonl",
                "hash_algorithm": "sha256",
                "checksum": self._checksum.hexdigest(),
                "total_rows": self._rows,
            },
        }
        yield orjson.dumps(log, option=orjson.OPT_INDENT_2)

    def _score_results(self, totals: Totals) -> Iterator[dict[str, Any]]:
        for name, tally in totals.scores.items():
            score = score_of(tally)
            if score.mean is None:
                continue
            is_pass, interval = score.kind == "pass", {}
            if score.low is not None and score.high is not None:
                interval = {"confidence_interval": {"lower": score.low, "upper": score.high, "confidence_level": 0.95}}

            yield {
                "evaluation_result_id": f"{self._id}#{name}",
                "evaluation_name": self._evaluation,
                "source_data": {"dataset_name": self._dataset, "source_type": "other"},
                "metric_config": {
                    "metric_id": f"{_name(self._evaluation)}.{name}",
                    "metric_name": name,
                    "lower_is_better": False,
                    "score_type": "binary" if is_pass else "continuous",
                    "min_score": 0 if is_pass else "-Infinity",
                    "max_score": 1 if is_pass else "Infinity",
                },
                "score_details": {
                    "score": score.mean,
                    "uncertainty": {**interval, "num_samples": score.numbers},
                    "details": {"errors": str(totals.failed), "cases": str(score.cases)},
                },
            }


def _name(text: str) -> str:
    """Return a part of a path or an id: letters, digits and a few signs."""
    return _UNSAFE.sub("-", text).strip(".-")[:100] or _UNKNOWN


def _epoch(time: str) -> str:
    try:
        return str(datetime.fromisoformat(time).timestamp())
    except ValueError:
        return "0"


def _version(source: Source) -> str:
    environment = source.state.started.environment if source.state.started is not None else {}
    return as_text(environment.get("evaljournal", _UNKNOWN))


FORMAT: Final = Directory("logs and samples in the schema of Every Eval Ever, in a directory", eee)
