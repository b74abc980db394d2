"""Random agents, killed at random moments: what they return, what they execute twice, and whether the audit passes.

An agent is a random program of steps that are consecutive, concurrent or nested, with equal keys; calls fail at random.
"""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import pytest
import trio
import trio.testing

from journal import read
from journal.events import AttemptSucceeded
from replay.auditing import Auditor
from runner import Case, RateLimited, Retry, durable
from runner.recompute.rules import session_rules
from tests.journal.disk import SimulatedDisk
from tests.runs import PATH, AnyEvaluation, define, events, run_killed, run_virtual

Program = list[tuple[str, Any]]
"""Instructions: `call` with a key, `nest` with a key and a program, `concurrent` with programs, `branch` with two programs."""
KEYS: Final = 4
CASES: Final = "ab"


def random_program(chance: random.Random, depth: int = 0) -> Program:
    """Return a few instructions; few keys, so that many calls are equal."""
    program: Program = []
    for _ in range(chance.randint(1, 5 - depth)):
        kind = chance.choice(["call", "call", "call", *([] if depth > 1 else ["concurrent", "nest", "branch"])])
        match kind:
            case "call":
                program.append((kind, chance.randrange(KEYS)))
            case "nest":
                program.append((kind, (chance.randrange(KEYS), random_program(chance, depth + 1))))
            case _:
                program.append((kind, [random_program(chance, depth + 1) for _ in range(2)]))
    return program


class Agent:
    """Executes a program, and counts the calls of each key that were started and that returned."""

    def __init__(self, program: Program, chance: random.Random, *, errors: float, branches_on_time: bool) -> None:
        self.__name__ = "agent"
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
            await trio.sleep(1 + self._chance.randrange(3))
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


SEEDS = [*range(12), *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(12, 600))]


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
    assert () == findings(disk)


@pytest.mark.parametrize("seed", SEEDS)
def test_agents_that_take_another_path(seed: int) -> None:
    """An agent whose branches depend on the time may call again what it does not recognize, but it ends, and is audited."""
    chance = random.Random(seed)
    agent = Agent(random_program(chance), chance, errors=0.1, branches_on_time=True)
    disk = run_with_kills(agent, [chance.uniform(0.5, 12.0) for _ in range(chance.randint(1, 8))])

    assert set(CASES) == outputs(disk).keys()
    assert () == findings(disk)


def findings(disk: SimulatedDisk) -> Any:
    """Return what the audit finds in the run."""
    auditor = Auditor(session_rules)
    for record in read(PATH, files=disk):
        auditor.apply(record)
    return auditor.result().findings
