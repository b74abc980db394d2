"""The concurrency history of a run: which attempt held which slot when, and how long the other trials waited.

A `Timeline` applies records in order, as `RunState` does. Attempts are spans; counts, limits and paces are series of points.
Times are in seconds of `t`, which restarts with each session; `offset` puts all sessions on one axis, where sessions of the
shards of a merged run may overlap.
"""

import heapq
import math
from collections import Counter
from collections.abc import Iterator
from operator import itemgetter
from typing import Final, Literal, get_args

from evaljournal.journal import Record, events
from evaljournal.replay.runs.scratch import Scratch
from evaljournal.replay.runs.timeline_columns import (
    BACKING_OFF,
    IDLE,
    OUTCOMES,
    QUEUED,
    RUNNING,
    SCORING,
    Point,
    Series,
    SessionTime,
    Span,
    Spans,
    TrialTimes,
)
from evaljournal.replay.state.handlers import handlers
from evaljournal.replay.state.pauses import BREAKER_REASONS
from evaljournal.replay.state.sessions import seconds_between
from evaljournal.replay.state.shards import MergedShards

SeriesName = Literal["in_flight", "queued", "backing_off", "paused", "limit", "pace"]
"""The series; the pace is in starts per 1,000 s, and 0 if starts are not paced."""

_MAX_VALUE: Final = 1 << 62
"""Maximum limit and pace; a forged one must fit into a column of 64 bits."""
_TRIM_INTERVAL: Final = 4_096
"""Records between two moves of columns to disk."""


class Timeline:
    """The concurrency history up to some record."""

    def __init__(self, scratch: Scratch | None = None) -> None:
        """Keep the columns in `scratch`, and trim it."""
        self._scratch = scratch = scratch or Scratch()
        self.sessions: list[SessionTime] = []
        self.times = TrialTimes(scratch)
        self.spans = Spans(self.times.names, scratch)
        self.seq = 0
        self._series: dict[str, Series] = {name: Series(scratch) for name in get_args(SeriesName)}
        self._in_flight, self._queue, self._backing_off, self._paused_keys, self._limit, self._pace = self._series.values()
        self._counts = (None, self._queue, self._backing_off, self._in_flight, None)
        """Stage → the series that counts its trials."""
        self._limits: dict[str, int] = {}
        self._paces: dict[str, int] = {}
        self._pauses: dict[str, float] = {}
        """Rate-limit key → end of its pause; infinite while the circuit breaker is open."""
        self._backoff_ends: list[tuple[float, int]] = []
        """Heap of the end of each backoff and its trial; outdated entries are skipped."""
        self._shards = MergedShards()
        self._merged_start = "", 0.0
        """Wall time and `t` of the start of a merged run; its axis begins where that `t` is 0."""
        self._open: set[int] = set()
        """Trials that are not done."""
        self._stages_in_other_shards: dict[int, int] = {}
        """Open trials of the shards before the current one, with their stages; the merged run continues them."""

    def apply(self, record: Record) -> None:
        """Update the timeline with the next record."""
        event = record.event
        kind = event.__class__
        if kind is events.SessionStarted:
            self._begin_session(record)
        elif isinstance(event, events.RunStarted):
            self._shards, self._merged_start = MergedShards(event), (record.at, record.t)
        elif kind not in BETWEEN_SESSIONS:
            if not self.sessions:
                raise KeyError("a session")
            session = self.sessions[-1]
            t = record.t
            if t > session.end:
                session.end = self.spans.now = self.times.now = t
            else:
                t = session.end  # `t` of a foreign record may decrease.
            if self._pauses or (self._backoff_ends and self._backoff_ends[0][0] <= t):
                self._pass_time(t)
            handler = _HANDLERS.get(kind)
            if handler is not None:
                handler(self, event, t, record.seq)
        self.seq = record.seq
        if not self.seq % _TRIM_INTERVAL:
            self._scratch.trim()

    def points(self, name: SeriesName, session: int | None = None) -> list[Point]:
        """Return the points of a series for one session, in seconds of its `t`; or for all sessions, on one axis.

        Between two sessions every value is 0; while sessions of several shards overlap, it is their sum.
        """
        series = self._series[name]
        if session is not None:
            if not 1 <= session <= len(self.sessions):
                raise ValueError(f"there is no session {session}; there are {len(self.sessions)}")
            return list(series.points(session))
        if self._shards:
            return [(t, value, seq) for t, value, seq, _ in self.sums(name)]
        points: list[Point] = []
        for session_time in self.sessions:
            if points and points[-1][1]:
                previous_session = self.sessions[session_time.number - 2]
                points.append((previous_session.offset + previous_session.end, 0, session_time.seq - 1))
            points += ((session_time.offset + t, value, seq) for t, value, seq in series.points(session_time.number))
        return points

    @property
    def is_merged(self) -> bool:
        """Whether the run was merged from shards, so that sessions may overlap."""
        return bool(self._shards)

    def sums(self, name: SeriesName) -> Iterator[tuple[float, int, int, int]]:
        """Yield the sum of a series over all sessions at each time, and the record and the session that changed it."""
        total, changes = 0, [self._changes(name, session) for session in self.sessions]
        for t, change, seq, session in heapq.merge(*changes, key=itemgetter(0)):
            total += change
            yield t, total, seq, session

    def _changes(self, name: SeriesName, session: SessionTime) -> Iterator[tuple[float, int, int, int]]:
        """Yield time on the axis, difference, record and session of each change; the value returns to 0 when a session ends."""
        value = 0
        for t, new_value, seq in self._series[name].points(session.number):
            yield session.offset + t, new_value - value, seq, session.number
            value = new_value
        if session is self.sessions[-1] and not session.shard:
            return  # It is the last session and may still be running.
        end = self.sessions[session.number].seq - 1 if session.number < len(self.sessions) else self.seq
        yield session.offset + session.end, -value, end, session.number

    def series(self, name: SeriesName) -> Series:
        """Return a series, which can be read in parts."""
        return self._series[name]

    def attempts(self, trial: str) -> list[Span]:
        """Return the attempts of a trial, in order."""
        index, spans = self.times.span[self.times.numbers[trial]], list[Span]()
        while index >= 0:
            spans.append(self.spans[index])
            index = self.spans.previous_index[index]
        return spans[::-1]

    def _pass_time(self, t: float) -> None:
        """End the backoffs and pauses that have expired."""
        while self._backoff_ends and self._backoff_ends[0][0] <= t:
            end, number = heapq.heappop(self._backoff_ends)
            if self.times.stage[number] == BACKING_OFF and self.times.backoff_end[number] == end:
                self._move(number, QUEUED, end, self.seq)
        for end, key in sorted((end, key) for key, end in self._pauses.items() if end <= t):
            del self._pauses[key]
            self._paused_keys.put(len(self._pauses), end, self.seq)

    def _move(self, number: int, stage: int, t: float, seq: int) -> None:
        """Move a trial to another stage, and add up the time in its old stage."""
        times = self.times
        old_stage = times.stage[number]
        if old_stage == stage:
            return
        if old_stage != IDLE:
            times.stage_seconds[old_stage][number] += t - times.stage_start[number]
        times.stage[number] = stage
        times.stage_start[number] = t
        old_count, new_count = self._counts[old_stage], self._counts[stage]
        if old_count is not None:
            old_count.put(old_count.current_value - 1, t, seq)
        if new_count is not None:
            new_count.put(new_count.current_value + 1, t, seq)

    def _begin_session(self, record: Record) -> None:
        """Start a session: `t` restarts, and attempts in flight ended with their process."""
        t, seq = record.t, record.seq
        session = SessionTime(len(self.sessions) + 1, seq, record.at, t, t, 0.0)
        if self.sessions:
            first_session, last_session = self.sessions[0], self.sessions[-1]
            elapsed = seconds_between(first_session.at, session.at) + first_session.start - t
            session.offset = max(elapsed, last_session.offset + last_session.end - t)
            self._carry_over(last_session.end, t, seq)
        if self._shards:
            session.shard = str(self._shards.of_session(session.number) or "")
            session.offset = self._merged_offset(session)
            if self._shards.is_first(session.number):
                self._set_aside_open_trials(session)
        self.sessions.append(session)
        self.spans.now = self.times.now = t
        self._limits.clear()
        self._paces.clear()
        self._pauses.clear()
        for series in self._series.values():
            series.starts.append(len(series.t))
        counts = Counter(self.times.stage[number] for number in self._open)
        self._in_flight.put(0, t, seq)
        self._queue.put(counts[QUEUED], t, seq)
        self._backing_off.put(counts[BACKING_OFF], t, seq)
        self._paused_keys.put(0, t, seq)
        self._limit.current_value = 0  # Not recorded yet.
        if self._pace.current_value:
            self._pace.put(0, t, seq)

    def _merged_offset(self, session: SessionTime) -> float:
        """Return the offset of a session of a merged run: from its wall time, but after the previous session of its shard.

        The sessions of the merged run itself follow all shards.
        """
        start_at, t = self._merged_start
        offset = seconds_between(start_at, session.at) + t - session.start
        if session.shard and self._shards.is_first(session.number):
            return offset
        earlier_sessions = self.sessions[-1:] if session.shard else self.sessions
        ends = [earlier_session.offset + earlier_session.end for earlier_session in earlier_sessions]
        return max([offset, *(end - session.start for end in ends)])

    def _set_aside_open_trials(self, session: SessionTime) -> None:
        """Set the open trials of a shard aside until the merged run itself continues them."""
        times = self.times
        for number in self._open:
            self._stages_in_other_shards[number] = times.stage[number]
            times.stage[number] = IDLE
        self._open.clear()
        self._backoff_ends.clear()
        if not session.shard:
            for number, stage in self._stages_in_other_shards.items():
                self._open.add(number)
                times.stage[number], times.stage_start[number] = stage, session.start
                if stage == BACKING_OFF:
                    heapq.heappush(self._backoff_ends, (times.backoff_end[number], number))
            self._stages_in_other_shards.clear()

    def _carry_over(self, end: float, t: float, seq: int) -> None:
        """Keep the stages of open trials in a new session that starts at `t`; the previous session ended at `end`."""
        times, spans = self.times, self.spans
        self._backoff_ends.clear()
        for number in self._open:
            stage = times.stage[number]
            times.stage_seconds[stage][number] += end - times.stage_start[number]
            times.stage_start[number] = t
            if stage == RUNNING:
                spans.end_attempt(times.span[number], end, "interrupted", seq)
                times.stage[number] = QUEUED
            elif stage == BACKING_OFF:
                backoff_end = times.backoff_end[number] = times.backoff_end[number] - end
                if backoff_end > t:
                    heapq.heappush(self._backoff_ends, (backoff_end, number))
                else:
                    times.stage[number] = QUEUED

    def _on_trial_enqueued(self, event: events.TrialEnqueued, t: float, seq: int) -> None:
        number = self.times.numbers.get(event.trial)
        if number is None:
            number = self.times.add(event.trial)
        self._open.add(number)
        self._move(number, QUEUED, t, seq)

    def _on_attempt_started(self, event: events.AttemptStarted, t: float, seq: int) -> None:
        times, spans = self.times, self.spans
        number = times.numbers[event.trial]
        self._move(number, RUNNING, t, seq)
        spans.previous_index.append(times.span[number])
        spans.queue_time.append(times.stage_seconds[QUEUED][number])
        spans.backoff_time.append(times.stage_seconds[BACKING_OFF][number])
        times.span[number] = len(spans)
        times.attempts[number] += 1
        spans.start_attempt(number, event, len(self.sessions), t, seq)

    def _on_attempt_succeeded(self, event: events.AttemptSucceeded, t: float, seq: int) -> None:
        self._end(event.trial, "succeeded", SCORING, t, seq)

    def _on_attempt_failed(self, event: events.AttemptFailed, t: float, seq: int) -> None:
        self._end(event.trial, "failed" if event.category in ("error", "parse_error") else event.category, IDLE, t, seq)

    def _on_attempt_timed_out(self, event: events.AttemptTimedOut, t: float, seq: int) -> None:
        self._end(event.trial, "timed_out", IDLE, t, seq)

    def _on_attempt_interrupted(self, event: events.AttemptInterrupted, t: float, seq: int) -> None:
        self._end(event.trial, "interrupted", QUEUED, t, seq)

    def _end(self, trial: str, outcome: str, stage: int, t: float, seq: int) -> None:
        times, spans = self.times, self.spans
        number = times.numbers[trial]
        index = times.span[number]
        if times.stage[number] == RUNNING:
            spans.end_attempt(index, t, outcome, seq)
            self._move(number, stage, t, seq)
        elif index >= 0 and outcome == OUTCOMES[spans.outcome[index]] == "interrupted":
            spans.end_seq[index] = seq  # It ended with its process; this is the record of its end.
        else:
            raise KeyError(f"an attempt at {trial}")

    def _on_retry_scheduled(self, event: events.RetryScheduled, t: float, seq: int) -> None:
        times = self.times
        number = times.numbers[event.trial]
        self._open.add(number)  # It may have failed before.
        if event.delay > 0:
            backoff_end = times.backoff_end[number] = t + event.delay
            heapq.heappush(self._backoff_ends, (backoff_end, number))
        self._move(number, BACKING_OFF if event.delay > 0 else QUEUED, t, seq)

    def _on_trial_completed(
        self, event: events.TrialCompleted | events.TrialFailed | events.TrialWithdrawn, t: float, seq: int
    ) -> None:
        number = self.times.numbers[event.trial]
        self._open.discard(number)
        self._move(number, IDLE, t, seq)

    _on_trial_failed = _on_trial_withdrawn = _on_trial_completed

    def _on_limit_changed(self, event: events.LimitChanged, t: float, seq: int) -> None:
        if event.key.startswith(events.SCORER_PREFIX):
            return  # It limits scorer calls, not attempts.
        self._limits[event.key] = event.after
        self._limit.put(_clamp(sum(self._limits.values())), t, seq)

    def _on_pace_changed(self, event: events.PaceChanged, t: float, seq: int) -> None:
        if event.key.startswith(events.SCORER_PREFIX):
            return
        self._paces[event.key] = _clamp(1_000 * (event.after or 0.0))
        self._pace.put(_clamp(sum(self._paces.values())), t, seq)

    def _on_intake_paused(self, event: events.IntakePaused, t: float, seq: int) -> None:
        is_open = event.reason in BREAKER_REASONS
        if (is_open or event.until > t) and not event.key.startswith(events.SCORER_PREFIX):
            self._pauses[event.key] = math.inf if is_open else event.until
            self._count_paused(t, seq)

    def _on_intake_resumed(self, event: events.IntakeResumed, t: float, seq: int) -> None:
        self._pauses.pop(event.key, None)
        self._count_paused(t, seq)

    def _count_paused(self, t: float, seq: int) -> None:
        if len(self._pauses) != self._paused_keys.current_value:
            self._paused_keys.put(len(self._pauses), t, seq)


_HANDLERS: Final = handlers(Timeline)
_RUN_EVENTS = (events.JournalRecovered, events.JournalSalvaged, events.RunStarted, events.Extension)
BETWEEN_SESSIONS: Final = frozenset({*get_args(events.FileEvent), *_RUN_EVENTS})
"""Events that may be recorded outside a session; they have no position on the axis."""


def _clamp(number: float) -> int:
    return round(max(-_MAX_VALUE, min(number, _MAX_VALUE)))
