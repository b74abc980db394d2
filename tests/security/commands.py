"""Run every command that reads a run, in a process with little memory and time, and report what it did.

`python commands.py ROOT` waits for the directories to read, as `tests.processes.Forks` expects.
"""

import json
import resource
import signal
import sys
import tempfile
from contextlib import aclosing
from pathlib import Path
from typing import Any

MEMORY = 8 << 30
"""Bytes of address space, which is more than the memory that is used: a file of 50 GB cannot be read."""
SECONDS = 30
"""Seconds of CPU for the commands on one directory."""
RESULTS = "results.json"
ACTIONS = (
    "subprocess.Popen",
    "os.exec",
    "os.posix_spawn",
    "os.system",
    "os.fork",
    "socket.connect",
    "pickle.find_class",
    "ctypes.dlopen",
)
"""Audit events of what no reading command does."""


def commands(run: str, out: str) -> list[list[str]]:
    """Return the commands that read a run; those that write a file write into `out`."""
    from evaljournal.replay.export import FORMATS

    texts = [[name, run] for name in ("ls", "status", "log", "verify", "show", "watch", "replay")]
    data = [[name, run, "--json"] for name in ("ls", "status", "log", "verify", "show", "watch", "replay")]
    views = [["show", run, "case-1"], ["show", run, "case-1", "--json"], ["show", run, "--definition"], ["compare", run, run]]
    views += [["show", run, "case-1", "--steps", "full"], ["export", run, "--rows", "steps", "-o", f"{out}/steps.jsonl"]]
    views += [["history", run], ["history", run, "--json"], ["report", "--all", run, "-o", f"{out}/index.html"]]
    exports = [["export", run, "-f", "markdown", "--baseline", run, "-o", f"{out}/compared.md"]]
    views += [["gate", run, "--baseline", run], ["gate", run, "--baseline", run, "--json"]]
    other_path = f"{run}/../{Path(run).name}"
    views += [["compare", run, other_path], ["compare", run, other_path, "--json"], ["compare", f"{run}@a", f"{run}@b"]]
    exports += [["export", run, "-f", name, "-o", f"{out}/{name}"] for name in FORMATS]
    views += [["status", run, "--by", "k"], ["report", run, "-o", f"{out}/report.html"]]
    copies = [["salvage", run, "-o", f"{out}/salvaged"], ["fork", run, "-o", f"{out}/forked"]]
    copies += [["merge", run, "-o", f"{out}/merged"], ["merge", run, "-o", f"{out}/merged-again", "--json"]]
    return [*texts, *data, *views, *exports, *copies]


def view(run: str) -> None:
    """Read a run as `view` does, without a browser."""
    import trio

    from evaljournal.journal.disk.segments import total_size
    from evaljournal.replay.page.page_columns import PageCursor
    from evaljournal.runner.cli.servers.server import FollowedRun

    async def first_message() -> None:
        live = FollowedRun(Path(run), total_size(Path(run)))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(live.follow)
            async with aclosing(live.messages(PageCursor())) as messages:
                await anext(messages)
            nursery.cancel_scope.cancel()

    trio.run(first_message)


def main(stride: str, *directories: str) -> None:
    """Read the run in each directory with every `stride`-th command, starting at a different one in each.

    Exit codes, outputs and forbidden actions are written as JSON into its directory `out`.
    """
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    actions: list[str] = []

    def record(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ACTIONS:
            actions.append(f"{event} {arguments!r:.200}")
        elif event == "exec" and arguments and getattr(arguments[0], "co_filename", "").startswith(directories):
            actions.append(f"import of {arguments[0].co_filename}")

    sys.addaudithook(record)
    for number, directory in enumerate(directories):
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # Of CPU: other processes do not matter.
        signal.alarm(10 * SECONDS)  # Waiting takes no CPU.
        results = read_with_all(f"{directory}/run", f"{directory}/out", number % int(stride), int(stride))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        text = json.dumps({"results": results, "actions": actions, "peak_kb": peak})
        Path(directory, "out", RESULTS).write_text(text)
        actions.clear()


def read_with_all(run: str, out: str, first: int, stride: int) -> dict[str, tuple[int, str]]:
    """Run every `stride`-th command; return their exit codes and outputs."""
    from click.testing import CliRunner

    from evaljournal.journal.errors import JournalError
    from evaljournal.runner.cli import cli

    results: dict[str, tuple[int, str]] = {}
    for command in commands(run, out)[first::stride]:
        result = CliRunner().invoke(cli, command, color=True)
        is_bug = result.exception is not None and not isinstance(result.exception, SystemExit)
        results[" ".join(command)] = (
            70 if is_bug else result.exit_code,
            f"{result.output}{result.exception!r}" if is_bug else result.output,
        )
    try:
        results["view"] = (0, "")
        view(run)
    except* (JournalError, OSError):
        results["view"] = (2, "")
    except* Exception as exc:  # noqa: BLE001  # reported as a bug
        results["view"] = (70, repr(exc.exceptions))
    return results


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    import pyarrow.parquet  # type: ignore[import-untyped]  # noqa: F401  # before the first fork, as everything below
    from click.testing import CliRunner

    import evaljournal.runner.cli.servers.server  # noqa: F401
    from evaljournal.runner.cli import cli
    from tests.processes import ROOT, forked_arguments

    with tempfile.TemporaryDirectory() as directory:
        for command in commands(str(ROOT / "tests/golden/run-v2"), directory):
            if "parquet" not in command:  # It would start threads.
                CliRunner().invoke(cli, command)
    main(*forked_arguments())
