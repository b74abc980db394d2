"""When an input is asked again: one budget for all causes, as Phoenix counts, and a wait before each, as we do."""

import attrs

from journal.events import FailureCategory
from runner.retries.classify import Failure
from runner.retries.retry import OneBudget


def _bypasses(exc: BaseException) -> FailureCategory | None:
    """Phoenix's own exceptions say that the request is wrong; only that of its rate limiter says to come back."""
    names = {cls.__name__ for cls in type(exc).__mro__}
    return "fatal" if "PhoenixException" in names and "RateLimitError" not in names else None


@attrs.frozen(kw_only=True)
class MaxRetries(OneBudget):
    """So many times again; whether a failure ends the run is for `exit_on_error` to say."""

    @classmethod
    def of(cls, most: int) -> "MaxRetries":
        """Allow `most` further attempts."""
        return cls(total=most, classify=_bypasses)

    def failure(self, exc: BaseException, *, now: float) -> Failure:
        """Say what an exception means for its input, and for no other."""
        return attrs.evolve(super().failure(exc, now=now), stop_run=False)
