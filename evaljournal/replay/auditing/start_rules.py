"""Start rules of an audit: the recorded limit, pause, pace and circuit breaker of a rate-limit key bound every start."""

import math
from collections import Counter
from collections.abc import Hashable, Iterator
from typing import Final

from evaljournal.journal import Record, events
from evaljournal.replay.state.pauses import BREAKER_REASONS, LATE_TOLERANCE, NO_RESPONSE, PACE_CHANGE, PROBE_PATIENCE, Pause
from evaljournal.replay.state.run import RunState

TIME_TOLERANCE: Final = 2e-6
"""Seconds by which two times may differ, since each is rounded to the microsecond."""

Start = events.AttemptStarted | events.ScorerCallStarted


class StartRules:
    """The attempts and scorer calls in flight in a session, and the bounds of the next start, by rate-limit key."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        """The state before the record that is checked."""
        self._open: dict[Hashable, tuple[str, int]] = {}
        """Attempt (by its trial) or call (by trial and scorer) → its rate-limit key, and the epoch in which it started."""
        self._counts: Counter[str] = Counter()
        self._epochs: Counter[str] = Counter()
        """Rate-limit key → number of times its endpoint has stopped responding."""
        self._paced_starts: dict[str, float] = {}
        """Rate-limit key → when its last start was due at its pace."""
        self._highest_paces: dict[str, float] = {}
        """Rate-limit key → the highest pace since its last start; infinite if starts were not paced."""
        self._probes: dict[str, tuple[Hashable, float]] = {}
        """Rate-limit key → its last probe, if it is in flight, and when it started."""

    def __contains__(self, name: Hashable) -> bool:
        return name in self._open

    def start(self, name: Hashable, subject: str, event: Start, record: Record) -> Iterator[tuple[str, str]]:
        """Add a start; yield the rules that it breaks, each with a message."""
        key, t = event.key, record.t
        self._open[name] = key, self._epochs[key]
        self._counts[key] += 1
        pause = self._state.policy.pauses.get(key, Pause(0.0, ""))
        if t < pause.until - TIME_TOLERANCE:
            yield (
                "intake",
                f"{subject} starts at {t:.6f} s, while starts are paused until {pause.until:.6f} s ({pause.reason!r})",
            )
        limit = self._state.policy.limits.get(key, math.inf)
        if self._counts[key] > limit and not event.probe:  # A probe may start while hung attempts fill all slots.
            yield "limit", f"{subject} starts with {self._counts[key]} in flight, above the limit of {limit}"
        yield from self._check_breaker(name, subject, event, pause.reason, t)
        yield from self._check_pace(subject, event, t)

    def add(self, name: Hashable) -> None:
        """Add a call that uses a line of a batch; no limit applies to it."""
        self._open[name] = "", -1

    def _check_breaker(self, name: Hashable, subject: str, event: Start, reason: str, t: float) -> Iterator[tuple[str, str]]:
        is_open = reason in BREAKER_REASONS
        if is_open and not event.probe:
            yield "breaker", f"{subject} starts and is not a probe, but the circuit breaker is open ({reason!r})"
        if not event.probe:
            return
        if not is_open:
            yield "breaker", f"{subject} starts as a probe, but the circuit breaker is not open"
        _, last_t = self._probes.get(event.key, (None, -math.inf))
        if t < last_t + PROBE_PATIENCE - TIME_TOLERANCE:
            yield "breaker", f"{subject} starts as a probe at {t:.6f} s, while another one is in flight since {last_t:.6f} s"
        self._probes[event.key] = name, t

    def _check_pace(self, subject: str, event: Start, t: float) -> Iterator[tuple[str, str]]:
        """Check a start against the pace; a probe has no pace."""
        pace = math.inf if event.probe else self._highest_paces.get(event.key, math.inf)
        self._highest_paces[event.key] = self._state.policy.paces.get(event.key, math.inf)
        gap = 1 / ((1 + PACE_CHANGE) * pace) if pace > 0 else 0.0
        due_time = self._paced_starts.get(event.key, t) + gap
        # Late starts are made up for, and a start need not keep its distance when a test of the pace ends.
        if t < due_time - max(gap, LATE_TOLERANCE) - gap - TIME_TOLERANCE:
            yield "pace", f"{subject} starts at {t:.6f} s, but at a pace of {pace:g}/s it is due at {due_time:.6f} s"
        self._paced_starts[event.key] = max(due_time, t)

    def end(self, name: Hashable) -> None:
        """Remove an ended attempt or call."""
        key, epoch = self._open.pop(name, ("", -1))
        if epoch == self._epochs[key]:
            self._counts[key] -= 1
        if self._probes and self._probes.get(key, ("", 0.0))[0] == name:
            del self._probes[key]

    def change(self, event: events.PolicyEvent) -> None:
        """Follow a decision of a policy: count a pace, or stop counting hung attempts and calls against the limit."""
        if isinstance(event, events.PaceChanged):
            paces = event.before, event.after
            pace = math.inf if None in paces else max(event.after or 0.0, self._highest_paces.get(event.key, 0.0))
            self._highest_paces[event.key] = pace
        elif isinstance(event, events.IntakePaused) and event.reason == NO_RESPONSE:
            self._counts[event.key] = 0
            self._epochs[event.key] += 1
