"""The files that `nat eval` of NVIDIA's NeMo Agent Toolkit writes.

The files contain the trials that are completed or have failed. A failed trial has an error and no output, and is excluded from
the averages. `workflow_output.jsonl` is in the order in which trials ended, so that a file written during the run and one
exported later are the same.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

import orjson

from replay.export.file_names import file_names
from replay.export.source import Source
from replay.export.trial_index import TrialIndex
from replay.model_messages import messages_of, reply_of
from replay.summary import score_of
from replay.trajectory import StepDetails
from replay.trajectory_text import message_text
from replay.trial import AttemptDetails, TrialDetails
from replay.trial_state import DONE_STAGES
from replay.usage import add, as_integer

LINES_FILE: Final = "workflow_output.jsonl"
LIST_FILE: Final = "workflow_output.json"
_RESERVED_NAMES: Final = (
    "id",
    "question",
    "answer",
    "generated_answer",
    "intermediate_steps",
    "expected_intermediate_steps",
    "error",
)
_STEP_TYPES: Final = {"model": "LLM_END", "tool": "TOOL_END"}
_TOKEN_KEYS: Final = (("input_tokens", "prompt_tokens"), ("output_tokens", "completion_tokens"))


def nat(source: Source) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Yield the name and content of each file; with variants, the lines of all trials, and a directory for each variant."""
    index = TrialIndex.load(source)
    if not index.variants:
        yield from _files(index, None)
        return
    yield LINES_FILE, _lines(index, None)
    directories = file_names(index.variants, "", reserved_names=[LINES_FILE, LIST_FILE])
    for variant in index.variants:
        yield from ((f"{directories[variant]}/{name}", content) for name, content in _files(index, variant))


def _files(index: TrialIndex, variant: str | None) -> Iterator[tuple[str, Iterator[bytes]]]:
    yield LIST_FILE, _list(item(trial) for trial in index.trials(*DONE_STAGES, variant=variant))
    yield LINES_FILE, _lines(index, variant)
    names = file_names(index.scorers, "_output.json", reserved_names=[LIST_FILE])
    for scorer in index.scorers:
        yield names[scorer], _scorer_file(index, scorer, variant)


def _lines(index: TrialIndex, variant: str | None) -> Iterator[bytes]:
    return (line(index.trial(trial)) for trial in index.ended_trials(variant))


def line(trial: TrialDetails) -> bytes:
    """Return a trial as a line of `workflow_output.jsonl`."""
    return orjson.dumps(item(trial), option=orjson.OPT_APPEND_NEWLINE)


def item(trial: TrialDetails) -> dict[str, Any]:
    """Return a trial as a NAT item."""
    metadata = trial.metadata if isinstance(trial.metadata, dict) else {}
    fields = {
        "id": trial.trial,
        "question": trial.input,
        "answer": "" if trial.expected is None else trial.expected,  # As NAT writes it.
        **{f"metadata_{name}" if name in _RESERVED_NAMES else name: value for name, value in metadata.items()},
        "generated_answer": trial.output if trial.stage == "completed" else "",
        "intermediate_steps": [_step(trial, attempt, step) for attempt in trial.attempts[-1:] for step in attempt.steps],
        "expected_intermediate_steps": metadata.get("expected_intermediate_steps") or [],
    }
    fields.pop("metadata_expected_intermediate_steps", None)
    return fields if trial.stage == "completed" else fields | {"error": trial.failure}


def _step(trial: TrialDetails, attempt: AttemptDetails, step: StepDetails) -> dict[str, Any]:
    """Return the end of a step as NAT's `IntermediateStep`, with its input, output and usage."""
    number, end_time = attempt.span.attempt, _timestamp(step.at)
    request, result = step.input, f"{step.error}: {step.message}" if step.error else step.output
    if step.kind == "model":
        messages, reply = messages_of(step.input), reply_of(step.output)
        request = messages[-1].text if messages else request
        result = message_text(reply) if reply is not None else result
    return {
        "parent_id": f"{trial.trial}/{number}/{step.parent}" if step.parent else "root",
        "function_ancestry": {"function_id": "root", "function_name": "root", "parent_id": None, "parent_name": None},
        "payload": {
            "event_type": _STEP_TYPES.get(step.kind, "FUNCTION_END"),
            "event_timestamp": end_time,
            "span_event_timestamp": round(end_time - step.elapsed, 6),
            "framework": None,
            "name": step.name,
            "tags": None,
            "metadata": {"step": step.number, "attempt": number, "outcome": step.outcome},
            "data": {"input": request, "output": result, "chunk": None},
            "usage_info": None if step.is_reused else _usage(step),
            "UUID": f"{trial.trial}/{number}/{step.number}",
        },
    }


def _usage(step: StepDetails) -> dict[str, Any]:
    sums: dict[str, float] = {}
    add(sums, step.usage)
    prompt, completion = (as_integer(sums.get(a, sums.get(b, 0))) for a, b in _TOKEN_KEYS)
    tokens = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return {"token_usage": tokens, "num_llm_calls": int(step.kind == "model"), "seconds_between_calls": 0}


def _timestamp(time: str) -> float:
    """Return a wall time in seconds since 1970; 0 if it is invalid."""
    try:
        return datetime.fromisoformat(time).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def _scorer_file(index: TrialIndex, scorer: str, variant: str | None) -> Iterator[bytes]:
    tally = index.totals(variant).scores.get(scorer)
    score = None if tally is None else score_of(tally)
    average = score.mean if score is not None and score.kind in {"pass", "number"} else None
    yield b'{\n  "average_score": ' + orjson.dumps(average) + b',\n  "eval_output_items": '
    yield from _list((_score(trial, scorer) for trial in index.trials(*DONE_STAGES, variant=variant)), b"  ")
    yield b"\n}\n"


def _score(trial: TrialDetails, scorer: str) -> dict[str, Any]:
    score, failures = trial.values.get(scorer), trial.scorer_failures
    failure = failures.get(scorer) or failures.get(scorer.partition(".")[0])
    error = trial.failure if trial.stage == "failed" else None
    if failure is not None:
        error = f"{failure.error}: {failure.message}"
    value = None if score is None else score.value
    nat_score = float(value) if isinstance(value, int | float) else value  # In NAT, true is 1.0, and a label stays a label.
    return {"id": trial.trial, "score": nat_score, "reasoning": (score.reason or None) if score else None, "error": error}


def _list(items: Iterator[dict[str, Any]], indent: bytes = b"") -> Iterator[bytes]:
    """Write an indented JSON list, one item at a time."""
    prefix = b"[\n"
    for fields in items:
        text = orjson.dumps(fields, option=orjson.OPT_INDENT_2)
        yield prefix + indent + b"  " + text.replace(b"\n", b"\n" + indent + b"  ")
        prefix = b",\n"
    yield b"[]" if prefix == b"[\n" else b"\n" + indent + b"]"
