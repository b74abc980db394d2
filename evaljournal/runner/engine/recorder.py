"""The recorder of a session, its clock, timers and loop, and its end: why it stops early, and whether it is over.

**Record, then act.** An event is appended to the journal and applied to the live state in one call, in this order and with
nothing in between, not even Ctrl-C; so the state in memory is always that of the records, and a later reader of the journal
folds the same. An event that is illegal or cannot be encoded is rejected before anything has changed. What follows from an
event is decided from the state after it. A full disk shows later, because appending does not wait for the disk: the next
append raises a `JournalError`, nothing more is recorded or started, and a resumed session repeats what is not on disk.

**One thread.** Records are appended in the thread of the loop, without locks. Tasks and their threads report through
`RunLoop.call`: calls keep their order, and one wake-up of the loop makes all that are queued.

**Late events.** What a task reports or returns may come at any time, from any thread. `LateRecorder` discards it once the
session is over or the journal has failed: nothing of a session may be written after its last record.

**Time.** Wall time is used for timestamps and for dates in `Retry-After` only; durations and deadlines use the monotonic clock,
from the start of the session. Timers fire late rather than early: a job that starts before its time would break a delay that
was recorded.

**The end.** Only the first reason to stop counts. A stop starts the grace period; after it, the session is over: nothing is
waited for but calls that do not respond, and then the record of the stop is written, as the last one.
"""

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Literal, Protocol

import attrs
import trio

from evaljournal.journal import Event, Journal, Record
from evaljournal.journal.clock import loop_clock, system_clock
from evaljournal.journal.errors import Unserializable
from evaljournal.journal.events import (
    NOTE_PREFIX,
    AttemptInterrupted,
    AttemptReturnedLate,
    Noted,
    RunFinished,
    StepEvent,
    StopReason,
)
from evaljournal.journal.format.codec import Blobs
from evaljournal.replay import RunState
from evaljournal.replay.results.summary import forked_sessions
from evaljournal.runner.calls.notes import REPLY_NOTE, Sink
from evaljournal.runner.data.to_json import to_json
from evaljournal.runner.engine.jobs import Job, TrialWork
from evaljournal.runner.retries.classify import Description, Failure, describe

_MAX_NOTE_NAME: Final = 1_000


class Clock:
    """The clock of a session: `now` in seconds since its start (`t` of a record), and timestamps for records."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self.monotonic = monotonic = loop_clock()
        self.start = start = monotonic()
        """When the session started: `monotonic() - start` is `now()`, without a call, where it is read for every trial."""
        # Read last: a deadline may be late, but a timer must not fire before its time.
        self.trio_start = start if monotonic is not time.perf_counter else trio.current_time()
        """When the session started, in the time of trio's deadlines."""
        self.wall = wall
        self.read = system_clock(monotonic, wall, start=start)  # With the same start as `now`.
        self.now: Callable[[], float] = lambda: monotonic() - start
        """Returns the seconds since the session started."""

    def elapsed(self, since: float) -> float:
        """Return the seconds since a time of this clock, rounded to the microsecond; not below 0: `since` may be rounded up."""
        return max(round(self.monotonic() - self.start - since, 6), 0.0)


class Timer:
    """Calls a function at the earliest of the scheduled times."""

    def __init__(self, clock: Clock, function: Callable[[float], None]) -> None:
        """Call `function` with the scheduled time, even if a rounded clock is slightly behind it."""
        self._clock = clock
        self.now = clock.now
        self._function = function
        self._time = math.inf
        self._reschedule_event = trio.Event()

    def schedule(self, when: float) -> None:
        """Fire at `when`, in the seconds of the session's clock, unless an earlier time is scheduled."""
        if when < self._time:
            self._time = when
            self._reschedule_event.set()

    def schedule_in(self, seconds: float) -> float:
        """Fire after some seconds; return the time."""
        when = self._clock.monotonic() - self._clock.start + seconds
        if when < self._time:
            self.schedule(when)
        return when

    async def run(self) -> None:
        """Wait and fire, until cancelled."""
        while True:
            reschedule_event = self._reschedule_event = trio.Event()
            with trio.CancelScope(deadline=self._clock.trio_start + self._time):
                await reschedule_event.wait()
            if not reschedule_event.is_set():
                time, self._time = self._time, math.inf
                self._function(time)


class RunLoop:
    """The thread and the trio loop of a session."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self.token = trio.lowlevel.current_trio_token()
        self._calls: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        """Calls from other threads."""
        self._is_woken = False
        self._waking = threading.Lock()

    def call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function in the loop's thread, unless the loop has ended; from another thread, soon, in order."""
        if threading.get_ident() == self._thread:
            self.catch_up()  # What is reported here may follow from what a thread has reported.
            function(*arguments)
            return
        self._calls.append((function, arguments))
        with self._waking:  # The wake-up of another thread must be queued before this thread can report its result.
            if not self._is_woken:  # Waking the loop costs more than a call; one wake-up makes all queued calls.
                self._is_woken = True
                with contextlib.suppress(trio.RunFinishedError):
                    self.token.run_sync_soon(self._make_calls)

    def catch_up(self) -> None:
        """Make the calls that wait; those of a thread are there before it reports its result, which may come another way."""
        if self._calls:
            self._make_calls()

    def _make_calls(self) -> None:
        self._is_woken = False  # First: a call that is added from now on wakes the loop again.
        for _ in range(len(self._calls)):
            if self._calls:  # A call may have made those after it.
                function, arguments = self._calls.popleft()
                function(*arguments)


class Shutdown:
    """Whether a session is stopping or over, and why."""

    def __init__(self, now: Callable[[], float], *, grace: float, cancel_timeout: float, on_stop: Callable[[], None]) -> None:
        self._now = now
        self.cancel_timeout = cancel_timeout
        """Seconds that calls get to end after they were cancelled because the session is stopped."""
        self.grace = grace
        """Seconds that calls in flight get once the session is stopped."""
        self._on_stop = on_stop
        self.reason: StopReason | None = None
        """Why the session was stopped; None if it was not."""
        self.detail = ""
        """Details of the reason."""
        self.grace_end = math.inf
        """When calls in flight are cancelled, in the seconds of `t`."""
        self.grace_scope = trio.CancelScope()
        self.is_over = False
        """Whether the session has ended, so that calls in flight are no longer recorded."""
        self._end_event = trio.Event()

    @property
    def is_stopping(self) -> bool:
        """Whether the session is stopped or over."""
        return self.reason is not None or self.is_over

    def stop(self, reason: StopReason, detail: str = "") -> None:
        """Start no more attempts, and give calls in flight their grace period. Only the first reason counts."""
        if self.reason is None and not self.is_over:
            self.reason, self.detail, self.grace_end = reason, detail, self._now() + self.grace
            self._on_stop()

    def stop_after(self, failure: Failure, error: Description) -> None:
        """Stop if every other call would fail in the same way."""
        if failure.stop_reason is not None:
            resets = f"{failure.resets}; " if failure.resets else ""
            self.stop(
                failure.stop_reason, f"{resets}every other call would fail in the same way: {error.type}: {error.message}"
            )

    def interrupt(self) -> None:
        """Stop at the user's request; the second time, end the grace period immediately."""
        if self.reason is None:
            self.stop("interrupted")
        else:
            self.grace_end = min(self.grace_end, self._now())
            self.grace_scope.cancel()

    def end(self) -> None:
        """Mark the session as over."""
        self.is_over = True
        self._end_event.set()

    async def wait_over(self) -> None:
        """Wait until the session is over."""
        await self._end_event.wait()


class Append(Protocol):
    """Appends an event to the journal, and applies it to the state; see `Journal.append`."""

    def __call__(self, event: Event, in_blobs: Blobs | None = None) -> Record:
        """Return the record."""
        ...


class Recorder:
    """Appends events to the journal and keeps the live state."""

    def __init__(
        self, journal: Journal, state: RunState, clock: Clock, listener: Callable[[Record], None] | None = None
    ) -> None:
        """`listener` is called with every record, after it was applied."""
        self.journal = journal
        self.state = state
        self.clock = clock
        self.record: Append = journal.append
        """Records an event: the journal itself applies it, so that nothing comes between the two."""
        apply = state.apply

        def apply_and_inform(record: Record) -> None:
            apply(record)
            if listener is not None:
                listener(record)

        journal.on_append = apply if listener is None else apply_and_inform

    def close_attempts(self) -> None:
        """Record every attempt that was in flight when its process died, or its run was forked, as interrupted.

        Call it after the new session was recorded; the attempts belong to the previous one.
        """
        forked_numbers = forked_sessions(self.state)
        is_forked = any(session.number in forked_numbers for session in self.state.sessions[-2:-1])
        reason: Literal["forked", "process_died"] = "forked" if is_forked else "process_died"
        for trial, running_attempt in list(self.state.trials.running.items()):
            self.record(AttemptInterrupted(trial=trial, attempt=running_attempt.attempt, reason=reason))

    def finish(self) -> None:
        """Record that every trial is done, with the totals."""
        state = self.state
        totals = {"completed": state.completed, "failed": state.failed, "withdrawn": state.totals.stages["withdrawn"]}
        self.record(RunFinished(**totals, head=self.journal.head, elapsed=state.elapsed))


def _unchanged(value: Any) -> Any:
    return value


def _ignore(_: str) -> None:
    pass


@attrs.define(eq=False)
class LateRecorder:
    """Records events that may come at any time, unless the session is over or the journal has failed.

    What `sink` returns may be used from any thread.
    """

    _recorder: Recorder
    _loop: RunLoop
    _shutdown: Shutdown
    mask: Callable[[Any], Any] = _unchanged
    """Returns the JSON value of a note without secrets; set by the assembly."""
    on_record: Callable[[str], None] = _ignore
    """Called with the trial of each of these records; set by the assembly."""

    def record(self, event: Noted | AttemptReturnedLate | AttemptInterrupted | StepEvent) -> None:
        """Record an event, or discard it; call it in the thread of the loop."""
        recorder = self._recorder
        if not self._shutdown.is_over and recorder.journal.failure is None:
            recorder.record(event)
            self.on_record(event.trial)

    def sink(self, work: TrialWork, job: Job | None = None) -> Sink:
        """Return a function that records notes of the attempt or the scorer call in flight.

        With `job`, they are passed on to the gates of its lane.
        """
        return partial(self.note, work.trial, work.state.attempts, job)

    def note(self, trial: str, attempt: int, job: Job | None, values: dict[str, Any]) -> None:
        """Record notes of an attempt, or of the scorer call `job`."""
        self._loop.call(self._note, trial, attempt, job, values)

    def _note(self, trial: str, attempt: int, job: Job | None, values: dict[str, Any]) -> None:
        for name, value in values.items():
            if job is not None:
                for gate in job.lane.gates:
                    gate.noted(job, name, value)
            if name == REPLY_NOTE:
                continue
            note_event = partial(Noted, trial=trial, attempt=attempt)
            try:
                is_json = name.startswith(NOTE_PREFIX)  # The engine's own notes are.
                ((masked_name, masked_value),) = self.mask({name: value if is_json else to_json(value)}).items()
                self.record(note_event(name=masked_name[:_MAX_NOTE_NAME], value=masked_value))
            except (Unserializable, RecursionError) as exc:
                self.record(note_event(name=self.mask(name)[:_MAX_NOTE_NAME], value=describe(exc).message))
