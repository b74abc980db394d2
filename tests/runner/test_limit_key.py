"""Rate-limit keys: each has slots, limits and pauses of its own; on a virtual clock."""

from typing import Any

import pytest

from evaljournal import Case, Retry, UsageError
from evaljournal.journal import read, verify
from evaljournal.journal.errors import NotAJournal
from evaljournal.journal.events import AttemptStarted, IntakePaused, LimitChanged, TrialCompleted
from evaljournal.runner.testing import SimulatedEndpoint, events_of
from tests.journal.disk import SimulatedDisk
from tests.runs import PATH, AnyEvaluation, audited, define, run_virtual


def cases(*keys: str) -> list[Case[Any, Any]]:
    """Return a case for each key, in this order."""
    return [Case(name=f"{key}{number}", input={"model": key}) for number, key in enumerate(keys)]


def evaluation_of(endpoints: dict[str, SimulatedEndpoint], cases: list[Case[Any, Any]], **options: Any) -> AnyEvaluation:
    """Return an evaluation whose task calls the endpoint of the case's key."""

    async def ask(value: Any) -> Any:
        return await endpoints[value["model"]](value)

    return define(ask, cases, retry=Retry(errors=0), **options)


def quick() -> SimulatedEndpoint:
    return SimulatedEndpoint(lambda _: "yes", latency=0.1)


def limited() -> SimulatedEndpoint:
    """Return an endpoint with one call per ten seconds, and a Retry-After of ten seconds."""
    return SimulatedEndpoint(lambda _: "yes", latency=0.1, rate=0.1, burst=1, retry_after=10.0)


def ends(disk: SimulatedDisk, key: str) -> list[float]:
    return [
        record.t
        for record in read(PATH, files=disk)
        if isinstance(record.event, TrialCompleted) and record.event.trial.startswith(key)
    ]


@pytest.mark.parametrize(
    ("order", "policy"),
    [
        ("mixed", "adaptive"),
        ("sorted", "adaptive"),
        ("sorted", "fixed"),
        pytest.param("mixed", "fixed", marks=pytest.mark.exhaustive),
    ],
)
async def test_a_limited_key_does_not_delay_the_other(order: str, policy: str, disk: SimulatedDisk) -> None:
    """Of two keys one is rate limited: the other never waits, even if all its cases come last."""
    keys = ["a", "b"] * 200 if order == "mixed" else ["a"] * 200 + ["b"] * 200
    defined = evaluation_of({"a": limited(), "b": quick()}, cases(*keys), slots=4)
    outcome = await run_virtual(defined, disk, limit_key="model", policy=policy)

    assert (400, 0) == (outcome.state.completed, outcome.state.failed)
    assert 200 == len(ends(disk, "b"))
    assert ends(disk, "b")[-1] < (200 / 4) * 0.1 * 1.5  # 1.5 times what it takes alone, to find its pace.
    assert ends(disk, "a")[-1] > 1000
    assert {"a"} == {event.key for event in events_of(PATH, files=disk) if isinstance(event, IntakePaused)}
    assert verify(PATH, files=disk).ok


async def test_without_a_key_a_pause_affects_all(disk: SimulatedDisk) -> None:
    """Without a key, trials that are not limited wait as well."""
    await run_virtual(evaluation_of({"a": limited(), "b": quick()}, cases(*["a", "b"] * 20), slots=4), disk, policy="fixed")

    assert ends(disk, "b")[-1] > 100


async def test_each_key_has_its_slots(disk: SimulatedDisk) -> None:
    """Each key has as many attempts in flight as there are slots, and no more."""
    endpoints = {key: SimulatedEndpoint(lambda _: "yes", latency=0.1, max_in_flight=3) for key in "abc"}
    outcome = await run_virtual(evaluation_of(endpoints, cases(*"abc" * 30), slots=3), disk, limit_key="model", policy="fixed")

    assert 90 == outcome.state.completed
    assert {"a": 0, "b": 0, "c": 0} == {key: endpoint.rejected for key, endpoint in endpoints.items()}
    limits = [(event.key, event.after) for event in events_of(PATH, files=disk) if isinstance(event, LimitChanged)]
    assert [("a", 3), ("b", 3), ("c", 3)] == limits
    slots = {event.slot for event in events_of(PATH, files=disk) if isinstance(event, AttemptStarted)}
    assert set(range(9)) == slots
    assert 9 == outcome.state.policy.limit


async def test_a_case_without_the_key_is_rejected(disk: SimulatedDisk) -> None:
    """If a case lacks the field of the key, nothing is started."""
    defined = evaluation_of({"a": quick()}, [*cases("a"), Case(name="odd", input={"modle": "a"})])

    with pytest.raises(UsageError, match=r"case 2: the case 'odd' has no field {model}.*did you mean {modle}"):
        await run_virtual(defined, disk, limit_key="model")
    with pytest.raises(NotAJournal):
        list(read(PATH, files=disk))


async def test_a_keyed_run_is_resumed_and_audited(disk: SimulatedDisk) -> None:
    """A resumed run uses the key that it was started with, and its audit finds nothing."""
    defined = evaluation_of({"a": limited(), "b": quick()}, cases(*["a", "b"] * 10), slots=2)
    stopped = await run_virtual(defined, disk, limit_key="model", policy="fixed", deadline=25.0)
    outcome = await run_virtual(defined, disk, resume=True, deadline=None)

    assert "deadline" == stopped.stop_reason
    assert (20, "") == (outcome.state.completed, outcome.stop_reason)
    assert "model" == outcome.state.settings["limit_key"]
    assert () == audited(disk).findings
