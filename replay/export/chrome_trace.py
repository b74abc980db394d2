"""The concurrency history as a trace for Perfetto (ui.perfetto.dev) and chrome://tracing.

A session is a process, a slot is a thread, an attempt is a slice. Attempts in flight, queued trials, trials in backoff and the
limit are counters; limit and pace changes, pauses and retries are instant events with their reasons.
"""

from collections.abc import Iterator
from typing import Any, Final

import orjson

from journal import events
from replay.export.source import Source
from replay.export.trial_index import TrialIndex
from replay.timeline import SeriesName, Timeline
from replay.timeline_columns import Span

_COUNTERS: Final[dict[SeriesName, str]] = {
    "in_flight": "in flight",
    "limit": "limit",
    "queued": "queued",
    "backing_off": "in backoff",
}
_SESSION_THREAD: Final = 0
"""The thread of events that concern a whole session; slot 0 is thread 1."""


def chrome_trace(source: Source) -> Iterator[bytes]:
    """Write the trace, one event per line."""
    timeline = TrialIndex.load(source).timeline
    run_started = source.run.state.started
    evaluation = "" if run_started is None else run_started.evaluation
    header = {"evaluation": evaluation, "run": source.run_id, "seq": timeline.seq}
    prefix = b'{"displayTimeUnit":"ms","otherData":' + orjson.dumps(header) + b',"traceEvents":[\n'
    for event in _events(source, timeline):
        yield prefix + orjson.dumps(event)
        prefix = b",\n"
    yield b"\n]}\n" if prefix == b",\n" else prefix + b"]}\n"


def _events(source: Source, timeline: Timeline) -> Iterator[dict[str, Any]]:
    yield from _names(source, timeline)
    trials = source.run.state.trials
    for span in timeline.spans:
        attempt, variant = _attempt(span, timeline), trials[span.trial].variant
        attempt["args"] |= {"variant": variant} if variant else {}
        yield attempt
    for session in timeline.sessions:
        for name, label in _COUNTERS.items():
            for t, value, _ in timeline.series(name).points(session.number):
                time = _microseconds(timeline, session.number, t)
                yield {"ph": "C", "pid": session.number, "ts": time, "name": label, "args": {label: value}}
    yield from _instants(source, timeline)


def _names(source: Source, timeline: Timeline) -> Iterator[dict[str, Any]]:
    slots = sorted({(span.session, span.slot) for span in timeline.spans})
    for session, times in zip(source.run.state.sessions, timeline.sessions, strict=True):
        shard = f" (shard {session.shard})" if session.shard else ""
        name = f"session {session.number}{shard}: process {session.pid} on {session.host}"
        yield {"ph": "M", "pid": times.number, "name": "process_name", "args": {"name": name}}
        yield {"ph": "M", "pid": times.number, "name": "process_sort_index", "args": {"sort_index": times.number}}
        yield {"ph": "M", "pid": times.number, "tid": _SESSION_THREAD, "name": "thread_name", "args": {"name": "session"}}
    for number, slot in slots:
        thread = {"pid": number, "tid": slot + 1}
        yield {"ph": "M", **thread, "name": "thread_name", "args": {"name": f"slot {slot}"}}
        yield {"ph": "M", **thread, "name": "thread_sort_index", "args": {"sort_index": slot + 1}}


def _attempt(span: Span, timeline: Timeline) -> dict[str, Any]:
    start = _microseconds(timeline, span.session, span.start)
    return {
        "ph": "X",
        "pid": span.session,
        "tid": span.slot + 1,
        "ts": start,
        "dur": _microseconds(timeline, span.session, span.end) - start,
        "name": span.trial if span.attempt == 1 else f"{span.trial} (attempt {span.attempt})",
        "cat": span.outcome or "open",
        "args": {"trial": span.trial, "attempt": span.attempt, "outcome": span.outcome or None, "seq": span.seq},
    }


def _instants(source: Source, timeline: Timeline) -> Iterator[dict[str, Any]]:
    session = 0
    threads: dict[str, int] = {}
    """Trial → thread of its last attempt."""
    for record in source.records():
        event = record.event
        thread = _SESSION_THREAD
        match event:
            case events.SessionStarted():
                session += 1
                threads.clear()
                continue
            case events.AttemptStarted():
                threads[event.trial] = event.slot + 1
                continue
            case events.LimitChanged() | events.PaceChanged():
                kind = "limit" if isinstance(event, events.LimitChanged) else "pace"
                name = f"{kind} {event.before} → {event.after}: {event.reason}"
                args: dict[str, Any] = {"reason": event.reason, "evidence": event.evidence, "key": event.key}
            case events.IntakePaused():
                name = f"starts paused: {event.reason}"
                args = {"seconds": event.until - record.t, "evidence": event.evidence, "key": event.key}
            case events.IntakeResumed():
                name = f"starts resumed after pause: {event.reason}"
                args = {"evidence": event.evidence, "key": event.key}
            case events.RetryScheduled():
                name, thread = f"retry of {event.trial}: {event.reason}", threads.get(event.trial, _SESSION_THREAD)
                args = {"trial": event.trial, "attempt": event.attempt, "delay": event.delay}
            case _:
                continue
        yield {
            "ph": "i",
            "pid": session,
            "tid": thread,
            "ts": _microseconds(timeline, session, record.t),
            "s": "p" if thread == _SESSION_THREAD else "t",
            "name": name,
            "args": args | {"seq": record.seq},
        }


def _microseconds(timeline: Timeline, session: int, t: float) -> int:
    """Return a time in microseconds, on one axis for all sessions."""
    return round((timeline.sessions[session - 1].offset + t) * 1_000_000)
