"""The policy of a rate-limit key: recorded starts and ends in, events to record out.

Everything that a policy uses is in the journal. An exception inside a policy cannot end a run: a fixed limit replaces it.
"""

import logging
import os
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

from evaljournal.journal.events import NOTE_PREFIX, IntakePaused, IntakeResumed, LimitChanged, Noted, PaceChanged
from evaljournal.journal.fact import evolve_fact
from evaljournal.replay.state.pauses import NO_RESPONSE
from evaljournal.replay.text import printable
from evaljournal.runner.concurrency.fixed import Fixed
from evaljournal.runner.concurrency.policy import (
    STARTS,
    CallEvent,
    Change,
    Decision,
    Outcome,
    Policy,
    StartPermit,
    call_of,
    result_of,
)
from evaljournal.runner.retries.classify import describe
from evaljournal.runner.secrets import mask

T = TypeVar("T")

RAISE_VARIABLE: Final = "EVALJOURNAL_RAISE_POLICY_ERRORS"
"""Environment variable of tests and benchmarks: an exception inside a policy is raised."""
POLICY_FAILED: Final = f"{NOTE_PREFIX}policy_failed"
"""The note that a policy raised an exception, and a fixed limit has taken over."""
_REASON: Final = "policy_failed"
_MAX_ERROR: Final = 200
"""Characters of an error that are printed."""

_log = logging.getLogger("evaljournal")


class KeyPolicy:
    """A policy, and the trials and calls that are its probes.

    After an exception, a fixed limit continues with the calls in flight and the pause of the policy.
    """

    def __init__(self, make_policy: Callable[[int], Policy], slots: int, *, patience: float, key: str = "") -> None:
        """Do not count probes against retries until an outage has lasted `patience` seconds; `key` is the rate-limit key."""
        self._key = key
        self._slots = slots
        self._patience = patience
        self._outage_since: float | None = None
        """When the first probe since the last success started."""
        self._first_failures: dict[str, float] = {}
        """Trial or call → when it first found the endpoint unavailable, since it was last answered."""
        self._last_answer = float("-inf")
        """When a call was last answered."""
        self.free_probes: set[str] = set()
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
        except Exception as exc:  # noqa: BLE001  # a user's policy may raise any
            self._replace(exc)
        self.limit = self._call(lambda policy: policy.limit)

    def begin(self) -> LimitChanged:
        """Return the event that records the first limit."""
        return LimitChanged(before=0, after=self.limit, reason="start", key=self._key)

    def observe(self, event: CallEvent, t: float) -> list[Change]:
        """Process a start or an end; return the decisions to record after it.

        A call that returns several scores ends with the first; do not pass the others.
        """
        call = call_of(event)
        if isinstance(event, STARTS):
            self._in_flight.add(call)
            if event.probe or self.free_probes:
                self._record_start(call, t, probe=event.probe)
        else:
            self._in_flight.discard(call)
            self._record_end(call, result_of(event).outcome, t)
        return self._decide(lambda policy: policy.observe(event, t))

    def elapse(self, t: float) -> list[Change]:
        """Return the decisions that are due at `t` by time alone, to be recorded with that time."""
        return self._decide(lambda policy: policy.elapse(t))

    def may_start(self, t: float) -> StartPermit:
        """Return whether an attempt or a call may start at `t`; none may before the changes of an exception are returned."""
        permit = self._call(lambda policy: policy.may_start(t))
        return StartPermit(open=False, check_at=t) if self._changes else permit

    def _decide(self, decide: Callable[[Policy], Decision]) -> list[Change]:
        decision = self._call(lambda policy: self._follow(decide(policy)))
        if not (self._changes or decision.changes):
            return []
        changes, self._changes = [*self._changes, *decision.changes], []
        return [self._with_key(change) for change in changes]

    def _follow(self, decision: Decision) -> Decision:
        """Keep the limit, the pause and the pace of a decision."""
        self.limit = decision.limit
        for change in decision.changes:
            if isinstance(change, IntakePaused):
                self._pause = change
                if change.reason == NO_RESPONSE:
                    self._in_flight.clear()  # They do not count against the limit.
            elif isinstance(change, IntakeResumed):
                self._pause = None
            elif isinstance(change, PaceChanged):
                self._pace = change.after
        return decision

    def _with_key(self, change: Change) -> Change:
        if isinstance(change, Noted):
            return evolve_fact(change, value={"key": self._key, **cast("dict[str, Any]", change.value)})
        if isinstance(change, IntakePaused):
            return evolve_fact(change, key=self._key, until=round(change.until, 6))
        return evolve_fact(change, key=self._key)

    def _record_start(self, call: str, t: float, *, probe: bool) -> None:
        """Decide whether a failure of this start will count against the retries of its trial.

        A probe tests the endpoint, not the trial, so it does not count. But if others were answered since the trial first
        failed, the trial is the cause, and it would probe for ever.
        """
        if probe and self._outage_since is None:
            self._outage_since = t
        is_cause = self._first_failures.get(call, t) < self._last_answer
        if probe and not is_cause and t - (self._outage_since or t) < self._patience:
            self.free_probes.add(call)
        else:
            self.free_probes.discard(call)

    def _record_end(self, call: str, outcome: Outcome, t: float) -> None:
        if outcome in ("unavailable", "timed_out"):
            self._first_failures.setdefault(call, t)
        elif outcome not in ("rate_limited", "interrupted"):
            self._last_answer, self._outage_since = t, None
            self._first_failures.pop(call, None)

    def _call(self, function: Callable[[Policy], T]) -> T:
        """Call a function with the policy; if that raises an exception, again with the fixed limit that replaces it."""
        try:
            return function(self._policy)
        except Exception as exc:  # noqa: BLE001  # a user's policy may raise any
            self._replace(exc)
            return function(self._policy)

    def _replace(self, exc: Exception) -> None:
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
