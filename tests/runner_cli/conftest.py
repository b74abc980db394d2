"""Tests of commands run in a directory of their own: a command without RUN looks for `runs/` in the working directory."""

import sys
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from evaljournal.journal import read
from tests.journal.samples import complete_run, fake_clock, flip, segment, write_sync
from tests.runner_cli.commands import QUICK, ROWS, SLOW, define


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to the test's own temporary directory, without the variables that commands read."""
    monkeypatch.chdir(tmp_path)
    for name in ("CI", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def evaluations(tmp_path: Path) -> Iterator[None]:
    """Write two evaluations to the working directory; restore Python's modules after the test."""
    path = list(sys.path)
    (tmp_path / "evals").mkdir()
    define("FAILS = None" + QUICK)
    (tmp_path / "evals/slow.py").write_text(SLOW)
    yield
    sys.path[:] = path
    user_modules = [name for name, module in sys.modules.items() if str(tmp_path) in (getattr(module, "__file__", None) or "")]
    for name in user_modules:
        del sys.modules[name]


@pytest.fixture
def run() -> Path:
    """Write a run of two trials: 15 records, a millisecond apart."""
    write_sync(Path("run"), complete_run())
    return Path("run")


@pytest.fixture
def dataset() -> Iterator[None]:
    """Write a dataset and a command to the working directory; restore Python's path after the test."""
    path = list(sys.path)
    Path("qa.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in ROWS))
    Path("answer.sh").write_text("#!/bin/sh\ntr a-z A-Z | tr -d '\"'\n")
    Path("answer.sh").chmod(0o700)
    yield
    sys.path[:] = path


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
