"""The policy of a rate-limit key: recorded starts and ends in, events to record out.

Everything that a policy uses is in the journal. An exception inside a policy cannot end a run: a fixed limit replaces it.
"""

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from evaljournal.journal.events import (
    NOTE_PREFIX,
    AttemptSucceeded,
    IntakePaused,
    IntakeResumed,
    LimitChanged,
    Noted,
    PaceChanged,
)
from evaljournal.journal.fact import evolve_fact
from evaljournal.replay.state.pauses import NO_RESPONSE
from evaljournal.replay.text import printable
from evaljournal.runner.concurrency.adaptive import Adaptive
from evaljournal.runner.concurrency.fixed import Fixed
from evaljournal.runner.concurrency.policy import CALL_OF, STARTS, CallEvent, Change, Policy, StartPermit, result_of
from evaljournal.runner.retries.classify import describe
from evaljournal.runner.retries.probes import Probes
from evaljournal.runner.secrets.masking import mask

RAISE_VARIABLE: Final = "EVALJOURNAL_RAISE_POLICY_ERRORS"
"""Environment variable of tests and benchmarks: an exception inside a policy is raised."""
POLICY_FAILED: Final = f"{NOTE_PREFIX}policy_failed"
"""The note that a policy raised an exception, and a fixed limit has taken over."""
_REASON: Final = "policy_failed"
_MAX_ERROR: Final = 200
"""Characters of an error that are printed."""

_log = logging.getLogger("evaljournal")


class KeyPolicy:
    """A policy, and what a rate-limit key needs besides: which probes count against retries.

    After an exception, a fixed limit continues with the calls in flight and the pause of the policy.
    """

    def __init__(self, make_policy: Callable[[int], Policy], slots: int, *, patience: float, key: str = "") -> None:
        """Do not count probes against retries until an outage has lasted `patience` seconds; `key` is the rate-limit key."""
        self._key = key
        self._slots = slots
        self._probes = Probes(patience)
        self.free_probes = self._probes.free
        """Trials and calls whose last start was a probe that does not count against their retries."""
        self._in_flight: set[str] = set()
        self._pause: IntakePaused | None = None
        """The pause that is in force."""
        self._pace: float | None = None
        self._changes: list[Change] = []
        """The changes because of an exception that are not returned yet."""
        self.limit = slots
        """Attempts and calls that may be in flight, as it was returned last."""
        try:
            self._policy = make_policy(slots)
            self.limit = self._policy.limit
        except Exception as exc:  # noqa: BLE001  # a user's policy may raise any
            self._replace(exc)

    def begin(self) -> LimitChanged:
        """Return the event that records the first limit."""
        return LimitChanged(before=0, after=self.limit, reason="start", key=self._key)

    def observe(self, event: CallEvent, t: float) -> list[Change]:
        """Process a start or an end; return the decisions to record after it.

        A call that returns several scores ends with the first; do not pass the others.
        """
        call = CALL_OF[event.__class__](event)
        if isinstance(event, STARTS):
            self._in_flight.add(call)
            if event.probe or self.free_probes:
                self._probes.record_start(call, t, probe=event.probe)
        else:
            self._in_flight.discard(call)
            # An answer matters only if something has failed, or probes have started.
            is_plain = isinstance(event, AttemptSucceeded) and not self._probes.first_failures
            if not is_plain or self._probes.outage_since is not None:
                self._probes.record_end(call, result_of(event).outcome, t)
        try:
            changes = self._policy.observe(event, t)
            if len(changes) or self._changes:
                return self._follow(changes)
        except Exception as exc:  # noqa: BLE001
            return self._follow(self._replace(exc).observe(event, t))
        self.limit = self._policy.limit
        return []

    def elapse(self, t: float) -> list[Change]:
        """Return the decisions that are due at `t` by time alone, to be recorded with that time."""
        try:
            return self._follow(self._policy.elapse(t))
        except Exception as exc:  # noqa: BLE001
            return self._follow(self._replace(exc).elapse(t))

    def may_start(self, t: float) -> StartPermit:
        """Return whether an attempt or a call may start at `t`; none may before the changes of an exception are returned."""
        try:
            permit = self._policy.may_start(t)
        except Exception as exc:  # noqa: BLE001
            permit = self._replace(exc).may_start(t)
        return StartPermit(open=False, check_at=t) if self._changes else permit

    def raise_slots(self, slots: int, evidence: str, *, reason: str) -> list[Change]:
        """Use all slots, or `slots` if that is more: something else decides when calls start; return the change to record.

        A limit that the policy has lowered stays, and so does that of any other policy.
        """
        policy, old_limit = self._policy, self.limit
        if not isinstance(policy, Adaptive):
            return []
        self.limit = policy.raise_slots(max(slots, self._slots))
        if self.limit == old_limit:
            return []
        self._slots = max(slots, self._slots)
        return [LimitChanged(before=old_limit, after=self.limit, reason=reason, evidence=evidence, key=self._key)]

    def _follow(self, new_changes: Sequence[Change]) -> list[Change]:
        """Keep the limit, the pause and the pace after these changes; return all changes to record."""
        self.limit = self._policy.limit
        for change in new_changes:
            if isinstance(change, IntakePaused):
                self._pause = change
                if change.reason == NO_RESPONSE:
                    self._in_flight.clear()  # They do not count against the limit.
            elif isinstance(change, IntakeResumed):
                self._pause = None
            elif isinstance(change, PaceChanged):
                self._pace = change.after
        changes, self._changes = [*self._changes, *new_changes], []
        return [self._with_key(change) for change in changes]

    def _with_key(self, change: Change) -> Change:
        if isinstance(change, Noted):
            return evolve_fact(change, value={"key": self._key, **cast("dict[str, Any]", change.value)})
        if isinstance(change, IntakePaused):
            return evolve_fact(change, key=self._key, until=round(change.until, 6))
        return evolve_fact(change, key=self._key)

    def _replace(self, exc: Exception) -> Policy:
        """Replace the policy after an exception, and return the fixed limit that applies from now on."""
        if os.environ.get(RAISE_VARIABLE):
            raise exc
        error = describe(exc)
        text = mask(f"{error.type}: {error.message}")
        self._changes.append(Noted(name=POLICY_FAILED, value={"error": text, "traceback": mask(error.traceback)}))
        message = "the concurrency policy failed (%s); a fixed limit of %d applies now; its traceback is in the journal"
        _log.warning(message, printable(text, _MAX_ERROR), self._slots)
        if self._pace is not None:
            self._changes.append(PaceChanged(before=self._pace, after=None, reason=_REASON, evidence=text))
        if self.limit != self._slots:
            self._changes.append(LimitChanged(before=self.limit, after=self._slots, reason=_REASON, evidence=text))
        self._policy = Fixed(self._slots, in_flight=self._in_flight, pause=self._pause)
        self.limit = self._slots
        return self._policy
