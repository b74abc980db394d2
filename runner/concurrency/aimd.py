"""Additive increase, multiplicative decrease: the rule of the Phoenix evals library, without its defects.

Time is divided into windows. A window with a success and no trouble adds a little to the target; one with trouble multiplies it
down; trouble twice in a short time collapses it to 1. It is rarely rate limited, and recovers slowly: from 1 to 100 slots takes
a quarter of an hour.

Trouble is what a higher load makes worse: a rate limit, an unavailable endpoint, a timeout. A task's own error is not.
The target stays within [1, most], so a long calm cannot wind it up beyond reach.
"""

from runner.concurrency.pause import Pause
from runner.concurrency.policy import (
    FULL,
    OPEN,
    Change,
    Decision,
    Failed,
    Gate,
    LimitMoved,
    Signal,
    Started,
    Succeeded,
    TimedOut,
)

_SMOOTHING = 0.2
"""Weight of the newest latency in the average that is shown."""
AIMD_NUMBERS = ("initial", "window_seconds", "increase_step", "decrease_ratio")
"""Parameters that one run may set; they are recorded with its settings as `aimd`."""


class Aimd:
    """Climb by steps, fall by halves."""

    def __init__(
        self,
        most: int,
        *,
        initial: float = 3.0,
        window_seconds: float = 5.0,
        increase_step: float = 0.5,
        decrease_ratio: float = 0.5,
        collapse_window_seconds: float = 15.0,
        collapse_error_threshold: int = 2,
        smoothing: float = _SMOOTHING,
        trials: int | None = None,  # noqa: ARG002  # it makes no difference
    ) -> None:
        """Move between 1 and `most`, beginning at `initial`."""
        if most < 1:
            raise ValueError(f"a policy needs at least one slot, not {most!r}")
        self.most = most
        self.window_seconds = window_seconds
        self.increase_step = increase_step
        self.decrease_ratio = decrease_ratio
        self.collapse_window_seconds = collapse_window_seconds
        self.collapse_error_threshold = collapse_error_threshold
        self.smoothing = smoothing
        self.target = min(max(initial, 1.0), float(most))
        """The limit before rounding down."""
        self.latency: float | None = None
        """Average seconds of a success, recent ones weighing more; shown, not used."""
        self._now = 0.0
        self._window: float | None = None
        """When the present window began; None before the first ending."""
        self._successes = 0
        self._troubles = 0
        self._recent: list[float] = []
        """When trouble came, as far back as a collapse looks."""
        self._flying: set[str] = set()
        self._pause = Pause()

    @property
    def limit(self) -> int:
        """Attempts that may be in flight at once."""
        return int(self.target)

    def take(self, signal: Signal) -> Decision:
        """Count the ending in its window, and move the target when the window is over."""
        now = self._now = max(self._now, signal.t)
        changes: list[Change] = self._pause.end(now)
        if isinstance(signal, Started):
            self._flying.add(signal.attempt)
        elif signal.attempt in self._flying:
            self._flying.remove(signal.attempt)
            changes += self._close_window(now)
            if isinstance(signal, Succeeded):
                self._successes += 1
                old = signal.elapsed if self.latency is None else self.latency
                self.latency = old + self.smoothing * (signal.elapsed - old)
            elif isinstance(signal, TimedOut) or (
                isinstance(signal, Failed) and signal.category in ("rate_limited", "unavailable")
            ):
                changes += self._trouble(now)
            if isinstance(signal, Failed) and signal.retry_after is not None:
                changes += self._pause.retry_after(now, signal.retry_after, f"429 at {len(self._flying) + 1} in flight")
        return Decision(limit=self.limit, changes=tuple(changes))

    def elapse(self, t: float) -> Decision:
        """End a pause whose time is over."""
        return Decision(limit=self.limit, changes=tuple(self._pause.end(t)))

    def may_start(self, t: float) -> Gate:
        """Return whether fewer attempts than the target are in flight and no Retry-After is in force."""
        if len(self._flying) >= self.limit:
            return FULL
        at = self._pause.earliest(t)
        return OPEN if t >= at else Gate(open=False, at=at)

    def _close_window(self, now: float) -> list[Change]:
        """Judge the window that is over, and open the next."""
        if self._window is None:
            self._window = now
        if now - self._window < self.window_seconds:
            return []
        successes, troubles = self._successes, self._troubles
        self._window, self._successes, self._troubles = now, 0, 0
        evidence = f"{troubles} in trouble and {successes} successful in {self.window_seconds:.6g} s"
        if troubles:
            return self._move(self.target * self.decrease_ratio, evidence)
        return self._move(self.target + self.increase_step, evidence) if successes else []

    def _trouble(self, now: float) -> list[Change]:
        """Count trouble, and collapse when there is much of it."""
        self._troubles += 1
        self._recent = [t for t in self._recent if now - t < self.collapse_window_seconds]
        self._recent.append(now)
        if len(self._recent) < self.collapse_error_threshold:
            return []
        evidence = f"{len(self._recent)} in trouble in {now - self._recent[0]:.1f} s"
        self._recent = []
        # The collapse has answered this window; halving 1 at its end would change nothing, but be recorded.
        self._window, self._successes, self._troubles = now, 0, 0
        return self._move(1.0, evidence)

    def _move(self, target: float, evidence: str) -> list[Change]:
        before = self.limit
        self.target = min(max(target, 1.0), float(self.most))
        after = self.limit
        return [LimitMoved(before=before, after=after, reason="window", evidence=evidence)] if after != before else []
