"""The controller of Phoenix's interface: additive increase, multiplicative decrease, by windows of time.

It is a clock and a few names around the policy `runner.concurrency.Aimd`, which decides and is told the time.
"""

import time
from collections.abc import Callable

from runner.concurrency import Aimd, Failed, Started, Succeeded, TimedOut

_ATTEMPT = "it"
"""The policy wants to know who began before it hears how it ended; here one follows the other at once."""


class ConcurrencyController:
    """Says how many calls may be made at once, from how the last ones ended."""

    def __init__(
        self,
        max_concurrency: int,
        initial_target: float,
        *,
        window_seconds: float = 5.0,
        increase_step: float = 0.5,
        decrease_ratio: float = 0.5,
        inactive_check_interval: float = 1.0,
        smoothing_factor: float = 0.2,
        collapse_window_seconds: float = 15.0,
        collapse_error_threshold: int = 2,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Move between 1 and `max_concurrency`, beginning at `initial_target`; `clock` tells the seconds."""
        self.inactive_check_interval = inactive_check_interval
        """Kept for those who read it. Nothing is checked at intervals here."""
        self._clock = clock
        self._policy = Aimd(
            max_concurrency,
            initial=initial_target,
            window_seconds=window_seconds,
            increase_step=increase_step,
            decrease_ratio=decrease_ratio,
            collapse_window_seconds=collapse_window_seconds,
            collapse_error_threshold=collapse_error_threshold,
            smoothing=smoothing_factor,
        )

    @property
    def target_concurrency(self) -> int:
        """How many calls may be made at once, from 1 up to the most."""
        return self._policy.limit

    @property
    def latency(self) -> float | None:
        """Seconds of a success, recent ones weighing more; None before the first."""
        return self._policy.latency

    def record_success(self, latency: float) -> None:
        """Hear that a call ended well after so many seconds."""
        now = self._begun()
        self._policy.take(Succeeded(t=now, attempt=_ATTEMPT, elapsed=latency))

    def record_error(self) -> None:
        """Hear that a call was refused or failed in a way that more load makes worse."""
        now = self._begun()
        self._policy.take(Failed(t=now, attempt=_ATTEMPT, failure="unavailable"))

    def record_timeout(self) -> None:
        """Hear that a call outlived its time."""
        now = self._begun()
        self._policy.take(TimedOut(t=now, attempt=_ATTEMPT))

    def _begun(self) -> float:
        now = self._clock()
        self._policy.take(Started(t=now, attempt=_ATTEMPT))
        return now
