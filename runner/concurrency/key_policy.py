"""Connects a policy with the journal: records in, policy events out. Everything that a policy uses is in the journal."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, cast

from evaljournal.journal import Record, events
from evaljournal.journal.fact import evolve_fact
from evaljournal.runner.concurrency.policy import STARTS, CallEvent, Change, Policy, call_of, result_of

MAX_FREE_PROBES: Final = 3
"""Maximum probes of a trial or call per outage that do not count against its retries; if more fail, it may be the cause."""


class KeyPolicy:
    """A policy, and the trials and calls that are its probes."""

    def __init__(self, policy: Policy, *, patience: float, key: str = "") -> None:
        """Do not count probes against retries until an outage has lasted `patience` seconds; `key` is the rate-limit key."""
        self._key = key
        self._policy = policy
        self._patience = patience
        self._outage_since: float | None = None
        """When the first probe since the last success started."""
        self._probes: Counter[str] = Counter()
        """Trial or call → its probes since then."""
        self.limit = policy.limit
        """Attempts and calls that may be in flight."""
        self.may_start = policy.may_start
        """Returns whether an attempt or a call may start at `t`; changes nothing."""
        self.free_probes: set[str] = set()
        """Trials and calls whose last start was a probe that does not count against their retries."""

    def begin(self) -> events.LimitChanged:
        """Return the event that records the first limit."""
        return events.LimitChanged(before=0, after=self.limit, reason="start", key=self._key)

    def observe(self, record: Record) -> list[Change]:
        """Process a start or an end; return the decisions to record after it.

        A call that returns several scores ends with the first; do not pass the others.
        """
        event = cast("CallEvent", record.event)
        decision = self._policy.observe(event, record.t)
        self.limit = decision.limit
        if isinstance(event, STARTS):
            if event.probe or self.free_probes:
                self._record_start(call_of(event), record.t, probe=event.probe)
        elif self._outage_since is not None and result_of(event).outcome == "succeeded":
            self._outage_since = None
            self._probes.clear()
        return self._add_key(decision.changes) if decision.changes else []

    def elapse(self, t: float) -> list[Change]:
        """Return the decisions that are due at `t` by time alone, to be recorded with that time."""
        decision = self._policy.elapse(t)
        self.limit = decision.limit
        return self._add_key(decision.changes)

    def _add_key(self, changes: Sequence[Change]) -> list[Change]:
        return [self._with_key(change) for change in changes]

    def _with_key(self, change: Change) -> Change:
        if isinstance(change, events.Noted):
            return evolve_fact(change, value={"key": self._key, **cast("dict[str, Any]", change.value)})
        if isinstance(change, events.IntakePaused):
            return evolve_fact(change, key=self._key, until=round(change.until, 6))
        return evolve_fact(change, key=self._key)

    def _record_start(self, source: str, t: float, *, probe: bool) -> None:
        if probe:
            self._outage_since = t if self._outage_since is None else self._outage_since
            self._probes[source] += 1
        if probe and self._probes[source] <= MAX_FREE_PROBES and t - (self._outage_since or t) < self._patience:
            self.free_probes.add(source)
        else:
            self.free_probes.discard(source)
