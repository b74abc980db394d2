"""Policies that several runs of one process share: one per rate-limit key, while at least one run uses it.

Each run drives its own `Member` like any other policy. Members convert their time to common time, that of the first run.
Changes caused by one run are put into the inboxes of the others, which record them with their own times. A member is used by
one thread; different members may be used by different threads.
"""

import itertools
import threading
import time
from collections.abc import Callable
from typing import Final

import attrs
import trio

from journal.events import IntakePaused, IntakeResumed, LimitChanged, PaceChanged, PolicyEvent
from runner.concurrency.policy import FULL, Decision, Interrupted, Policy, Signal, Started, StartPermit, evolved

TURN: Final = 0.1
"""Seconds for which the other runs wait for the run whose turn it is."""

Identity = tuple[object, ...]
"""What runs must have in common to share a policy: its name and parameters, and the rate limit."""


def common_time() -> tuple[object, float]:
    """Return the identity of the clock and its time; times of different clocks cannot be compared."""
    clock = trio.lowlevel.current_clock()
    if type(clock).__name__ == "SystemClock":  # Each instance counts from another moment.
        return "monotonic", time.monotonic()
    return id(clock), clock.current_time()


@attrs.define(eq=False)
class Shared:
    """One policy, and the runs that use it."""

    policy: Policy
    base: float
    """Common time when the `t` of the first run was 0."""
    lock: threading.RLock = attrs.field(factory=threading.RLock)
    members: "list[Member]" = attrs.field(factory=list)
    numbers: "itertools.count[int]" = attrs.field(factory=itertools.count)
    turn: int = 0
    """Minimum of `served` for a run that begins to wait, so that it does not catch up on past starts."""
    yielding_since: float | None = None
    """Since when an allowed start is left to a run with fewer starts."""
    pause: IntakePaused | None = None
    """The pause that is in force, in common time."""
    pace: PaceChanged | None = None
    """The last change of the pace."""

    def resize(self) -> None:
        """Allow the policy as many slots as all runs have together; each run is limited by its own."""
        if self.members:
            self.policy.slots = sum(member.slots for member in self.members)  # type: ignore[attr-defined]  # a shared one has it


class Member:
    """A shared policy as one run drives it."""

    def __init__(self, shared: Shared, run: str, slots: int, offset: float) -> None:
        self._shared = shared
        self.run = run
        """Identity of the run."""
        self.slots = slots
        """Maximum attempts and calls of this run in flight."""
        self._offset = offset
        """Common time minus the run's time."""
        number = next(shared.numbers)
        self._prefix = f"{number}\0" if number else ""  # The first run has none, as in an audit.
        self._in_flight: set[str] = set()
        self.served = 0
        """Starts that count for the turns."""
        self.is_waiting = False
        """Whether it has something to start and was not allowed to."""
        self._inbox: list[PolicyEvent] = []
        """Changes that are not recorded in this run yet, in its time."""
        self.new_runs: list[str] = []
        """Runs that have joined; not recorded in this run yet."""
        self.limit = shared.policy.limit
        """Attempts and calls that may be in flight over all runs, as this run has recorded it."""
        self._until = 0.0
        """The end of the pause that this run has recorded."""
        self.call: Callable[[], None] = _nothing
        """Called from any thread when there is something to record or to start."""

    def take(self, signal: Signal) -> Decision:
        """Process a signal of this run."""
        shared, name = self._shared, self._prefix + signal.attempt
        with shared.lock:
            if isinstance(signal, Started):
                self._start(name)
            else:
                self._in_flight.discard(name)
            decision = shared.policy.take(evolved(signal, t=signal.t + self._offset, attempt=name))
            others = self._post(decision.changes)
            changes = self.received()
        for other in others:
            other.call()
        return Decision(limit=self.limit, probe=decision.probe, changes=changes)

    def elapse(self, t: float) -> Decision:
        """Process that this run's time has passed until `t`."""
        shared = self._shared
        with shared.lock:
            decision = shared.policy.elapse(t + self._offset)
            others = self._post(decision.changes)
            changes = self.received()
        for other in others:
            other.call()
        return Decision(limit=self.limit, changes=changes)

    def received(self) -> tuple[PolicyEvent, ...]:
        """Empty the inbox; return the changes, which the caller records."""
        with self._shared.lock:
            changes, self._inbox = tuple(self._inbox), []
        for change in changes:
            if isinstance(change, LimitChanged):
                self.limit = change.after
            elif isinstance(change, IntakePaused):
                self._until = change.until
            elif isinstance(change, IntakeResumed):
                self._until = 0.0
        return changes

    def joined(self) -> list[str]:
        """Return the runs that have joined since the last call; the caller records them before any decision."""
        with self._shared.lock:
            joined, self.new_runs = self.new_runs, []
        return joined

    def may_start(self, t: float) -> StartPermit:
        """Return whether this run may start something at `t`; of several waiting runs, the one with the fewest starts may."""
        shared, now = self._shared, t + self._offset
        with shared.lock:
            if len(self._in_flight) >= min(self.slots, self.limit):
                self.is_waiting = False
                return FULL
            if not self.is_waiting:
                self.is_waiting, self.served = True, max(self.served, shared.turn)
            permit = shared.policy.may_start(now)
            if not permit.open:
                return permit if permit.at is None else evolved(permit, at=permit.at - self._offset)
            if t < self._until:
                return StartPermit(open=False, at=self._until)  # The end of the pause is not recorded here yet.
            first = self._first_in_turn(now)
        if first is self:
            return permit
        first.call()
        return StartPermit(open=False, at=t + TURN)

    def leave(self, t: float) -> None:
        """Stop using the policy; what this run has in flight no longer counts."""
        shared = self._shared
        with shared.lock:
            shared.members.remove(self)
            shared.resize()
            for name in sorted(self._in_flight):
                self._post(shared.policy.take(Interrupted(t=t + self._offset, attempt=name)).changes)
            others = list(shared.members)
        for other in others:
            other.call()

    def _start(self, name: str) -> None:
        shared = self._shared
        self._in_flight.add(name)
        shared.turn = max(shared.turn, self.served)
        shared.yielding_since = None
        self.served += 1
        self.is_waiting = False

    def _first_in_turn(self, now: float) -> "Member":
        """Return the run that may start next; one that does not start within its turn no longer counts as waiting."""
        shared = self._shared
        ahead = [member for member in shared.members if member.is_waiting and member.served < self.served]
        if not ahead:
            return self
        if shared.yielding_since is None:
            shared.yielding_since = now
        if now - shared.yielding_since < TURN:
            return min(ahead, key=lambda member: member.served)
        for member in ahead:
            member.is_waiting = False
        return self

    def _post(self, changes: tuple[PolicyEvent, ...]) -> "list[Member]":
        """Put changes into the inboxes of all runs; return the runs to notify."""
        shared = self._shared
        for change in changes:
            if isinstance(change, IntakePaused | IntakeResumed):
                shared.pause = change if isinstance(change, IntakePaused) else None
            elif isinstance(change, PaceChanged):
                shared.pace = change
            for member in shared.members:
                member.receive(change)
        return [member for member in shared.members if member is not self and (changes or member.is_waiting)]

    def receive(self, change: PolicyEvent) -> None:
        """Put a change into the inbox, in this run's time."""
        if isinstance(change, IntakePaused):
            change = evolved(change, until=change.until - self._offset)
        self._inbox.append(change)

    def enter(self) -> "list[Member]":
        """Join the members; return the others."""
        others = list(self._shared.members)
        self.new_runs = [other.run for other in others]
        for other in others:
            other.new_runs.append(self.run)
        self._shared.members.append(self)
        self._shared.resize()
        self.served = self._shared.turn
        if self._shared.pause is not None:
            self.receive(self._shared.pause)
        if self._shared.pace is not None and self._shared.pace.after is not None:
            self.receive(evolved(self._shared.pace, before=None))
        return others


class Registry:
    """The policies of a process that can be shared."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._policies: dict[Identity, Shared] = {}

    def join(self, identity: Identity, run: str, slots: int, t: float, make_policy: Callable[[], Policy]) -> Member:
        """Join the policy of an identity, or create it with `make_policy`; `t` is the run's current time."""
        clock, now = common_time()
        with self._lock:
            self._policies = {key: shared for key, shared in self._policies.items() if shared.members}
            shared = self._policies.get((clock, *identity))
            if shared is None:
                shared = self._policies[clock, *identity] = Shared(make_policy(), now - t)
            member = Member(shared, run, slots, now - t - shared.base)
            with shared.lock:
                others = member.enter()
        for other in others:
            other.call()
        return member


REGISTRY: Final = Registry()


def _nothing() -> None:
    """Do nothing: the default of `Member.call`."""
