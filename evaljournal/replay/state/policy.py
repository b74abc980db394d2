"""What limits the starts of a session: the decisions of the concurrency policy, and the known rate limits.

All of it begins again with a session: a policy decides again, and records what it decides. Only the known limits look back,
because calls of the session before still count against them.

`PolicyState` comes after the trials in the order of projections: whether a start was held depends on what is queued and in
flight.
"""

from collections.abc import Mapping
from typing import Any

import attrs

from evaljournal.journal import Record, events
from evaljournal.replay.state.known_limits import KNOWN_LIMIT, RecordedLimits
from evaljournal.replay.state.pauses import Pause, PausedTime
from evaljournal.replay.state.sessions import Sessions
from evaljournal.replay.state.slot_use import SlotUses
from evaljournal.replay.state.trial import OpenCall


@attrs.define(eq=False)
class PolicyState:
    """How many attempts and calls of each rate-limit key may start now, how fast, and why not more?"""

    _sessions: Sessions
    _scorer_calls: Mapping[tuple[str, str], OpenCall]
    """Those in flight."""
    slot_use: SlotUses
    known_limits: RecordedLimits = attrs.field(factory=RecordedLimits)
    limits: dict[str, int] = attrs.field(factory=dict[str, int])
    """Rate-limit key → its concurrency limit."""
    limit_changes: dict[str, events.LimitChanged] = attrs.field(factory=dict[str, events.LimitChanged])
    """Rate-limit key → the last change of its limit, with the evidence."""
    raised_slots: dict[str, int] = attrs.field(factory=dict[str, int])
    """Rate-limit key → its slots, if they follow from a known limit."""
    scorer_keys: set[str] = attrs.field(factory=set[str])
    paces: dict[str, float] = attrs.field(factory=dict[str, float])
    """Rate-limit key → starts per second, if paced."""
    pace_evidence: dict[str, str] = attrs.field(factory=dict[str, str])
    """Rate-limit key → the evidence of its pace, or an empty text; that of earlier sessions is kept."""
    pauses: dict[str, Pause] = attrs.field(factory=dict[str, Pause])
    """Rate-limit key → its pause, which may have expired."""
    _paused_time: PausedTime = attrs.field(factory=PausedTime)

    @property
    def limit(self) -> int | None:
        """Concurrency limit of attempts, summed over all rate-limit keys; None if unknown."""
        if limits := self.attempt_limits:
            return sum(limits.values())
        slots = self._sessions.settings.get("slots")
        return slots if isinstance(slots, int) else None

    @property
    def attempt_limits(self) -> dict[str, int]:
        return {key: limit for key, limit in self.limits.items() if not key.startswith(events.SCORER_PREFIX)}

    @property
    def scorer_limits(self) -> dict[str, int]:
        return {key: limit for key, limit in self.limits.items() if key in self.scorer_keys}

    @property
    def resume_after(self) -> float:
        """The wall time from which a run that was stopped by a declared limit per day can continue; 0: now."""
        return self.known_limits.day_limit_end() if self._sessions.outcome == "quota" else 0.0

    def paused_seconds(self, t: float) -> dict[str, float]:
        """Return reason → seconds in which it held starts, over all sessions up to `t` of the current one."""
        return self._paused_time.until(self.pauses, t)

    def count_wait(self, reason: str, start: float, end: float, t: float) -> None:
        """Count a time in which nothing was paused, but something else held the start at `t`."""
        self._paused_time.count(self.pauses, t)
        self._paused_time.add(reason, start, end)

    def count_idle(self, reason: str, start: float, end: float, t: float) -> None:
        """Count a time in which no attempt was in flight or could start, unless scorers were called."""
        if not self._scorer_calls:
            self.count_wait(reason, start, end, t)

    def start_attempt(self, trial: str, key: str, need: Any, t: float, *, has_queue: bool) -> None:
        """Count an attempt that takes something from known limits, and how long they held it; `has_queue`: others wait."""
        self.known_limits.add(key, need, t)
        if key in self.scorer_keys:
            return
        use, (start, end) = self.slot_use.start(trial, key, t, self.known_limits.seconds_needed(key, need))
        if end > start and key not in self.paces:
            self.count_wait("rate_limit", start, end, t)
        if has_queue and key in self.limits:
            use.is_full = use.in_flight >= self.limits[key]

    def _on_session_started(self, event: events.SessionStarted, record: Record) -> None:
        self._paused_time.count(self.pauses, self._sessions.previous_end)
        self._paused_time.begin_session()
        self.known_limits.begin_session(record.at, record.t, is_independent=self._sessions.is_independent(event.session))
        self.slot_use.clear()
        for per_session in (self.limits, self.limit_changes, self.raised_slots, self.scorer_keys, self.paces, self.pauses):
            per_session.clear()

    def _on_scorer_call_started(self, event: events.ScorerCallStarted, record: Record) -> None:
        if not event.batch:
            self.scorer_keys.add(event.key)
        if event.need is not None:
            self.known_limits.add(event.key, event.need, record.t)

    def _on_limit_changed(self, event: events.LimitChanged, record: Record) -> None:
        self.limits[event.key] = event.after
        self.limit_changes[event.key] = event
        if event.reason == KNOWN_LIMIT:
            self.raised_slots[event.key] = event.after
        if (use := self.slot_use.get(event.key)) is not None:
            use.change_limit(record.t)
        if event.key.startswith(events.SCORER_PREFIX):
            self.scorer_keys.add(event.key)

    def _on_pace_changed(self, event: events.PaceChanged, _: Record) -> None:
        self.pace_evidence[event.key] = event.evidence
        if event.after is None:
            self.paces.pop(event.key, None)
        else:
            self.paces[event.key] = event.after

    def _on_intake_paused(self, event: events.IntakePaused, record: Record) -> None:
        self._paused_time.count(self.pauses, record.t)
        self.pauses[event.key] = Pause(event.until, event.reason, event.evidence)

    def _on_intake_resumed(self, event: events.IntakeResumed, record: Record) -> None:
        self._paused_time.count(self.pauses, record.t)
        self.pauses.pop(event.key, None)

    def _on_rate_limit_seen(self, event: events.RateLimitSeen, _: Record) -> None:
        self.known_limits.see(event)

    def _on_run_stopped(self, _: events.RunStopped | events.RunFinished, record: Record) -> None:
        self._paused_time.count(self.pauses, record.t)
        self.pauses.clear()

    _on_run_finished = _on_run_stopped
