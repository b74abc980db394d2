"""Batches in `status`, `ls`, `show`, `log` and the exports."""

from pathlib import Path

import orjson
import pytest

from evaljournal.journal.events import RunStopped
from tests.journal.samples import write_sync
from tests.replay.batch_run import batch_run
from tests.runner_cli.commands import evaljournal


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run with three batches."""
    write_sync(tmp_path / "runs" / "capitals" / "0001", batch_run())
    return tmp_path / "runs" / "capitals" / "0001"


@pytest.fixture
def waiting_run(tmp_path: Path) -> Path:
    """A run that was stopped while its batch is open."""
    events = batch_run()
    write_sync(tmp_path / "runs" / "capitals" / "0002", events[: [type(event) for event in events].index(RunStopped) + 1])
    return tmp_path / "runs" / "capitals" / "0002"


def test_status_and_ls_show_what_a_run_waits_for(waiting_run: Path) -> None:
    """`status` has a line for each open batch and the command that continues; `ls` has counts and expiry."""
    status, batches = (
        evaljournal("status", waiting_run).stdout,
        orjson.loads(evaljournal("status", waiting_run, "--json").stdout),
    )
    expected = "waiting for a batch (1 of 3 lines done, expires at 2026-11-16 00:00 UTC)"

    assert f"next: evaljournal resume {waiting_run} --wait" == status.splitlines()[-1]
    assert "batch 1: in progress, 1 of 3 done, " in status
    assert ("batches", 3) == (batches["outcome"], batches["batches"][0]["open_lines"])
    assert expected in evaljournal("ls", waiting_run.parents[1]).stdout


def test_show_names_batch_and_line(run: Path, waiting_run: Path) -> None:
    """`show` has the batch and the line of an attempt instead of its slot, and what a queued trial waits for."""
    assert "attempt 1  succeeded  batch 1, line 1 · session 2" in evaljournal("show", run, "a").stdout
    assert "waiting for line 2 of batch 1 (in progress)" in evaljournal("show", waiting_run, "b").stdout


def test_log_prints_batches(run: Path) -> None:
    """`log` prints the events of batches."""
    lines = evaljournal("log", run).stdout.splitlines()

    assert 3 == sum("batch_prepared" in line for line in lines)


def test_exports_have_batch_and_line(run: Path, tmp_path: Path) -> None:
    """The table of attempts has batch and line; slot and elapsed are empty for them."""
    exported = evaljournal("export", run, "--format", "jsonl", "--rows", "attempts").stdout
    rows = [orjson.loads(line) for line in exported.splitlines()]

    assert {("a", 1, 1, None, None), ("b", 1, 2, None, None), ("b", 2, 1, None, None), ("c", None, None, 0, 0.001)} == {
        (row["trial"], row["batch"], row["line"], row["slot"], row["elapsed"]) for row in rows
    }
    assert 0 == evaljournal("export", run, "--format", "otlp", "--json", "-o", tmp_path / "spans.json").exit_code
    assert '"evaljournal.batch"' in (tmp_path / "spans.json").read_text()
    for format_ in ("inspect", "nat", "csv", "markdown", "junit"):
        assert 0 == evaljournal("export", run, "--format", format_, "-o", tmp_path / f"run.{format_}").exit_code


def test_the_report_has_batches(run: Path, waiting_run: Path, tmp_path: Path) -> None:
    """The report of a run with open or collected batches can be written."""
    for path in (run, waiting_run):
        assert 0 == evaljournal("report", path, "-o", tmp_path / f"{path.name}.html").exit_code
