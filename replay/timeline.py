"""The concurrency history of a run: who held which slot when, and what everyone else was waiting for.

A `Timeline` takes one record after the other, as `RunState` does. Everything that it knows is exact: an attempt is a span, and
what changes is a step function that changes where a record, or a time that a record named, says so. Seconds are those of `t`,
which begin anew with each session; `offset` puts the sessions on one axis, with the time between them as a gap. Millions of
events must fit into memory, so numbers are kept in arrays, and made into objects only for those who look.
"""

import heapq
import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, get_args, overload

import attrs

from journal import Event, Record
from journal.events import (
    SCORER_PREFIX,
    AttemptFailed,
    AttemptInterrupted,
    AttemptStarted,
    AttemptSucceeded,
    AttemptTimedOut,
    Extension,
    IntakePaused,
    IntakeResumed,
    JournalRecovered,
    JournalSalvaged,
    LimitChanged,
    PaceChanged,
    RetryScheduled,
    RunStarted,
    SegmentOpened,
    SegmentSealed,
    SessionStarted,
    TrialCompleted,
    TrialEnqueued,
    TrialFailed,
    TrialWithdrawn,
)
from replay.intake import PROBING

Name = Literal["in_flight", "queued", "backing_off", "paused", "limit", "pace"]
"""What there is a step function of; the pace is in thousandths of a start per second, and 0 where starts are not paced."""

Step = tuple[float, int, int]
"""A moment, the value from then on, and the last record that had happened by then."""

ENDINGS: Final = ("", "succeeded", "failed", "rate_limited", "unavailable", "fatal", "timed_out", "interrupted")
"""How an attempt can have ended; empty while it is open. A category of failure is told by its name, `error` as `failed`."""

_NUMBER: Final = {ending: number for number, ending in enumerate(ENDINGS)}


class Span(NamedTuple):
    """One attempt, from its start to its end."""

    trial: str
    attempt: int
    slot: int
    session: int
    """From 1; the attempt lies in it from beginning to end."""
    start: float
    """In the seconds of `t` of that session, as is `end`."""
    end: float
    """While it is open: the last moment that is known of. If its process died, that was the last of the session."""
    ending: str
    """One of `ENDINGS`."""
    seq: int
    """The record that began it."""
    end_seq: int
    """The record that ended it; 0 while it is open."""


@attrs.frozen
class Times:
    """How a trial spent its time, in seconds; the time between two sessions counts for nothing."""

    waited: float
    """Ready, and waiting for a slot, for the end of a pause, or for its turn."""
    backed_off: float
    """Waiting for the delay before another attempt to pass."""
    served: float
    """In a slot, over all attempts, those that failed included."""
    scored: float
    """From the output to the last score."""
    attempts: int


@attrs.define
class SessionTime:
    """When a process life of the run was."""

    n: int
    """From 1."""
    seq: int
    at: str
    """Wall time of its first record."""
    start: float
    """When its first record was written, in the seconds of its own `t`."""
    end: float
    """When its last one was."""
    offset: float
    """Seconds by the wall clock from where the first session's `t` is 0 to where this one's is; no two ever overlap."""


class Spans(Sequence[Span]):
    """Every attempt, in the order in which they started."""

    def __init__(self) -> None:
        self.trial: list[str] = []
        self.attempt = array("q")
        self.slot = array("q")
        self.session = array("l")
        self.start = array("d")
        self.end = array("d")
        self.ending = bytearray()
        self.seq = array("q")
        self.end_seq = array("q")
        self.now = 0.0
        """The last moment that is known of."""

    def __len__(self) -> int:
        return len(self.seq)

    @overload
    def __getitem__(self, at: int) -> Span: ...
    @overload
    def __getitem__(self, at: slice) -> list[Span]: ...
    def __getitem__(self, at: int | slice) -> Span | list[Span]:
        if isinstance(at, slice):
            return [self[place] for place in range(*at.indices(len(self)))]
        ending = ENDINGS[self.ending[at]]
        return Span(
            trial=self.trial[at],
            attempt=self.attempt[at],
            slot=self.slot[at],
            session=self.session[at],
            start=self.start[at],
            end=self.end[at] if ending else self.now,
            ending=ending,
            seq=self.seq[at],
            end_seq=self.end_seq[at],
        )

    def open(self, trial: str, event: AttemptStarted, session: int, t: float, seq: int) -> None:
        """Let an attempt begin."""
        self.trial.append(trial)
        self.attempt.append(event.attempt)
        self.slot.append(event.slot)
        self.session.append(session)
        self.start.append(t)
        self.end.append(t)
        self.ending.append(0)
        self.seq.append(seq)
        self.end_seq.append(0)

    def close(self, place: int, t: float, ending: str, seq: int) -> None:
        """Let it end."""
        self.ending[place] = _NUMBER[ending]
        self.end[place] = t
        self.end_seq[place] = seq


class _Steps:
    """One step function, over all sessions."""

    def __init__(self) -> None:
        self.t = array("d")
        self.value = array("q")
        self.seq = array("q")
        self.begins: list[int] = []
        """Where each session begins."""
        self.last = 0
        """The value that holds."""

    def put(self, value: int, t: float, seq: int) -> None:
        self.last = value
        self.t.append(t)
        self.value.append(value)
        self.seq.append(seq)

    def of(self, session: int) -> Iterator[Step]:
        end = self.begins[session] if session < len(self.begins) else len(self.t)
        for place in range(self.begins[session - 1], end):
            yield self.t[place], self.value[place], self.seq[place]


# Where a trial stands, as far as its time goes. Numbers, for there may be a million trials.
_IDLE, _QUEUED, _BACKING_OFF, _RUNNING, _ANSWERED = range(5)


class TrialTimes(Mapping[str, Times]):
    """How every trial spent its time so far, in the order in which they were taken in."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        """Trial → its place in the columns."""
        self.names: list[str] = []
        self.stage = bytearray()
        self.since = array("d")
        """When it came into its stage."""
        self.due = array("d")
        """When its delay is over, if it is in backoff."""
        self.span = array("l")
        """Its last attempt; -1 before the first."""
        self.attempts = array("l")
        self.spent = tuple(array("d") for _ in range(5))
        """Stage → seconds spent in it. Those of a trial that is idle mean nothing."""
        self.now = 0.0
        """The last moment that is known of."""

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __getitem__(self, trial: str) -> Times:
        number = self.numbers[trial]
        spent = [column[number] for column in self.spent]
        spent[self.stage[number]] += self.now - self.since[number]
        _, waited, backed_off, served, scored = spent
        return Times(waited, backed_off, served, scored, self.attempts[number])

    def add(self, trial: str) -> int:
        """Make room for a trial that is new."""
        number = self.numbers[trial] = len(self.names)
        self.names.append(trial)
        self.stage.append(_IDLE)
        self.span.append(-1)
        self.attempts.append(0)
        for column in (self.since, self.due, *self.spent):
            column.append(0.0)
        return number


class Timeline:
    """What happened when, as far as the records go."""

    def __init__(self) -> None:
        self.spans = Spans()
        self.sessions: list[SessionTime] = []
        self.times = TrialTimes()
        self.seq = 0
        """The last record that was taken in."""
        self._steps: dict[str, _Steps] = {name: _Steps() for name in get_args(Name)}
        self._in_flight, self._queued, self._backing_off, self._paused, self._limit, self._pace = self._steps.values()
        self._counted = (None, self._queued, self._backing_off, self._in_flight, None)
        """Stage → what counts the trials that stand there."""
        self._limits: dict[str, int] = {}
        self._paces: dict[str, int] = {}
        self._pauses: dict[str, float] = {}
        """Key → when the pause is over; infinite while the circuit breaker is open."""
        self._delays: list[tuple[float, int]] = []
        """When which trial may be tried again, the earliest first; what is no longer true is passed over."""
        self._open: set[int] = set()
        """The trials that are not done."""

    def apply(self, record: Record) -> None:
        """Take in one record."""
        event = record.event
        kind = event.__class__
        if kind is SessionStarted:
            self._begin_session(record)
        elif kind not in OUTSIDE:
            if not self.sessions:
                raise KeyError("a session")
            session = self.sessions[-1]
            t = record.t
            if t > session.end:
                session.end = self.spans.now = self.times.now = t
            else:
                t = session.end  # Time does not go back, whatever is written there.
            if self._pauses or (self._delays and self._delays[0][0] <= t):
                self._pass_time(t)
            meaning = _MEANINGS.get(kind)
            if meaning is not None:
                meaning(self, event, t, record.seq)
        self.seq = record.seq

    def steps(self, name: Name, session: int | None = None) -> list[Step]:
        """Tell how a number changed in one session, in the seconds of its `t`, from what it was when the session began.

        Without a session: in all of them, on one axis; where one ends, everything falls to 0 until the next begins.
        """
        steps = self._steps[name]
        if session is not None:
            if not 1 <= session <= len(self.sessions):
                raise ValueError(f"there is no session {session}; there are {len(self.sessions)}")
            return list(steps.of(session))
        found: list[Step] = []
        for each in self.sessions:
            if found and found[-1][1]:
                before = self.sessions[each.n - 2]
                found.append((before.offset + before.end, 0, each.seq - 1))
            found += ((each.offset + t, value, seq) for t, value, seq in steps.of(each.n))
        return found

    def columns(self, name: Name) -> "tuple[array[float], array[int], list[int]]":
        """Give a step function as it is kept: the moments, the values, and where each session begins in them."""
        steps = self._steps[name]
        return steps.t, steps.value, steps.begins

    def last_span(self, trial: str) -> Span:
        """Tell the last attempt that was made at a trial; there must be one."""
        return self.spans[self.times.span[self.times.numbers[trial]]]

    def _pass_time(self, t: float) -> None:
        """Let happen what was to happen by now without a record: delays and pauses come to their end."""
        while self._delays and self._delays[0][0] <= t:
            due, number = heapq.heappop(self._delays)
            if self.times.stage[number] == _BACKING_OFF and self.times.due[number] == due:
                self._move(number, _QUEUED, due, self.seq)
        for until, key in sorted((until, key) for key, until in self._pauses.items() if until <= t):
            del self._pauses[key]
            self._paused.put(len(self._pauses), until, self.seq)

    def _move(self, number: int, stage: int, t: float, seq: int) -> None:
        """Let a trial go from one stage to another, and count the time that it has spent in the one that it leaves."""
        times = self.times
        before = times.stage[number]
        if before == stage:
            return
        times.spent[before][number] += t - times.since[number]
        times.stage[number] = stage
        times.since[number] = t
        left, entered = self._counted[before], self._counted[stage]
        if left is not None:
            left.put(left.last - 1, t, seq)
        if entered is not None:
            entered.put(entered.last + 1, t, seq)

    def _begin_session(self, record: Record) -> None:
        """Let seconds count anew. Whatever held a slot does so no longer: its process is gone."""
        t, seq = record.t, record.seq
        session = SessionTime(len(self.sessions) + 1, seq, record.at, t, t, 0.0)
        if self.sessions:
            first, before = self.sessions[0], self.sessions[-1]
            apart = _apart(first.at, session.at) + first.start - t
            session.offset = max(apart, before.offset + before.end - t)
            self._take_over(before.end, t, seq)
        self.sessions.append(session)
        self.spans.now = self.times.now = t
        self._limits.clear()
        self._paces.clear()
        self._pauses.clear()
        for steps in self._steps.values():
            steps.begins.append(len(steps.t))
        counts = Counter(self.times.stage[number] for number in self._open)
        self._in_flight.put(0, t, seq)
        self._queued.put(counts[_QUEUED], t, seq)
        self._backing_off.put(counts[_BACKING_OFF], t, seq)
        self._paused.put(0, t, seq)
        self._limit.last = 0  # Not recorded yet.
        if self._pace.last:
            self._pace.put(0, t, seq)

    def _take_over(self, ended: float, t: float, seq: int) -> None:
        """Let every trial that is not done stand where it stood, in the seconds of the session that begins."""
        times, spans = self.times, self.spans
        self._delays.clear()
        for number in self._open:
            stage = times.stage[number]
            times.spent[stage][number] += ended - times.since[number]
            times.since[number] = t
            if stage == _RUNNING:
                spans.close(times.span[number], ended, "interrupted", seq)
                times.stage[number] = _QUEUED
            elif stage == _BACKING_OFF:
                due = times.due[number] = times.due[number] - ended
                if due > t:
                    heapq.heappush(self._delays, (due, number))
                else:
                    times.stage[number] = _QUEUED

    def _trial_enqueued(self, event: TrialEnqueued, t: float, seq: int) -> None:
        number = self.times.numbers.get(event.trial)
        if number is None:
            number = self.times.add(event.trial)
        self._open.add(number)
        self._move(number, _QUEUED, t, seq)

    def _attempt_started(self, event: AttemptStarted, t: float, seq: int) -> None:
        times = self.times
        number = times.numbers[event.trial]
        self._move(number, _RUNNING, t, seq)
        times.span[number] = len(self.spans)
        times.attempts[number] += 1
        self.spans.open(times.names[number], event, len(self.sessions), t, seq)

    def _attempt_succeeded(self, event: AttemptSucceeded, t: float, seq: int) -> None:
        self._end(event.trial, "succeeded", _ANSWERED, t, seq)

    def _attempt_failed(self, event: AttemptFailed, t: float, seq: int) -> None:
        self._end(event.trial, "failed" if event.category == "error" else event.category, _IDLE, t, seq)

    def _attempt_timed_out(self, event: AttemptTimedOut, t: float, seq: int) -> None:
        self._end(event.trial, "timed_out", _IDLE, t, seq)

    def _attempt_interrupted(self, event: AttemptInterrupted, t: float, seq: int) -> None:
        self._end(event.trial, "interrupted", _QUEUED, t, seq)

    def _end(self, trial: str, ending: str, stage: int, t: float, seq: int) -> None:
        times, spans = self.times, self.spans
        number = times.numbers[trial]
        place = times.span[number]
        if times.stage[number] == _RUNNING:
            spans.close(place, t, ending, seq)
            self._move(number, stage, t, seq)
        elif place >= 0 and ending == ENDINGS[spans.ending[place]] == "interrupted":
            spans.end_seq[place] = seq  # It had ended with its process; here somebody says so.
        else:
            raise KeyError(f"an attempt at {trial}")

    def _retry_scheduled(self, event: RetryScheduled, t: float, seq: int) -> None:
        times = self.times
        number = times.numbers[event.trial]
        self._open.add(number)  # It may have been given up before.
        if event.delay > 0:
            due = times.due[number] = t + event.delay
            heapq.heappush(self._delays, (due, number))
            self._move(number, _BACKING_OFF, t, seq)
        else:
            self._move(number, _QUEUED, t, seq)

    def _trial_done(self, event: TrialCompleted | TrialFailed | TrialWithdrawn, t: float, seq: int) -> None:
        number = self.times.numbers[event.trial]
        self._open.discard(number)
        self._move(number, _IDLE, t, seq)

    def _limit_changed(self, event: LimitChanged, t: float, seq: int) -> None:
        if event.key.startswith(SCORER_PREFIX):
            return  # It limits the calls of a scorer, and no attempt.
        self._limits[event.key] = event.after
        self._limit.put(sum(self._limits.values()), t, seq)

    def _pace_changed(self, event: PaceChanged, t: float, seq: int) -> None:
        if event.key.startswith(SCORER_PREFIX):
            return
        self._paces[event.key] = round(1_000 * (event.after or 0.0))
        self._pace.put(sum(self._paces.values()), t, seq)

    def _intake_paused(self, event: IntakePaused, t: float, seq: int) -> None:
        is_open = event.cause in PROBING
        if (is_open or event.until > t) and not event.key.startswith(SCORER_PREFIX):
            self._pauses[event.key] = math.inf if is_open else event.until
            self._say_paused(t, seq)

    def _intake_resumed(self, event: IntakeResumed, t: float, seq: int) -> None:
        self._pauses.pop(event.key, None)
        self._say_paused(t, seq)

    def _say_paused(self, t: float, seq: int) -> None:
        if len(self._pauses) != self._paused.last:
            self._paused.put(len(self._pauses), t, seq)


_MEANINGS: Final[dict[type[Event], Callable[[Timeline, Any, float, int], None]]] = {
    TrialEnqueued: Timeline._trial_enqueued,
    AttemptStarted: Timeline._attempt_started,
    AttemptSucceeded: Timeline._attempt_succeeded,
    AttemptFailed: Timeline._attempt_failed,
    AttemptTimedOut: Timeline._attempt_timed_out,
    AttemptInterrupted: Timeline._attempt_interrupted,
    RetryScheduled: Timeline._retry_scheduled,
    TrialCompleted: Timeline._trial_done,
    TrialFailed: Timeline._trial_done,
    TrialWithdrawn: Timeline._trial_done,
    LimitChanged: Timeline._limit_changed,
    PaceChanged: Timeline._pace_changed,
    IntakePaused: Timeline._intake_paused,
    IntakeResumed: Timeline._intake_resumed,
}

OUTSIDE: Final = frozenset({SegmentOpened, SegmentSealed, JournalRecovered, JournalSalvaged, RunStarted, Extension})
"""What may be recorded between two sessions, when the seconds of the next count already: it has no place on the axis."""


def _apart(before: str, after: str) -> float:
    """Count the seconds between two wall times; 0 where they are none."""
    try:
        return (datetime.fromisoformat(after) - datetime.fromisoformat(before)).total_seconds()
    except (ValueError, TypeError):
        return 0.0
