"""A fixed concurrency limit. Retry-After pauses the whole rate-limit key; nothing else changes anything."""

from collections.abc import Iterable

from evaljournal.journal.events import IntakePaused, PolicyEvent
from evaljournal.runner.concurrency.pause import CurrentPause
from evaljournal.runner.concurrency.policy import FULL, OPEN, STARTS, CallEvent, Decision, StartPermit, call_of, result_of


class Fixed:
    """Allows `slots` attempts in flight."""

    def __init__(
        self,
        slots: int,
        *,
        trials: int | None = None,  # noqa: ARG002  # not used
        in_flight: Iterable[str] = (),
        pause: IntakePaused | None = None,
    ) -> None:
        """Start with these attempts in flight, and with the pause that is in force."""
        if slots < 1:
            raise ValueError(f"a policy needs at least one slot, not {slots!r}")
        self.limit = slots
        """Attempts that may be in flight."""
        self._in_flight = set(in_flight)
        self._pause = CurrentPause(pause)
        self._default_decision = Decision(limit=slots)

    def observe(self, event: CallEvent, t: float) -> Decision:
        """Count attempts in flight, and pause for a Retry-After."""
        pause = self._pause
        changes: list[PolicyEvent] = [] if pause.event is None else pause.end(t)
        if isinstance(event, STARTS):
            self._in_flight.add(call_of(event))
        else:
            self._in_flight.discard(call_of(event))
            result = result_of(event)
            if result.retry_after is not None:
                evidence = f"{result.cause} at {len(self._in_flight) + 1} in flight"
                changes += pause.begin_retry_after(t, result.retry_after, evidence)
        return Decision(limit=self.limit, changes=tuple(changes)) if changes else self._default_decision

    def elapse(self, t: float) -> Decision:
        """End a pause whose time is over."""
        return Decision(limit=self.limit, changes=tuple(self._pause.end(t)))

    def may_start(self, t: float) -> StartPermit:
        """Return whether fewer than `slots` attempts are in flight and no pause is in force."""
        if len(self._in_flight) >= self.limit:
            return FULL
        if self._pause.event is None:
            return OPEN
        start_at = self._pause.earliest_start(t)
        return OPEN if t >= start_at else StartPermit(open=False, check_at=start_at)
