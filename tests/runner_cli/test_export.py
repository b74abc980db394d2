"""`evaljournal export`: output, errors and exit codes."""

import errno
import os
import pty
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from evaljournal.journal import read
from evaljournal.replay.export import FORMATS, Directory
from tests.journal.samples import complete_run, content, cut_tail, flip, lines_of, segment, session, started, trial, write_sync
from tests.replay.eventful_run import eventful_run, export_of, otlp_json_of
from tests.runner_cli.commands import COMMAND, evaljournal, rejected


@pytest.mark.parametrize("name", [name for name, format_ in FORMATS.items() if not isinstance(format_, Directory)])
def test_a_format_of_one_file(run: Path, name: str) -> None:
    """Without -o or with `-o -`, only its bytes are on standard output; with -o they are in a file, which is named."""
    printed, written = evaljournal("export", run, "--format", name), evaljournal("export", run, "-f", name, "-o", "out")
    named = evaljournal("export", run, "-f", name, "-o", "-")

    assert (0, export_of(run, name), "") == (printed.exit_code, printed.stdout_bytes, printed.stderr)
    assert printed.stdout_bytes == named.stdout_bytes
    assert (0, "", export_of(run, name)) == (written.exit_code, written.stdout, Path("out").read_bytes())
    assert f"exported run as {name} to out, up to record {len(lines_of(run))}\n" == written.stderr
    assert ["out", "run"] == sorted(os.listdir())


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("nat", ["exact_output.json", "workflow_output.json", "workflow_output.jsonl", "workflow_output_atif.json"]),
        ("otlp", ["spans-00001.pb"]),
    ],
)
def test_a_format_goes_to_a_directory(run: Path, name: str, files: list[str]) -> None:
    """A format of several files needs a directory, which is created."""
    error, result = rejected("export", run, "-f", name), evaljournal("export", run, "-f", name, "-o", "new")

    assert f"{name} writes a directory; pass -o DIRECTORY" in error
    assert (0, files) == (result.exit_code, sorted(os.listdir("new")))


def test_rows_can_be_chosen(run: Path) -> None:
    """`--rows` selects the rows of a table."""
    attempts = evaljournal("export", run, "--rows", "attempts").stdout.splitlines()

    assert [("case-1", 1), ("case-2", 1)] == [(row["trial"], row["attempt"]) for row in map(orjson.loads, attempts)]


def test_spans_as_json(run: Path) -> None:
    """`--json` writes spans as JSON to standard output."""
    result = evaljournal("export", run, "-f", "otlp", "--json")

    assert (0, otlp_json_of(run)) == (result.exit_code, result.stdout_bytes)


def test_files_are_not_replaced(run: Path) -> None:
    """An existing file or a directory with files is replaced only with --force; other files in the directory remain."""
    Path("nat").mkdir()
    for name in ("out.csv", "nat/notes.txt"):
        Path(name).write_text("mine")
    targets = (("csv", "out.csv"), ("nat", "nat"))
    errors = [rejected("export", run, "-f", name, "-o", target) for name, target in targets]
    before = Path("out.csv").read_text()
    forced = [evaljournal("export", run, "-f", name, "-o", target, "--force").exit_code for name, target in targets]

    assert ("Error: out.csv exists; pass --force to replace it\n", "mine") == (errors[0], before)
    assert ("Error: nat exists; pass --force to replace its files\n", [0, 0]) == (errors[1], forced)
    assert (export_of(run, "csv"), "mine") == (Path("out.csv").read_bytes(), Path("nat/notes.txt").read_text())
    assert Path("nat/workflow_output.json").exists()


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (".", "exists and is not a file"),
        ("nowhere/out.csv", "nowhere does not exist; create it with `mkdir -p "),
        ("fifo", "exists and is not a file"),
        ("run/journal-000001.jsonl", "is inside the run /"),
        ("run/report.xml", "is inside the run /"),
        ("run/deep/er/report.xml", "is inside the run /"),
    ],
)
def test_an_invalid_target(run: Path, target: str, reason: str) -> None:
    """A directory, a pipe, a missing parent or a file inside a run is rejected, even with --force."""
    os.mkfifo("fifo")
    before = content(run)
    error = rejected("export", run, "-f", "csv", "-o", target, "--force")

    assert reason in error
    assert (before, ["fifo", "run"]) == (content(run), sorted(os.listdir()))


@pytest.mark.parametrize("name", FORMATS)
def test_a_damaged_run_is_exported_up_to_the_damage(damaged_run: Path, tmp_path: Path, name: str) -> None:
    """The intact records are exported, the damage is reported, and the exit code is 4."""
    result = evaljournal("export", damaged_run, "-f", name, "-o", tmp_path / "out")

    assert 4 == result.exit_code
    assert f"exported {damaged_run} as {name} to {tmp_path / 'out'}, up to record 9\n" in result.stderr
    assert f"shown up to the damage: {damaged_run} is damaged at record 10" in result.stderr
    assert (tmp_path / "out").exists()


def test_rows_of_a_damaged_run(damaged_run: Path) -> None:
    """No row comes from records after the damage."""
    rows = [orjson.loads(line) for line in evaljournal("export", damaged_run).stdout.splitlines()]

    assert [("case-1", "completed"), ("case-2", "queued")] == [(row["trial"], row["stage"]) for row in rows]


def test_a_missing_blob(tmp_path: Path) -> None:
    """A missing blob is null, everything else is exported, and the exit code is 4."""
    eventful_run(tmp_path / "run")
    next((tmp_path / "run" / "blobs").rglob("*.json")).unlink()
    result = evaljournal("export", tmp_path / "run")
    rows = [orjson.loads(line) for line in result.stdout.splitlines()]

    assert (4, 6) == (result.exit_code, len(rows))
    assert (None, "Lima") == (rows[3]["output"], rows[0]["output"])
    assert ".json is missing" in result.stderr


def test_a_torn_end_is_not_damage(run: Path) -> None:
    """A run with a torn end is exported, and the torn end is reported."""
    cut_tail(segment(run), 2)
    with segment(run).open("ab") as file:
        file.write(b'{"seq":')
    result = evaljournal("export", run)

    assert (0, 2) == (result.exit_code, len(result.stdout.splitlines()))
    assert "after record" in result.stderr


def test_a_binary_format_at_a_terminal(run: Path) -> None:
    """Binary formats are rejected at a terminal."""
    terminal, child_end = pty.openpty()
    try:
        ended = subprocess.run(
            [*COMMAND, "export", str(run), "-f", "inspect"], stdout=child_end, stderr=subprocess.PIPE, check=False, timeout=60
        )
    finally:
        os.close(terminal)
        os.close(child_end)

    assert (2, True) == (ended.returncode, b"inspect is binary and cannot be printed to a terminal" in ended.stderr)


def test_a_failed_export_keeps_the_old_file(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the disk is full, the old file remains and no part of the new one; the error names the file."""

    def fail(_: object, __: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("evaljournal.journal.disk.files.Files.fsync", fail)
    (tmp_path / "out").write_text("mine")
    result = evaljournal("export", run, "-o", tmp_path / "out", "--force")

    assert (3, True) == (result.exit_code, f"No space left on device: '{tmp_path / 'out'}'" in result.stderr)
    assert ("mine", ["out", "run"]) == ((tmp_path / "out").read_text(), sorted(os.listdir(tmp_path)))


def test_a_missing_package_is_named(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pyarrow, Parquet exits with 2 and names the package."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    assert "pip install 'evaljournal[parquet]'" in rejected("export", run, "-f", "parquet")


def test_a_read_only_target(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the target, not the temporary file."""
    original = os.open

    def fail_to_create(path: str, flags: int, mode: int = 0o777, **more: int) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return original(path, flags, mode, **more)

    monkeypatch.setattr(os, "open", fail_to_create)
    result = evaljournal("export", run, "-o", run.parent / "trials.jsonl")

    assert (2, f"Error: {run.parent / 'trials.jsonl'}: Read-only file system\n") == (result.exit_code, result.stderr)


def test_summary_is_appended(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--summary` appends to the file of the CI job, whatever other steps have written."""
    file = tmp_path / "summary.md"
    file.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(file))
    results = [evaljournal("export", run, "-f", "markdown", "--summary") for _ in range(2)]

    assert [(0, ""), (0, "")] == [(result.exit_code, result.stdout) for result in results]
    assert b"before\n" + 2 * export_of(run, "markdown") == file.read_bytes()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["-f", "paquet"], "unknown format 'paquet'; use one of jsonl, csv, parquet, junit, markdown, atif, eee, inspect, nat"),
        (["-f", "junit", "--rows", "events"], "--rows applies to jsonl, csv, parquet, not to junit"),
        (["-f", "nat", "--json"], "--json applies to otlp, not to nat"),
        (["-f", "markdown", "--summary"], "--summary needs the environment variable GITHUB_STEP_SUMMARY"),
        (["-f", "markdown", "--summary", "-o", "x.md"], "--summary and -o are mutually exclusive"),
        (["-f", "csv", "--summary"], "--summary applies to markdown, not to csv"),
        (["-f", "junit", "--baseline", "run"], "--baseline applies to markdown, not to junit"),
        (["-f", "markdown", "--summary", "--rows", "steps"], "--rows applies to jsonl, csv, parquet, not to markdown"),
        (["-f", "markdown", "--baseline", "nosuch"], "nosuch does not exist"),
        (["-f", "markdown", "--baseline", "other"], "no trial in common"),
    ],
)
def test_wrong_options(run: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], problem: str) -> None:
    """The exit code is 2, the error has the reason, and nothing is written."""
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    write_sync(Path("other"), [started(), session(), *trial("elsewhere")])

    assert problem in rejected("export", run, *arguments)
    assert not Path("x.md").exists()


def test_comparison_with_a_damaged_baseline(run: Path, tmp_path: Path) -> None:
    """A damaged baseline is compared up to the damage, with exit code 4."""
    baseline = tmp_path / "baseline"
    write_sync(baseline, complete_run())
    flip(segment(baseline), list(read(baseline))[9].offset + 60)
    result = evaljournal("export", run, "-f", "markdown", "--baseline", baseline)

    assert 4 == result.exit_code
    assert "1 trial compared with the baseline" in result.stdout
    assert "shown up to the damage" in result.stderr


def test_a_summary_that_fails_is_not_begun(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that cannot be compared leave the file of the CI job as it was."""
    file = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(file))
    write_sync(tmp_path / "other", [started(), session(), *trial("elsewhere")])

    assert 2 == evaljournal("export", run, "-f", "markdown", "--summary", "--baseline", tmp_path / "other").exit_code
    assert not file.exists()


def test_a_full_temporary_directory_is_named(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If SQLite has no space for the index, the error names its directory, and the command can be repeated."""
    connect = sqlite3.connect

    def connect_small(*arguments: Any, **options: Any) -> sqlite3.Connection:
        database: sqlite3.Connection = connect(*arguments, **options)
        database.execute("PRAGMA max_page_count = 2")
        return database

    monkeypatch.setattr(sqlite3, "connect", connect_small)
    monkeypatch.setenv("SQLITE_TMPDIR", str(run.parent))
    result = evaljournal("export", run)

    assert (3, "") == (result.exit_code, result.stdout)
    problem = "No space left for the index of the run; set SQLITE_TMPDIR to a directory with more space"
    assert f"{problem}: '{run.parent}'; free" in result.stderr
