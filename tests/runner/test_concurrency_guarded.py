"""Policies that raise exceptions: the run continues with a fixed limit, and its journal is valid."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import trio

from evaljournal import Case, Outcome
from evaljournal.journal.events import (
    AttemptStarted,
    IntakePaused,
    IntakeResumed,
    LimitChanged,
    Noted,
    PaceChanged,
    RunFinished,
)
from evaljournal.runner.concurrency.adaptive import Adaptive
from evaljournal.runner.concurrency.key_policy import RAISE_VARIABLE, KeyPolicy
from evaljournal.runner.concurrency.policy import STARTS, Change, StartPermit, call_of
from tests.journal.disk import SimulatedDisk
from tests.runner.call_events import started
from tests.runs import audited, define, events, numbered_cases, run_virtual

SLOTS = 6


@pytest.fixture
def is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behave as outside tests: an exception inside a policy does not end the run."""
    monkeypatch.delenv(RAISE_VARIABLE)


class Careful:
    """A user's policy that allows two attempts in flight, until one of its methods raises."""

    def __init__(self, slots: int, method: str = "observe", after: int = 7) -> None:
        self.slots, self.limit = slots, 2
        self._in_flight: set[str] = set()
        self._method, self._calls_left = method, after
        self._next_start = 0.0

    def _count(self, method: str) -> None:
        self._calls_left -= method == self._method
        if self._calls_left < 0:
            raise ZeroDivisionError("division by zero")

    def observe(self, event: Any, t: float) -> list[Change]:
        self._count("observe")
        (self._in_flight.add if isinstance(event, STARTS) else self._in_flight.discard)(call_of(event))
        self._next_start = t + 0.01
        return []

    def elapse(self, _: float) -> list[Change]:
        self._count("elapse")
        return []

    def may_start(self, t: float) -> StartPermit:
        self._count("may_start")
        is_open = len(self._in_flight) < 2
        if is_open and t < self._next_start:
            return StartPermit(open=False, check_at=self._next_start)
        return StartPermit(open=is_open)


class Forgetful(Careful):
    """A user's policy that returns no decision."""

    def observe(self, event: Any, t: float) -> list[Change]:
        return None if self._calls_left < 3 else super().observe(event, t)  # type: ignore[return-value]  # on purpose


async def answer(_: str) -> str:
    await trio.sleep(1)
    return "yes"


async def run_with(disk: SimulatedDisk, factory: Callable[[int], Any] | None = None, **options: Any) -> Outcome:
    return await run_virtual(define(answer, numbered_cases(30), slots=SLOTS), disk, policy_factory=factory, **options)


def failures(disk: SimulatedDisk) -> list[Any]:
    return [event.value for event in events(disk, Noted) if event.name == "evaljournal.policy_failed"]


def fail_after(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Let the default policy raise an exception when it takes this many events."""
    take, events_so_far = Adaptive.observe, list[Any]()

    def failing_observe(self: Adaptive, event: Any, t: float) -> Sequence[Change]:
        events_so_far.append(event)
        if len(events_so_far) >= count:
            raise ZeroDivisionError("division by zero")
        return take(self, event, t)

    monkeypatch.setattr(Adaptive, "observe", failing_observe)


@pytest.mark.usefixtures("is_guarded")
@pytest.mark.parametrize("count", [1, 2, 9, 20])
async def test_a_run_continues_with_a_fixed_limit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, count: int, disk: SimulatedDisk
) -> None:
    """The failure is recorded with its traceback and printed in one line; an audit accepts it."""
    fail_after(monkeypatch, count)
    await run_with(disk)

    assert 30 == events(disk, RunFinished)[0].completed
    [failure] = failures(disk)
    assert ("", "ZeroDivisionError: division by zero") == (failure["key"], failure["error"])
    assert "in failing_observe" in failure["traceback"]
    message = "the concurrency policy failed (ZeroDivisionError: division by zero); a fixed limit of 6 applies now"
    assert [f"{message}; its traceback is in the journal"] == caplog.messages
    assert SLOTS == [event.after for event in events(disk, LimitChanged)][-1]
    assert audited(disk).ok


class Unlimited(Careful):
    """A user's policy without a limit."""

    def __getattribute__(self, name: str) -> Any:
        if name == "limit":
            raise AttributeError(name)
        return super().__getattribute__(name)


@pytest.mark.usefixtures("is_guarded")
@pytest.mark.parametrize(
    ("make_policy", "first_limit", "error"),
    [
        *((partial(Careful, method=method), 2, "ZeroDivisionError") for method in ("observe", "elapse", "may_start")),
        (Forgetful, 2, "TypeError"),
        (Unlimited, SLOTS, "AttributeError"),
        (lambda slots: Careful(slots // 0), SLOTS, "ZeroDivisionError"),
    ],
)
async def test_a_policy_of_a_user_cannot_end_a_run(
    make_policy: Callable[[int], Any], first_limit: int, error: str, disk: SimulatedDisk
) -> None:
    """Whichever method raises or returns nothing, all trials are completed, in six slots from then on, and audits accept it.

    If a policy has no limit, or cannot be made, the fixed limit applies from the start.
    """
    outcome = await run_with(disk, make_policy)
    changes = [(event.before, event.after, event.reason) for event in events(disk, LimitChanged)]

    assert (30, [error]) == (outcome.state.completed, [failure["error"].partition(":")[0] for failure in failures(disk)])
    assert [(0, first_limit, "start"), (2, SLOTS, "policy_failed")][: 1 + (first_limit == 2)] == changes
    assert SLOTS == 1 + max(event.slot for event in events(disk, AttemptStarted))
    assert () == audited(disk).findings


async def test_a_test_gets_the_exception() -> None:
    """In tests and benchmarks, an exception inside a policy is raised."""
    with pytest.RaisesGroup(pytest.RaisesExc(ZeroDivisionError), flatten_subgroups=True, allow_unwrapped=True):
        await run_with(SimulatedDisk(), Careful)


class Paused(Careful):
    """A policy that pauses and sets a pace after the first start, and then raises."""

    def observe(self, event: Any, t: float) -> list[Change]:
        super().observe(event, t)
        pause = IntakePaused(until=10.0, reason="retry_after")
        return [pause, PaceChanged(after=2.0, reason="rate_limit")]


@pytest.mark.usefixtures("is_guarded")
def test_the_pause_in_force_is_kept() -> None:
    """The fixed limit counts what is in flight, starts nothing before the end of the pause, and has no pace."""
    policy = KeyPolicy(lambda slots: Paused(slots, after=1), 3, patience=60.0)
    policy.observe(started("a"), 0.0)
    changes = policy.observe(started("b"), 1.0)
    pace, limit = changes[1:]

    assert ["Noted", "PaceChanged", "LimitChanged"] == [type(change).__name__ for change in changes]
    assert (2.0, None) == (getattr(pace, "before", 0), getattr(pace, "after", 0))
    assert (2, 3, 3) == (getattr(limit, "before", 0), getattr(limit, "after", 0), policy.limit)
    assert StartPermit(open=False, check_at=10.0) == policy.may_start(5.0)
    assert [IntakeResumed(reason="retry_after", evidence="pause over")] == policy.elapse(10.0)
    assert policy.may_start(10.0).open
    policy.observe(started("c"), 10.0)
    assert StartPermit(open=False) == policy.may_start(11.0)


@pytest.mark.usefixtures("is_guarded")
async def test_a_policy_of_a_later_key_that_cannot_be_made() -> None:
    """The exception for a rate-limit key that a later case names does not end the run, either."""
    disk, slots_of_keys = SimulatedDisk(), list[int]()

    def make_policy(slots: int) -> Careful:
        slots_of_keys.append(slots)
        return Careful(slots // (2 - len(slots_of_keys)), after=1_000)

    cases = [Case(name=str(number), input=number, metadata={"model": str(number // 10)}) for number in range(20)]
    outcome = await run_virtual(define(answer, cases), disk, slots=SLOTS, limit_key="model", policy_factory=make_policy)

    assert (20, "finished", [SLOTS, SLOTS]) == (outcome.state.completed, outcome.state.outcome, slots_of_keys)
    assert ["ZeroDivisionError: integer division or modulo by zero"] == [failure["error"] for failure in failures(disk)]


@pytest.mark.usefixtures("is_guarded")
async def test_each_rate_limit_key_has_its_own_policy(monkeypatch: pytest.MonkeyPatch, disk: SimulatedDisk) -> None:
    """After the policy of one key has failed, the others decide as before."""
    take = Adaptive.observe

    def failing_observe(self: Adaptive, event: Any, t: float) -> Sequence[Change]:
        if event.trial.endswith("case-4"):
            raise ZeroDivisionError("division by zero")
        return take(self, event, t)

    monkeypatch.setattr(Adaptive, "observe", failing_observe)
    cases = [Case(name=f"case-{n}", input=f"case-{n}", metadata={"model": "ab"[n % 2]}) for n in range(40)]
    await run_virtual(define(answer, cases, slots=SLOTS, limit_key="model"), disk)

    assert ["a"] == [failure["key"] for failure in failures(disk)]
    assert 40 == events(disk, RunFinished)[0].completed
    assert audited(disk).ok
    assert {"start"} == {event.reason for event in events(disk, LimitChanged) if event.key == "b"}
