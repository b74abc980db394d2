"""The same rows with the real executor, on trio's virtual clock, to check the simulation.

The task gets the outcome of each call from the simulated endpoint, waits, and returns or raises. Everything else is real:
queue, slots, retries, policy, scoring, and a journal that is discarded.
"""

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import trio
import trio.testing
from attrs import evolve, field, frozen

from benchmarks.simulated.endpoint import Answer, Endpoint, Server
from benchmarks.simulated.families import FAMILIES
from benchmarks.simulated.rows import Result, Row, measure, ours
from benchmarks.simulated.scenarios import lettered
from evaljournal import Case, RateLimited, evaluation
from evaljournal.runner.sessions.api import arun
from evaljournal.runner.sessions.null_files import NullFiles
from evaljournal.runner.testing import deterministic_options

ROWS = {
    "scoring": ["judge same latency, 200 cases"],
    "poisoned": ["1 in 1,000 always 429 + Retry-After 1, 20/s"],
    "random-429": ["1 % 429, 1,000 x 0.2 s, 100 slots", "5 % 429 + Retry-After, 200 x 0.2 s, 32 slots"],
    "bursts": ["429s for 30 s + Retry-After 2, 20/s"],
    "unavailable": ["20 % background 5xx, 20/s", "outages of 15 s, 20/s"],
    "own-errors": ["50 % of the cases raise their own error, cap 48"],
    "small": ["100 cases, 2 s log-normal, 100 slots"],
    "moved": ["16 in flight raised to 48"],
    "drift": ["latency doubles at once, cap 48"],
    "overload": ["calls beyond 13 in flight time out"],
    "hung": ["black hole of 60 s, 20/s, 100 slots"],
    "retry-after": ["10/s, every 429 with Retry-After: 15"],
    "tenants": ["30/s and 8/s in turn, 60 s"],
    "knees": ["collapses at 13"],
    "tokens": ["5/s, cost sigma 1, burst 20 s"],
    "windows": ["100 calls in 10 s"],
}
"""Family → rows that are run with the real executor too: those with few calls."""


def rows() -> list[Row]:
    """Return the rows that are run with the real executor, A and X among them."""
    chosen = [row for family, names in ROWS.items() for row in FAMILIES[family] if row.name in names]
    return chosen + [row for row in lettered(600.0) if row.name in "AX"]


class NoDisk(NullFiles):
    """A disk that discards everything and takes no time."""

    def pause(self, seconds: float = 0.0) -> None:
        """Return immediately: the clock is virtual."""


@frozen
class Caller:
    """A task, or a judge, that calls a simulated endpoint."""

    server: Server
    first: int = 0
    """Added to the number of each attempt: a judge's calls have other latencies than the task's, as in the simulation."""
    attempts: Counter[int] = field(factory=Counter[int])
    answers: list[Answer] = field(factory=list[Answer])

    async def call(self, number: int) -> int:
        """Make one call for a trial."""
        self.attempts[number] += 1
        answer = self.server.call(trio.current_time(), number, self.first + self.attempts[number])
        if answer.seconds > self.server.timeout:  # The executor cancels it here.
            self.answers.append(Answer("hung", answer.seconds))
        await trio.sleep(answer.seconds)
        self.answers.append(answer)
        match answer.kind:
            case "rate_limited" | "random_429":
                raise RateLimited(answer.retry_after)
            case "unavailable":
                raise ConnectionError("the endpoint is unavailable")
            case "error":
                raise RuntimeError("the case's own error")
            case _:
                return number

    def count(self, *kinds: str) -> int:
        """Return the number of answers of these kinds."""
        return sum(answer.kind in kinds for answer in self.answers)


def measure_real(row: Row, policy: str = "adaptive", seed: int = 0) -> Result:
    """Run a row with the real executor, with a built-in policy."""
    task = Caller(Server(row.endpoint, seed, row.timeout))
    judge = Caller(Server(row.judge, seed + 1000, row.timeout), first=1000) if isinstance(row.judge, Endpoint) else None

    def endless() -> Iterator[Case[int, None]]:
        return map(_case, itertools.count(1))

    cases = endless if row.trials is None else [_case(number) for number in range(1, row.trials + 1)]

    async def simulated(number: int) -> int:
        return await task.call(number)

    defined: Any = evaluation(
        cases=cases,
        loop="trio",
        slots=row.slots,
        policy=policy,
        timeout=row.timeout,
        deadline=row.seconds if row.trials is None else None,
        grace=0.0,
    )(simulated)
    if judge is not None:

        async def judged(output: Any) -> bool:
            return bool(await judge.call(output))

        defined.score(judged)

    async def main() -> Any:
        return await arun(defined, Path("simulation"), **deterministic_options(seed), files=NoDisk())

    state = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0)).state
    poison = row.endpoint.poison
    poisoned = sum(poison.hits(int(name.rpartition("-")[2])) for name in _failed(state)) if poison is not None else 0
    percent = 100 / max(state.completed, 1)
    result = Result(
        completed=state.completed,
        rate_limited=percent * (task.count("rate_limited") + (judge.count("rate_limited") if judge else 0)),
        unavailable=percent * task.count("unavailable", "hung"),
        failed=state.failed - poisoned,
    )
    if row.trials is not None:
        return evolve(result, seconds=state.t)
    work = sum(answer.cost for answer in task.answers if answer.kind in ("ok", "error"))
    return evolve(result, goodput=100 * (work if row.counts_work else state.completed) / row.capacity())


def _case(number: int) -> Case[int, None]:
    return Case(name=f"trial-{number}", input=number)


def _failed(state: Any) -> list[str]:
    return [name for name, trial in state.trials.items() if trial.stage == "failed"]


def table(seed: int) -> None:
    """Print the result of ours in the simulation and with the real executor."""
    print(f"{'goodput %, or seconds of a finite run; rate limited %; trials lost':<62}{'simulated':>24}{'real executor':>24}")
    for row in rows():
        print(f"{row.name:<62.62}{_cell(measure(row, ours, seed)):>24}", end="", flush=True)
        print(f"{_cell(measure_real(row, seed=seed)):>24}", flush=True)


def _cell(result: Result) -> str:
    first = f"{result.seconds:.1f} s" if result.goodput is None else f"{result.goodput:.1f}"
    return f"{first} / {result.rate_limited:.1f} / {result.failed:.0f}"
