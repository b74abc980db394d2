"""A fixed number of attempts at once, whatever happens.

The simplest policy, and the measure of the others. It heeds Retry-After, because an endpoint that names a time means
everyone who shares the key; it learns nothing else.
"""

from attrs import define, field

from runner.concurrency.hold import Hold
from runner.concurrency.policy import FULL, OPEN, Change, Decision, Failed, Gate, Signal, Started


@define(kw_only=True)
class FixedState:
    """Who is in flight, and until when everyone waits."""

    now: float = 0.0
    flying: dict[str, float] = field(factory=dict[str, float])
    """Attempts in flight, with the time each began."""
    hold: Hold = field(factory=Hold)


class Fixed:
    """Run `slots` attempts at once."""

    def __init__(self, slots: int, *, heed_retry_after: bool = True, state: FixedState | None = None) -> None:
        """Allow `slots` attempts; go on from `state` where one is given."""
        if slots < 1:
            raise ValueError(f"a policy needs at least one slot, not {slots!r}")
        self.slots = slots
        self.heed_retry_after = heed_retry_after
        self.state = FixedState() if state is None else state
        self._as_ever = Decision(limit=slots)

    @property
    def limit(self) -> int:
        """Attempts that may be in flight at once."""
        return self.slots

    def take(self, signal: Signal) -> Decision:
        """Count who is in flight, and note a Retry-After."""
        state, hold = self.state, self.state.hold
        now = state.now = max(state.now, signal.t)
        changes: list[Change] = [] if hold.pause is None else hold.passed(now)
        if isinstance(signal, Started):
            state.flying[signal.attempt] = now
        else:
            state.flying.pop(signal.attempt, None)
            if isinstance(signal, Failed) and signal.retry_after is not None and self.heed_retry_after:
                changes += hold.retry_after(now, signal.retry_after, f"429 at {len(state.flying) + 1} in flight")
        return Decision(limit=self.slots, changes=tuple(changes)) if changes else self._as_ever

    def may_start(self, t: float) -> Gate:
        """Open while fewer than `slots` are in flight and nobody asked us to stay away."""
        state = self.state
        if len(state.flying) >= self.slots:
            return FULL
        if state.hold.pause is None:
            return OPEN
        at = state.hold.earliest(t)
        return OPEN if t >= at else Gate(open=False, at=at)
