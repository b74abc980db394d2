"""OpenTelemetry spans: an `ExportTraceServiceRequest` as JSON, ready to post to `/v1/traces`.

A trial is a trace; its attempts are spans under the trial's span, named by the conventions for generative AI. Scores are events
of the attempt that they belong to. All ids are derived from the run, so sending an export twice creates no duplicates.
"""

from collections.abc import Iterator
from hashlib import sha256
from typing import Any, Final

import orjson

from replay.export.source import Source
from replay.export.trial_index import TrialIndex
from replay.text import as_text
from replay.timeline_columns import Span
from replay.trial import AttemptDetails, ScoreDetails, TrialDetails

_INTERNAL: Final = 1
"""The span kind `SPAN_KIND_INTERNAL`."""
_OK, _ERROR = 1, 2
_MAX_INT64: Final = (1 << 63) - 1
_TOKENS: Final = {
    "input_tokens": "gen_ai.usage.input_tokens",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
}
"""Names of tokens in usage → names by the conventions."""


def otlp(source: Source) -> Iterator[bytes]:
    """Write the request, one span at a time."""
    index = TrialIndex.of(source)
    resource = {"attributes": _attributes(_resource(index))}
    started = index.state.started
    scope = {"name": "evaljournal", "version": "" if started is None else started.environment.get("evaljournal", "")}
    yield b'{"resourceSpans":[{"resource":' + orjson.dumps(resource) + b',"scopeSpans":[{"scope":' + orjson.dumps(scope)
    before = b',"spans":[\n'
    for trial in index.trials():
        for span in (_trial(index, trial), *(_attempt(index, trial, attempt) for attempt in trial.attempts)):
            yield before + orjson.dumps(span)
            before = b",\n"
    yield (b"\n" if before == b",\n" else before) + b"]}]}]}\n"


def _resource(index: TrialIndex) -> dict[str, Any]:
    started = index.state.started
    run: dict[str, Any] = {"evaljournal.run": index.source.run_id, "evaljournal.seq": index.state.seq}
    if started is None:
        return {"service.name": "evaljournal", **run}
    return {
        "service.name": started.evaluation,
        "service.version": started.task_fingerprint,
        **run,
        "evaljournal.task": started.task,
        "evaljournal.dataset": started.dataset,
        **{f"evaljournal.environment.{name}": value for name, value in started.environment.items()},
    }


def _trial(index: TrialIndex, trial: TrialDetails) -> dict[str, Any]:
    times = [_times(index, attempt.span) for attempt in trial.attempts]
    start = min([index.enqueued(trial.trial), *(start for start, _ in times)])
    end = max([start, index.end_time(trial.trial), *(end for _, end in times)])
    attributes = {
        "evaljournal.trial": trial.trial,
        "evaljournal.case": trial.case,
        "evaljournal.repeat": trial.repeat,
        "evaljournal.stage": trial.stage,
        "evaljournal.attempts": len(trial.attempts),
        "evaljournal.queue_time": trial.times.queue_time,
        "evaljournal.backoff_time": trial.times.backoff_time,
        "evaljournal.run_time": trial.times.run_time,
        "evaljournal.expected": trial.expected,
        "evaljournal.metadata": trial.metadata,
    }
    status: dict[str, Any] = {"code": _OK} if trial.stage == "completed" else {}
    if trial.stage == "failed":
        status = {"code": _ERROR, "message": trial.failure}
        attributes["error.type"] = (trial.last_error.error if trial.last_error else "") or trial.reason
    return _span(_ids(index, trial.trial), f"trial {trial.trial}", (start, end), attributes, status)


def _attempt(index: TrialIndex, trial: TrialDetails, attempt: AttemptDetails) -> dict[str, Any]:
    span, started = attempt.span, index.state.started
    agent = started.evaluation if started is not None else ""
    is_last = span.attempt == len(trial.attempts)
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": agent,
        "evaljournal.trial": span.trial,
        "evaljournal.attempt": span.attempt,
        "evaljournal.slot": span.slot,
        "evaljournal.session": span.session,
        "evaljournal.seq": span.seq,
        "gen_ai.input.messages": _messages("user", trial.input),
    }
    events: list[dict[str, Any]] = []
    status: dict[str, Any] = {}
    start, end = _times(index, span)
    if attempt.succeeded:
        status = {"code": _OK}
        finish_reason = "length" if trial.truncated and is_last else "stop"
        attributes["gen_ai.output.messages"] = _messages("assistant", attempt.output, finish_reason=finish_reason)
        if is_last:  # Scores belong to the last output.
            scores = sorted(trial.scores.values(), key=lambda score: score.seq)
            events = [_score(index.wall_time(score.seq, score.t), score) for score in scores]
    elif attempt.category:
        status = {"code": _ERROR, "message": attempt.message}
        attributes["error.type"] = attempt.error
        attributes["evaljournal.category"] = attempt.category
        if attempt.category not in {"timed_out", "interrupted"}:
            exception = {"type": attempt.error, "message": attempt.message, "stacktrace": attempt.traceback}
            events = [_event("exception", end, {f"exception.{name}": value for name, value in exception.items()})]
    attributes |= {_TOKENS.get(name, f"evaljournal.usage.{name}"): value for name, value in attempt.total_usage.items()}
    result = _span(_ids(index, span.trial, span.attempt), f"invoke_agent {agent}", (start, end), attributes, status)
    return result | {"events": events} if events else result


def _times(index: TrialIndex, span: Span) -> tuple[int, int]:
    return index.session_time(span.session, span.start), index.session_time(span.session, span.end)


def _span(
    ids: dict[str, str], name: str, times: tuple[int, int], attributes: dict[str, Any], status: dict[str, Any]
) -> dict[str, Any]:
    return {
        **ids,
        "name": name,
        "kind": _INTERNAL,
        "startTimeUnixNano": str(times[0]),
        "endTimeUnixNano": str(times[1]),
        "attributes": _attributes(attributes),
        "status": status,
    }


def _ids(index: TrialIndex, trial: str, attempt: int = 0) -> dict[str, str]:
    """Derive the ids of a span from the run; attempt 0 stands for the trial."""
    name = f"{index.source.run_id}/{trial}"
    trace, parent, span = (sha256(text.encode()).hexdigest() for text in (name, f"{name}/0", f"{name}/{attempt}"))
    return {"traceId": trace[:32], "spanId": span[:16]} | ({"parentSpanId": parent[:16]} if attempt else {})


def _score(at: int, score: ScoreDetails) -> dict[str, Any]:
    """Return a score, or a scorer's failure, as an event of the conventions."""
    attributes: dict[str, Any] = {"gen_ai.evaluation.name": score.scorer}
    value = score.value
    if value is None:
        attributes |= {"error.type": score.error, "gen_ai.evaluation.explanation": score.message}
    else:
        if isinstance(value, bool | str):
            attributes["gen_ai.evaluation.score.label"] = value if isinstance(value, str) else "pass" if value else "fail"
        if not isinstance(value, str):
            attributes["gen_ai.evaluation.score.value"] = float(value)
        attributes["gen_ai.evaluation.explanation"] = score.reason or None
    return _event("gen_ai.evaluation.result", at, attributes)


def _event(name: str, at: int, attributes: dict[str, Any]) -> dict[str, Any]:
    return {"timeUnixNano": str(at), "name": name, "attributes": _attributes(attributes)}


def _messages(role: str, content: Any, **more: str) -> str:
    """Return an input or output as a JSON list of messages."""
    part = {"type": "text", "content": as_text(content)}
    return as_text([{"role": role, "parts": [part], **more}])


def _attributes(values: dict[str, Any]) -> list[dict[str, Any]]:
    """Return attributes without missing values; anything but text, numbers and booleans becomes JSON."""
    return [{"key": name, "value": _value(value)} for name, value in values.items() if value is not None]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int) and abs(value) <= _MAX_INT64:
        return {"intValue": str(value)}  # 64-bit integers are strings in OTLP JSON.
    return {"doubleValue": float(value)} if isinstance(value, int | float) else {"stringValue": as_text(value)}
