"""Faults, provoked in real processes: kills, signals, limits, large runs and false alarms, each with a required figure."""

import argparse
import tempfile
from pathlib import Path

from benchmarks._figures import Figures, machine
from benchmarks.fault_scenarios import kills, large_runs, limits, verdicts

SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        kills.kill_large_outputs,
        kills.kill_every_kind,
        limits.full_disk,
        limits.signals,
        limits.few_files,
        limits.little_memory,
        verdicts.verified_runs,
        large_runs.large_run,
    )
}
"""Each prints its figures, given an empty directory. Its name is the value of `--only`; its docstring has the requirement."""


def main(argv: list[str]) -> int:
    """Run the scenarios; return 1 if a requirement is missed."""
    lines = [f"  {name:<24} {(scenario.__doc__ or '').partition(chr(10))[0]}" for name, scenario in SCENARIOS.items()]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks faults",
        description=__doc__,
        epilog="\n".join(["scenarios:", *lines]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only", action="append", choices=SCENARIOS, metavar="NAME", help="run this scenario (default: all; repeatable)"
    )
    parser.add_argument("--directory", type=Path, help="directory to write to (default: a temporary one)")
    options = parser.parse_args(argv)
    print(machine(), flush=True)
    figures = Figures()
    for name in options.only or SCENARIOS:
        print(f"\n{name}", flush=True)
        with tempfile.TemporaryDirectory(dir=options.directory) as directory:
            SCENARIOS[name](figures, Path(directory))
    return 1 if figures.missed else 0
