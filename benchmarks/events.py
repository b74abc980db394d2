"""Whether another checkout writes the same events: random runs, made by seeds, on a virtual clock and a disk in memory.

The runs have retries, timeouts, rate limits, outages, several rate-limit keys, scorers, judges, repeats, budgets, known limits,
steps and batches, in sessions that are interrupted, killed and resumed. All events are compared in order, with all their fields
but the definition of a run and what names files; times are compared, too, because they are virtual. Python's objects are
collected in between, so the result depends on nothing else.
"""

import argparse
import json
import os
import subprocess
import sys
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

from benchmarks._figures import Figures
from benchmarks.calls import ROOT, environment

PROBE: Final = ROOT / "tests" / "random_runs.py"
_SHOWN: Final = 5
"""Differences that are printed."""
_MAX_EVENT: Final = 300


def main(argv: list[str]) -> int:
    """Print the differences; return 1 if there are any."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks events", description=__doc__)
    parser.add_argument("--against", type=Path, metavar="DIRECTORY", required=True, help="checkout to compare with")
    parser.add_argument("--runs", type=int, default=200, help="number of runs (default: 200)")
    parser.add_argument("--first", type=int, default=0, help="seed of the first run (default: 0)")
    parser.add_argument("--plain", action="store_true", help="also plain scorers: a checkout may call them in another way")
    options = parser.parse_args(argv)
    kinds = ["plain"] if options.plain else []
    runs, other_runs = (
        [json.loads(line) for line in events_of_runs(tree, options.first, options.runs, *kinds).splitlines()]
        for tree in (ROOT, options.against.resolve())
    )
    different = [number for number, pair in enumerate(zip_longest(runs, other_runs)) if pair[0] != pair[1]]
    for number in different[:_SHOWN]:
        _show_difference(options.first + number, runs[number], other_runs[number])
    figures = Figures()
    figures.show("runs", len(runs), minimum=options.runs)
    figures.show("events", sum(map(len, runs)))
    figures.show("runs with different events", len(different), maximum=0)
    return 1 if figures.missed else 0


def _show_difference(seed: int, events: list[Any], other_events: list[Any]) -> None:
    number, pair = next(
        (number, pair) for number, pair in enumerate(zip_longest(events, other_events), 1) if pair[0] != pair[1]
    )
    print(f"run {seed}, event {number}:")
    for tree, event in zip(("here", "there"), pair, strict=True):
        print(f"  {tree:<6} {json.dumps(event)[:_MAX_EVENT]}")


def events_of_runs(tree: Path, first: int, count: int, *kinds: str) -> str:
    """Return the events of runs with these seeds as a checkout writes them, a JSON line per run."""
    start = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, "-c", start, str(PROBE), str(first), str(count), *kinds]
    variables = environment(tree) | {"EVALJOURNAL_RAISE_POLICY_ERRORS": "1", "XDG_STATE_HOME": os.devnull}
    result = subprocess.run(command, cwd=tree, env=variables, check=False, capture_output=True, text=True)  # noqa: S603  # our own program
    if result.returncode:
        raise SystemExit(f"{tree}:\n{result.stderr}")
    return result.stdout
