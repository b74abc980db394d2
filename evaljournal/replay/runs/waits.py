"""Why the attempts and scorer calls of one trial waited before they started.

A `WaitLog` watches the state of a run that is loaded, before and after each record. The time between two records is attributed
to the reason that delayed starts then: a pause, the concurrency limit, the pace, a known rate limit, outputs that wait for
scorers, or the same error of all trials. Backoff is not included; it is recorded separately.
"""

from collections.abc import Iterator
from typing import Final

import attrs

from evaljournal.journal.events import (
    AttemptStarted,
    AttemptSucceeded,
    Record,
    ScorerCallFailed,
    ScorerCallStarted,
    SessionStarted,
)
from evaljournal.replay.runs.idle import limit_text, limit_use, pace_text
from evaljournal.replay.state.run import RunState
from evaljournal.replay.text import rate_limit_text

_ATTEMPT, _FIRST_CALLS = "", "*"
"""Names of waits: the next attempt; the first call of every scorer. A retried scorer call has the name of its scorer."""
_MIN_WAIT: Final = 1e-6
"""Shorter times, in seconds, are not a wait."""


@attrs.frozen
class Wait:
    """Time that a start was delayed for one reason."""

    reason: str
    """`scorers`, `same_error`, `pause`, `limit`, `pace` or `rate_limit`."""
    seconds: float
    text: str
    """The reason as text: `pace: 4.2 starts/s`, `Retry-After`, `all 16 slots busy`."""


class WaitLog:
    """The waits of one trial.

    For each record, call `before`, apply it to the state, and call `after`.
    """

    def __init__(self, trial: str, state: RunState) -> None:
        self._trial = trial
        self._state = state
        self._t = 0.0
        self._ready_times: dict[str, float] = {}
        """Name of a wait → when the start is or will be ready, in seconds since the start of the session."""
        self._waits: dict[str, dict[tuple[str, str], Wait]] = {}
        """Name of a wait → rate-limit key and reason → the time so far."""

    def before(self, record: Record) -> None:
        """Attribute the time up to a record to what the state, to which it is not applied yet, says about starts."""
        if self._ready_times and not isinstance(record.event, SessionStarted):
            self._add_waits(max(record.t, self._t))

    def after(self, record: Record) -> list[Wait]:
        """Return the waits before an attempt or a scorer call of the trial that a record has started."""
        event, is_session_start = record.event, isinstance(record.event, SessionStarted)
        self._t = record.t if is_session_start else max(record.t, self._t)
        if is_session_start:
            self._ready_times = dict.fromkeys(self._ready_times, self._t)
            self._prepare()

        if getattr(event, "trial", None) != self._trial:
            return []
        match event:
            case AttemptStarted():
                waits = self._end_wait(_ATTEMPT, event.key)
                return [] if event.batch else waits  # Until then, its trial waited for the batch.
            case ScorerCallStarted():
                waits = self._end_wait(event.scorer if event.scorer in self._ready_times else _FIRST_CALLS, event.key)
                return [] if event.batch else waits
            case ScorerCallFailed(delay=float(delay)):
                self._ready_times[event.scorer] = self._t + delay
            case AttemptSucceeded():
                self._ready_times[_FIRST_CALLS] = self._t
            case _:
                self._prepare()
        return []

    def _prepare(self) -> None:
        """Start the wait of the next attempt; clear everything once the trial is done."""
        trial = self._state.trials.get(self._trial)
        if trial is None or trial.stage in {"completed", "failed", "withdrawn"}:
            self._ready_times.clear()
            self._waits.clear()
        elif trial.stage in {"queued", "interrupted", "backing_off"}:
            self._ready_times.setdefault(_ATTEMPT, max(self._t, self._state.trials.backing_off.get(self._trial, 0.0)))

    def _end_wait(self, name: str, key: str) -> list[Wait]:
        """End a wait; return its parts for this rate-limit key, longest first."""
        waits = self._waits.get(name, {})
        if name != _FIRST_CALLS:  # The first calls of other scorers still wait.
            self._ready_times.pop(name, None)
            self._waits.pop(name, None)
        parts = [wait for (limit_key, _), wait in waits.items() if limit_key == key and wait.seconds > _MIN_WAIT]
        parts = [wait if wait.text else attrs.evolve(wait, text=self._limit_text(key)) for wait in parts]
        return sorted(parts, key=lambda wait: -wait.seconds)

    def _limit_text(self, key: str) -> str:
        use = limit_use(self._state, key, self._t)
        return "" if use is None else rate_limit_text(use.limit.unit, use.limit.size, use.limit.window)

    def _add_waits(self, now: float) -> None:
        state = self._state
        keys = {"", *state.policy.limits, *state.policy.paces, *state.policy.pauses}
        for name, ready_at in self._ready_times.items():
            waits = self._waits.setdefault(name, {})
            for key in keys:
                for start, end in self._split_at_pause(key, max(ready_at, self._t), now):
                    reason_and_text = self._reason(name, key, start)
                    if reason_and_text is not None:
                        reason, text = reason_and_text
                        previous_wait = waits.get((key, reason))
                        waits[key, reason] = Wait(reason, (previous_wait.seconds if previous_wait else 0.0) + end - start, text)

    def _split_at_pause(self, key: str, start: float, end: float) -> Iterator[tuple[float, float]]:
        pause = self._state.policy.pauses.get(key)
        if pause is not None and start < pause.until < end:
            yield start, pause.until
            start = pause.until
        if end > start:
            yield start, end

    def _reason(self, name: str, key: str, t: float) -> tuple[str, str] | None:
        """Return why starts of a rate-limit key are delayed at `t`: the reason, and its text."""
        state, pause = self._state, self._state.policy.pauses.get(key)
        if pause is not None and pause.is_in_force(t):
            return "pause", pause.text
        if name == _ATTEMPT and state.holds_attempts:
            return "scorers", "too many outputs waiting for scorers"
        if name == _ATTEMPT and state.is_held(self._trial):
            return "same_error", "the first trials have the same error"

        limit, slots = state.policy.limits.get(key), state.slots_of(key)
        if limit is not None and state.in_flight(key) >= limit:
            busy_text = "the only slot is busy" if limit == 1 else f"all {limit:,} slots busy"
            return "limit", busy_text if limit == slots else limit_text(limit, slots)
        if key in state.policy.paces:
            return "pace", pace_text(state.policy.paces[key], state.policy.pace_evidence.get(key, ""))
        return ("rate_limit", "") if state.policy.known_limits.has_limits(key) else None
