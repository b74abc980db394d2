"""One row of a table: an endpoint, a workload, and the result of a policy.

from benchmarks.simulated.families import FAMILIES
from benchmarks.simulated.rows import measure, ours
row = FAMILIES["bursts"][0]
print(measure(row, ours, seed=1))
"""

import statistics
from collections.abc import Callable
from typing import Literal

from attrs import evolve, field, frozen

from benchmarks.simulated.altered import Provider
from benchmarks.simulated.capacity import capacity
from benchmarks.simulated.endpoint import TIMEOUT, Endpoint, Server
from benchmarks.simulated.executor import Lane, Run, Tally, Timeline
from benchmarks.simulated.limited import LimitedRun, Workload
from benchmarks.simulated.rivals import Fixed
from evaljournal.runner.concurrency.adaptive import Adaptive
from evaljournal.runner.concurrency.policy import Policy

MakePolicy = Callable[["Row"], Policy]
"""A function that returns the policy for a row."""
GRID = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""Fixed limits that are tried to find the best one."""
SUFFICIENT = 98.5
"""Percent of capacity at which the search ends: a higher limit would only cause more 429s."""
MAX_RATE_LIMITED = 1000.0
"""Rate-limited calls per completed trial, in percent, at which it ends if the last step brought no improvement."""
LONGEST = 20_000.0
"""Seconds after which a finite run is ended."""


@frozen(kw_only=True)
class Row:
    """An endpoint and a workload."""

    name: str
    endpoint: Endpoint = field(factory=Endpoint)
    provider: Callable[..., Provider] | None = None
    """Takes `seed` and returns a provider, which serves the calls instead of the endpoint; nothing that it states is read but
    Retry-After. Goodput is then the used share of its limits, at most 100 % in each half: a bucket that is full at the start
    does not compensate for losses later."""
    workload: Workload = field(factory=Workload)
    """The calls to a provider."""
    group: str = ""
    """Rows of a family that also have a mean of their own."""
    slots: int = 100
    seconds: float = 600.0
    """Virtual time of an unlimited run."""
    trials: int | None = None
    """Trials of a finite run, which is measured by its time; None: unlimited."""
    ahead: int = 50
    """Trials that may be open at the same time, per slot of the limit."""
    timeout: float = TIMEOUT
    judge: Endpoint | Literal["shared"] | None = None
    """The endpoint that scores each output, with a policy of its own; `shared`: the task's endpoint and policy."""
    runs: int = 1
    """Runs at the same time on this endpoint, each with its own policy."""
    has_capacity: bool = True
    """The capacity is known (and in the mean); otherwise the row is compared with the best fixed limit."""
    baseline: Literal["best fixed", "fixed"] = "best fixed"
    """What the time of a finite run is divided by: that of the best fixed limit, or of a fixed limit of all slots."""
    slow: bool = False
    """Takes many seconds of CPU; excluded from quick runs."""

    @property
    def counts_work(self) -> bool:
        """Whether calls served are counted instead of trials, so that skipping large trials does not pay off."""
        e = self.endpoint
        return bool(e.cost_sigma) or (e.poison is not None and e.poison.kind == "error" and not e.poison.quick)

    def capacity(self) -> float:
        """Return the maximum of trials that an unlimited run could complete."""
        calls = 2 if self.judge == "shared" else 1
        slots = self.slots * self.runs
        task = capacity(self.endpoint, self.seconds, slots=slots, timeout=self.timeout, calls=calls)
        if isinstance(self.judge, Endpoint):
            return min(task, capacity(self.judge, self.seconds, slots=slots, timeout=self.timeout))
        return task


@frozen(kw_only=True)
class Result:
    """The result of a policy on a row."""

    completed: int
    goodput: float | None = None
    """Percent of the capacity; None for a finite run."""
    seconds: float = 0.0
    """Time of a finite run."""
    rate_limited: float = 0.0
    """Calls that met a limit, per completed trial, in percent; random 429s are not counted."""
    unavailable: float = 0.0
    """Calls that failed with a 5xx or timed out, per completed trial, in percent."""
    failed: float = 0
    """Trials lost, poisoned ones not counted."""
    shares: tuple[float, ...] = ()
    """Share of each run in the completed trials, in percent."""


def ours(row: Row) -> Policy:
    """Return the adaptive policy for a run of these trials."""
    return Adaptive(row.slots, trials=row.trials)


def simulate(row: Row, make: MakePolicy, seed: int, *, trace: bool = False) -> list[Tally]:
    """Run a row; return the results of each of its runs."""
    timeline = Timeline()
    server = Server(row.endpoint, seed, row.timeout)
    judging = Server(row.judge, seed + 1000, row.timeout) if isinstance(row.judge, Endpoint) else None
    runs: list[Run] = []
    for k in range(row.runs):
        task = Lane(make(row), server)
        judge = task if row.judge == "shared" else None if judging is None else Lane(make(row), judging)
        run = Run(
            timeline,
            task,
            seed,
            row.timeout,
            judge=judge,
            trials=row.trials,
            ahead=row.ahead,
            first=10_000_000 * k,
            tally=Tally(in_flight=[] if trace else None),
        )
        run.start()
        runs.append(run)
    timeline.run(LONGEST if row.trials is not None else row.seconds)
    return [run.tally for run in runs]


def _measure_provider(row: Row, make: MakePolicy, seed: int) -> Result:
    """Run a row with a provider."""
    assert row.provider is not None
    provider: Provider = row.provider(seed=seed)
    timeline = Timeline()
    run = LimitedRun(
        timeline,
        Lane(make(row), Server(row.endpoint, seed)),
        seed,
        row.timeout,
        ahead=row.ahead,
        provider=provider,
        workload=row.workload,
        reads_headers=False,
    )
    run.start()
    timeline.run(row.seconds)
    middle = row.seconds / 2
    halves = [provider.used_share(0.0, middle), provider.used_share(middle, row.seconds)]
    return Result(
        completed=run.tally.completed,
        goodput=100 * statistics.fmean(min(used, 1.0) for used in halves),
        rate_limited=100 * provider.rejected / max(provider.accepted, 1),
        unavailable=100 * run.tally.unavailable / max(provider.accepted, 1),
        failed=run.tally.failed,
    )


def measure(row: Row, make: MakePolicy, seed: int = 0) -> Result:
    """Run a row with a policy."""
    if row.provider is not None:
        return _measure_provider(row, make, seed)
    tallies = simulate(row, make, seed)
    completed = sum(tally.completed for tally in tallies)
    percent = 100 / max(completed, 1)
    result = Result(
        completed=completed,
        rate_limited=percent * sum(tally.rate_limited for tally in tallies),
        unavailable=percent * sum(tally.unavailable for tally in tallies),
        failed=sum(tally.failed for tally in tallies),
        shares=tuple(percent * tally.completed for tally in tallies) if row.runs > 1 else (),
    )
    if row.trials is None:
        done = sum(tally.work for tally in tallies) if row.counts_work else completed
        return evolve(result, goodput=100 * done / row.capacity())
    return evolve(result, seconds=max(tally.ended for tally in tallies))


def best_fixed(row: Row, seed: int = 0) -> tuple[int, Result]:
    """Search a grid for the best fixed limit, up to the row's slots; return the limit and its result."""
    limits = sorted({min(limit, row.slots) for limit in GRID} | {row.slots})
    if row.trials is not None:
        # The endpoint does not limit finite runs, so many slots are best.
        timed = [(limit, measure(row, _fixed(limit), seed)) for limit in limits if limit >= row.slots / 4]
        return min(timed, key=lambda pair: pair[1].seconds)
    best = 1, measure(row, _fixed(1), seed)
    for limit in limits[1:]:
        result = measure(row, _fixed(limit), seed)
        reached, best_goodput = result.goodput or 0.0, best[1].goodput or 0.0
        if reached > best_goodput + 0.5:  # Of equally good limits, the lowest is returned.
            best = limit, result
        is_worse = reached < 0.9 * best_goodput or (reached <= best_goodput + 0.5 and result.rate_limited > MAX_RATE_LIMITED)
        if is_worse or max(reached, best_goodput) >= SUFFICIENT:
            break
    return best


def _fixed(limit: int) -> MakePolicy:
    return lambda _: Fixed(limit)
