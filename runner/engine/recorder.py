"""The recorder of a session, and its clock.

An event is appended to the journal and applied to the live state in one step, so the two cannot differ. Wall time is only
displayed; durations are measured with the monotonic clock.
"""

import time
from collections.abc import Callable
from typing import Literal

import trio

from journal import Event, Journal, Record
from journal.clock import system_clock
from journal.events import AttemptInterrupted, RunFinished
from replay import RunState
from replay.summary import forked_sessions


class Clock:
    """The clock of a session: `now` in the seconds of `t`, and time stamps for records."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._time = trio.lowlevel.current_clock().current_time  # Cheaper than `trio.current_time`.
        self.began = self._time()
        self.wall = wall
        self.read = system_clock(self._time, wall)

    def now(self) -> float:
        """Return the seconds since the session started."""
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
        """Record every attempt that was in flight when its process died, or its run was forked, as interrupted.

        It is called after the new session was recorded; the attempts belong to the one before.
        """
        before, forked = self.state.sessions[-2:-1], forked_sessions(self.state)
        why: Literal["forked", "process_died"] = "forked" if any(session.n in forked for session in before) else "process_died"
        for trial, state in list(self.state.running.items()):
            self.record(AttemptInterrupted(trial=trial, attempt=state.attempts, why=why))

    def finish(self) -> None:
        """Record that every trial is done, with the totals."""
        state = self.state
        totals = {"completed": state.completed, "failed": state.failed, "withdrawn": state.stages["withdrawn"]}
        self.record(RunFinished(**totals, head=self.journal.head))
