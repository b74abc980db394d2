"""A fixed concurrency limit. Retry-After pauses the whole rate-limit key; nothing else changes anything."""

from collections.abc import Iterable

from evaljournal.journal.events import IntakePaused, PolicyEvent
from evaljournal.runner.concurrency.pause import CurrentPause
from evaljournal.runner.concurrency.policy import FULL, OPEN, STARTS, CallEvent, StartPermit, call_of, result_of


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

    def observe(self, event: CallEvent, t: float) -> list[PolicyEvent]:
        """Count attempts in flight, and pause for a Retry-After."""
        changes = self._pause.end(t)
        if isinstance(event, STARTS):
            self._in_flight.add(call_of(event))
        else:
            self._in_flight.discard(call_of(event))
            result = result_of(event)
            if result.retry_after is not None:
                cause = "429" if result.outcome == "rate_limited" else result.outcome.replace("_", " ")
                evidence = f"{cause} at {len(self._in_flight) + 1} in flight"
                changes += self._pause.begin_retry_after(t, result.retry_after, evidence)
        return changes

    def elapse(self, t: float) -> list[PolicyEvent]:
        """End a pause whose time is over."""
        return self._pause.end(t)

    def may_start(self, t: float) -> StartPermit:
        """Return whether fewer attempts than the limit are in flight and no pause is in force."""
        if len(self._in_flight) >= self.limit:
            return FULL
        start_at = self._pause.earliest_start(t)
        return OPEN if t >= start_at else StartPermit(open=False, check_at=start_at)
