"""The concurrency history of a run: which attempt held which slot when, and how long the other trials waited.

A `Timeline` applies records in order, as `RunState` does, and queries their index. Attempts are spans; counts, limits and paces
are series of points. Times are in seconds of `t`, which restarts with each session; `offset` puts all sessions on one axis,
where sessions of the shards of a merged run may overlap.
"""

import heapq
from collections.abc import Iterator
from functools import cached_property
from itertools import islice
from operator import itemgetter
from typing import Final, Literal, NamedTuple

import attrs

from evaljournal.journal import Record
from evaljournal.replay.index import SERIES, Index, TrialRow
from evaljournal.replay.state.sessions import SessionTime

SeriesName = Literal["in_flight", "queued", "backing_off", "paused", "limit", "pace"]
"""The series; the pace is in starts per 1,000 s, and 0 if starts are not paced."""

Point = tuple[float, int, int]
"""A time, the value from then on, and the record that changed it; if a backoff or pause expired, the last record before."""


class Span(NamedTuple):
    """One attempt, from its start to its end."""

    trial: str
    attempt: int
    slot: int
    """-1 if it uses a line of a batch."""
    session: int
    """Number of its session, from 1."""
    start: float
    """In seconds of `t` of that session, like `end`."""
    end: float
    """While in flight: the time of the last record. After a crash: the end of the session."""
    outcome: str
    """One of `OUTCOMES`."""
    seq: int
    """The record of its start."""
    end_seq: int
    """The record of its end; 0 while in flight."""
    queue_time: float = 0.0
    """Seconds before it that the trial was ready to start."""
    backoff_time: float = 0.0
    """Seconds before it that the trial was in backoff."""
    batch: int = 0
    """The batch whose result it uses; 0: none."""
    line: int = 0


_SPANS: Final = """
    SELECT name, attempts.attempt, slot, session, start, iif(outcome = '', ?, end), outcome, attempts.seq, attempts.end_seq,
        attempts.queue_time, attempts.backoff_time, batch, line
    FROM attempts JOIN trials ON trials.id = trial
    ORDER BY attempts.id
"""


@attrs.frozen
class Times:
    """How a trial spent its time, in seconds; time between sessions does not count."""

    queue_time: float
    """Ready to start."""
    backoff_time: float
    run_time: float
    """In a slot, over all attempts."""
    scoring_time: float
    """From the output to the last score."""
    attempts: int

    @property
    def total(self) -> float:
        """All of its time; once it is done, the time to completion."""
        return round(self.queue_time + self.backoff_time + self.run_time + self.scoring_time, 6)


def times_of(trial: TrialRow, now: float) -> Times:
    seconds = [0.0, trial.queue_time, trial.backoff_time, trial.run_time, trial.scoring_time]
    seconds[trial.phase] += now - trial.phase_start
    _, queue_time, backoff_time, run_time, scoring_time = seconds
    return Times(queue_time, backoff_time, run_time, scoring_time, trial.attempts)


class Timeline:
    def __init__(self, index: Index | None = None) -> None:
        """Query an index of records, or an empty one."""
        self._index = index or Index()

    def apply(self, record: Record) -> None:
        self._index.apply(record)
        for view in ("spans", "times"):
            vars(self).pop(view, None)  # It is computed again when it is read.

    @cached_property
    def spans(self) -> list[Span]:
        """All attempts, in the order of their starts."""
        return list(map(Span._make, self._index.rows(_SPANS, self._index.now)))

    @cached_property
    def times(self) -> dict[str, Times]:
        """How each trial spent its time so far, in the order of enqueueing."""
        rows = (TrialRow(*row) for row in self._index.rows("SELECT * FROM trials ORDER BY id"))
        return {row.name: times_of(row, self._index.now) for row in rows}

    @property
    def seq(self) -> int:
        return self._index.seq

    @property
    def sessions(self) -> list[SessionTime]:
        return self._index.sessions

    def points(self, name: SeriesName, session: int | None = None) -> list[Point]:
        """Return the points of a series for one session, in seconds of its `t`; or for all sessions, on one axis.

        Between two sessions every value is 0; while several overlap, it is their sum.
        """
        if session is not None:
            if not 1 <= session <= len(self.sessions):
                raise ValueError(f"there is no session {session}; there are {len(self.sessions)}")
            return list(points(self._index, name, session))
        return [(t, value, seq) for t, value, seq, _ in sums(self._index, name)]


def points(index: Index, name: SeriesName, session: int, start: int = 0) -> Iterator[Point]:
    """Yield the points of a series in one session, from the row `start` on."""
    if name not in SERIES:
        raise ValueError(f"there is no series {name!r}; there are {', '.join(SERIES)}")
    end = index.session_points[session] if session < len(index.session_points) else index.point_count
    first = max(index.session_points[session - 1], start - 1)
    rows = zip(*(index.log("points", column, first) for column in ("t", name, "seq")), strict=True)
    previous_value = None
    for number, (t, value, seq) in enumerate(islice(rows, end - first), first):
        if value != previous_value and number >= start:
            yield t, value, seq
        previous_value = value


def sums(index: Index, name: SeriesName) -> Iterator[tuple[float, int, int, int]]:
    """Yield the sum of a series over all sessions at each time, and the record and the session that changed it."""
    total, changes = 0, [_changes(index, name, session) for session in index.sessions]
    for t, change, seq, session in heapq.merge(*changes, key=itemgetter(0)):
        total += change
        yield t, total, seq, session


def _changes(index: Index, name: SeriesName, session: SessionTime) -> Iterator[tuple[float, int, int, int]]:
    """Yield time on the axis, difference, record and session of each change; the value returns to 0 when a session ends."""
    value = 0
    for t, new_value, seq in points(index, name, session.number):
        yield session.offset + t, new_value - value, seq, session.number
        value = new_value
    if not value or (session is index.sessions[-1] and not session.shard):
        return  # The last session may still be running.
    end = index.sessions[session.number].seq - 1 if session.number < len(index.sessions) else index.seq
    yield session.offset + session.end, -value, end, session.number
