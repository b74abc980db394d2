"""A run of a million trials: the memory that commands need to read it."""

import os
import subprocess
import sys
from pathlib import Path

import trio
import trio.lowlevel

from benchmarks._figures import Figures
from journal import writing
from journal.events import (
    AttemptStarted,
    AttemptSucceeded,
    RunFinished,
    RunStarted,
    SessionStarted,
    TrialCompleted,
    TrialEnqueued,
    TrialScored,
)

COMMANDS = {
    "verify": ("verify", "RUN"),
    "status": ("status", "RUN", "--json"),
    "report": ("report", "RUN", "-o", "report.html"),
    "export": ("export", "RUN", "--format", "jsonl", "-o", "rows.jsonl"),
}


def a_million_trials(figures: Figures, directory: Path, trials: int = 1_000_000) -> None:
    """`verify`, `status`, `report` and `export` of a million trials need at most 500 MB each."""
    path = directory / "run"
    trio.run(_write, path, trials)
    for name, arguments in COMMANDS.items():
        command = [
            sys.executable,
            "-m",
            "evaljournal",
            *(str(path) if word == "RUN" else word for word in arguments),
        ]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=directory)  # noqa: S603  # our own command
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        figures.show(f"{name}: exit code", process.returncode, maximum=0)
        figures.show(f"{name}: peak memory, {trials:,} trials", usage.ru_maxrss / 1024, maximum=500, unit="MB")
        figures.show(f"{name}: CPU", usage.ru_utime + usage.ru_stime, unit="s")


async def _write(path: Path, trials: int) -> None:
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
