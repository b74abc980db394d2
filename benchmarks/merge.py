"""Time of `merge`, compared with `verify` of the same records.

Each command runs in a process of its own and is measured in CPU seconds, start-up included.
"""

import argparse
import functools
import tempfile
from pathlib import Path

import trio

from benchmarks import page
from benchmarks._figures import Figures, machine
from benchmarks.history import command_seconds

SHARDS = 8


def main(argv: list[str]) -> int:
    """Print the figures; return 1 if a required one is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks merge", description=__doc__)
    parser.add_argument("--trials", type=int, default=100_000, help="trials of all shards (default: 100,000)")
    options = parser.parse_args(argv)
    print(machine())
    figures = Figures()
    with tempfile.TemporaryDirectory() as directory:
        state, target = Path(directory) / "state", Path(directory) / "merged"
        shards = [Path(directory) / f"{number}of{SHARDS}" for number in range(1, SHARDS + 1)]
        trials = options.trials // SHARDS
        for index, path in enumerate(shards):
            write = functools.partial(page.write_run, shard=f"{index + 1}/{SHARDS}", first=index * trials)
            trio.run(write, path, trials, index)
        merge_seconds = command_seconds(["merge", *map(str, shards), "-o", str(target)], state)
        verify_seconds = command_seconds(["verify", str(target)], state)
        records = sum(file.read_bytes().count(b"\n") for file in target.glob("journal-*.jsonl"))
        print(f"\n{SHARDS} shards, {SHARDS * trials:,} trials, {records:,} records")
        figures.show("verify of the merged run", verify_seconds, unit="s")
        figures.show("merge", merge_seconds, unit="s")
        figures.show("… relative to verify", merge_seconds / verify_seconds, maximum=2)
    return 1 if figures.missed else 0
