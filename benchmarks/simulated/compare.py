"""Every policy on every row: run them, and print a table."""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import groupby, repeat

from attrs import frozen

from benchmarks.simulated.rivals import Aws, Inspect, Phoenix
from benchmarks.simulated.rows import MakePolicy, Result, Row, best_fixed, measure, ours
from evaljournal.runner.concurrency.fixed import Fixed

OURS, BEST, FIXED = "ours", "best fixed", "fixed"
POLICIES: dict[str, MakePolicy] = {
    OURS: ours,
    FIXED: lambda row: Fixed(row.slots),
    "phoenix": lambda row: Phoenix(row.slots),
    "aws": lambda row: Aws(row.slots),
    "inspect": lambda row: Inspect(row.slots),
}
MUCH_SLOWER = 1.1
"""Times as long as the baseline, from which a finite run counts as slower."""
NAMES = (OURS, BEST, FIXED, "phoenix", "aws", "inspect")


@frozen(kw_only=True)
class Comparison:
    """The results of the policies on one row with one seed."""

    row: Row
    seed: int
    results: dict[str, Result]
    """Policy → its result."""
    limit: int | None = None
    """The best fixed limit, where it was searched for."""

    def ratio(self, name: str) -> float:
        """Return the time of a finite run divided by that of its baseline."""
        return self.results[name].seconds / self.results[self.row.baseline].seconds

    def goodput(self, name: str) -> float:
        """Return the goodput in percent of capacity, at most 100: an initial burst does not compensate for losses."""
        return min(self.results[name].goodput or 0.0, 100.0)

    def slowdown(self) -> float:
        """Return how many times as long ours takes as `-s policy=fixed` with the same slots."""
        ours, fixed = self.results[OURS], self.results[FIXED]
        if self.row.trials is not None:
            return ours.seconds / fixed.seconds
        return (fixed.goodput or 0.0) / max(ours.goodput or 0.0, 0.1)

    def lost(self) -> float:
        """Return the trials lost by ours but not by the baseline."""
        ours = self.results[OURS].failed
        return max(ours - self.results[self.row.baseline].failed, 0) if ours else 0


def compare(row: Row, seed: int, names: Sequence[str]) -> Comparison:
    """Run policies on a row, and its baseline if a figure depends on it."""
    results = {name: measure(row, POLICIES[name], seed) for name in names if name != BEST}
    needed = {BEST} & set(names)
    if row.trials is not None or (OURS in results and results[OURS].failed):
        needed.add(row.baseline)
    limit = None
    if BEST in needed:
        limit, results[BEST] = best_fixed(row, seed)
    if FIXED in needed and FIXED not in results:
        results[FIXED] = measure(row, POLICIES[FIXED], seed)
    return Comparison(row=row, seed=seed, results=results, limit=limit)


def compare_all(rows: Sequence[Row], seeds: Sequence[int], names: Sequence[str], jobs: int = 1) -> Iterator[Comparison]:
    """Run policies on rows, in order; `jobs` processes share the work."""
    pairs = [(row, seed) for row in rows for seed in seeds]
    if jobs == 1:
        yield from (compare(row, seed, names) for row, seed in pairs)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(compare, *zip(*pairs, strict=True), repeat(names))


def table(comparisons: Iterable[Comparison], names: Sequence[str]) -> list[Comparison]:
    """Print a line per row, each figure the mean over its seeds; return the comparisons."""
    print(f"{'':62}" + "".join(f"{name:>24}" for name in names))
    rows: list[Comparison] = []
    for _, group in groupby(comparisons, key=lambda comparison: comparison.row):
        same = list(group)
        rows += same
        row = same[0].row
        cells = "".join(f"{_cell(same, name):>24}" if name in same[0].results else f"{'':24}" for name in names)
        print(f"{row.name:<62.62}{cells}" + ("" if row.has_capacity else "  not in the mean"), flush=True)
    for measured, line in ((goodputs, "mean goodput %, lowest"), (ratios, "mean time ratio, highest")):
        sums = {name: measured(rows, name) for name in names}
        if all(sums.values()):
            cells = "".join(f"{_summary(sums[name], highest=measured is ratios):>24}" for name in names)
            print(f"{line + f' of {len(sums[names[0]])}':<62}{cells}")
    return rows


def summary(family: str, comparisons: Sequence[Comparison], name: str) -> str:
    """Return one line on a policy in a family: mean goodput or time ratio and the worst row, 429s, and trials lost."""
    unlimited = [c for c in comparisons if c.row.trials is None and c.row.has_capacity]
    finite = [c for c in comparisons if c.row.trials is not None]
    parts: list[str] = []
    if unlimited:
        lowest = min(unlimited, key=lambda c: c.goodput(name))
        mean = statistics.fmean(goodputs(unlimited, name))
        parts.append(f"{mean:6.2f} %, lowest of {len(unlimited)} {lowest.goodput(name):.1f}: {lowest.row.name}")
    if finite:
        slowest = max(finite, key=lambda c: c.ratio(name))
        mean, slower = statistics.fmean(ratios(finite, name)), sum(c.ratio(name) > MUCH_SLOWER for c in finite)
        count = f"{slower} of {len(finite)} above {MUCH_SLOWER}"
        parts.append(f"{mean:6.3f} x, {count}, highest {slowest.ratio(name):.2f}: {slowest.row.name}")
    rate_limited = statistics.fmean(c.results[name].rate_limited for c in comparisons)
    lost = sum(c.results[name].failed for c in comparisons)
    return f"{family:<14} {rate_limited:5.1f} % 429s {lost:4.0f} lost " + f"\n{'':35}".join(parts)


def goodputs(comparisons: Iterable[Comparison], name: str) -> list[float]:
    """Return the goodput on each row with a known capacity."""
    return [c.goodput(name) for c in comparisons if c.row.trials is None and c.row.has_capacity and name in c.results]


def ratios(comparisons: Iterable[Comparison], name: str) -> list[float]:
    """Return the time of each finite run divided by that of its baseline."""
    return [c.ratio(name) for c in comparisons if c.row.trials is not None and name in c.results]


def _summary(values: list[float], *, highest: bool) -> str:
    return (
        f"{statistics.fmean(values):.2f}, {max(values):.2f}"
        if highest
        else f"{statistics.fmean(values):.1f}, {min(values):.0f}"
    )


def _cell(same: Sequence[Comparison], name: str) -> str:
    """Format goodput or time ratio, rate limited, and trials lost; then the limit or the shares."""
    results = [comparison.results[name] for comparison in same]
    if same[0].row.trials is None:
        first = f"{statistics.fmean(result.goodput or 0.0 for result in results):.0f}"
    else:
        first = f"{statistics.fmean(comparison.ratio(name) for comparison in same):.2f}x"
    rate_limited = statistics.fmean(result.rate_limited for result in results)
    text = f"{first} / {rate_limited:.{1 if rate_limited < 100 else 0}f} / {statistics.fmean(r.failed for r in results):.0f}"
    if name == BEST:
        text += f" @{same[0].limit}"
    if results[0].shares and name == OURS:
        text = "/".join(f"{share:.0f}" for share in results[0].shares) + " " + text
    return text
