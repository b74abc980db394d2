"""Time and memory of claims about a large run: `attest` compared with `verify`, and the check of a bundle of all trials.

Each command runs in a process of its own and is measured in CPU seconds, start-up included.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import trio

from benchmarks._figures import Figures, machine
from benchmarks.fault_scenarios.large_runs import MEASURED, ROOT, write_run

CHECK_MEMORY = 120
"""Maximum MB for a check, whatever the number of leaves."""


def main(argv: list[str]) -> int:
    """Print the figures; return 1 if a required one is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks claims", description=__doc__)
    parser.add_argument("--trials", type=int, default=100_000, help="trials of the run (default: 100,000)")
    parser.add_argument("--directory", default=None, help="where the run is written, which takes 1.5 kB per trial")
    parser.add_argument("--rounds", type=int, default=3, help="pairs of `verify` and `attest` (default: 3)")
    options = parser.parse_args(argv)
    print(machine())
    figures = Figures()
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        directory = Path(name)
        trio.run(write_run, directory / "run", options.trials)
        print(f"\na run of {options.trials:,} trials")
        rounds = []
        for _ in range(options.rounds):  # In pairs, because the load of the machine changes.
            verify = _measure(directory, "verify", "run")
            rounds.append((verify, _measure(directory, "attest", "run", "--claim", "exact>=0.5")))
        verify_seconds, attest_seconds = (min(pair[index][0] for pair in rounds) for index in (0, 1))
        figures.show("verify: CPU", verify_seconds, unit="s")
        figures.show("attest: CPU", attest_seconds, unit="s")
        figures.show("… relative to verify", attest_seconds / verify_seconds, maximum=1.3)
        figures.show("verify: peak memory", rounds[0][0][1], unit="MB")
        figures.show("attest: peak memory", rounds[0][1][1], unit="MB")
        for arguments, bundle in ((("--all",), "all"), (("--sample", "1000", "--seed", "7"), "sample")):
            seconds, peak = _measure(directory, "disclose", "run", *arguments, "-o", f"{bundle}.jsonl")
            figures.show(f"disclose {arguments[0]}: CPU", seconds, unit="s")
            figures.show(f"disclose {arguments[0]}: peak memory", peak, unit="MB")
            figures.show("its bundle: size", (directory / f"{bundle}.jsonl").stat().st_size / 1e6, unit="MB")
            seconds, peak = _measure(directory, "check", f"{bundle}.jsonl")
            figures.show("check of it: CPU", seconds, unit="s")
            figures.show("check of it: peak memory", peak, maximum=CHECK_MEMORY, unit="MB")
    return 1 if figures.missed else 0


def _measure(directory: Path, *arguments: str) -> tuple[float, float]:
    """Run a command that must succeed; return its CPU seconds and its peak memory in MB."""
    command = [sys.executable, "-c", MEASURED, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(directory / "state")}
    with subprocess.Popen(  # noqa: S603  # our own command
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=directory, env=environment
    ) as process:
        assert process.stderr is not None
        *_, peak = process.stderr.read().split("\n")
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, arguments
    return usage.ru_utime + usage.ru_stime, float(peak)
