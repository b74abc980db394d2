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

from evaljournal.journal.events import IntakePaused, IntakeResumed, LimitChanged, PaceChanged
from evaljournal.journal.fact import evolve_fact
from evaljournal.runner.concurrency.policy import (
    FULL,
    Change,
    Decision,
    Ended,
    Policy,
    Signal,
    Started,
    StartPermit,
)

TURN: Final = 0.1
"""Seconds for which the other runs wait for the run whose turn it is."""

Identity = tuple[object, ...]
"""The name and parameters of a policy, and the rate limit; runs share a policy if these are equal."""


def common_time() -> tuple[object, float]:
    """Return the identity of the clock and its time; times of different clocks cannot be compared."""
    clock = trio.lowlevel.current_clock()
    if type(clock).__name__ == "SystemClock":  # Each instance counts from another moment.
        return "monotonic", time.monotonic()
    return id(clock), clock.current_time()


@attrs.define(eq=False)
class SharedPolicy:
    """One policy, and the runs that use it."""

    policy: Policy
    base: float
    """Common time when the `t` of the first run was 0."""
    lock: threading.RLock = attrs.field(factory=threading.RLock)
    members: "list[Member]" = attrs.field(factory=list)
    numbers: "itertools.count[int]" = attrs.field(factory=itertools.count)
    turn: int = 0
    """Minimum of `turn_starts` for a run that begins to wait, so that it does not catch up on past starts."""
    yielding_since: float | None = None
    """The time since which an allowed start is left to a run with fewer starts."""
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

    def __init__(self, shared_policy: SharedPolicy, slots: int, offset: float) -> None:
        self._shared_policy = shared_policy
        self.slots = slots
        """Maximum attempts and calls of this run in flight."""
        self._offset = offset
        """Common time minus the run's time."""
        number = next(shared_policy.numbers)
        self._prefix = f"{number}\0"
        self._in_flight: set[str] = set()
        self.turn_starts = 0
        """Starts that count for the turns."""
        self.is_waiting = False
        """Whether it has something to start and was not allowed to."""
        self._inbox: list[Change] = []
        """Changes that are not recorded in this run yet, in its time."""
        self.limit = min(shared_policy.policy.limit, slots)
        """Attempts and calls of this run that may be in flight, as it has recorded it."""
        self.call: Callable[[], None] = lambda: None
        """Called from any thread when there is something to record or to start."""

    def observe(self, signal: Signal) -> Decision:
        """Process a signal of this run."""
        shared_policy, name = self._shared_policy, self._prefix + signal.attempt
        with shared_policy.lock:
            if isinstance(signal, Started):
                self._start(name)
            else:
                self._in_flight.discard(name)
            decision = shared_policy.policy.observe(evolve_fact(signal, t=signal.t + self._offset, attempt=name))
            other_members = self._post(decision.changes)
            changes = self.pop_changes()
        for member in other_members:
            member.call()
        return Decision(limit=self.limit, changes=changes)

    def elapse(self, t: float) -> Decision:
        """Process that the time of this run has passed until `t`."""
        shared_policy = self._shared_policy
        with shared_policy.lock:
            decision = shared_policy.policy.elapse(t + self._offset)
            other_members = self._post(decision.changes)
            changes = self.pop_changes()
        for member in other_members:
            member.call()
        return Decision(limit=self.limit, changes=changes)

    def pop_changes(self) -> tuple[Change, ...]:
        """Empty the inbox; return the changes, which the caller records. A limit is at most the slots of this run."""
        with self._shared_policy.lock:
            inbox, self._inbox = self._inbox, []
        changes: list[Change] = []
        for change in inbox:
            if isinstance(change, LimitChanged):
                old_limit, self.limit = self.limit, min(change.after, self.slots)
                if old_limit != self.limit:
                    changes.append(evolve_fact(change, before=old_limit, after=self.limit))
            else:
                changes.append(change)
        return tuple(changes)

    def may_start(self, t: float) -> StartPermit:
        """Return whether this run may start something at `t`; of several waiting runs, the one with the fewest starts may."""
        shared_policy, now = self._shared_policy, t + self._offset
        with shared_policy.lock:
            if self._inbox:
                return StartPermit(open=False, check_at=t)  # Changes are recorded before a start that depends on them.
            if len(self._in_flight) >= self.limit:
                self.is_waiting = False
                return FULL
            if not self.is_waiting:
                self.is_waiting, self.turn_starts = True, max(self.turn_starts, shared_policy.turn)
            permit = shared_policy.policy.may_start(now)
            if not permit.open:
                return permit if permit.check_at is None else evolve_fact(permit, check_at=permit.check_at - self._offset)
            next_member = self._first_in_turn(now)
        if next_member is self:
            return permit
        next_member.call()
        return StartPermit(open=False, check_at=t + TURN)

    def leave(self, t: float) -> None:
        """Stop using the policy; the attempts and calls of this run in flight no longer count."""
        shared_policy = self._shared_policy
        with shared_policy.lock:
            shared_policy.members.remove(self)
            shared_policy.resize()
            for name in sorted(self._in_flight):
                self._post(shared_policy.policy.observe(Ended(t=t + self._offset, outcome="interrupted", attempt=name)).changes)
            other_members = list(shared_policy.members)
        for member in other_members:
            member.call()

    def _start(self, name: str) -> None:
        shared_policy = self._shared_policy
        self._in_flight.add(name)
        shared_policy.turn = max(shared_policy.turn, self.turn_starts)
        shared_policy.yielding_since = None
        self.turn_starts += 1
        self.is_waiting = False

    def _first_in_turn(self, now: float) -> "Member":
        """Return the run that may start next; one that does not start within its turn no longer counts as waiting."""
        shared_policy = self._shared_policy
        queue = [member for member in shared_policy.members if member.is_waiting and member.turn_starts < self.turn_starts]
        if not queue:
            return self
        if shared_policy.yielding_since is None:
            shared_policy.yielding_since = now
        if now - shared_policy.yielding_since < TURN:
            return min(queue, key=lambda member: member.turn_starts)
        for member in queue:
            member.is_waiting = False
        return self

    def _post(self, changes: tuple[Change, ...]) -> "list[Member]":
        """Put changes into the inboxes of all runs; return the runs to notify."""
        shared_policy = self._shared_policy
        for change in changes:
            if isinstance(change, IntakePaused | IntakeResumed):
                shared_policy.pause = change if isinstance(change, IntakePaused) else None
            elif isinstance(change, PaceChanged):
                shared_policy.pace = change
            for member in shared_policy.members:
                member.receive(change)
        return [member for member in shared_policy.members if member is not self and (changes or member.is_waiting)]

    def receive(self, change: Change) -> None:
        """Put a change into the inbox, in this run's time."""
        if isinstance(change, IntakePaused):
            change = evolve_fact(change, until=change.until - self._offset)
        self._inbox.append(change)

    def enter(self) -> "list[Member]":
        """Join the members; return the others."""
        other_members = list(self._shared_policy.members)
        self._shared_policy.members.append(self)
        self._shared_policy.resize()
        self.turn_starts = self._shared_policy.turn
        if self._shared_policy.pause is not None:
            self.receive(self._shared_policy.pause)
        if self._shared_policy.pace is not None and self._shared_policy.pace.after is not None:
            self.receive(evolve_fact(self._shared_policy.pace, before=None))
        return other_members


class Registry:
    """The policies of a process that can be shared."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._policies: dict[Identity, SharedPolicy] = {}

    def join(self, identity: Identity, slots: int, t: float, make_policy: Callable[[], Policy]) -> Member:
        """Join the policy of an identity, or create it with `make_policy`; `t` is the run's current time."""
        clock, now = common_time()
        with self._lock:
            self._policies = {key: shared_policy for key, shared_policy in self._policies.items() if shared_policy.members}
            shared_policy = self._policies.get((clock, *identity))
            if shared_policy is None:
                shared_policy = self._policies[clock, *identity] = SharedPolicy(make_policy(), now - t)
            member = Member(shared_policy, slots, now - t - shared_policy.base)
            with shared_policy.lock:
                other_members = member.enter()
        for other_member in other_members:
            other_member.call()
        return member


REGISTRY: Final = Registry()
