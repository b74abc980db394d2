"""Random agents, killed at random moments: what they return, what they execute twice, and whether the audit passes.

An agent is a random program of steps that are consecutive, concurrent or nested, with equal keys; calls fail at random.
"""

import itertools
import random
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import pytest
import trio
import trio.testing

from evaljournal import Case, RateLimited, Retry, durable
from evaljournal.journal import Record, read
from evaljournal.journal.events import AttemptSucceeded, StepCompleted, StepEvent, StepReused
from evaljournal.replay import fold
from evaljournal.replay.runs.timeline import Timeline
from tests.journal.disk import SimulatedDisk
from tests.runs import PATH, AnyEvaluation, define, events, findings, run_killed, run_virtual

Program = list[tuple[str, Any]]
"""Instructions: `call` with a key, `nest` with a key and a program, `concurrent` with programs, `branch` with two programs."""
KEYS: Final = 4
CASES: Final = "ab"


def random_program(chance: random.Random, depth: int = 0, *, concurrent: bool = True) -> Program:
    """Return a few instructions; few keys, so that many calls are equal."""
    program: Program = []
    other_kinds = ["concurrent", "nest", "branch"] if concurrent else ["nest", "branch"]
    for _ in range(chance.randint(1, 5 - depth)):
        kind = chance.choice(["call", "call", "call", *([] if depth > 1 else other_kinds)])
        match kind:
            case "call":
                program.append((kind, chance.randrange(KEYS)))
            case "nest":
                program.append((kind, (chance.randrange(KEYS), random_program(chance, depth + 1, concurrent=concurrent))))
            case _:
                program.append((kind, [random_program(chance, depth + 1, concurrent=concurrent) for _ in range(2)]))
    return program


class Agent:
    """Executes a program, and counts the calls of each key that were started and that returned."""

    def __init__(
        self, program: Program, chance: random.Random, *, errors: float, branches_on_time: bool, is_steady: bool = False
    ) -> None:
        """Create an agent; if it is steady, calls with the same key take equally long."""
        self.__name__, self._is_steady = "agent", is_steady
        self._program, self._chance, self._errors, self._branches_on_time = program, chance, errors, branches_on_time
        self.returned: Counter[tuple[Any, ...]] = Counter()

    async def __call__(self, case: str) -> Any:
        """Return a value that depends on all results."""
        return await self._run(self._program, case)

    async def _run(self, program: Program, value: Any) -> Any:
        for kind, content in program:
            match kind:
                case "call":
                    value = await self._call(content, value)
                case "nest":
                    value = await self._nest(content[0], value, content[1])
                case "branch":
                    second = int(trio.current_time()) % 2 if self._branches_on_time else len(str(value)) % 2
                    value = await self._run(content[second], value)
                case _:
                    value = await self._concurrent(content, value)
        return value

    async def _concurrent(self, programs: list[Program], value: Any) -> Any:
        results: dict[int, Any] = {}

        async def run_program(number: int) -> None:
            results[number] = await self._run(programs[number], value)

        async with trio.open_nursery() as nursery:
            for number in range(len(programs)):
                nursery.start_soon(run_program, number)
        return [results[number] for number in sorted(results)]

    async def _call(self, key: int, value: Any) -> Any:
        short_value = short(value)

        @durable(name=f"call {key}", kind="model", key=lambda: [key, short_value])
        async def call() -> Any:
            await trio.sleep(1 + (key if self._is_steady else self._chance.randrange(3)))
            if self._chance.random() < self._errors:
                raise self._chance.choice([RateLimited(1.0), ConnectionError("gone")])
            self.returned["call", key, short_value] += 1
            return [key, short_value]

        return await call()

    async def _nest(self, key: int, value: Any, program: Program) -> Any:
        short_value = short(value)

        @durable(name=f"nest {key}", key=lambda: [key, short_value, repr(program)])
        async def nest() -> Any:
            result = await self._run(program, value)
            self.returned["nest", key, short_value, repr(program)] += 1
            return short(result)

        return await nest()


def short(value: Any) -> str:
    """Return a value as a short text, so that keys can be equal at different places."""
    return f"{sum(map(ord, repr(value))) % 7}"


def evaluation_of(agent: Callable[..., Any]) -> AnyEvaluation:
    retry = Retry(errors=200, rate_limits=1e6, base_delay=0.5, max_delay=2.0)
    cases = [Case(name=name, input=name) for name in CASES]
    return define(agent, cases, slots=2, policy="fixed", timeout=100_000.0, retry=retry)


def run_with_kills(agent: Agent, kills: list[float]) -> SimulatedDisk:
    """Run an agent; kill the process after each of these times, resume it, and let the last session finish."""

    async def main() -> SimulatedDisk:
        disk, is_resumed = SimulatedDisk(), False
        for after in kills:
            try:
                disk = await run_killed(evaluation_of(agent), disk, after=after, resume=is_resumed)
            except IndexError:  # It was finished before.
                return disk
            is_resumed = True
        await run_virtual(evaluation_of(agent), disk, resume=is_resumed)
        return disk

    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def outputs(disk: SimulatedDisk) -> dict[str, Any]:
    """Return the output of each trial."""
    return {event.trial: event.output for event in events(disk, AttemptSucceeded)}


SEEDS = [*range(5), *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(5, 240))]


@pytest.mark.parametrize("seed", SEEDS)
def test_kills_change_nothing(seed: int) -> None:
    """The output is that of an agent that was never killed, no completed call is repeated, and the audit passes."""
    chance = random.Random(seed)
    program, errors = random_program(chance), chance.choice([0.0, 0.1])
    kills = [chance.uniform(0.5, 12.0) for _ in range(chance.randint(1, 8))]
    undisturbed = Agent(program, chance, errors=0.0, branches_on_time=False)
    killed = Agent(program, chance, errors=errors, branches_on_time=False)
    expected = outputs(run_with_kills(undisturbed, []))
    disk = run_with_kills(killed, kills)

    assert expected == outputs(disk)
    assert undisturbed.returned == killed.returned
    assert [] == findings(disk)


@pytest.mark.parametrize("seed", SEEDS)
def test_agents_that_take_another_path(seed: int) -> None:
    """An agent whose branches depend on the time may call again what it does not recognize, but it ends, and is audited."""
    chance = random.Random(seed)
    agent = Agent(random_program(chance), chance, errors=0.1, branches_on_time=True)
    disk = run_with_kills(agent, [chance.uniform(0.5, 12.0) for _ in range(chance.randint(1, 8))])

    assert set(CASES) == outputs(disk).keys()
    assert [] == findings(disk)


@pytest.mark.parametrize("seed", SEEDS)
def test_latency(seed: int) -> None:
    """The latency is that of the last attempt and of the steps that it reused, and at most the time to completion."""
    chance = random.Random(seed)
    agent = Agent(random_program(chance), chance, errors=0.1, branches_on_time=False)
    disk = run_with_kills(agent, [chance.uniform(0.5, 12.0) for _ in range(chance.randint(1, 8))])
    records = list(read(PATH, files=disk))
    latencies, timeline = latencies_of(disk), Timeline()
    for record in records:
        timeline.apply(record)

    assert {trial: pytest.approx(expected_latency(records, trial)) for trial in CASES} == latencies
    assert [] == [trial for trial in CASES if latencies[trial] > timeline.times[trial].total + 1e-6]


@pytest.mark.parametrize("seed", SEEDS)
def test_latency_of_consecutive_steps(seed: int) -> None:
    """The latency of an agent whose steps are consecutive or nested is the same, however often it fails or is killed."""
    chance = random.Random(seed)
    program = random_program(chance, concurrent=False)
    undisturbed = Agent(program, chance, errors=0.0, branches_on_time=False, is_steady=True)
    killed = Agent(program, chance, errors=0.1, branches_on_time=False, is_steady=True)
    expected = latencies_of(run_with_kills(undisturbed, []))
    disk = run_with_kills(killed, [chance.uniform(0.5, 12.0) for _ in range(chance.randint(1, 8))])

    assert {trial: pytest.approx(seconds) for trial, seconds in expected.items()} == latencies_of(disk)


def latencies_of(disk: SimulatedDisk) -> dict[str, float]:
    """Return the latency of each trial."""
    return {name: trial.latency or 0.0 for name, trial in fold(read(PATH, files=disk)).trials.items()}


def expected_latency(records: list[Record], trial: str) -> float:
    """Compute the latency of a trial from its records.

    It is the time of the last attempt, and in each earlier one the time in which at least one reused step was in flight.
    """
    of_trial = [record for record in records if getattr(record.event, "trial", "") == trial]
    completed = {record.seq: (record.t, record.event) for record in of_trial if isinstance(record.event, StepCompleted)}
    reuses = [record.event for record in of_trial if isinstance(record.event, StepReused)]
    parents = {
        (event.attempt, event.step): event.parent
        for event in (record.event for record in of_trial)
        if isinstance(event, StepEvent)
    }

    def is_inside(attempt: int, step: int, outer_step: int) -> bool:
        while step not in (0, outer_step):
            step = parents.get((attempt, step), 0)
        return step == outer_step

    (last,) = [record.event for record in of_trial if isinstance(record.event, AttemptSucceeded)]
    seqs = {event.completed_seq for event in reuses if event.attempt == last.attempt}
    for seq in sorted(completed, reverse=True):  # Later steps may contain earlier ones.
        if seq in seqs:
            step = completed[seq][1]
            inner = (event for event in reuses if event.attempt == step.attempt)
            seqs |= {event.completed_seq for event in inner if is_inside(step.attempt, event.parent, step.step)}
    seconds = last.elapsed
    for attempt in range(1, last.attempt):
        steps = [(t - step.elapsed, t) for t, step in map(completed.__getitem__, seqs) if step.attempt == attempt]
        for start, end in itertools.pairwise(sorted({time for interval in steps for time in interval})):
            if any(step_start <= start and end <= step_end for step_start, step_end in steps):
                seconds += end - start
    return seconds
