"""Additive increase, multiplicative decrease, as in the Phoenix evals library.

Time is divided into windows. After a window with successes and no overload, the target grows by a step; after one with overload
it is multiplied by a ratio below 1; two overloads within a short time reduce it to 1. Calls are rarely rate limited, but the
target recovers slowly: from 1 to 100 slots takes a quarter of an hour.

An overload is a rate limit, an unavailable endpoint or a timeout; an error of the task itself is not. The target stays within
[1, slots].
"""

from evaljournal.journal.events import LimitChanged, PolicyEvent
from evaljournal.runner.concurrency.pause import CurrentPause
from evaljournal.runner.concurrency.policy import FULL, OPEN, STARTS, CallEvent, Decision, StartPermit, call_of, result_of

_SMOOTHING = 0.2
"""Weight of the newest latency in the average that is shown."""


class Aimd:
    """Increases the target by a step; after overload, multiplies it by a ratio or sets it to 1."""

    def __init__(
        self,
        slots: int,
        *,
        initial: float = 3.0,
        window_seconds: float = 5.0,
        increase_step: float = 0.5,
        decrease_ratio: float = 0.5,
        collapse_window_seconds: float = 15.0,
        collapse_error_threshold: int = 2,
        smoothing: float = _SMOOTHING,
        trials: int | None = None,  # noqa: ARG002  # not used
    ) -> None:
        """Keep the limit between 1 and `slots`, starting at `initial`."""
        if slots < 1:
            raise ValueError(f"a policy needs at least one slot, not {slots!r}")
        self.slots = slots
        self.window_seconds = window_seconds
        self.increase_step = increase_step
        self.decrease_ratio = decrease_ratio
        self.collapse_window_seconds = collapse_window_seconds
        self.collapse_error_threshold = collapse_error_threshold
        self.smoothing = smoothing
        self.target = min(max(initial, 1.0), float(slots))
        """The limit before rounding down."""
        self.latency: float | None = None
        """Exponential moving average of the seconds of a success; only shown."""
        self._now = 0.0
        self._window: float | None = None
        """When the current window began; None before the first attempt has started."""
        self._successes = 0
        self._overloads = 0
        self._recent_overloads: list[float] = []
        """Times of the overloads within `collapse_window_seconds`."""
        self._in_flight: set[str] = set()
        self._pause = CurrentPause()

    @property
    def limit(self) -> int:
        """Attempts that may be in flight."""
        return int(self.target)

    def observe(self, event: CallEvent, t: float) -> Decision:
        """Count an attempt that ended, and change the target when the window is over."""
        now = self._now = max(self._now, t)
        changes: list[PolicyEvent] = self._pause.end(now)
        if self._window is None:
            self._window = now
        if isinstance(event, STARTS):
            self._in_flight.add(call_of(event))
        elif call_of(event) in self._in_flight:
            self._in_flight.remove(call_of(event))
            result = result_of(event)
            if result.outcome == "succeeded":
                self._successes += 1
                old_latency = result.elapsed if self.latency is None else self.latency
                self.latency = old_latency + self.smoothing * (result.elapsed - old_latency)
            elif result.outcome in ("timed_out", "rate_limited", "unavailable"):
                changes += self._count_overload(now)
            changes += self._close_window(now)
            if result.retry_after is not None:
                evidence = f"{result.cause} at {len(self._in_flight) + 1} in flight"
                changes += self._pause.begin_retry_after(now, result.retry_after, evidence)
        return Decision(limit=self.limit, changes=tuple(changes))

    def elapse(self, t: float) -> Decision:
        """End a pause whose time is over."""
        return Decision(limit=self.limit, changes=tuple(self._pause.end(t)))

    def may_start(self, t: float) -> StartPermit:
        """Return whether fewer attempts than the limit are in flight and no pause is in force."""
        if len(self._in_flight) >= self.limit:
            return FULL
        start_at = self._pause.earliest_start(t)
        return OPEN if t >= start_at else StartPermit(open=False, check_at=start_at)

    def _close_window(self, now: float) -> list[PolicyEvent]:
        """If the window is over, change the target and start the next window; the call that ends it belongs to it."""
        if self._window is None or now - self._window < self.window_seconds:
            return []
        successes, overloads, elapsed = self._successes, self._overloads, now - self._window
        self._window, self._successes, self._overloads = now, 0, 0
        evidence = f"{overloads} overloads and {successes} successes in {elapsed:.1f} s"
        if overloads:
            return self._move(self.target * self.decrease_ratio, evidence)
        return self._move(self.target + self.increase_step, evidence) if successes else []

    def _count_overload(self, now: float) -> list[PolicyEvent]:
        """Count an overload, and reduce the target to 1 after several."""
        self._overloads += 1
        self._recent_overloads = [t for t in self._recent_overloads if now - t < self.collapse_window_seconds]
        self._recent_overloads.append(now)
        if len(self._recent_overloads) < self.collapse_error_threshold:
            return []
        evidence = f"{len(self._recent_overloads)} overloads in {now - self._recent_overloads[0]:.1f} s"
        self._recent_overloads = []
        # The window starts again: halving 1 at its end would change nothing, but be recorded.
        self._window, self._successes, self._overloads = now, 0, 0
        return self._move(1.0, evidence)

    def _move(self, target: float, evidence: str) -> list[PolicyEvent]:
        old_limit = self.limit
        self.target = min(max(target, 1.0), float(self.slots))
        if self.limit == old_limit:
            return []
        return [LimitChanged(before=old_limit, after=self.limit, reason="window", evidence=evidence)]
