"""A run of an agent with durable steps: reused, failed, nested and diverging ones, in two sessions."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from evaljournal.journal import Event
from evaljournal.journal.events import (
    AttemptFailed,
    AttemptInterrupted,
    AttemptStarted,
    AttemptSucceeded,
    Noted,
    RetryScheduled,
    StepCompleted,
    StepFailed,
    StepReused,
    TrialCompleted,
    TrialScored,
)
from tests.journal.samples import session, started, write_sync
from tests.replay.eventful_run import minute_clock
from tests.replay.trial_events import enqueued

MODEL: Final = "chat.completions gpt-5-mini"
QUESTION: Final = "How warm is <b>Lima</b>?"
ANSWER: Final = "It is 21 °C in Lima."
SYSTEM: Final = {"role": "system", "content": "Use the tools."}
CALL: Final = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Lima"}'}}
TOOL_REPLY: Final = {"role": "tool", "tool_call_id": "call_1", "content": '{"celsius":21}'}
USAGE: Final = {"input_tokens": 100, "output_tokens": 20, "cost": 0.25}
TOOLS: Final = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}]


def request(*messages: Any) -> dict[str, Any]:
    """Return the request of a chat completion."""
    return {"model": "gpt-5-mini", "messages": list(messages), "temperature": 0.5, "tools": TOOLS}


def reply(**message: Any) -> dict[str, Any]:
    """Return the recorded reply of a chat completion."""
    reason = "tool_calls" if "tool_calls" in message else "stop"
    choice = {"index": 0, "finish_reason": reason, "message": {"role": "assistant", "content": None, **message}}
    body = {"id": "chatcmpl-1", "object": "chat.completion", "model": "gpt-5-mini-2025", "choices": [choice]}
    return {"status": 200, "content_type": "application/json", "body": body}


def completed(trial: str, attempt: int, number: int, name: str, **fields: Any) -> StepCompleted:
    """Return a completed step."""
    return StepCompleted(
        trial=trial, attempt=attempt, step=number, name=name, **{"fingerprint": f"f-{number}", "elapsed": 0.001, **fields}
    )


def first_session() -> Iterator[Event]:
    """Return the events before the process died; records 6, 7 and 22 to 24 are completed steps."""
    user = {"role": "user", "content": QUESTION}
    yield from (started(), session(1), enqueued("weather"), AttemptStarted(trial="weather", attempt=1, slot=0))
    first = reply(tool_calls=[CALL])
    yield completed("weather", 1, 1, MODEL, kind="model", input=request(SYSTEM, user), output=first, usage=USAGE)
    yield completed("weather", 1, 2, "get_weather", kind="tool", input={"city": "Lima"}, output={"celsius": 21})
    tail = {**request(first["body"]["choices"][0]["message"], TOOL_REPLY), "tools": []}
    yield StepFailed(
        trial="weather",
        attempt=1,
        step=3,
        name=MODEL,
        kind="model",
        fingerprint="f-3",
        input=tail,
        error="BadStatus",
        message="429 Too Many Requests",
        elapsed=0.001,
        continues=1,
    )
    yield AttemptFailed(
        trial="weather", attempt=1, error="BadStatus", message="429", category="rate_limited", retry_after=1.0, elapsed=0.004
    )
    yield RetryScheduled(trial="weather", attempt=2, delay=0.001, reason="rate_limited")
    yield AttemptStarted(trial="weather", attempt=2, slot=0, reuses=1, spent=0.004)
    yield StepReused(trial="weather", attempt=2, step=1, completed_seq=6)
    yield StepReused(trial="weather", attempt=2, step=2, completed_seq=7)
    yield completed("weather", 2, 3, MODEL, kind="model", input=tail, output=reply(content=ANSWER), usage=USAGE, continues=1)
    yield completed("weather", 2, 5, "units", kind="tool", input={"of": "°C"}, output="Celsius", parent=4, reusable=False)
    yield completed("weather", 2, 4, "check", input={"answer": ANSWER}, output=True, elapsed=0.002)
    yield AttemptSucceeded(trial="weather", attempt=2, output=ANSWER, elapsed=0.006)
    yield TrialScored(trial="weather", scorer="exact", version="v1", value=True, elapsed=0.0)
    yield TrialCompleted(trial="weather", attempts=2)
    yield from (enqueued("route"), AttemptStarted(trial="route", attempt=1, slot=0))
    yield completed("route", 1, 1, "plan", input={"to": "Cusco"}, output=["go"], usage=USAGE)
    yield completed("route", 1, 2, "walk", kind="tool", input={"steps": 1}, output="tired", usage=USAGE)
    yield completed("route", 1, 3, "rest", kind="tool", input={}, output=None, reusable=False)


def second_session() -> Iterator[Event]:
    """Return the events after the resume, until the run was killed again."""
    yield from (session(2), AttemptInterrupted(trial="route", attempt=1, reason="process_died"))
    yield AttemptStarted(trial="route", attempt=2, slot=0, reuses=1, spent=0.004)
    problem = "blobs/ab/cd is missing"
    yield Noted(name="evaljournal.step_not_reused", value={"step": "walk", "problem": problem}, trial="route", attempt=2)
    yield StepReused(trial="route", attempt=2, step=1, completed_seq=22)
    yield completed("route", 2, 2, "walk", kind="tool", input={"steps": 2}, output="very tired", usage=USAGE)


def agent_run(path: Path) -> Path:
    """Write the run; return its path."""
    write_sync(path, list(first_session()), clock=minute_clock(0))
    write_sync(path, list(second_session()), new=False, clock=minute_clock(10))
    return path


def nested_run(path: Path) -> Path:
    """Write a run whose second attempt reuses a step that contains others; return its path."""
    events: list[Event] = [started(), session(1), enqueued("a"), AttemptStarted(trial="a", attempt=1, slot=0)]
    events += [completed("a", 1, 3, "inner", output=3, parent=2), completed("a", 1, 2, "middle", output=2, parent=1)]
    events += [completed("a", 1, 1, "outer", output=1), AttemptInterrupted(trial="a", attempt=1, reason="stopped")]
    events += [AttemptStarted(trial="a", attempt=2, slot=0, reuses=1)]
    events += [StepReused(trial="a", attempt=2, step=1, completed_seq=8)]
    write_sync(path, [*events, completed("a", 2, 2, "next", output=4)])
    return path
