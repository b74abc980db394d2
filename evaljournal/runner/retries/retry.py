"""Retry budgets and delays: whether a failed attempt is retried, and after how long, or its trial fails.

The engine, a resumed run and the audit all decide here, from the recorded failures and a random number that depends on seed,
trial and attempt.
"""

import hashlib
import math
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, get_args

from attrs import Attribute, evolve, field, frozen
from attrs.validators import deep_iterable

from evaljournal.journal.events import FailureCategory, RetryScheduled, TrialFailed
from evaljournal.replay.state.trial import RetryHistory, TrialState
from evaljournal.runner.errors import UsageError, rule, whole_number
from evaljournal.runner.retries.classify import Description, Failure, RemoteError, classify, describe, leaves, worst_failure
from evaljournal.runner.signals import is_from_signal

MAX_WORKER_LOSSES: Final = 10
"""Maximum retries of a trial whose worker ended while the worker also ran other attempts."""
UNSERIALIZABLE: Final = "Unserializable"
"""The error type of an attempt whose output could not be recorded."""
_MAX_DOUBLINGS: Final = 60
"""Doublings of the backoff that are computed; more would overflow a float."""


def _round_delay(seconds: float) -> float:
    """Round as the journal does; a positive delay stays positive, or it would never use up a budget."""
    return max(round(seconds, 6), 1e-6) if seconds > 0 else 0.0


@frozen(kw_only=True)
class RetryIn:
    delay: float = field(converter=_round_delay)
    """Seconds from the failure until the next attempt may start, jitter included, as recorded."""
    reason: Literal["error", "unavailable", "rate_limited", "timed_out", "worker_died", "worker_lost", "probe", "stopped"]


@frozen(kw_only=True)
class NoRetry:
    reason: Literal["exhausted", "fatal", "timed_out"]


def jitter(seed: str | int, name: str, attempt: int) -> float:
    """Return a random number from 0 up to 1 that depends on the arguments only, so that an audit computes the same one."""
    digest = hashlib.sha256(f"{seed}\0{name}\0{attempt}".encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53  # 53 bits: the precision of a float.


def _as_tuple(value: "type[BaseException] | tuple[type[BaseException], ...]") -> tuple[type[BaseException], ...]:
    return value if isinstance(value, tuple) else (value,)


_validate_class: Final = rule(
    lambda cls: isinstance(cls, type) and issubclass(cls, BaseException),
    "must be an exception class or a tuple of them",
    prefix="retry.",
)
_validate_count: Final = whole_number(0, prefix="retry.")


def _validate_seconds(retry: "Retry", attribute: "Attribute[Any]", value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value >= 0):
        raise _invalid_error(attribute, value, "must be a number of seconds, 0 or more")
    if attribute.name.endswith("_delay") and value == 0:
        raise _invalid_error(attribute, value, "must be more than 0, or retries would overload a failing endpoint")
    if attribute.name == "max_delay" and value < retry.base_delay:
        raise _invalid_error(attribute, value, f"must not be less than base_delay, which is {retry.base_delay!r}")


def _invalid_error(attribute: "Attribute[Any]", value: object, problem: str) -> UsageError:
    return UsageError(problem, setting=f"retry.{attribute.name}", value=value)


@frozen(kw_only=True)
class Retry:
    """Which failed attempts are retried, how often and when: `Retry(errors=4, timeouts=2, rate_limits=600)`.

    These three numbers are the ones to choose; each kind of failure has its own budget. The delay before the n-th retry after
    the same kind of failure is random, between 0 and `base_delay` × 2ⁿ⁻¹, at most `max_delay` seconds.
    """

    errors: int = field(default=4, validator=_validate_count)
    """Retries after errors and after calls to an unavailable endpoint. Each may cost another call; the default waits 7.5
    seconds on average, 15 at most. Use 0 if a repeated call has effects."""
    timeouts: int = field(default=2, validator=_validate_count)
    """Retries after timeouts. A trial can take `timeout` × (`timeouts` + 1) seconds, and each attempt may be paid for; use 0 or
    1 with a long timeout."""
    rate_limits: float = field(default=600.0, validator=_validate_seconds)
    """Total seconds a trial may wait on rate limits, with any number of retries, which usually cost nothing. Use more for a
    small daily quota. A `Retry-After` above the rest ends the trial with an error. Time in which the policy paused all starts
    does not count."""
    parse_errors: int = field(default=1, validator=_validate_count)
    """Retries after a KeyError, IndexError or ValueError, which often come from parsing an output; at most `errors`. More help
    only if the task samples its outputs."""
    deaths: int = field(default=2, validator=_validate_count)
    """Retries after attempts that ended their worker: it crashed, was killed or exited, and ran nothing else. Each restarts a
    worker."""
    base_delay: float = field(default=1.0, validator=_validate_seconds)
    """Maximum seconds before the first retry; doubled with each retry after the same kind of failure (full jitter). Less than 1
    suits local servers only."""
    max_delay: float = field(default=60.0, validator=_validate_seconds)
    """Upper bound of a delay in seconds, reached after the sixth doubling. A longer `Retry-After` is still honored."""
    on: tuple[type[BaseException], ...] = field(default=(), converter=_as_tuple, validator=deep_iterable(_validate_class))
    """Exceptions that are retried as errors, even if they would otherwise be classified as fatal or as parse errors.
    If an exception matches both `on` and `fail_on`, the more specific class wins:
    `Retry(on=ValueError, fail_on=Exception)` retries only after a ValueError."""
    fail_on: tuple[type[BaseException], ...] = field(default=(), converter=_as_tuple, validator=deep_iterable(_validate_class))
    """Exceptions that are fatal, even if they would otherwise be retried."""
    classify: Callable[[BaseException], FailureCategory | None] | None = field(
        default=None,
        validator=rule(lambda value: value is None or callable(value), "must be a function of the exception", prefix="retry."),
    )
    """Called first with every exception; returns its category, or None for the built-in rules."""

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> "Retry":
        """Return the retry settings that a session has recorded; `on`, `fail_on` and `classify` are not."""
        retry_settings: Mapping[str, Any] = settings.get("retry", {})
        try:
            numbers = {name: retry_settings[name] for name in NUMERIC_FIELDS}
            return OneBudget(**numbers, total=retry_settings["total"]) if "total" in retry_settings else Retry(**numbers)
        except (KeyError, TypeError) as exc:
            raise UsageError(
                "the recorded retry settings are incomplete or invalid; check the journal with `evaljournal verify`",
                setting="retry",
                value=retry_settings,
            ) from exc

    def failure(self, exc: BaseException, *, now: float) -> Failure:
        """Classify an exception under these settings; `now` is wall time in seconds since 1970."""
        return worst_failure([self._failure(leaf, now) for leaf in leaves(exc)])

    def classify_and_describe(self, exc: BaseException, *, now: float) -> tuple[Failure, Description]:
        """Classify and describe an exception. If `classify` itself raises, that is the failure, and it is fatal."""
        if isinstance(exc, RemoteError):
            return exc.failure, exc.description
        try:
            return self.failure(exc, now=now), describe(exc)
        except BaseException as error:
            if is_from_signal(error):
                raise
            if error is not exc and error.__cause__ is None:
                error.__cause__ = exc
            return Failure(category="fatal"), describe(error)

    def _failure(self, exc: BaseException, now: float) -> Failure:
        failure = classify(exc, now=now)
        category = self.classify(exc) if self.classify else None
        if category is not None:
            if category not in get_args(FailureCategory):
                raise UsageError(
                    f"Retry(classify=…) returned {category!r}; it must return None or one of {get_args(FailureCategory)}"
                )
            return evolve(failure, category=category, stop_reason=failure.stop_reason if category == "fatal" else None)

        for cls in type(exc).__mro__:
            if cls in self.fail_on:
                return evolve(failure, category="fatal")
            if cls in self.on:
                is_retried = failure.category not in ("fatal", "parse_error")
                return failure if is_retried else evolve(failure, category="error", stop_reason=None)
        return failure

    def decide(self, history: RetryHistory, jitter: float, *, probe: bool = False, stop_run: bool = False) -> RetryIn | NoRetry:
        """Decide what follows the last failure of a history, which already includes it.

        A breaker's `probe` does not use up the trial's budget. With `stop_run` the run stops, and the trial is retried when the
        run is resumed.
        """
        if stop_run:
            return RetryIn(delay=0.0, reason="stopped")
        decision = self._decide(history, jitter)
        if not probe or decision == NoRetry(reason="fatal"):
            return decision
        return RetryIn(delay=decision.delay if isinstance(decision, RetryIn) else self.base_delay, reason="probe")

    def _decide(self, history: RetryHistory, jitter: float) -> RetryIn | NoRetry:
        match history.category:
            case "fatal":
                return NoRetry(reason="fatal")
            case "rate_limited":
                return self._decide_after_rate_limit(history, jitter)
            case "timed_out":
                failures, budget = history.timeouts, self.timeouts
            case "worker_died":
                failures, budget = history.deaths, self.deaths
            case "worker_lost":
                failures, budget = history.losses, MAX_WORKER_LOSSES
            case "parse_error":
                failures, budget = history.parse_errors, min(self.parse_errors, self.errors)
            case _:
                failures, budget = history.errors, self.errors
        return self._decide_within(budget, failures, history, jitter)

    def _decide_within(self, budget: int, failures: int, history: RetryHistory, jitter: float) -> RetryIn | NoRetry:
        """Retry after the backoff, or after a longer `Retry-After`, unless there were more failures than the budget."""
        category, retry_after = history.category, history.retry_after or 0.0
        if failures > budget or retry_after > self.rate_limits:
            return NoRetry(reason="timed_out" if category == "timed_out" else "exhausted")
        backoff = 0.0 if category == "worker_lost" else self._backoff(failures, jitter)
        reason: Any = "error" if category == "parse_error" else category
        return RetryIn(delay=max(retry_after, backoff), reason=reason)

    def _decide_after_rate_limit(self, history: RetryHistory, jitter: float) -> RetryIn | NoRetry:
        remaining_wait, retry_after = self.rate_limits - history.rate_limit_wait, history.retry_after or 0.0
        if remaining_wait <= 0 or retry_after > remaining_wait:
            return NoRetry(reason="exhausted")
        delay = min(max(retry_after, self._backoff(history.rate_limit_failures, jitter)), remaining_wait)
        return RetryIn(delay=delay, reason="rate_limited")

    def _backoff(self, failures: int, jitter: float) -> float:
        """Return the seconds after the n-th failure of a kind: exponential backoff with full jitter."""
        return jitter * min(self.max_delay, self.base_delay * float(1 << min(max(failures - 1, 0), _MAX_DOUBLINGS)))


NUMERIC_FIELDS: Final = ("errors", "timeouts", "rate_limits", "parse_errors", "deaths", "base_delay", "max_delay")
"""The fields of `Retry` that are numbers, which can be recorded and read back."""


@frozen(kw_only=True)
class OneBudget(Retry):
    """One budget for errors, timeouts, rate limits and worker deaths together."""

    total: int = field(validator=_validate_count)
    """Retries per trial; the separate budgets do not apply, except that a `Retry-After` above `rate_limits` fails the trial."""

    def decide(self, history: RetryHistory, jitter: float, **_: bool) -> RetryIn | NoRetry:
        """Decide what follows the last failure of a history; probes and attempts that stop the run count like any other."""
        if history.category == "fatal":
            return NoRetry(reason="fatal")
        failures = history.errors + history.parse_errors + history.timeouts + history.rate_limit_failures + history.deaths
        return self._decide_within(self.total, failures, history, jitter)


def settle(
    trial: str,
    state: TrialState,
    retry: Retry,
    seed: int,
    *,
    probe: bool = False,
    stop_run: bool = False,
    over_limit: bool = False,
    ambiguous: bool = False,
) -> RetryScheduled | TrialFailed:
    """Decide what follows the last attempt of a trial, which failed, timed out or was interrupted.

    A trial that has already failed is retried: the user asked for it. An interrupted one is settled only if its worker ended,
    or if it is `ambiguous` and must not be repeated. `over_limit`: its attempts have exceeded the budget per trial.
    """
    if state.stage == "failed":
        return RetryScheduled(trial=trial, attempt=state.attempts + 1, delay=0.0, reason="requested")
    if over_limit:
        return TrialFailed(trial=trial, attempts=state.attempts, reason="budget")
    if state.stage == "interrupted" and (ambiguous or not state.ended_with_worker):
        return TrialFailed(trial=trial, attempts=state.attempts, reason="ambiguous")

    history = state.retry_history
    assert history is not None
    if history.category == "fatal" and history.error_type == UNSERIALIZABLE:
        return TrialFailed(trial=trial, attempts=state.attempts, reason="unserializable")

    decision = retry.decide(history, jitter(seed, trial, state.attempts), probe=probe, stop_run=stop_run)
    if isinstance(decision, RetryIn):
        return RetryScheduled(trial=trial, attempt=state.attempts + 1, delay=decision.delay, reason=decision.reason)
    return TrialFailed(trial=trial, attempts=state.attempts, reason=decision.reason)
