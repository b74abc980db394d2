"""Runs and evaluations in the working directory, for tests of commands."""

from pathlib import Path

import orjson
import pytest

from evaljournal.journal import read
from tests.journal.samples import complete_run, fake_clock, flip, segment, write_sync
from tests.runner_cli.commands import QUICK, ROWS, SLOW, define


@pytest.fixture(autouse=True)
def own_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the variables that commands read."""
    for name in ("CI", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def evaluations() -> None:
    """Write two evaluations to the working directory."""
    Path("evals").mkdir()
    define("FAILS = None" + QUICK)
    Path("evals/slow.py").write_text(SLOW)


@pytest.fixture
def run() -> Path:
    """Write a run of two trials: 15 records, a millisecond apart."""
    write_sync(Path("run"), complete_run())
    return Path("run")


@pytest.fixture
def dataset() -> None:
    """Write a dataset and a command to the working directory."""
    Path("qa.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in ROWS))
    Path("answer.sh").write_text("#!/bin/sh\ntr a-z A-Z | tr -d '\"'\n")
    Path("answer.sh").chmod(0o700)


@pytest.fixture
def timed_run(tmp_path: Path) -> Path:
    """Write a run of two trials with records a second apart, so that all its durations are possible."""
    write_sync(tmp_path / "run", complete_run(), clock=fake_clock(1.0))
    return tmp_path / "run"


@pytest.fixture
def damaged_run(timed_run: Path) -> Path:
    """Write a run of two trials whose tenth record is damaged."""
    flip(segment(timed_run), list(read(timed_run))[9].offset + 60)
    return timed_run
