"""The policy of Phoenix's executors: additive increase, multiplicative decrease.

Time is divided into windows. After a window with successes and no overload, the target grows by a step; after one with overload
it is multiplied by a ratio below 1; two overloads within a short time reduce it to 1. Calls are rarely rate limited, but the
target recovers slowly: from 1 to 100 slots takes a quarter of an hour.

An overload is a rate limit, an unavailable endpoint or a timeout; an error of the task itself is not. The target stays within
[1, slots].
"""

from evaljournal.journal.events import LimitChanged, PolicyEvent
from evaljournal.runner.concurrency.fixed import Fixed
from evaljournal.runner.concurrency.policy import STARTS, CallEvent, result_of


class Aimd(Fixed):
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
        trials: int | None = None,
    ) -> None:
        """Keep the limit between 1 and `slots`, starting at `initial`."""
        super().__init__(slots, trials=trials)
        self.slots = slots
        self.window_seconds = window_seconds
        self.increase_step = increase_step
        self.decrease_ratio = decrease_ratio
        self.collapse_window_seconds = collapse_window_seconds
        self.collapse_error_threshold = collapse_error_threshold
        self.target = 0.0
        """The limit before rounding down."""
        self._move(initial, "")
        self._window: float | None = None
        """When the current window began; None before the first attempt has started."""
        self._successes = 0
        self._overloads = 0
        self._recent_overloads: list[float] = []
        """Times of the overloads within `collapse_window_seconds`."""

    def observe(self, event: CallEvent, t: float) -> list[PolicyEvent]:
        """Count an attempt that started or ended; the first one begins the first window."""
        if self._window is None:
            self._window = t
        changes = super().observe(event, t)
        if isinstance(event, STARTS):
            return changes
        outcome = result_of(event).outcome
        if outcome == "succeeded":
            self._successes += 1
        elif outcome in ("timed_out", "rate_limited", "unavailable"):
            changes += self._count_overload(t)
        return changes + self._close_window(t)

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
        old_limit, self.target = self.limit, min(max(target, 1.0), float(self.slots))
        self.limit = int(self.target)
        if self.limit == old_limit:
            return []
        return [LimitChanged(before=old_limit, after=self.limit, reason="window", evidence=evidence)]
