"""The concurrency history as a trace that Perfetto and Chrome open: ui.perfetto.dev, or chrome://tracing.

A session is a process, a slot is a thread in it, an attempt lies on its slot from its start to its end. What was in flight,
queued, in backoff and allowed is drawn as counters; changes of limit and pace, pauses and retries are instants with causes.
"""

from collections.abc import Iterator
from typing import Any, Final

import orjson

from journal.events import (
    AttemptStarted,
    IntakePaused,
    IntakeResumed,
    LimitChanged,
    PaceChanged,
    RetryScheduled,
    SessionStarted,
)
from replay.export.source import Source
from replay.export.story import Story
from replay.timeline import Name, Span, Timeline

_COUNTERS: Final[dict[Name, str]] = {
    "in_flight": "in flight",
    "limit": "limit",
    "queued": "queued",
    "backing_off": "in backoff",
}
_RUN: Final = 0
"""The thread of what is about a whole session; slot 0 is thread 1."""


def chrome_trace(source: Source) -> Iterator[bytes]:
    """Write the trace, an event a line."""
    told = Story.of(source).timeline
    started = source.history.state.started
    about = {"evaluation": started.evaluation if started is not None else "", "run": source.run, "seq": told.seq}
    before = b'{"displayTimeUnit":"ms","otherData":' + orjson.dumps(about) + b',"traceEvents":[\n'
    for event in _events(source, told):
        yield before + orjson.dumps(event)
        before = b",\n"
    yield b"\n]}\n" if before == b",\n" else before + b"]}\n"


def _events(source: Source, told: Timeline) -> Iterator[dict[str, Any]]:
    yield from _names(source, told)
    for span in told.spans:
        yield _attempt(span, told)
    for session in told.sessions:
        for name, shown in _COUNTERS.items():
            for t, value, _ in told.steps(name, session.n):
                yield {"ph": "C", "pid": session.n, "ts": _time(told, session.n, t), "name": shown, "args": {shown: value}}
    yield from _instants(source, told)


def _names(source: Source, told: Timeline) -> Iterator[dict[str, Any]]:
    slots = sorted({(span.session, span.slot) for span in told.spans})
    for session, told_of in zip(source.history.state.sessions, told.sessions, strict=True):
        name = f"session {session.n}: process {session.pid} on {session.host}"
        yield {"ph": "M", "pid": told_of.n, "name": "process_name", "args": {"name": name}}
        yield {"ph": "M", "pid": told_of.n, "name": "process_sort_index", "args": {"sort_index": told_of.n}}
        yield {"ph": "M", "pid": told_of.n, "tid": _RUN, "name": "thread_name", "args": {"name": "run"}}
    for number, slot in slots:
        thread = {"pid": number, "tid": slot + 1}
        yield {"ph": "M", **thread, "name": "thread_name", "args": {"name": f"slot {slot}"}}
        yield {"ph": "M", **thread, "name": "thread_sort_index", "args": {"sort_index": slot + 1}}


def _attempt(span: Span, told: Timeline) -> dict[str, Any]:
    start = _time(told, span.session, span.start)
    return {
        "ph": "X",
        "pid": span.session,
        "tid": span.slot + 1,
        "ts": start,
        "dur": _time(told, span.session, span.end) - start,
        "name": span.trial if span.attempt == 1 else f"{span.trial} (attempt {span.attempt})",
        "cat": span.ending or "open",
        "args": {"trial": span.trial, "attempt": span.attempt, "ending": span.ending or None, "seq": span.seq},
    }


def _instants(source: Source, told: Timeline) -> Iterator[dict[str, Any]]:
    session = 0
    threads: dict[str, int] = {}
    """Trial → where its last attempt lies."""
    for record in source.records():
        event = record.event
        match event:
            case SessionStarted():
                session += 1
                threads.clear()
                continue
            case AttemptStarted():
                threads[event.trial] = event.slot + 1
                continue
            case LimitChanged() | PaceChanged():
                what = "limit" if isinstance(event, LimitChanged) else "pace"
                name, where = f"{what} {event.before} → {event.after}: {event.cause}", _RUN
                about: dict[str, Any] = {"cause": event.cause, "evidence": event.evidence, "key": event.key}
            case IntakePaused():
                name, where = f"paused: {event.cause}", _RUN
                about = {"seconds": event.until - record.t, "evidence": event.evidence, "key": event.key}
            case IntakeResumed():
                name, where = f"resumed: {event.cause}", _RUN
                about = {"evidence": event.evidence, "key": event.key}
            case RetryScheduled():
                name, where = f"retry of {event.trial}: {event.cause}", threads.get(event.trial, _RUN)
                about = {"trial": event.trial, "attempt": event.attempt, "delay": event.delay}
            case _:
                continue
        yield {
            "ph": "i",
            "pid": session,
            "tid": where,
            "ts": _time(told, session, record.t),
            "s": "p" if where == _RUN else "t",
            "name": name,
            "args": about | {"seq": record.seq},
        }


def _time(told: Timeline, session: int, t: float) -> int:
    """Tell a moment in microseconds, on the one axis that the sessions share."""
    return round((told.sessions[session - 1].offset + t) * 1_000_000)
