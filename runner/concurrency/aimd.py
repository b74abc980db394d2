"""Additive increase, multiplicative decrease: what the Phoenix evals library does, without its defects.

Time is cut into windows. A window with a success and no trouble adds a little to the target; one with trouble
multiplies it down; trouble twice in a short while collapses it to 1. It is here for those who know it and want it: it
is rarely refused, and recovers slowly. From 1, a hundred slots take a quarter of an hour.

Trouble is what more load makes worse: a rate limit, an unavailable endpoint, a timeout. An error of the task's own is
not. The target never leaves [1, most], so a long calm cannot wind it up beyond reach.
"""

from attrs import define, field

from runner.concurrency.hold import Hold
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

FRESH = 0.2
"""Weight of the newest latency in the average that is shown."""
AIMD_NUMBERS = ("initial", "window_seconds", "increase_step", "decrease_ratio")
"""What may be given to one run of it, and is then recorded with its settings as `aimd`."""


@define(kw_only=True)
class AimdState:
    """The target, the window being counted, and who is in flight."""

    now: float = 0.0
    target: float
    """The limit before rounding down."""
    window: float | None = None
    """When the present window began; None before the first ending."""
    successes: int = 0
    """In the present window."""
    troubles: int = 0
    """In the present window."""
    recent: list[float] = field(factory=list[float])
    """When trouble came, as far back as a collapse looks."""
    latency: float | None = None
    """Average seconds of a success, recent ones weighing more; shown, not used."""
    flying: dict[str, float] = field(factory=dict[str, float])
    """Attempts in flight, with the time each began."""
    hold: Hold = field(factory=Hold)


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
        smoothing: float = FRESH,
        heed_retry_after: bool = True,
        state: AimdState | None = None,
    ) -> None:
        """Move between 1 and `most`, beginning at `initial`; go on from `state` where one is given."""
        if most < 1:
            raise ValueError(f"a policy needs at least one slot, not {most!r}")
        self.most = most
        self.window_seconds = window_seconds
        self.increase_step = increase_step
        self.decrease_ratio = decrease_ratio
        self.collapse_window_seconds = collapse_window_seconds
        self.collapse_error_threshold = collapse_error_threshold
        self.smoothing = smoothing
        self.heed_retry_after = heed_retry_after
        self.state = AimdState(target=min(max(initial, 1.0), float(most))) if state is None else state

    @property
    def limit(self) -> int:
        """Attempts that may be in flight at once."""
        return int(self.state.target)

    def take(self, signal: Signal) -> Decision:
        """Count the ending in its window, and move the target when the window is over."""
        state = self.state
        now = state.now = max(state.now, signal.t)
        changes: list[Change] = state.hold.passed(now)
        if isinstance(signal, Started):
            state.flying[signal.attempt] = now
        elif state.flying.pop(signal.attempt, None) is not None:
            changes += self._close_window(now)
            if isinstance(signal, Succeeded):
                state.successes += 1
                old = signal.elapsed if state.latency is None else state.latency
                state.latency = old + self.smoothing * (signal.elapsed - old)
            elif isinstance(signal, TimedOut) or (
                isinstance(signal, Failed) and signal.failure in ("rate_limited", "unavailable")
            ):
                changes += self._trouble(now)
            if isinstance(signal, Failed) and signal.retry_after is not None and self.heed_retry_after:
                changes += state.hold.retry_after(now, signal.retry_after, f"429 at {len(state.flying) + 1} in flight")
        return Decision(
            limit=int(state.target),
            changes=tuple(changes),
        )

    def may_start(self, t: float) -> Gate:
        """Open while fewer than the target are in flight and nobody asked us to stay away."""
        state = self.state
        if len(state.flying) >= int(state.target):
            return FULL
        at = state.hold.earliest(t)
        return OPEN if t >= at else Gate(open=False, at=at)

    def _close_window(self, now: float) -> list[Change]:
        """Judge the window that is over, and open the next."""
        state = self.state
        if state.window is None:
            state.window = now
        if now - state.window < self.window_seconds:
            return []
        successes, troubles = state.successes, state.troubles
        state.window, state.successes, state.troubles = now, 0, 0
        counted = f"{troubles} in trouble and {successes} well in {self.window_seconds:.6g} s"
        if troubles:
            return self._move(state.target * self.decrease_ratio, counted)
        return self._move(state.target + self.increase_step, counted) if successes else []

    def _trouble(self, now: float) -> list[Change]:
        """Count trouble, and collapse when it comes thick."""
        state = self.state
        state.troubles += 1
        state.recent = [t for t in state.recent if now - t < self.collapse_window_seconds]
        state.recent.append(now)
        if len(state.recent) < self.collapse_error_threshold:
            return []
        evidence = f"{len(state.recent)} in trouble in {now - state.recent[0]:.1f} s"
        state.recent = []
        # The collapse has punished this window; halving 1 again at its end would change nothing, but say so.
        state.window, state.successes, state.troubles = now, 0, 0
        return self._move(1.0, evidence)

    def _move(self, target: float, evidence: str) -> list[Change]:
        state = self.state
        before = int(state.target)
        state.target = min(max(target, 1.0), float(self.most))
        after = int(state.target)
        return [LimitMoved(before=before, after=after, cause="window", evidence=evidence)] if after != before else []
