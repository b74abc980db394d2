"""The end of a session: why it stops early, how long calls in flight may take, and whether it is over."""

import math
from collections.abc import Callable

import trio

from evaljournal.journal.events import StopReason
from evaljournal.runner.retries.classify import Description, Failure


class Shutdown:
    """Whether a session is stopping or over, and why."""

    def __init__(self, now: Callable[[], float], *, grace: float, on_stop: Callable[[], None]) -> None:
        self._now = now
        self.grace = grace
        """Seconds that calls in flight get once the session is stopped."""
        self._on_stop = on_stop
        self.reason: StopReason | None = None
        """Why the session was stopped; None if it was not."""
        self.detail = ""
        """Details of the reason."""
        self.grace_end = math.inf
        """When calls in flight are cancelled, in the seconds of `t`."""
        self.grace_scope = trio.CancelScope()
        self.is_over = False
        """Whether the session has ended, so that calls in flight are no longer recorded."""
        self._end_event = trio.Event()

    def stop(self, reason: StopReason, detail: str = "") -> None:
        """Start no more attempts, and give calls in flight their grace period. Only the first reason counts."""
        if self.reason is None and not self.is_over:
            self.reason, self.detail, self.grace_end = reason, detail, self._now() + self.grace
            self._on_stop()

    def stop_after(self, failure: Failure, error: Description) -> None:
        """Stop if every other call would fail in the same way."""
        if failure.stop_reason is not None:
            resets = f"{failure.resets}; " if failure.resets else ""
            self.stop(
                failure.stop_reason, f"{resets}every other call would fail in the same way: {error.type}: {error.message}"
            )

    def interrupt(self) -> None:
        """Stop at the user's request; the second time, end the grace period immediately."""
        if self.reason is None:
            self.stop("interrupted")
        else:
            self.grace_end = min(self.grace_end, self._now())
            self.grace_scope.cancel()

    def end(self) -> None:
        """Mark the session as over."""
        self.is_over = True
        self._end_event.set()

    async def wait_over(self) -> None:
        """Wait until the session is over."""
        await self._end_event.wait()
