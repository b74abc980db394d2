"""Spans for whatever speaks OpenTelemetry: an `ExportTraceServiceRequest` as JSON, to be posted to `/v1/traces` as it is.

A trial is a trace; its attempts are spans under the trial's own, named by the conventions for generative AI. What the scorers
said are events of the attempt that they judged. Every id is derived from the run: an export that is sent twice makes nothing
twice.
"""

from collections.abc import Iterator
from hashlib import sha256
from typing import Any, Final

import orjson

from journal.events import AttemptEnding, AttemptFailed, AttemptSucceeded, ScoringFailed, TrialScored
from journal.release import release
from replay.export.source import Source
from replay.export.story import Result, Story, described
from replay.text import as_text
from replay.timeline import Span

_INTERNAL: Final = 1
"""The kind of a span that is nobody's server and nobody's client."""
_OK, _ERROR = 1, 2
_LARGEST: Final = (1 << 63) - 1
_TOKENS: Final = {
    "input_tokens": "gen_ai.usage.input_tokens",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
}
"""What others call tokens, and what the conventions call them."""


def otlp(source: Source) -> Iterator[bytes]:
    """Write the request, a span at a time."""
    story = Story.of(source)
    resource = {"attributes": _attributes(_about(story))}
    scope = {"name": "evaljournal", "version": release()}
    yield b'{"resourceSpans":[{"resource":' + orjson.dumps(resource) + b',"scopeSpans":[{"scope":' + orjson.dumps(scope)
    before = b',"spans":[\n'
    for span in _spans(story):
        yield before + orjson.dumps(span)
        before = b",\n"
    yield (b"\n" if before == b",\n" else before) + b"]}]}]}\n"


def _about(story: Story) -> dict[str, Any]:
    started = story.state.started
    about: dict[str, Any] = {"evaljournal.run": story.source.run, "evaljournal.seq": story.state.seq}
    if started is None:
        return {"service.name": "evaljournal", **about}
    return {
        "service.name": started.evaluation,
        "service.version": started.task_fingerprint,
        **about,
        "evaljournal.task": started.task,
        "evaljournal.dataset": started.dataset,
        **{f"evaljournal.environment.{name}": value for name, value in started.environment.items()},
    }


def _spans(story: Story) -> Iterator[dict[str, Any]]:
    spans: dict[str, list[int]] = {}
    for place, span in enumerate(story.timeline.spans):
        spans.setdefault(span.trial, []).append(place)
    for result in story.results():
        trial = result.asked.trial
        endings = story.endings(trial)
        attempts = [story.timeline.spans[place] for place in spans.get(trial, ())]
        yield _trial(story, result, attempts)
        for attempt in attempts:
            yield _attempt(story, result, attempt, endings.get(attempt.attempt))


def _trial(story: Story, result: Result, attempts: list[Span]) -> dict[str, Any]:
    asked = result.asked
    start = min([result.enqueued, *(story.wall(each.session, each.start) for each in attempts)])
    end = max([start, result.ended, *(story.wall(each.session, each.end) for each in attempts)])
    about = {
        "evaljournal.trial": asked.trial,
        "evaljournal.case": asked.case,
        "evaljournal.repeat": asked.repeat,
        "evaljournal.stage": result.stage,
        "evaljournal.attempts": result.attempts,
        "evaljournal.waited": result.times.waited,
        "evaljournal.backed_off": result.times.backed_off,
        "evaljournal.served": result.times.served,
        "evaljournal.expected": asked.expected,
        "evaljournal.metadata": asked.metadata,
    }
    status: dict[str, Any] = {"code": _OK} if result.stage == "completed" else {}
    if result.stage == "failed":
        status = {"code": _ERROR, "message": result.failure}
        about["error.type"] = result.error[0] or result.cause
    return _span(story.source.run, asked.trial, 0, name=f"trial {asked.trial}", times=(start, end), about=about, status=status)


def _attempt(story: Story, result: Result, span: Span, ending: AttemptEnding | None) -> dict[str, Any]:
    started = story.state.started
    agent = started.evaluation if started is not None else ""
    about: dict[str, Any] = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": agent,
        "evaljournal.trial": span.trial,
        "evaljournal.attempt": span.attempt,
        "evaljournal.slot": span.slot,
        "evaljournal.session": span.session,
        "evaljournal.seq": span.seq,
        "gen_ai.input.messages": _messages("user", result.asked.input),
    }
    events: list[dict[str, Any]] = []
    status: dict[str, Any] = {}
    end = story.wall(span.session, span.end)
    if isinstance(ending, AttemptSucceeded):
        status = {"code": _OK}
        why = "length" if result.truncated and ending.attempt == result.attempts else "stop"
        about["gen_ai.output.messages"] = _messages("assistant", ending.output, finish_reason=why)
        if ending.attempt == result.attempts:  # What came before was judged before, and counts no longer.
            events = [_judged(*each) for each in story.judged(span.trial)]
    elif ending is not None:
        kind, message = described(ending)
        status = {"code": _ERROR, "message": message}
        about["error.type"] = kind
        if isinstance(ending, AttemptFailed):
            about["evaljournal.category"] = ending.category
            stack = {"exception.type": kind, "exception.message": message, "exception.stacktrace": ending.traceback}
            events = [_event("exception", end, stack)]
    about |= {
        _TOKENS.get(name, f"evaljournal.usage.{name}"): value for name, value in result.used.get(span.attempt, {}).items()
    }
    times = (story.wall(span.session, span.start), end)
    made = _span(
        story.source.run,
        span.trial,
        span.attempt,
        name=f"invoke_agent {agent}",
        times=times,
        about=about,
        status=status,
    )
    return made | {"events": events} if events else made


def _span(
    run: str, trial: str, attempt: int, *, name: str, times: tuple[int, int], about: dict[str, Any], status: dict[str, Any]
) -> dict[str, Any]:
    parent = {"parentSpanId": _id(run, trial, 0)} if attempt else {}
    return {
        "traceId": sha256(f"{run}/{trial}".encode()).hexdigest()[:32],
        "spanId": _id(run, trial, attempt),
        **parent,
        "name": name,
        "kind": _INTERNAL,
        "startTimeUnixNano": str(times[0]),
        "endTimeUnixNano": str(times[1]),
        "attributes": _attributes(about),
        "status": status,
    }


def _id(run: str, trial: str, attempt: int) -> str:
    """Derive the id of a span; the trial's own is that of attempt 0, of which there is none."""
    return sha256(f"{run}/{trial}/{attempt}".encode()).hexdigest()[:16]


def _judged(at: int, verdict: TrialScored | ScoringFailed) -> dict[str, Any]:
    """Tell what a scorer said, or that it failed, as the conventions have it."""
    about: dict[str, Any] = {"gen_ai.evaluation.name": verdict.scorer}
    if isinstance(verdict, ScoringFailed):
        about |= {"error.type": verdict.error, "gen_ai.evaluation.explanation": verdict.message}
    else:
        value = verdict.value
        if isinstance(value, bool):
            about["gen_ai.evaluation.score.label"] = "pass" if value else "fail"
        about["gen_ai.evaluation.score.label" if isinstance(value, str) else "gen_ai.evaluation.score.value"] = (
            value if isinstance(value, str) else float(value)
        )
        about["gen_ai.evaluation.explanation"] = verdict.reason or None
    return _event("gen_ai.evaluation.result", at, about)


def _event(name: str, at: int, about: dict[str, Any]) -> dict[str, Any]:
    return {"timeUnixNano": str(at), "name": name, "attributes": _attributes(about)}


def _messages(role: str, content: Any, **more: str) -> str:
    """Wrap what was asked or answered as the conventions want messages, in JSON."""
    part = {"type": "text", "content": as_text(content)}
    return as_text([{"role": role, "parts": [part], **more}])


def _attributes(values: dict[str, Any]) -> list[dict[str, Any]]:
    """Write attributes; what is not there is left out, and what is neither text nor a number is told in JSON."""
    return [{"key": name, "value": _value(value)} for name, value in values.items() if value is not None]


def _value(value: Any) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int() if abs(value) <= _LARGEST:
            return {"intValue": str(value)}  # JSON's numbers are too short for 64 bits.
        case int() | float():
            return {"doubleValue": float(value)}
        case _:
            return {"stringValue": as_text(value)}
