"""The decision to try again: budgets, delays, and what the settings override."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal.events import FailureCategory
from runner.errors import UsageError
from runner.retries.classify import Failure, Fatal, RateLimited
from runner.retries.retry import Again, GiveUp, Retry, Spent, TimedOut, chance

NOW = 1_800_000_000.0
ERROR = Failure(kind="error")
REFUSED = Failure(kind="rate_limited")


def story(retry: Retry, endings: list[Failure | TimedOut], seed: int = 0) -> list[Again | GiveUp]:
    """List every decision about a trial that goes on ending in these ways, round and round, until it is given up."""
    spent, decisions = Spent(), list[Again | GiveUp]()
    while not (decisions and isinstance(decisions[-1], GiveUp)):
        attempt = len(decisions) + 1
        ended = endings[len(decisions) % len(endings)]
        spent = spent.plus(ended)
        decision = retry.after(ended, spent, chance(seed, "a", attempt))
        decisions.append(decision)
        if isinstance(decision, Again):
            spent = spent.plus(decision)
        assert attempt < 10_000, "the budgets do not end"
    return decisions


@pytest.mark.parametrize(
    ("ended", "attempts", "cause"),
    [
        (ERROR, 5, "exhausted"),
        (Failure(kind="unavailable"), 5, "exhausted"),
        (TimedOut(), 3, "timed_out"),
        (Failure(kind="fatal"), 1, "fatal"),
    ],
)
def test_each_cause_has_a_budget(ended: Failure | TimedOut, attempts: int, cause: str) -> None:
    """Four further attempts after errors, two after timeouts, none after what is fatal."""
    decisions = story(Retry(), [ended])

    assert attempts == len(decisions)
    assert GiveUp(cause=cause) == decisions[-1]  # type: ignore[arg-type]  # the table above has plain strings


def test_budgets_are_apart() -> None:
    """A timeout spends no errors and an error no timeouts; whichever is used up first ends the trial."""
    decisions = story(Retry(errors=4, timeouts=2), [ERROR, TimedOut()])

    assert 6 == len(decisions)
    assert GiveUp(cause="timed_out") == decisions[-1]


def test_rate_limits_spend_no_attempts() -> None:
    """With no retries at all a rate limit is still waited for, until its ten minutes are over."""
    decisions = story(Retry(errors=0, timeouts=0), [REFUSED])
    waits = [decision.delay for decision in decisions if isinstance(decision, Again)]

    assert len(waits) > 10
    assert 600 == pytest.approx(sum(waits))
    assert GiveUp(cause="exhausted") == decisions[-1]


def test_rate_limits_leave_the_errors_alone() -> None:
    """However often it was refused, a trial has all its errors left."""
    spent = Spent(rate_limit_failures=50, rate_limit_wait=599.0).plus(ERROR)

    assert isinstance(Retry().after(ERROR, spent, 0.5), Again)


@pytest.mark.parametrize("kind", ["rate_limited", "unavailable", "error"])
def test_retry_after_is_a_lower_bound(kind: FailureCategory) -> None:
    """We never come back before we were asked to, be it longer than our own longest delay."""
    ended = Failure(kind=kind, retry_after=90)

    assert Again(delay=90, cause=kind) == Retry().after(ended, Spent().plus(ended), 0.99)  # type: ignore[arg-type]  # never fatal


@pytest.mark.parametrize("kind", ["rate_limited", "unavailable"])
def test_a_wait_beyond_the_budget_is_not_begun(kind: FailureCategory) -> None:
    """Asked to come back in an hour with ten minutes to spend, a trial gives up now and not after ten minutes."""
    ended = Failure(kind=kind, retry_after=3600)

    assert GiveUp(cause="exhausted") == Retry().after(ended, Spent().plus(ended), 0.5)


def test_the_ceiling_doubles() -> None:
    """With the highest chance, delays are 1, 2, 4, 8 seconds, then stay at the longest."""
    delays = [Retry(errors=10, max_delay=10)._back_off(times, 1.0) for times in range(1, 7)]

    assert [1, 2, 4, 8, 10, 10] == delays


@given(
    errors=st.integers(0, 20),
    timeouts=st.integers(0, 20),
    rate_limits=st.floats(0, 2000),
    base=st.floats(0.5, 10),
    factor=st.floats(1, 100),
    seed=st.integers(),
    kinds=st.lists(
        st.sampled_from([ERROR, REFUSED, TimedOut(), Failure(kind="rate_limited", retry_after=7)]),
        min_size=1,
        max_size=5,
    ),
)
def test_every_story_ends(
    *,
    errors: int,
    timeouts: int,
    rate_limits: float,
    base: float,
    factor: float,
    seed: int,
    kinds: list[Failure | TimedOut],
) -> None:
    """Whatever goes wrong in whatever order, a trial is given up in the end, and no delay leaves its bounds."""
    retry = Retry(errors=errors, timeouts=timeouts, rate_limits=rate_limits, base_delay=base, max_delay=base * factor)
    waits = [decision for decision in story(retry, kinds, seed) if isinstance(decision, Again)]

    assert all(0 <= wait.delay <= max(retry.max_delay, 7) + 1e-6 for wait in waits)  # They are rounded to the microsecond.
    assert sum(wait.delay for wait in waits if wait.cause == "rate_limited") <= rate_limits * 1.000001 + 1e-6
    assert sum(wait.cause == "error" for wait in waits) <= errors
    assert sum(wait.cause == "timed_out" for wait in waits) <= timeouts


@given(
    seed=st.integers() | st.text(st.characters(codec="utf-8")),
    trial=st.text(st.characters(codec="utf-8")),
    attempt=st.integers(1),
)
def test_chance_is_no_dice(seed: int | str, trial: str, attempt: int) -> None:
    """The same run, trial and attempt draw the same number, from 0 up to 1."""
    drawn = chance(seed, trial, attempt)

    assert drawn == chance(seed, trial, attempt)
    assert 0 <= drawn < 1


def test_chance_spreads() -> None:
    """Attempts, trials and seeds draw different numbers, evenly; and the same ones on every machine."""
    drawn = [chance(seed, trial, attempt) for seed in (1, 2) for trial in "abcde" for attempt in range(1, 101)]

    assert len(drawn) == len(set(drawn))
    assert 0.45 < sum(drawn) / len(drawn) < 0.55
    assert 0.03285312034748822 == chance("0142", "paris", 2)


@pytest.mark.parametrize(
    ("retry", "exc", "kind"),
    [
        (Retry(), TypeError(), "fatal"),
        (Retry(on=TypeError), TypeError(), "error"),
        (Retry(on=(TypeError, KeyError)), TypeError(), "error"),
        (Retry(on=Exception), ConnectionError(), "unavailable"),
        (Retry(give_up_on=ValueError), ValueError(), "fatal"),
        (Retry(give_up_on=ValueError), UnicodeError(), "fatal"),
        (Retry(on=ValueError, give_up_on=Exception), ValueError(), "error"),
        (Retry(on=ValueError, give_up_on=Exception), KeyError(), "fatal"),
        (Retry(on=OSError, give_up_on=FileNotFoundError), FileNotFoundError(), "fatal"),
        (Retry(give_up_on=RateLimited), RateLimited(), "fatal"),
        (Retry(on=Fatal), Fatal(), "error"),
        (Retry(classify=lambda _: "unavailable"), TypeError(), "unavailable"),
        (Retry(classify=lambda _: None), TypeError(), "fatal"),
        (Retry(give_up_on=ValueError), ExceptionGroup("", [ValueError(), OSError()]), "fatal"),
    ],
)
def test_settings_overrule_the_rules(retry: Retry, exc: Exception, kind: str) -> None:
    """`classify` speaks first, then the nearest class in `on` and `give_up_on`, then the usual rules."""
    assert kind == retry.judge(exc, now=NOW).kind


def test_overruling_keeps_the_wait() -> None:
    """A kind given by `classify` comes with the Retry-After that the exception carried."""
    retry = Retry(classify=lambda _: "unavailable")

    assert 3 == retry.judge(RateLimited(3), now=NOW).retry_after


def test_classify_must_answer_with_a_kind() -> None:
    """An answer that is no kind is the fault of the definition, and says what would be right."""
    retry = Retry(classify=lambda _: "again")  # type: ignore[arg-type, return-value]  # the mistake under test

    with pytest.raises(UsageError, match=r"returned 'again'.*'rate_limited'"):
        retry.judge(ValueError(), now=NOW)


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
        ({"give_up_on": (ValueError, 3)}, "give_up_on", 3),
        ({"classify": "fatal"}, "classify", "fatal"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], name: str, value: object) -> None:
    """An invalid setting is rejected where it is written; the error names it and its value."""
    with pytest.raises(UsageError) as error:
        Retry(**settings)

    assert (f"retry.{name}", value) == (error.value.setting, error.value.value)
    assert f"retry.{name}={value!r}: " in str(error.value)
