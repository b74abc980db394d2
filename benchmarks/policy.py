"""What the concurrency policies are worth, measured on simulated endpoints: `python -m benchmarks policy`.

The policies are the real ones; only the endpoint, the executor and the clock are simulated, so ten minutes take less than a
second. `--family` and `--rows` select what is run; `--only ours` leaves the other rules out.
"""

import argparse
import re
import statistics
import time
from collections.abc import Sequence

from benchmarks.simulated.families import FAMILIES
from benchmarks.simulated.rivals import Fixed
from benchmarks.simulated.rows import MakePolicy, Result, Row, best_fixed, measure
from benchmarks.simulated.scenarios import lettered, randoms
from runner.concurrency import Adaptive

OURS = "ours"
POLICIES: dict[str, MakePolicy] = {OURS: Adaptive, "fixed": Fixed}


def table(rows: Sequence[Row], seed: int, names: Sequence[str]) -> None:
    """Print what each policy makes of each row."""
    print(f"{'':62}" + "".join(f"{name:>30}" for name in names))
    goodput: dict[str, list[float]] = {name: [] for name in names}
    for row in rows:
        print(f"{row.name:<62.62}", end="", flush=True)
        started = time.process_time()
        # A finite run has no capacity, but a best time.
        fixed = best_fixed(row, seed)[1].seconds if row.trials is not None else None
        for name in names:
            result = measure(row, POLICIES[name], seed)
            print(f"{cell(result, fixed):>30}", end="", flush=True)
            if result.goodput is not None and row.known:
                goodput[name].append(result.goodput)
        print(f"  {time.process_time() - started:5.1f} s" + ("" if row.known else "  not in the mean"))
    for name, values in goodput.items():
        if values:
            print(f"  {name}: mean {statistics.fmean(values):.1f} %, lowest {min(values):.1f} %, {len(values)} rows")


def cell(result: Result, fixed: float | None) -> str:
    """Render a result: goodput, or time over that of the best fixed limit; rate limited; trials lost; shares."""
    first = f"{result.seconds / (fixed or 1):.2f} x" if result.goodput is None else f"{result.goodput:.1f} %"
    shares = " " + "/".join(f"{share:.0f}" for share in result.shares) if result.shares else ""
    return f"{first} / {result.rate_limited:.{1 if result.rate_limited < 100 else 0}f} / {result.failed}{shares}"


def main(argv: Sequence[str]) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks policy", description=__doc__)
    families = [*FAMILIES, "lettered", "random"]
    parser.add_argument("--family", action="append", choices=families, help="family of rows (repeatable; default: all)")
    parser.add_argument("--rows", default="", help="only rows whose name matches this regular expression")
    parser.add_argument("--seed", type=int, default=0, help="seed of every random number (default: 0)")
    parser.add_argument("--only", choices=list(POLICIES), help="run one policy instead of all")
    parser.add_argument("--quick", action="store_true", help="without the slow rows")
    options = parser.parse_args(argv)
    names = [options.only] if options.only else list(POLICIES)
    print(f"seed {options.seed}; goodput %, or time / time of the best fixed limit; rate limited %; trials lost")
    for family in options.family or families:
        rows = lettered() if family == "lettered" else randoms(options.seed) if family == "random" else FAMILIES[family]
        rows = [row for row in rows if re.search(options.rows, row.name) and not (options.quick and row.slow)]
        if rows:
            print(f"\n{family}")
            table(rows, options.seed, names)
    return 0
