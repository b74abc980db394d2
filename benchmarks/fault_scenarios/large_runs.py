"""A run of 100,000 trials: the memory that commands need to read it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import trio
import trio.lowlevel

from benchmarks._figures import Figures
from evaljournal.journal import writing
from evaljournal.journal.events import (
    AttemptStarted,
    AttemptSucceeded,
    RunFinished,
    RunStarted,
    SessionStarted,
    TrialCompleted,
    TrialEnqueued,
    TrialScored,
)

ROOT: Final = Path(__file__).parent.parent.parent
MEASURED: Final = """
import sys
from benchmarks._figures import peak_memory
from evaljournal.__main__ import main
try:
    main()
finally:
    sys.stderr.write(f"\\n{peak_memory()}")
"""
"""Runs a command and writes its peak memory; that from `wait4` would include the memory of this process."""
COMMANDS = {
    "verify": ("verify", "RUN"),
    "status": ("status", "RUN", "--json"),
    "report": ("report", "RUN", "-o", "report.html"),
    "export": ("export", "RUN", "--format", "jsonl", "-o", "rows.jsonl"),
}


def large_run(figures: Figures, directory: Path, trials: int = 100_000) -> None:
    """`verify`, `status`, `report` and `export` of 100,000 trials need at most 150 MB each."""
    path = directory / "run"
    trio.run(write_run, path, trials)
    for name, arguments in COMMANDS.items():
        command = [sys.executable, "-c", MEASURED, *(str(path) if word == "RUN" else word for word in arguments)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with subprocess.Popen(  # noqa: S603  # our own command
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=directory, env=environment
        ) as process:
            assert process.stderr is not None
            *_, peak = process.stderr.read().split("\n")
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        figures.show(f"{name}: exit code", process.returncode, maximum=0)
        figures.show(f"{name}: peak memory, {trials:,} trials", float(peak), maximum=150, unit="MB")
        figures.show(f"{name}: CPU", usage.ru_utime + usage.ru_stime, unit="s")


async def write_run(path: Path, trials: int) -> None:
    """Write a finished run; its records are what the runner would write at one slot."""
    async with writing(path, new=True, durability="os") as journal:
        journal.append(
            RunStarted(
                evaluation="sums",
                task="",
                task_fingerprint="t",
                scorers={"exact": "v"},
                dataset="generated",
                dataset_fingerprint="d",
                trials=trials,
                settings={"slots": 1, "policy": "fixed"},
                settings_fingerprint="s",
                durability="os",
                environment={},
            )
        )
        journal.append(SessionStarted(session=1, pid=1, host="h", boot_id="b"))
        for number in range(trials):
            name, question = f"sum-{number}", f"What is {number} plus {number}?"
            journal.append(
                TrialEnqueued(
                    trial=name,
                    case=name,
                    repeat=1,
                    input={"question": question},
                    expected=str(2 * number),
                    metadata={"group": str(number % 7)},
                    fingerprint=f"{number:016x}",
                )
            )
            journal.append(AttemptStarted(trial=name, attempt=1, slot=0))
            journal.append(AttemptSucceeded(trial=name, attempt=1, output=f"I think it is {2 * number}.", elapsed=0.0))
            journal.append(TrialScored(trial=name, scorer="exact", version="v", value=number % 3 > 0, elapsed=0.0))
            journal.append(TrialCompleted(trial=name, attempts=1))
            if number % 1_000 == 0:
                await trio.lowlevel.checkpoint()
        journal.append(RunFinished(completed=trials, failed=0, withdrawn=0, head=journal.head))
