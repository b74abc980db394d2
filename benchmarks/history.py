"""Time of `history` and `ls` over many runs, without and with the cache of digests.

Commands are measured in CPU seconds, start-up included.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import trio

from benchmarks import page
from benchmarks._figures import Figures, machine

ROUNDS = 3
DIFFERENT = 20
"""Different runs; the others are copies of them."""


def main(argv: list[str]) -> int:
    """Print the figures; return 1 if a required one is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks history", description=__doc__)
    parser.add_argument("--runs", type=int, default=500, help="runs (default: 500)")
    parser.add_argument("--trials", type=int, default=100, help="trials of each (default: 100)")
    options = parser.parse_args(argv)
    print(machine())
    figures = Figures()
    with tempfile.TemporaryDirectory() as directory:
        runs, state = Path(directory) / "runs" / "benchmark", Path(directory) / "state"
        records = _write(runs, options.runs, options.trials)
        print(f"\n{options.runs:,} runs of {options.trials:,} trials, {records:,} records")
        history = ["history", str(runs), "--last", str(options.runs)]
        figures.show("history without the cache", command_seconds(history, state), maximum=10, unit="s")
        for name, command in (("history with the cache", history), ("ls with the cache", ["ls", str(runs)])):
            best = min(command_seconds(command, state) for _ in range(ROUNDS))
            figures.show(f"{name}, best of {ROUNDS}", best, maximum=1, unit="s")
        size = sum(file.stat().st_size for file in state.rglob("*.jsonl"))
        figures.show("size of the cache", size / 1e6, unit="MB")
    return 1 if figures.missed else 0


def _write(directory: Path, runs: int, trials: int) -> int:
    """Write the runs; return the number of their records."""
    records = 0
    for number in range(runs):
        path = directory / f"{number:04}"
        if number < DIFFERENT:
            trio.run(page.write_run, path, trials, number)
        else:
            shutil.copytree(directory / f"{number % DIFFERENT:04}", path)
        records += sum(file.read_bytes().count(b"\n") for file in path.glob("journal-*.jsonl"))
    return records


def command_seconds(arguments: list[str], state: Path) -> float:
    """Run a command; return its CPU seconds."""
    before = os.times()
    command = [sys.executable, "-m", "evaljournal", *arguments]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "XDG_STATE_HOME": str(state)})  # noqa: S603  # our own
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system
