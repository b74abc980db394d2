"""Retries of an executor: one budget for all causes, as in Phoenix, with evaljournal's backoff."""

import attrs

from journal.events import FailureCategory
from runner.retries.classify import Failure
from runner.retries.retry import OneBudget


def _bypasses(exc: BaseException) -> FailureCategory | None:
    """Treat Phoenix's own exceptions as fatal, except that of its rate limiter."""
    names = {cls.__name__ for cls in type(exc).__mro__}
    return "fatal" if "PhoenixException" in names and "RateLimitError" not in names else None


@attrs.frozen(kw_only=True)
class MaxRetries(OneBudget):
    """A total number of retries; `exit_on_error` decides whether a failure stops the run."""

    @classmethod
    def of(cls, retries: int) -> "MaxRetries":
        """Allow this many retries."""
        return cls(total=retries, classify=_bypasses)

    def failure(self, exc: BaseException, *, now: float) -> Failure:
        """Classify an exception; it never stops the run."""
        return attrs.evolve(super().failure(exc, now=now), stop_run=False)
