"""Retries: budgets, delays, and settings that override the classification."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaljournal.journal.events import RetryScheduled, TrialFailed
from evaljournal.replay.state.trial import RetryHistory, TrialState
from evaljournal.runner.errors import UsageError
from evaljournal.runner.retries.classify import Fatal, RateLimited
from evaljournal.runner.retries.retry import NoRetry, OneBudget, Retry, RetryIn, jitter, settle

NOW = 1_800_000_000.0
Failed = tuple[str, float | None]
"""Category and Retry-After of a failed attempt."""
ERROR: Failed = ("error", None)
RATE_LIMITED: Failed = ("rate_limited", None)
TIMED_OUT: Failed = ("timed_out", None)


def history(*failures: Failed, **counts: Any) -> RetryHistory:
    """Return the history of a trial that failed in these ways."""
    history = RetryHistory(**counts)
    for failure in failures:
        history.count_failure(*failure)
    return history


def decisions(retry: Retry, failures: list[Failed], seed: int = 0) -> list[RetryIn | NoRetry]:
    """List every decision about a trial whose attempts fail in these ways, in turn, until it fails."""
    failed, decisions = RetryHistory(), list[RetryIn | NoRetry]()
    while not (decisions and isinstance(decisions[-1], NoRetry)):
        attempt = len(decisions) + 1
        failed.count_failure(*failures[len(decisions) % len(failures)])
        decision = retry.decide(failed, jitter(seed, "a", attempt))
        decisions.append(decision)
        if isinstance(decision, RetryIn):
            failed.count_retry(decision.reason, decision.delay)
        assert attempt < 10_000, "the budgets do not end"
    return decisions


@pytest.mark.parametrize(
    ("failure", "attempts", "reason"),
    [
        (ERROR, 5, "exhausted"),
        (("parse_error", None), 2, "exhausted"),
        (("unavailable", None), 5, "exhausted"),
        (TIMED_OUT, 3, "timed_out"),
        (("fatal", None), 1, "fatal"),
    ],
)
def test_each_cause_has_a_budget(failure: Failed, attempts: int, reason: Any) -> None:
    """Errors are retried 4 times, parse errors once, timeouts twice, fatal failures never."""
    results = decisions(Retry(), [failure])

    assert attempts == len(results)
    assert NoRetry(reason=reason) == results[-1]


@pytest.mark.parametrize(("errors", "parse_errors", "attempts"), [(0, 1, 1), (4, 0, 1), (4, 3, 4), (2, 3, 3)])
def test_parse_errors_have_a_budget_within_that_of_errors(errors: int, parse_errors: int, attempts: int) -> None:
    """`Retry(errors=0)` retries no parse errors either."""
    assert attempts == len(decisions(Retry(errors=errors, parse_errors=parse_errors), [("parse_error", None)]))


def test_budgets_are_separate() -> None:
    """A timeout uses up no errors and an error no timeouts; the trial fails with the first budget that is used up."""
    results = decisions(Retry(errors=4, timeouts=2), [ERROR, TIMED_OUT])

    assert 6 == len(results)
    assert NoRetry(reason="timed_out") == results[-1]


def test_one_budget_counts_every_failure() -> None:
    """`OneBudget` counts errors, timeouts and rate limits together."""
    results = decisions(OneBudget(total=3), [ERROR, TIMED_OUT, RATE_LIMITED])

    assert ["error", "timed_out", "rate_limited", "exhausted"] == [decision.reason for decision in results]


def test_rate_limits_use_up_no_retries() -> None:
    """With no retries at all, rate limits are still waited for, until their ten minutes are over."""
    results = decisions(Retry(errors=0, timeouts=0), [RATE_LIMITED])
    waits = [decision.delay for decision in results if isinstance(decision, RetryIn)]

    assert len(waits) > 10
    assert 600 == pytest.approx(sum(waits))
    assert NoRetry(reason="exhausted") == results[-1]


def test_rate_limits_do_not_use_up_the_budget_of_errors() -> None:
    """However often it was rate limited, a trial has all its retries after errors left."""
    failed = history(ERROR, rate_limit_failures=50, rate_limit_wait=599.0)

    assert isinstance(Retry().decide(failed, 0.5), RetryIn)


@pytest.mark.parametrize("category", ["rate_limited", "unavailable", "error"])
def test_retry_after_is_a_lower_bound(category: Any) -> None:
    """A retry does not start before Retry-After, even if that is longer than the longest delay."""
    assert RetryIn(delay=90, reason=category) == Retry().decide(history((category, 90.0)), 0.99)


@pytest.mark.parametrize("category", ["rate_limited", "unavailable"])
def test_a_wait_beyond_the_budget_fails_immediately(category: str) -> None:
    """With a Retry-After of an hour and ten minutes to spend, a trial fails now and not after ten minutes."""
    assert NoRetry(reason="exhausted") == Retry().decide(history((category, 3600.0)), 0.5)


def test_the_backoff_doubles() -> None:
    """With the highest jitter, delays are 1, 2, 4, 8 seconds, then stay at the longest."""
    delays = [Retry(errors=10, max_delay=10)._backoff(failures, 1.0) for failures in range(1, 7)]

    assert [1, 2, 4, 8, 10, 10] == delays


@given(
    errors=st.integers(0, 20),
    timeouts=st.integers(0, 20),
    rate_limits=st.floats(0, 2000),
    base=st.floats(0.5, 10),
    factor=st.floats(1, 100),
    seed=st.integers(),
    failures=st.lists(st.sampled_from([ERROR, RATE_LIMITED, TIMED_OUT, ("rate_limited", 7.0)]), min_size=1, max_size=5),
)
def test_retries_end(
    *, errors: int, timeouts: int, rate_limits: float, base: float, factor: float, seed: int, failures: list[Failed]
) -> None:
    """Any sequence of failures ends with a failed trial, and no delay exceeds its bounds."""
    retry = Retry(errors=errors, timeouts=timeouts, rate_limits=rate_limits, base_delay=base, max_delay=base * factor)
    waits = [decision for decision in decisions(retry, failures, seed) if isinstance(decision, RetryIn)]

    assert all(0 <= wait.delay <= max(retry.max_delay, 7) + 1e-6 for wait in waits)  # Rounded to the microsecond.
    assert sum(wait.delay for wait in waits if wait.reason == "rate_limited") <= rate_limits * 1.000001 + 1e-6
    assert sum(wait.reason == "error" for wait in waits) <= errors
    assert sum(wait.reason == "timed_out" for wait in waits) <= timeouts


def state(stage: str, *failures: Failed) -> TrialState:
    """Return a trial after attempts that failed in these ways."""
    return TrialState(stage, b"", attempts=2, retry_history=history(*failures) if failures else None)


@pytest.mark.parametrize(
    ("trial", "options", "expected"),
    [
        (state("unsettled", ("error", 9.0)), {}, RetryScheduled(trial="a", attempt=3, delay=9.0, reason="error")),
        (state("unsettled", ("fatal", None)), {}, TrialFailed(trial="a", attempts=2, reason="fatal")),
        (
            state("unsettled", ("fatal", None)),
            {"stop_run": True},
            RetryScheduled(trial="a", attempt=3, delay=0.0, reason="stopped"),
        ),
        (
            state("unsettled", *[("timed_out", None)] * 3),
            {"probe": True},
            RetryScheduled(trial="a", attempt=3, delay=1.0, reason="probe"),
        ),
        (state("failed", ERROR), {}, RetryScheduled(trial="a", attempt=3, delay=0.0, reason="requested")),
        (state("interrupted"), {}, TrialFailed(trial="a", attempts=2, reason="ambiguous")),
    ],
)
def test_settle_decides_from_the_state_of_a_trial(
    trial: TrialState, options: dict[str, Any], expected: RetryScheduled | TrialFailed
) -> None:
    """A failed attempt is retried or fails its trial; probes and stops of the run do not use up a budget."""
    assert expected == settle("a", trial, Retry(), 0, **options)


def test_jitter_is_uniform() -> None:
    """Attempts, trials and seeds give different numbers, evenly distributed, and the same ones on every machine."""
    drawn = [jitter(seed, trial, attempt) for seed in (1, 2) for trial in "abcde" for attempt in range(1, 101)]

    assert len(drawn) == len(set(drawn))
    assert 0 <= min(drawn) < max(drawn) < 1
    assert 0.45 < sum(drawn) / len(drawn) < 0.55
    assert 0.03285312034748822 == jitter("0142", "paris", 2)


@pytest.mark.parametrize(
    ("retry", "exc", "category"),
    [
        (Retry(), TypeError(), "fatal"),
        (Retry(on=TypeError), TypeError(), "error"),
        (Retry(on=(TypeError, KeyError)), TypeError(), "error"),
        (Retry(on=Exception), ConnectionError(), "unavailable"),
        (Retry(fail_on=ValueError), ValueError(), "fatal"),
        (Retry(fail_on=ValueError), UnicodeError(), "fatal"),
        (Retry(on=ValueError, fail_on=Exception), ValueError(), "error"),
        (Retry(on=ValueError, fail_on=Exception), KeyError(), "fatal"),
        (Retry(on=OSError, fail_on=FileNotFoundError), FileNotFoundError(), "fatal"),
        (Retry(fail_on=RateLimited), RateLimited(), "fatal"),
        (Retry(on=Fatal), Fatal(), "error"),
        (Retry(classify=lambda _: "unavailable"), TypeError(), "unavailable"),
        (Retry(classify=lambda _: None), TypeError(), "fatal"),
        (Retry(fail_on=ValueError), ExceptionGroup("", [ValueError(), OSError()]), "fatal"),
    ],
)
def test_settings_override_the_rules(retry: Retry, exc: Exception, category: str) -> None:
    """`classify` comes first, then the nearest class in `on` and `fail_on`, then the built-in rules."""
    assert category == retry.failure(exc, now=NOW).category


def test_overriding_keeps_retry_after() -> None:
    """A category from `classify` comes with the Retry-After of the exception."""
    retry = Retry(classify=lambda _: "unavailable")

    assert 3 == retry.failure(RateLimited(3), now=NOW).retry_after


def test_classify_must_return_a_category() -> None:
    """An invalid category is a usage error that lists the valid ones."""
    retry = Retry(classify=lambda _: "again")  # type: ignore[arg-type, return-value]  # the mistake under test

    with pytest.raises(UsageError, match=r"returned 'again'.*'rate_limited'"):
        retry.failure(ValueError(), now=NOW)


@pytest.mark.parametrize(
    ("settings", "name", "value"),
    [
        ({"errors": -1}, "errors", -1),
        ({"errors": 1.5}, "errors", 1.5),
        ({"errors": True}, "errors", True),
        ({"timeouts": -1}, "timeouts", -1),
        ({"rate_limits": -1}, "rate_limits", -1),
        ({"rate_limits": float("inf")}, "rate_limits", float("inf")),
        ({"base_delay": 0}, "base_delay", 0),
        ({"base_delay": "1"}, "base_delay", "1"),
        ({"base_delay": 5, "max_delay": 2}, "max_delay", 2),
        ({"on": "ValueError"}, "on", "ValueError"),
        ({"fail_on": (ValueError, 3)}, "fail_on", 3),
        ({"classify": "fatal"}, "classify", "fatal"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], name: str, value: object) -> None:
    """An invalid setting is rejected where it is written; the error names it and its value."""
    with pytest.raises(UsageError) as error:
        Retry(**settings)

    assert (f"retry.{name}", value) == (error.value.setting, error.value.value)
    assert f"retry.{name}={value!r}: " in str(error.value)
