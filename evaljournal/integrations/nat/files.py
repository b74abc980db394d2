"""The files that `nat eval` of NVIDIA's NeMo Agent Toolkit writes.

The files contain the trials that are completed or have failed. A failed trial has an error and no output, and is excluded from
the averages. `workflow_output.jsonl` is in the order in which trials ended, so that a file written during the run and one
exported later are the same.

Of the steps, those are written whose type is in the filter, which NAT calls `workflow_output_step_filter`. The ATIF file has
all of them, in the form of NAT's `AtifEvalSample`.
"""

import math
import re
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

import orjson

from evaljournal.replay.export.atif import trajectory
from evaljournal.replay.export.file_names import file_names
from evaljournal.replay.export.formats import Directory
from evaljournal.replay.export.model_call import call_of_step
from evaljournal.replay.export.source import Source
from evaljournal.replay.provider.messages import messages_of, reply_of
from evaljournal.replay.render.trajectory import message_text
from evaljournal.replay.results.summary import score_of
from evaljournal.replay.runs.trial import AttemptDetails, TrialDetails
from evaljournal.replay.state.trial import DONE_STAGES
from evaljournal.replay.state.usage import add, as_integer
from evaljournal.runner.errors import UsageError

LINES_FILE: Final = "workflow_output.jsonl"
LIST_FILE: Final = "workflow_output.json"
_RESERVED_NAMES: Final = (
    "id",
    "question",
    "answer",
    "generated_answer",
    "llm_latency",
    "intermediate_steps",
    "expected_intermediate_steps",
    "error",
)
ATIF_FILE: Final = "workflow_output_atif.json"
STEP_FILTER: Final = ("LLM_END", "TOOL_END")
"""Types of the steps that are written: NAT's default of `workflow_output_step_filter`."""
_STEP_TYPE: Final = re.compile("(?:LLM|TOOL|WORKFLOW|TASK|TTC|FUNCTION|CUSTOM|SPAN)_(?:START|END|CHUNK|NEW_TOKEN)")
_STEP_TYPES: Final = {"model": "LLM_END", "tool": "TOOL_END"}
_TOKEN_KEYS: Final = (("input_tokens", "prompt_tokens"), ("output_tokens", "completion_tokens"))


def nat(source: Source, step_filter: Collection[str] = STEP_FILTER) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Yield the name and content of each file; with variants, the lines of all trials, and a directory for each variant."""
    if not source.variants:
        yield from _files(source, None, step_filter)
        return
    yield LINES_FILE, _lines(source, None, step_filter)
    directories = file_names(source.variants, "", reserved_names=[LINES_FILE, LIST_FILE, ATIF_FILE])
    for variant in source.variants:
        yield from ((f"{directories[variant]}/{name}", content) for name, content in _files(source, variant, step_filter))


def _files(source: Source, variant: str | None, step_filter: Collection[str]) -> Iterator[tuple[str, Iterator[bytes]]]:
    yield LIST_FILE, _list(item(trial, step_filter) for trial in source.trials(*DONE_STAGES, variant=variant))
    yield LINES_FILE, _lines(source, variant, step_filter)
    yield ATIF_FILE, _list(_sample(source, trial) for trial in source.trials(*DONE_STAGES, variant=variant))
    names = file_names(source.scorers, "_output.json", reserved_names=[LIST_FILE])
    for scorer in source.scorers:
        yield names[scorer], _scorer_file(source, scorer, variant)


def _lines(source: Source, variant: str | None, step_filter: Collection[str]) -> Iterator[bytes]:
    return (line(source.trial(trial), step_filter) for trial in source.ended_trials(variant))


def line(trial: TrialDetails, step_filter: Collection[str]) -> bytes:
    """Return a trial as a line of `workflow_output.jsonl`."""
    return orjson.dumps(item(trial, step_filter), option=orjson.OPT_APPEND_NEWLINE)


def _sample(source: Source, trial: TrialDetails) -> dict[str, Any]:
    return {
        "item_id": trial.trial,
        "trajectory": trajectory(source, trial),
        "expected_output_obj": trial.expected,
        "output_obj": trial.output if trial.stage == "completed" else None,
        "metadata": {"llm_latency": _llm_latency(trial)},
    }


def _llm_latency(trial: TrialDetails) -> float:
    """Return the 95th percentile of the seconds of the model calls, interpolated as NAT does it; 0 without a call."""
    times = sorted(
        step.elapsed for attempt in trial.attempts for step in attempt.steps if step.kind == "model" and not step.is_reused
    )
    if not times:
        return 0.0
    position = 0.95 * (len(times) - 1)
    lower = times[int(position)]
    return round(lower + (times[math.ceil(position)] - lower) * (position % 1), 6)


def item(trial: TrialDetails, step_filter: Collection[str] = STEP_FILTER) -> dict[str, Any]:
    metadata = trial.metadata if isinstance(trial.metadata, dict) else {}
    fields = {
        "id": trial.trial,
        "question": trial.input,
        "answer": "" if trial.expected is None else trial.expected,  # As NAT writes it.
        **{f"metadata_{name}" if name in _RESERVED_NAMES else name: value for name, value in metadata.items()},
        "generated_answer": trial.output if trial.stage == "completed" else "",
        "llm_latency": _llm_latency(trial),
        "intermediate_steps": [
            step
            for attempt in trial.attempts[-1:]
            for step in _steps(trial, attempt)
            if step["payload"]["event_type"] in step_filter
        ],
        "expected_intermediate_steps": metadata.get("expected_intermediate_steps") or [],
    }
    fields.pop("metadata_expected_intermediate_steps", None)
    return fields if trial.stage == "completed" else fields | {"error": trial.failure}


def _steps(trial: TrialDetails, attempt: AttemptDetails) -> Iterator[dict[str, Any]]:
    """Yield an attempt as NAT's `IntermediateStep`s: its steps between the start and the end of NAT's workflow.

    NAT reads the question from the start of the workflow. Tokens and costs include those of reused steps: the attempts that
    executed them are not in the files.
    """
    span, uuid, total_usage = attempt.span, f"{trial.trial}/{attempt.span.attempt}/", attempt.own_usage
    workflow = {"UUID": f"{uuid}0", "name": "workflow"}

    times = [_times(step.at, step.elapsed) for step in attempt.steps]
    start, end = _times(attempt.ended_at, span.end - span.start)
    start = min([start, *(step_start for step_start, _ in times)])  # NAT sorts by time.
    yield _step("root", "WORKFLOW_START", trial.input, None, **workflow, event_timestamp=start)

    for step, (step_start, step_end) in zip(attempt.steps, times, strict=True):
        name, request, result = step.name, step.input, f"{step.error}: {step.message}" if step.error else step.output
        if step.kind == "model":
            messages, reply = messages_of(step.input), reply_of(step.output)
            name = call_of_step(step.input).model or name
            request = messages[-1].text if messages else request
            result = message_text(reply) if reply is not None else result

        sums: dict[str, float] = {}
        add(sums, step.usage)
        yield _step(
            f"{uuid}{step.parent}",
            _STEP_TYPES.get(step.kind, "FUNCTION_END"),
            request,
            result,
            UUID=f"{uuid}{step.number}",
            name=name,
            event_timestamp=step_end,
            span_event_timestamp=step_start,
            metadata={"step": step.number, "attempt": span.attempt, "outcome": step.outcome, **_cost(sums)},
            usage_info=_usage(sums, step.kind),
        )
        add(total_usage, sums)

    metadata = {"attempt": span.attempt, "outcome": span.outcome, **_cost(total_usage)}
    workflow_times = {"event_timestamp": end, "span_event_timestamp": start}
    yield _step("root", "WORKFLOW_END", None, attempt.output, **workflow, **workflow_times, metadata=metadata)


def _step(parent: str, event_type: str, request: Any, result: Any, **payload: Any) -> dict[str, Any]:
    defaults = {"span_event_timestamp": None, "framework": None, "tags": None, "metadata": None, "usage_info": None}
    return {
        "parent_id": parent,
        "function_ancestry": {"function_id": "root", "function_name": "root", "parent_id": None, "parent_name": None},
        "payload": {
            "event_type": event_type,
            **defaults,
            **payload,
            "data": {"input": request, "output": result, "chunk": None},
        },
    }


def _cost(sums: Mapping[str, float]) -> dict[str, float]:
    """Return the cost under its name in NAT's trajectories (ATIF); NAT's steps have no field for it."""
    return {"cost_usd": sums["cost"]} if "cost" in sums else {}


def _usage(sums: Mapping[str, float], kind: str) -> dict[str, Any]:
    prompt, completion = (as_integer(sums.get(a, sums.get(b, 0))) for a, b in _TOKEN_KEYS)
    tokens = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return {"token_usage": tokens, "num_llm_calls": int(kind == "model"), "seconds_between_calls": 0}


def _times(end: str, elapsed: float) -> tuple[float, float]:
    """Return the start and the end of what ended at a wall time, in seconds since 1970; the end is 0 if it is unknown."""
    timestamp = datetime.fromisoformat(end).timestamp() if end else 0.0
    return round(timestamp - elapsed, 6), timestamp


def _scorer_file(source: Source, scorer: str, variant: str | None) -> Iterator[bytes]:
    tally = source.totals(variant).scores.get(scorer)
    score = None if tally is None else score_of(tally)
    average = score.mean if score is not None and score.kind in {"pass", "number"} else None
    yield b'{\n  "average_score": ' + orjson.dumps(average) + b',\n  "eval_output_items": '
    yield from _list((_score(trial, scorer) for trial in source.trials(*DONE_STAGES, variant=variant)), b"  ")
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


def parse_step_filter(text: str) -> Collection[str]:
    """Return the types of steps in a text such as `LLM_END,TOOL_END`; raise a `UsageError` for anything else."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if not _STEP_TYPE.fullmatch(name):
            raise UsageError(f"{name!r} is not a type of NAT's steps; use LLM_END, TOOL_END, FUNCTION_END, WORKFLOW_START, …")
    return names


FORMAT: Final = Directory(
    "the files of NeMo Agent Toolkit's `nat eval`, in a directory",
    nat,
    write_steps=lambda source, text: nat(source, parse_step_filter(text)),
)
