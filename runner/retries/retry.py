"""Whether a trial is tried again, and when: a decision about the future, as a pure function.

Nothing here waits, reads a clock or rolls dice. What happened, what was already spent and the chance for the delay come
in as arguments; what to do comes out as a value.
"""

import hashlib
import math
from collections.abc import Callable
from typing import Any, Final, Literal, assert_never, get_args

from attrs import Attribute, evolve, field, frozen

from journal.events import FailureCategory
from runner.errors import UsageError
from runner.retries.classify import Failure, classify, leaves, worst

_WIDEST = 60
"""Doublings after which the back-off has long met its ceiling; more would overflow a float."""


def _to_the_microsecond(seconds: float) -> float:
    return max(round(seconds, 6), 1e-6) if seconds > 0 else 0.0  # A wait that is none would never use a budget up.


@frozen(kw_only=True)
class TimedOut:
    """The attempt outlived its limit."""


@frozen(kw_only=True)
class Again:
    """Make another attempt."""

    delay: float = field(converter=_to_the_microsecond)
    """Seconds from the end of the last attempt until the next may start, jitter included; exactly as they are recorded."""
    cause: Literal["error", "unavailable", "rate_limited", "timed_out", "probe", "stopped"]


@frozen(kw_only=True)
class GiveUp:
    """Make no further attempt."""

    cause: Literal["exhausted", "fatal", "timed_out"]


@frozen(kw_only=True)
class Spent:
    """What one trial has used of its budgets so far."""

    errors: int = 0
    """Attempts that ended with an error, or with the other side unavailable."""
    timeouts: int = 0
    rate_limit_failures: int = 0
    """Attempts that met a rate limit. They widen the back-off and are otherwise free."""
    rate_limit_wait: float = 0.0
    """Seconds of waiting that rate limits have cost."""

    def plus(self, happened: "Failure | TimedOut | Again") -> "Spent":
        """Count the end of an attempt, or the wait that was decided after it."""
        match happened:
            case TimedOut():
                return evolve(self, timeouts=self.timeouts + 1)
            case Failure(kind="rate_limited"):
                return evolve(self, rate_limit_failures=self.rate_limit_failures + 1)
            case Failure():
                return evolve(self, errors=self.errors + 1)
            case Again(cause="rate_limited"):
                return evolve(self, rate_limit_wait=self.rate_limit_wait + happened.delay)
            case Again():
                return self
        assert_never(happened)


def chance(seed: str | int, trial: str, attempt: int) -> float:
    """Draw a number from 0 up to 1 that depends on nothing but the arguments, so that a replay draws the same."""
    digest = hashlib.sha256(f"{seed}\0{trial}\0{attempt}".encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53  # 53 bits: all that a float between 0 and 1 can hold


def _types(given: "type[BaseException] | tuple[type[BaseException], ...]") -> tuple[type[BaseException], ...]:
    return given if isinstance(given, tuple) else (given,)


def _only_types(_: "Retry", attribute: "Attribute[Any]", types: tuple[Any, ...]) -> None:
    for cls in types:
        if not (isinstance(cls, type) and issubclass(cls, BaseException)):
            raise _invalid(attribute, cls, "must be an exception class or a tuple of them")


def _count(_: "Retry", attribute: "Attribute[Any]", value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise _invalid(attribute, value, "must be a whole number, 0 or more")


def _seconds(retry: "Retry", attribute: "Attribute[Any]", value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value >= 0):
        raise _invalid(attribute, value, "must be a number of seconds, 0 or more")
    if attribute.name.endswith("_delay") and value == 0:
        raise _invalid(attribute, value, "must be more than 0, or retries would overload a failing endpoint")
    if attribute.name == "max_delay" and value < retry.base_delay:
        raise _invalid(attribute, value, f"must not be less than base_delay, which is {retry.base_delay!r}")


def _callable(_: "Retry", attribute: "Attribute[Any]", value: object) -> None:
    if value is not None and not callable(value):
        raise _invalid(attribute, value, "must be a function of the exception")


def _invalid(attribute: "Attribute[Any]", value: object, problem: str) -> UsageError:
    return UsageError(problem, setting=f"retry.{attribute.name}", value=value)


@frozen(kw_only=True)
class Retry:
    """When a trial is tried again; each cause has a budget of its own, so that no trouble spends what another needs."""

    errors: int = field(default=4, validator=_count)
    """How many times a trial is tried again after an error, or after the other side was unavailable."""
    timeouts: int = field(default=2, validator=_count)
    """How many times a trial is tried again after an attempt that outlived its limit."""
    rate_limits: float = field(default=600.0, validator=_seconds)
    """Seconds that a trial may wait after refusals of its own, all its waits together: being refused costs time, never
    attempts. Where it is asked to wait longer than is left, it is given up at once. That nothing at all is started for a
    while, because somebody was refused, is the policy's doing, and not counted; a `Retry-After` does so for 120 s at most."""
    base_delay: float = field(default=1.0, validator=_seconds)
    """Seconds; the first delay is drawn from 0 up to this, each further one of the same cause from twice as much."""
    max_delay: float = field(default=60.0, validator=_seconds)
    """Seconds; the doubling ends here. A longer `Retry-After` is honoured all the same."""
    on: tuple[type[BaseException], ...] = field(default=(), converter=_types, validator=_only_types)
    """Exceptions that deserve another attempt although our rules call them fatal.
    An exception in `on` and in `give_up_on` goes by the class that is nearer to its own:
    `Retry(on=ValueError, give_up_on=Exception)` retries after a ValueError only."""
    give_up_on: tuple[type[BaseException], ...] = field(default=(), converter=_types, validator=_only_types)
    """Exceptions that are fatal although our rules would retry."""
    classify: Callable[[BaseException], FailureCategory | None] | None = field(default=None, validator=_callable)
    """Asked first about every exception; None means: by the usual rules."""

    def judge(self, exc: BaseException, *, now: float) -> Failure:
        """Say what an exception means under these settings; `now` is wall time, in seconds since 1970."""
        return worst([self._judge(leaf, now) for leaf in leaves(exc)])

    def _judge(self, exc: BaseException, now: float) -> Failure:
        found = classify(exc, now=now)
        said = self.classify(exc) if self.classify else None
        if said is not None:
            if said not in get_args(FailureCategory):
                raise UsageError(f"Retry(classify=…) returned {said!r}; expected None or one of {get_args(FailureCategory)}")
            return evolve(found, kind=said, stop_run=found.stop_run and said == "fatal")
        for cls in type(exc).__mro__:
            if cls in self.give_up_on:
                return evolve(found, kind="fatal", why=f"give_up_on={cls.__name__}")
            if cls in self.on:
                return evolve(found, kind="error", stop_run=False) if found.kind == "fatal" else found
        return found

    def after(self, ended: Failure | TimedOut, spent: Spent, chance: float, *, probe: bool = False) -> Again | GiveUp:
        """Decide what follows an attempt that did not work out.

        `spent` counts this ending already (`spent.plus(ended)`). `chance` is a number from 0 up to 1, see `chance()`.
        A breaker's `probe` is made for everyone's sake; the trial that makes it does not pay for it.
        """
        if isinstance(ended, Failure) and ended.stop_run:
            return Again(delay=0.0, cause="stopped")  # It is not the trial's failure: a resumption asks it again.
        decided = self._after(ended, spent, chance)
        if not probe or decided == GiveUp(cause="fatal"):
            return decided
        return Again(delay=decided.delay if isinstance(decided, Again) else self.base_delay, cause="probe")

    def _after(self, ended: Failure | TimedOut, spent: Spent, chance: float) -> Again | GiveUp:
        match ended:
            case Failure(kind="fatal"):
                return GiveUp(cause="fatal")
            case Failure(kind="rate_limited"):
                return self._after_refusal(ended, spent, chance)
            case Failure():
                if spent.errors > self.errors or (ended.retry_after or 0.0) > self.rate_limits:
                    return GiveUp(cause="exhausted")
                delay = max(ended.retry_after or 0.0, self._back_off(spent.errors, chance))
                return Again(delay=delay, cause="unavailable" if ended.kind == "unavailable" else "error")
            case TimedOut():
                if spent.timeouts > self.timeouts:
                    return GiveUp(cause="timed_out")
                return Again(delay=self._back_off(spent.timeouts, chance), cause="timed_out")
        assert_never(ended)

    def _after_refusal(self, ended: Failure, spent: Spent, chance: float) -> Again | GiveUp:
        """Wait as long as asked, within what is left; a wait that would outlast the budget is not begun."""
        left = self.rate_limits - spent.rate_limit_wait
        asked = ended.retry_after or 0.0
        if left <= 0 or asked > left:
            return GiveUp(cause="exhausted")
        return Again(delay=min(max(asked, self._back_off(spent.rate_limit_failures, chance)), left), cause="rate_limited")

    def _back_off(self, times: int, chance: float) -> float:
        """Seconds after the n-th trouble of a kind: full jitter under a ceiling that doubles."""
        return chance * min(self.max_delay, self.base_delay * float(1 << min(max(times - 1, 0), _WIDEST)))


NUMBERS: Final = ("errors", "timeouts", "rate_limits", "base_delay", "max_delay")
"""What of a `Retry` can be said in numbers: on a command line, and in a journal, from which they are read again."""


@frozen(kw_only=True)
class OneBudget(Retry):
    """So many times again, whatever went wrong: errors, timeouts and refusals are counted together, and nothing is free."""

    total: int = field(validator=_count)
    """How many times a trial is tried again; the budgets of the single causes do not count."""

    def after(self, ended: Failure | TimedOut, spent: Spent, chance: float, *, probe: bool = False) -> Again | GiveUp:  # noqa: ARG002
        """Decide what follows an attempt that did not work out; one that was a `probe` is counted like any other."""
        times = spent.errors + spent.timeouts + spent.rate_limit_failures
        back_off = self._back_off(times, chance)
        if isinstance(ended, TimedOut):
            return GiveUp(cause="timed_out") if times > self.total else Again(delay=back_off, cause="timed_out")
        if ended.kind == "fatal":
            return GiveUp(cause="fatal")
        asked = ended.retry_after or 0.0
        if times > self.total or asked > self.rate_limits:
            return GiveUp(cause="exhausted")
        return Again(delay=max(asked, back_off), cause=ended.kind)
