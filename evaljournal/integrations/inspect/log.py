"""An `.eval` log for Inspect: `inspect view`, `inspect_ai.log.read_eval_log`.

The log is a zip of JSON files: a header, one file per sample, and summaries. A completed or failed trial is a sample, its
repeat an epoch; its attempts and scores are events. Inspect has no fields for waits, so they are under `metadata`.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import orjson

from evaljournal.integrations.inspect.events import (
    call_of_trial,
    inspect_score,
    model_name,
    model_usage,
    output_of,
    sample_events,
    sample_messages,
    step_calls,
    target_of,
    usage_of,
    uuid_of,
)
from evaljournal.replay.export.file_names import file_names
from evaljournal.replay.export.formats import File
from evaljournal.replay.export.model_call import TaskModel, TaskModels
from evaljournal.replay.export.source import Source
from evaljournal.replay.export.spool import Spool
from evaljournal.replay.results.summary import ScoreSummary, score_of
from evaljournal.replay.runs.trial import AttemptDetails, TrialDetails
from evaljournal.replay.state.definition import variant_parameters
from evaljournal.replay.state.trial import DONE_STAGES
from evaljournal.replay.state.usage import add
from evaljournal.replay.text import as_text

_VERSION: Final = 2
"""Version of Inspect's format."""
_STATUSES: Final = {"finished": "success", "interrupted": "cancelled", "deadline": "cancelled", "": "started"}
"""How the last session ended → Inspect's status; any other outcome is an error."""
_NAME_BYTES: Final = 60_000
"""Approximate maximum length of a file name in a zip."""
_UNSAFE_NAME: Final = re.compile(r"[\0\\]|(?:^|/)\.{0,2}(?:/|$)")
"""A file name that a zip cannot hold, or that could point outside the directory into which the zip is extracted."""
_SUMMARY_CHARS: Final = 1_000
"""Maximum characters of an input or a target in a summary."""


def inspect(source: Source) -> Iterator[bytes]:
    """Write the zip of a run without variants."""
    return _log(source, None)


def inspect_variants(source: Source) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Return the name and content of a zip for each variant, because the ids of the samples in a log must be unique."""
    names = file_names(source.variants, ".eval")
    return ((names[variant], _log(source, variant)) for variant in source.variants)


def _log(source: Source, variant: str | None) -> Iterator[bytes]:
    """Write the zip of all trials, or of one variant, one sample at a time."""
    spool = Spool()
    task = TaskModels(source.state.started and source.state.started.definition).for_variant(variant or "")
    calls: Counter[str] = Counter()
    """Number of steps that called each model."""
    usage: dict[str, dict[str, float]] = {}
    with ZipFile(spool, "w", ZIP_DEFLATED) as log:

        def write_file(name: str, pieces: Iterable[bytes]) -> Iterator[bytes]:
            with log.open(_entry(name, source), "w") as file:
                for piece in pieces:
                    file.write(piece)
                    yield spool.pop()

        for trial in source.trials(*DONE_STAGES, variant=variant):
            sample = _sample(source, trial, task)
            calls.update(map(model_name, step_calls(trial)))
            for model, tokens in sample["model_usage"].items():
                add(usage.setdefault(model, {}), tokens)
            yield from write_file(_file_name(trial), [_json_with_nan(sample, trial)])

        summaries = (
            _json_with_nan(_summary(source, trial, task), trial) for trial in source.trials(*DONE_STAGES, variant=variant)
        )
        yield from write_file("summaries.json", _list(summaries))

        header = _header(source, task, variant)
        if calls:
            header["stats"]["model_usage"] = usage
            if not task.model:
                header["eval"]["model"] = calls.most_common(1)[0][0]  # Inspect has one; the usage names all.
        start = {"version": _VERSION, "eval": header["eval"], "plan": header["plan"]}
        yield from write_file("_journal/start.json", [orjson.dumps(start)])
        yield from write_file("header.json", [orjson.dumps(header)])
    yield spool.pop()


def _json_with_nan(value: Any, trial: TrialDetails) -> bytes:
    """Return JSON that keeps NaN, which Inspect uses for the score of a failed scorer."""
    return json.dumps(value, ensure_ascii=False).encode() if trial.scorer_failures else orjson.dumps(value)


def _list(items: Iterator[bytes]) -> Iterator[bytes]:
    prefix = b"["
    for item in items:
        yield prefix + item
        prefix = b","
    yield b"]" if prefix == b"," else b"[]"


def _entry(name: str, source: Source) -> ZipInfo:
    """Return the header of a file in the zip; the same run always gives the same header."""
    created_at = source.state.sessions[0].at if source.state.sessions else ""
    try:
        year, month, day = (int(part) for part in created_at[:10].split("-"))
        entry = ZipInfo(name, (max(year, 1980), month, day, 0, 0, 0))
    except ValueError:
        entry = ZipInfo(name)
    entry.compress_type = ZIP_DEFLATED
    entry.external_attr = 0o600 << 16
    return entry


def _file_name(trial: TrialDetails) -> str:
    """Name a sample's file as Inspect does; a case id that is not a safe file name is replaced by its hash."""
    case = trial.case
    if _UNSAFE_NAME.search(case) or len(case.encode()) > _NAME_BYTES:
        case = hashlib.sha256(case.encode()).hexdigest()
    return f"samples/{case}_epoch_{trial.repeat}.json"


def _header(source: Source, task_model: TaskModel, variant: str | None) -> dict[str, Any]:
    state, run_started, totals = source.state, source.state.started, source.totals(variant)
    metadata: dict[str, Any] = {"run": source.run_id, "seq": state.seq, "head": state.head}
    created_at = state.sessions[0].at if state.sessions else "1970-01-01T00:00:00Z"
    name, task = (run_started.evaluation, run_started.task) if run_started is not None else ("evaluation", "")
    ids = ["eval", "task"] if variant is None else [f"eval@{variant}", f"task@{variant}"]
    parameters = {} if variant is None or run_started is None else variant_parameters(run_started.definition, variant)

    environment = dict(run_started.environment) if run_started is not None else {}
    git = environment.pop("git", None)
    repeats = state.settings.get("repeats", 1)
    trials = (trial for trial in state.trials.values() if trial.stage != "withdrawn" and variant in (None, trial.variant))
    samples, model = len({trial.case for trial in trials}), model_name(task_model.call(None))

    spec = {
        "eval_id": uuid_of(source, ids[0]),
        "run_id": source.run_id,
        "created": created_at,
        "task": f"{name}@{variant}" if variant else name,
        "task_id": uuid_of(source, ids[1]),
        "task_version": run_started.task_fingerprint if run_started is not None and run_started.task_fingerprint else 0,
        "task_file": task.partition(":")[0] or None,
        "task_attribs": {},
        "task_args": parameters,
        "dataset": {"name": run_started.dataset if run_started is not None else None, "samples": samples},
        "model": model,
        "config": {"epochs": repeats if isinstance(repeats, int) and repeats > 0 else 1},
        "packages": {key: str(value) for key, value in environment.items()},
        "revision": {"type": "git", "origin": "", "commit": git} if git else None,
        "scorers": [{"name": scorer} for scorer in source.scorers],
        "metadata": metadata,
    }
    header: dict[str, Any] = {
        "version": _VERSION,
        "status": _STATUSES.get(state.outcome, "error"),
        "eval": spec,
        "plan": {"name": "plan", "steps": [{"solver": task or name, "params": {}}], "config": {}},
        "results": {
            "total_samples": totals.total,
            "completed_samples": totals.completed,
            "scores": [_score(scorer, score_of(tally), totals.done) for scorer, tally in totals.scores.items()],
        },
        "stats": {
            "started_at": created_at,
            "completed_at": state.at if state.outcome else "",
            "model_usage": usage_of(model, totals.usage),
        },
    }
    if header["status"] == "error":
        header["error"] = _error(f"the run was stopped: {state.outcome}", "")
    return header


def _score(scorer: str, score: ScoreSummary, done: int) -> dict[str, Any]:
    """Return the results of a scorer as Inspect's metrics; a scorer of labels has none."""
    metrics = {"accuracy" if score.kind == "pass" else "mean": score.mean, "stderr": score.standard_error}
    return {
        "name": scorer,
        "scorer": scorer,
        "scored_samples": score.scored,
        "unscored_samples": max(0, done - score.scored),
        "params": {},
        "metrics": {name: {"name": name, "value": value, "params": {}} for name, value in metrics.items() if value is not None},
    }


def _sample(source: Source, trial: TrialDetails, task: TaskModel) -> dict[str, Any]:
    times = trial.times
    sample: dict[str, Any] = {
        **_common_fields(source, trial, task),
        "input": as_text(trial.input),
        "target": target_of(trial.expected),
        "metadata": {
            **(trial.metadata if isinstance(trial.metadata, dict) else {}),
            "evaljournal": {
                "trial": trial.trial,
                "attempts": len(trial.attempts),
                "queue_time": times.queue_time,
                "backoff_time": times.backoff_time,
                "latency": trial.latency,
                "time_to_completion": trial.time_to_completion,
                "output": trial.output if not isinstance(trial.output, str) else None,
            },
        },
        "store": {},
        "events": sample_events(source, trial, task),
        "attachments": {},
        "scores": {scorer: inspect_score(score) for scorer, score in trial.scores.items()},
        "error_retries": [_attempt_error(attempt) for attempt in _retried_attempts(trial)] or None,
    }

    call = call_of_trial(trial, task)
    successful_attempt = next((attempt for attempt in reversed(trial.attempts) if attempt.has_output), None)
    if trial.stage == "completed" and successful_attempt is not None:
        sample["output"] = output_of(source, trial, successful_attempt, model_name(call)) | {"time": trial.latency}
    elif trial.stage == "failed":
        sample["error"] = _attempt_error(trial.failures[-1]) if trial.failures else _error(trial.reason, "")

    messages = sample_messages(source, trial, task.call(trial.request))
    return {key: value for key, value in {**sample, "messages": messages}.items() if value is not None}


def _retried_attempts(trial: TrialDetails) -> list[AttemptDetails]:
    """Return the failed attempts that were retried; the last one of a failed trial is its error."""
    return trial.failures if trial.stage == "completed" else trial.failures[:-1]


def _summary(source: Source, trial: TrialDetails, task: TaskModel) -> dict[str, Any]:
    last_error = trial.last_error
    error = f"{last_error.error}: {last_error.message}" if last_error else trial.reason
    target = target_of(trial.expected)
    summary = {
        **_common_fields(source, trial, task),
        "input": as_text(trial.input)[:_SUMMARY_CHARS],
        "target": target[:_SUMMARY_CHARS] if isinstance(target, str) else target,
        "scores": {scorer: {"value": inspect_score(score)["value"]} for scorer, score in trial.scores.items()},
        "error": error if trial.stage == "failed" else None,
        "retries": len(_retried_attempts(trial)) or None,
        "completed": True,
    }
    return {key: value for key, value in summary.items() if value is not None}


def _common_fields(source: Source, trial: TrialDetails, task: TaskModel) -> dict[str, Any]:
    return {
        "id": trial.case,
        "epoch": trial.repeat,
        "uuid": uuid_of(source, trial.trial),
        "started_at": trial.enqueued_at,
        "completed_at": trial.ended_at,
        "total_time": round((source.end_time(trial) - source.enqueue_time(trial)) / 1_000_000_000, 6),
        "working_time": round(trial.times.run_time, 6),
        "model_usage": model_usage(trial, call_of_trial(trial, task)),
    }


def _attempt_error(attempt: AttemptDetails) -> dict[str, Any]:
    return _error(f"{attempt.error}: {attempt.message}", attempt.traceback)


def _error(message: str, traceback: str) -> dict[str, Any]:
    return {"message": message, "traceback": traceback, "traceback_ansi": traceback}


FORMAT: Final = File(
    "an `.eval` log for Inspect; for a run with variants, one log per variant in a directory",
    inspect,
    is_text=False,
    write_variants=inspect_variants,
)
