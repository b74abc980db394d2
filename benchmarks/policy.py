"""The concurrency policies on simulated endpoints: `python -m benchmarks policy`.

The policies are the real ones; only the endpoint, the executor and the clock are simulated, so ten minutes take less than a
second. There is a table for each family of rows, with the best fixed limit and the policies of Phoenix, the AWS SDKs and
Inspect next to ours; then ours is checked against the required figures. The exit code is 1 if a check fails.
"""

import argparse
import re
import time
from collections.abc import Sequence

from benchmarks.simulated import real
from benchmarks.simulated.compare import NAMES, OURS, Comparison, compare_all, summary, table
from benchmarks.simulated.families import FAMILIES
from benchmarks.simulated.required import check
from benchmarks.simulated.rows import Row, ours, simulate
from benchmarks.simulated.scenarios import lettered, randoms
from evaljournal.runner.concurrency.policy import CallEvent, Change, Policy

STEPS = {
    "random-429": 7,
    "tenants": 6,
    "drift": 5,
    "second-bursts": 5,
    "blips": 5,
    "cool-downs": 5,
    "bans": 6,
    "provider-like": 5,
    "poison": 7,
    "small-runs": 23,
}
"""Family → every which row a quick run takes, if not every second or third one."""
LEGEND = "goodput in % of capacity, or time / time of a fixed limit; rate limited per completed trial in %; trials lost"


def select(family: str, *, seeds: Sequence[int], pattern: str, quick: bool, slow: bool = True) -> list[Row]:
    """Return the rows of a family; a quick run takes a slice of them. Without `slow`, what takes longest is left out."""
    if family == "lettered":
        rows = lettered()
    elif family == "random":
        rows = [row for seed in seeds for row in randoms(seed, 15 if quick else 51, 300.0 if quick else 600.0)]
    else:
        rows = FAMILIES[family]
        if quick:
            rows = [row for row in rows if not row.slow][:: STEPS.get(family, 3 if len(rows) > 12 else 2)]
        elif not slow:
            rows = [row for row in rows if not row.slow][:: STEPS[family] if family == "random-429" else 1]
    return [row for row in rows if re.search(pattern, row.name)]


class Recording:
    """A policy that records its events, to replay them to another one."""

    def __init__(self, policy: Policy) -> None:
        """Record the events of `policy`."""
        self.events: list[tuple[CallEvent, float]] = []
        self.state: object = getattr(policy, "state", None)
        self.may_start = policy.may_start
        self._policy = policy

    @property
    def limit(self) -> int:
        """The limit of the policy."""
        return self._policy.limit

    def observe(self, event: CallEvent, t: float) -> Sequence[Change]:
        """Record the event and pass it on."""
        self.events.append((event, t))
        return self._policy.observe(event, t)

    def elapse(self, t: float) -> Sequence[Change]:
        """Pass the time on."""
        elapse = getattr(self._policy, "elapse", None)
        return () if elapse is None else elapse(t)


def cost() -> None:
    """Print CPU time per event, without the simulation. It is not checked, because machines differ."""
    for row in lettered(300.0):
        if row.name not in ("F", "X"):
            continue
        recordings: list[Recording] = []

        def make(row: Row, recordings: list[Recording] = recordings) -> Policy:
            recordings.append(Recording(ours(row)))
            return recordings[-1]

        simulate(row, make, 1)
        policy, events = ours(row), recordings[0].events
        started = time.process_time()
        for event, t in events:
            policy.observe(event, t)
        spent = time.process_time() - started
        print(f"CPU: {1e6 * spent / len(events):.1f} us per event over {len(events):,} events of {row.name}")


def main(argv: Sequence[str]) -> int:
    """Print the tables and the checks; return 1 if a check fails."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks policy", description=__doc__)
    families = [*FAMILIES, "lettered", "random"]
    parser.add_argument("--family", action="append", choices=families, help="family of rows (repeatable; default: all)")
    parser.add_argument("--rows", default="", metavar="REGEX", help="only rows whose name matches")
    parser.add_argument("--seed", type=int, default=0, help="first seed; it also determines the random endpoints (default: 0)")
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds (default: 1)")
    parser.add_argument("--only", choices=NAMES, help="one policy; the best fixed limit is still searched for where needed")
    parser.add_argument("--quick", action="store_true", help="a slice of the rows, ours only; about a minute")
    parser.add_argument("--summary", action="store_true", help="one line per family, ours only; without the slowest rows")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default: 1)")
    parser.add_argument("--real", action="store_true", help="only compare the simulation with the real executor, on 20 rows")
    options = parser.parse_args(argv)
    if options.real:
        real.table(options.seed)
        return 0
    names = [options.only] if options.only else [OURS] if options.quick or options.summary else list(NAMES)
    seeds = range(options.seed, options.seed + options.seeds)
    print(f"seeds {', '.join(map(str, seeds))}; {LEGEND}")
    results: dict[str, list[Comparison]] = {}
    for family in options.family or families:
        rows = select(family, seeds=seeds, pattern=options.rows, quick=options.quick, slow=not options.summary)
        if not rows:
            continue
        started = time.perf_counter()
        # Each seed has its own random endpoints.
        comparisons = compare_all(rows, seeds[:1] if family == "random" else seeds, names, options.jobs)
        if options.summary:
            results[family] = list(comparisons)
            print(f"{summary(family, results[family], names[0])}  ({time.perf_counter() - started:.0f} s)", flush=True)
        else:
            print(f"\n{family}")
            results[family] = table(comparisons, names)
            print(f"{time.perf_counter() - started:.0f} s")
    if OURS not in names:
        return 0
    failed = check(results, seeds)
    if not options.family and not options.summary:
        cost()
        if not options.quick:
            print()
            real.table(options.seed)
    return 1 if failed else 0
