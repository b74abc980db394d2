"""Phoenix's concurrency controller: the policy `integrations.phoenix.aimd.Aimd` with a clock."""

import time
from collections.abc import Callable
from typing import Any, Final

from evaljournal.integrations.phoenix.aimd import Aimd
from evaljournal.journal.events import AttemptEnd, AttemptFailed, AttemptStarted, AttemptSucceeded, AttemptTimedOut

_CALL: Final[dict[str, Any]] = {"trial": "call", "attempt": 1}
"""The only attempt: the policy matches the end of an attempt to its start, and one is always in flight here."""


class ConcurrencyController:
    """Computes how many calls may run concurrently from the results of recent calls."""

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
        """Vary between 1 and `max_concurrency`, starting at `initial_target`; `clock` returns seconds."""
        self.inactive_check_interval = inactive_check_interval
        """Kept for compatibility; nothing is checked at intervals."""
        self.latency: float | None = None
        """Smoothed latency of successful calls in seconds; None before the first."""
        self._smoothing_factor = smoothing_factor
        self._clock = clock
        self._policy = Aimd(
            max_concurrency,
            initial=initial_target,
            window_seconds=window_seconds,
            increase_step=increase_step,
            decrease_ratio=decrease_ratio,
            collapse_window_seconds=collapse_window_seconds,
            collapse_error_threshold=collapse_error_threshold,
        )
        self._start()

    @property
    def target_concurrency(self) -> int:
        return self._policy.limit

    def record_success(self, latency_seconds: float) -> None:
        latency = latency_seconds if self.latency is None else self.latency
        self.latency = latency + self._smoothing_factor * (latency_seconds - latency)
        self._record(AttemptSucceeded(**_CALL, output=None, elapsed=latency_seconds))

    def record_error(self) -> None:
        """Record a rate limit, or an error that more load would make worse."""
        self._record(AttemptFailed(**_CALL, error="", message="", category="unavailable", elapsed=0.0))

    def record_timeout(self) -> None:
        self._record(AttemptTimedOut(**_CALL, timeout=0.0, elapsed=0.0))

    def _start(self) -> None:
        """Start a call; the first one starts the first window."""
        self._policy.observe(AttemptStarted(**_CALL, slot=0), self._clock())

    def _record(self, end: AttemptEnd) -> None:
        self._policy.observe(end, self._clock())
        self._start()
