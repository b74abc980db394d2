"""Where a fact enters the journal, and the one place that reads the clock of a run.

A recorder appends an event and applies it to the live state in one step, so the state is never anything but what the journal
says. Wall time is for people; durations are measured by the monotonic clock, so that a step of the wall clock cannot bend them.
"""

import time
from collections.abc import Callable
from typing import Final, Literal

import trio

from journal import Event, Journal, Record, Stamp
from journal.events import AttemptInterrupted, RunFinished
from replay import RunState
from replay.summary import forked_sessions

_DIGITS: Final = tuple(f"{number:03}" for number in range(1000))
"""To fill a number up with zeros costs more than all the rest of a stamp."""


def stamps(monotonic: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time) -> Stamp:
    """Give the records of a session their times; `t` counts from this call."""
    began = monotonic()
    since, until, text = 0.0, 0.0, ""

    def stamp() -> tuple[str, float]:
        nonlocal since, until, text
        now = wall()
        if not since <= now < until:  # The text of a second serves all records of that second.
            since = now // 1
            until, text = since + 1, time.strftime("%Y-%m-%dT%H:%M:%S.", time.gmtime(since))
        thousands, rest = divmod(int((now - since) * 1_000_000), 1000)
        return f"{text}{_DIGITS[thousands]}{_DIGITS[rest]}Z", monotonic() - began

    return stamp


class Clock:
    """The time of a session: `now` in the seconds of `t`, and the stamps that go with it."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._time = trio.lowlevel.current_clock().current_time  # What `trio.current_time` looks up each time.
        self.began = self._time()
        self.wall = wall
        self.stamp = stamps(self._time, wall)

    def now(self) -> float:
        """Seconds since the session began."""
        return self._time() - self.began


class Recorder:
    """Appends events to the journal and keeps the live state."""

    def __init__(
        self, journal: Journal, state: RunState, clock: Clock, listener: Callable[[Record], None] | None = None
    ) -> None:
        self.journal = journal
        self.state = state
        self.clock = clock
        self._listener = listener

    def record(self, event: Event, when: float | None = None) -> Record:
        """Append an event to the journal, then apply it to the state; `when` is its time, if it is not now."""
        record = self.journal.append(event, when)
        self.state.apply(record)
        if self._listener is not None:
            self._listener(record)
        return record

    def close_attempts(self) -> None:
        """Say of every attempt that was in the air when its process died, or its run was forked, that this is how it ended.

        The session that says so has begun; they are of the one before.
        """
        before, forked = self.state.sessions[-2:-1], forked_sessions(self.state)
        why: Literal["forked", "process_died"] = "forked" if any(session.n in forked for session in before) else "process_died"
        for trial, known in list(self.state.running.items()):
            self.record(AttemptInterrupted(trial=trial, attempt=known.attempts, why=why))

    def finish(self) -> None:
        """Say that every trial has come to its end, and how many have come to which."""
        state = self.state
        ended = {"completed": state.completed, "failed": state.failed, "withdrawn": state.stages["withdrawn"]}
        self.record(RunFinished(**ended, head=self.journal.head))
