"""Runs of one process that share a policy: turns, times, journals and audits, on a virtual clock."""

import itertools
import threading
from pathlib import Path
from typing import Any

import pytest
import trio

from evaljournal import Case, RateLimited, Retry, evaluation, run
from evaljournal.journal import read
from evaljournal.journal.events import AttemptStarted, IntakePaused, LimitChanged, RunStarted
from evaljournal.replay.auditing.auditor import audit
from evaljournal.runner.api import arun
from evaljournal.runner.concurrency.aimd import Aimd
from evaljournal.runner.concurrency.policy import Ended, Started
from evaljournal.runner.concurrency.registry import REGISTRY, Member, SharedPolicy
from evaljournal.runner.testing import SimulatedEndpoint, deterministic_options
from evaljournal.runner.verification import retry_rules
from tests.journal.disk import SimulatedDisk
from tests.processes import TIMEOUT
from tests.runs import PATH, AnyEvaluation, define, events

_identities = itertools.count()


class Client:
    """A task that calls an endpoint with an API key."""

    def __init__(self, endpoint: Any, identity: str) -> None:
        self.rate_limit_identity = identity
        self.fingerprint = "client"
        self.__name__ = "client"
        self._endpoint = endpoint

    async def __call__(self, value: Any) -> Any:
        await trio.lowlevel.checkpoint()  # So that it is recognized as a function for trio.
        return await self._endpoint(value)


def evaluation_of(endpoint: Any, count: int, identity: str, **options: Any) -> AnyEvaluation:
    cases = [Case(name=f"c{number}", input=number) for number in range(count)]
    return define(Client(endpoint, identity), cases, timeout=60.0, retry=Retry(errors=0), **{"slots": 20, **options})


async def run_concurrently(runs: list[AnyEvaluation], *, stagger: float = 0.0, **options: Any) -> list[SimulatedDisk]:
    """Run evaluations at the same time, each on its own disk; they start one after the other."""
    disks = [SimulatedDisk() for _ in runs]

    async def run_one(number: int) -> None:
        await trio.sleep(number * stagger)
        run_options = {**deterministic_options(), "files": disks[number], **options}
        await arun(runs[number], PATH, **run_options)

    with trio.fail_after(100_000):
        async with trio.open_nursery() as nursery:
            for number in range(len(runs)):
                nursery.start_soon(run_one, number)
    return disks


def starts(disk: SimulatedDisk, until: float) -> int:
    return sum(isinstance(record.event, AttemptStarted) and record.t < until for record in read(PATH, files=disk))


def new_identity() -> str:
    return f"endpoint {next(_identities)}"


@pytest.mark.parametrize("policy", ["adaptive", "aimd"])
async def test_two_runs_of_one_key_share_a_policy(policy: str) -> None:
    """Both journals record the pauses that either run has caused, and nothing is found in them."""
    endpoint, identity = SimulatedEndpoint(lambda _: "yes", latency=0.5, rate=8.0, burst=4, retry_after=1.0), new_identity()
    disks = await run_concurrently([evaluation_of(endpoint, 80, identity) for _ in range(2)], stagger=1.0, policy=policy)

    for disk in disks:
        assert () == audit(read(PATH, files=disk), rules=retry_rules).findings
    pauses = [[(event.reason, event.evidence) for event in events(disk, IntakePaused)] for disk in disks]
    assert set(pauses[0]) & set(pauses[1])


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[SharedPolicy]:
    """The policy of each member that joins one, in order."""
    policies: list[SharedPolicy] = []
    enter = Member.enter

    def record(member: Member) -> list[Member]:
        policies.append(member._shared_policy)
        return enter(member)

    monkeypatch.setattr(Member, "enter", record)
    return policies


async def test_runs_that_follow_one_another_share_nothing(joined: list[SharedPolicy]) -> None:
    """A policy exists while a run uses it; the next run starts with a new one."""
    endpoint, identity = SimulatedEndpoint(lambda _: "yes", latency=0.1), new_identity()
    for _ in range(2):
        await run_concurrently([evaluation_of(endpoint, 30, identity)], policy="adaptive")

    assert [2, 2] == [len(joined), len(set(joined))]


@pytest.mark.parametrize(
    ("policies", "shared"), [(("adaptive", "adaptive"), 1), (("adaptive", "aimd"), 2), (("fixed", "fixed"), 0)]
)
async def test_runs_with_other_settings_share_nothing(
    joined: list[SharedPolicy], policies: tuple[str, ...], shared: int
) -> None:
    """Another policy is another identity, and a fixed limit is the run's own."""
    endpoint, identity = SimulatedEndpoint(lambda _: "yes", latency=0.1), new_identity()
    await run_concurrently([evaluation_of(endpoint, 30, identity, policy=policy) for policy in policies])

    assert shared == len(set(joined))


async def test_functions_share_nothing_without_a_key(joined: list[SharedPolicy]) -> None:
    """Nothing is known of what a plain function calls, so its runs never share; those with a `limit_key` do."""

    async def task(value: Any) -> Any:
        await trio.sleep(0.1)
        return value

    def plain() -> AnyEvaluation:
        defined: AnyEvaluation = evaluation(cases=[Case(name=f"{n}", input={"model": "m"}) for n in range(20)], loop="trio")(
            task
        )
        return defined

    await run_concurrently([plain(), plain()], policy="adaptive")
    assert [] == joined
    await run_concurrently([plain(), plain()], policy="adaptive", limit_key="model")

    assert [2, 1] == [len(joined), len(set(joined))]


@pytest.mark.parametrize("endpoint", ["rate", "in flight"])
async def test_four_equal_runs_get_equal_shares(endpoint: str) -> None:
    """Of all starts at an endpoint with a rate limit, or with a limit on calls in flight, each of four runs gets a quarter."""
    limits: dict[str, Any] = {"rate": 20.0, "burst": 5, "retry_after": 1.0} if endpoint == "rate" else {"max_in_flight": 12}
    model, identity = SimulatedEndpoint(lambda _: "yes", latency=0.5, **limits), new_identity()
    disks = await run_concurrently([evaluation_of(model, 600, identity) for _ in range(4)], policy="adaptive")
    shares = [starts(disk, until=40.0) for disk in disks]

    assert all(abs(share / sum(shares) - 0.25) < 0.02 for share in shares), shares


async def test_a_run_with_nothing_to_start_delays_no_other() -> None:
    """When one of two runs ends early, the other has the whole capacity."""
    model, identity = SimulatedEndpoint(lambda _: "yes", latency=0.5, rate=20.0, burst=5, retry_after=1.0), new_identity()
    short, long = await run_concurrently(
        [evaluation_of(model, 20, identity), evaluation_of(model, 600, identity)], policy="adaptive"
    )
    ended = list(read(PATH, files=long))[-1].t

    assert 20 == len(events(short, AttemptStarted)) - sum(event.attempt > 1 for event in events(short, AttemptStarted))
    assert ended < 1.4 * 620 / 20


async def test_slots_cap_a_run() -> None:
    """A run has never more in flight than its own slots, and records no higher limit."""
    model, identity = SimulatedEndpoint(lambda _: "yes", latency=0.5), new_identity()
    disks = await run_concurrently([evaluation_of(model, 100, identity, slots=slots) for slots in (4, 6)], policy="adaptive")

    assert [4, 6] == [1 + max(event.slot for event in events(disk, AttemptStarted)) for disk in disks]
    assert [(), ()] == [audit(read(PATH, files=disk), rules=retry_rules).findings for disk in disks]


def test_runs_in_two_threads_share_a_policy(tmp_path: Path) -> None:
    """Two runs in two threads record in their own journals what the other's calls have changed, and verify."""
    identity, lock, calls = new_identity(), threading.Lock(), [0]

    async def answer(_: Any) -> str:
        await trio.sleep(0.005)
        with lock:
            calls[0] += 1
            is_limited = calls[0] in (40, 90)
        if is_limited:
            raise RateLimited(0.1)
        return "yes"

    def run_in_thread(name: str) -> None:
        run(evaluation_of(answer, 150, identity), tmp_path / name, policy="adaptive", signals=False)

    threads = [threading.Thread(target=run_in_thread, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)

    for name in "ab":
        records = list(read(tmp_path / name))
        result = audit(records, rules=retry_rules)
        assert () == result.findings
        assert 150 == result.totals.completed
        assert any(isinstance(record.event, LimitChanged) for record in records)
        assert isinstance(records[1].event, RunStarted)


async def test_each_run_sees_a_pause_at_its_own_time() -> None:
    """A pause that one run's rate limit has caused is passed to the other, with its end in the other's time."""
    identity = (new_identity(),)
    first, second = (REGISTRY.join(identity, 4, t, lambda: Aimd(4)) for t in (100.0, 10.0))
    first.observe(Started(t=100.0, attempt="x"))
    own = first.observe(Ended(t=101.0, attempt="x", outcome="rate_limited", retry_after=20.0))
    (until,) = [change.until for change in own.changes if isinstance(change, IntakePaused)]
    (other,) = [change.until for change in second.pop_changes() if isinstance(change, IntakePaused)]

    assert until - 100.0 == pytest.approx(other - 10.0)
    assert (False, False) == (first.may_start(until - 1).open, second.may_start(other - 1).open)
    first.leave(102.0)
    second.leave(12.0)
