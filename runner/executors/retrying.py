"""When an input is asked again: one budget for all causes, as Phoenix counts, and a wait before each, as we do."""

import attrs

from runner.failure import Failure
from runner.retry import Again, GiveUp, Retry, Spent, TimedOut

_LONGEST = 600.0
"""Seconds that the other side may ask for; a longer `Retry-After` is not waited for."""


def _bypasses(exc: BaseException) -> "str | None":
    """Phoenix's own exceptions say that the request is wrong; only that of its rate limiter says to come back."""
    names = {cls.__name__ for cls in type(exc).__mro__}
    return "fatal" if "PhoenixException" in names and "RateLimitError" not in names else None


@attrs.frozen(kw_only=True)
class MaxRetries(Retry):
    """So many times again, whatever went wrong: errors, timeouts and rate limits are counted together."""

    most: int

    @classmethod
    def of(cls, most: int) -> "MaxRetries":
        """Allow `most` further attempts. No attempt is free, not even one that only asks whether the other side is well."""
        return cls(most=most, rate_limits=0.0, classify=_bypasses)  # type: ignore[arg-type]  # one of the kinds, or None

    def judge(self, exc: BaseException, *, now: float) -> Failure:
        """Say what an exception means; whether it ends the run is for `exit_on_error` to say."""
        return attrs.evolve(super().judge(exc, now=now), stop_run=False)

    def after(self, ended: Failure | TimedOut, spent: Spent, chance: float) -> Again | GiveUp:
        """Decide what follows an attempt that did not work out."""
        if isinstance(ended, Failure) and ended.kind == "fatal":
            return GiveUp(cause="fatal")
        times = spent.errors + spent.timeouts + spent.refusals
        wait = (ended.retry_after if isinstance(ended, Failure) else None) or 0.0
        if times > self.most or wait > _LONGEST:
            return GiveUp(cause="timed_out" if isinstance(ended, TimedOut) else "exhausted")
        cause = "timed_out" if isinstance(ended, TimedOut) else ended.kind
        return Again(delay=max(wait, self._back_off(times, chance)), cause=cause)  # type: ignore[arg-type]  # fatal is gone
