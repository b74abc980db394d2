"""A policy that cannot end a run: if it raises an exception, a fixed limit replaces it."""

import logging
import os
from collections.abc import Callable
from typing import Final, TypeVar

from evaljournal.journal.events import NOTE_PREFIX, IntakePaused, IntakeResumed, LimitChanged, Noted, PaceChanged
from evaljournal.journal.fact import evolve_fact
from evaljournal.replay.state.pauses import NO_RESPONSE
from evaljournal.replay.text import printable
from evaljournal.runner.concurrency.fixed import Fixed
from evaljournal.runner.concurrency.policy import STARTS, CallEvent, Change, Decision, Policy, StartPermit, call_of
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


class Guarded:
    """Calls a policy; after an exception, a fixed limit, which starts with the calls in flight and the pause of the policy."""

    def __init__(self, make_policy: Callable[[int], Policy], slots: int) -> None:
        self._slots = slots
        self.limit = slots
        """Attempts that may be in flight, as it was returned last."""
        self._in_flight: set[str] = set()
        self._pause: IntakePaused | None = None
        """The pause that is in force."""
        self._pace: float | None = None
        self._changes: list[Change] = []
        """The changes because of an exception that are not returned yet."""
        try:
            self._policy = make_policy(slots)
        except Exception as exc:  # noqa: BLE001  # a user's policy may raise any
            self._replace(exc)
        self.limit = self._call(lambda policy: policy.limit)

    def observe(self, event: CallEvent, t: float) -> Decision:
        """Process the start or the end of a call; return the decision."""
        (self._in_flight.add if isinstance(event, STARTS) else self._in_flight.discard)(call_of(event))
        return self._decide(lambda policy: policy.observe(event, t))

    def elapse(self, t: float) -> Decision:
        """Process that time has passed until `t`."""
        return self._decide(lambda policy: policy.elapse(t))

    def may_start(self, t: float) -> StartPermit:
        """Return whether an attempt may start at `t`; none may before the changes because of an exception are returned."""
        permit = self._call(lambda policy: policy.may_start(t))
        return StartPermit(open=False, check_at=t) if self._changes else permit

    def _decide(self, decide: Callable[[Policy], Decision]) -> Decision:
        decision = self._call(lambda policy: self._follow(decide(policy)))
        if not self._changes:
            return decision
        changes, self._changes = (*self._changes, *decision.changes), []
        return evolve_fact(decision, changes=changes)

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
