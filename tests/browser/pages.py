"""Runs and reports for the browser tests."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
from click.testing import CliRunner

from evaljournal.journal import Event
from evaljournal.journal.events import FileEvent, JournalRecovered
from evaljournal.runner.cli import cli
from tests.journal.samples import session, started, write_sync
from tests.replay.random_runs import random_records
from tests.replay.trial_events import answered, failed


def write_report(target: Path, *runs: Path) -> str:
    """Write a report with the command; return its address."""
    result = CliRunner().invoke(cli, ["report", *map(str, runs), "-o", str(target)], catch_exceptions=False)
    assert 0 == result.exit_code, result.output
    return target.as_uri()


def command_json(*args: str) -> Any:
    """Run a command with `--json`; return its output."""
    return orjson.loads(CliRunner().invoke(cli, [*args, "--json"], catch_exceptions=False).stdout)


def random_run(path: Path, seed: int, length: int = 400) -> Path:
    """Write a run of random events in a legal order."""
    events = [record.event for record in random_records(seed, length)]
    write_sync(path, [event for event in events if not isinstance(event, FileEvent | JournalRecovered)])
    return path


def capitals(path: Path, *, wrong: Sequence[str] = (), seconds: float = 0.25, more: Sequence[Event] = ()) -> Path:
    """Write a run of five trials: one recovers after a failure, one fails; `wrong` ones do not pass."""
    events: list[Event] = []
    for name, level in (("peru", "easy"), ("chad", "hard"), ("oslo", "easy"), ("rome", "hard")):
        retries = 1 if name == "oslo" else 0
        output = "Cusco" if name in wrong else "Lima"
        metadata = {"level": level}
        events += answered(
            name, {"exact": name not in wrong}, failures=retries, output=output, elapsed=seconds, metadata=metadata
        )
    write_sync(path, [started(), session(), *events, *failed("gone", message="no such city"), *more])
    return path
