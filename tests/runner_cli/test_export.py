"""`evaljournal export`: output, errors and exit codes."""

import errno
import os
import pty
import subprocess
from pathlib import Path

import orjson
import pytest

from evaljournal.journal import read
from evaljournal.replay.export import FORMATS, Directory
from tests.journal.samples import complete_run, content, cut_tail, flip, lines_of, segment, session, started, trial, write_sync
from tests.replay.eventful_run import eventful_run, export_of, otlp_json_of
from tests.runner_cli.commands import COMMAND, evaljournal


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Write a run of two trials."""
    write_sync(tmp_path / "run", complete_run())
    return tmp_path / "run"


@pytest.fixture
def damaged(run: Path) -> Path:
    """Write a run of two trials whose tenth record is damaged."""
    flip(segment(run), list(read(run))[9].offset + 60)
    return run


@pytest.mark.parametrize("name", [name for name, format_ in FORMATS.items() if not isinstance(format_, Directory)])
def test_a_format_goes_to_standard_output(run: Path, name: str) -> None:
    """Without -o, only the bytes of the format are on standard output."""
    result = evaljournal("export", run, "--format", name)

    assert (0, export_of(run, name), "") == (result.exit_code, result.stdout_bytes, result.stderr)


@pytest.mark.parametrize("name", [name for name, format_ in FORMATS.items() if not isinstance(format_, Directory)])
def test_a_format_goes_to_a_file(run: Path, tmp_path: Path, name: str) -> None:
    """With -o, the file has the same bytes, and standard error describes it."""
    target = tmp_path / "out"
    result = evaljournal("export", run, "-f", name, "-o", target)

    assert (0, "") == (result.exit_code, result.stdout)
    assert export_of(run, name) == target.read_bytes()
    assert f"exported {run} as {name} to {target}, up to record {len(lines_of(run))}\n" == result.stderr
    assert ["out", "run"] == sorted(os.listdir(tmp_path))


@pytest.mark.parametrize(
    ("name", "files"),
    [("nat", ["exact_output.json", "workflow_output.json", "workflow_output.jsonl"]), ("otlp", ["spans-00001.pb"])],
)
def test_a_format_goes_to_a_directory(run: Path, tmp_path: Path, name: str, files: list[str]) -> None:
    """A format of several files needs a directory, which is created."""
    rejected = evaljournal("export", run, "-f", name)
    result = evaljournal("export", run, "-f", name, "-o", tmp_path / "new")

    assert 2 == rejected.exit_code
    assert f"{name} writes a directory; pass -o DIRECTORY" in rejected.stderr
    assert 0 == result.exit_code
    assert files == sorted(os.listdir(tmp_path / "new"))


def test_rows_can_be_chosen(run: Path) -> None:
    """`--rows` selects attempts or events in tables only."""
    attempts = evaljournal("export", run, "--rows", "attempts").stdout.splitlines()
    rejected = evaljournal("export", run, "-f", "junit", "--rows", "events")

    assert [("case-1", 1), ("case-2", 1)] == [(row["trial"], row["attempt"]) for row in map(orjson.loads, attempts)]
    assert (2, True) == (rejected.exit_code, "--rows applies to jsonl, csv, parquet, not to junit" in rejected.stderr)


def test_spans_as_json(run: Path) -> None:
    """`--json` writes spans as JSON to standard output; the other formats have no such option."""
    result, rejected = (evaljournal("export", run, "-f", name, "--json") for name in ("otlp", "nat"))

    assert (0, otlp_json_of(run)) == (result.exit_code, result.stdout_bytes)
    assert (2, True) == (rejected.exit_code, "--json applies to otlp, not to nat" in rejected.stderr)


def test_an_unknown_format(run: Path) -> None:
    """An unknown format exits with 2 and the list of formats."""
    result = evaljournal("export", run, "--format", "paquet")

    assert 2 == result.exit_code
    assert "unknown format 'paquet'; use one of jsonl, csv, parquet, nat" in result.stderr


def test_a_file_is_not_replaced(run: Path, tmp_path: Path) -> None:
    """An existing file is replaced only with --force."""
    target = tmp_path / "out.csv"
    target.write_text("mine")
    rejected = evaljournal("export", run, "-f", "csv", "-o", target)
    before = target.read_text()
    forced = evaljournal("export", run, "-f", "csv", "-o", target, "--force")

    assert (2, "mine") == (rejected.exit_code, before)
    assert f"{target} exists; pass --force to replace it" in rejected.stderr
    assert (0, export_of(run, "csv")) == (forced.exit_code, target.read_bytes())


def test_a_directory_is_not_replaced(run: Path, tmp_path: Path) -> None:
    """A directory with files is used only with --force; foreign files in it remain."""
    target = tmp_path / "nat"
    target.mkdir()
    (target / "notes.txt").write_text("mine")
    rejected = evaljournal("export", run, "-f", "nat", "-o", target)
    forced = evaljournal("export", run, "-f", "nat", "-o", target, "--force")

    assert (2, 0) == (rejected.exit_code, forced.exit_code)
    assert "mine" == (target / "notes.txt").read_text()
    assert (target / "workflow_output.json").exists()


@pytest.mark.parametrize("inside", ["journal-000001.jsonl", "report.xml", "deep/er/report.xml"])
def test_no_export_goes_into_a_run(run: Path, inside: str) -> None:
    """Nothing is written inside a run, even with --force."""
    before = content(run)
    result = evaljournal("export", run, "-f", "junit", "-o", run / inside, "--force")

    assert 2 == result.exit_code
    assert f"{run / inside} is inside the run {run}" in result.stderr
    assert before == content(run)


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("", "exists and is not a file"),
        ("nowhere/out.csv", "nowhere does not exist; create it with `mkdir -p "),
        ("fifo", "exists and is not a file"),
    ],
)
def test_an_invalid_target(run: Path, tmp_path: Path, target: str, reason: str) -> None:
    """A directory, a pipe or a missing parent is rejected, even with --force."""
    os.mkfifo(tmp_path / "fifo")
    result = evaljournal("export", run, "-f", "csv", "-o", tmp_path / target, "--force")

    assert (2, True) == (result.exit_code, reason in result.stderr)
    assert ["fifo", "run"] == sorted(os.listdir(tmp_path))


@pytest.mark.parametrize("name", FORMATS)
def test_a_damaged_run_is_exported_up_to_the_damage(damaged: Path, tmp_path: Path, name: str) -> None:
    """The intact records are exported, the damage is reported, and the exit code is 4."""
    result = evaljournal("export", damaged, "-f", name, "-o", tmp_path / "out")

    assert 4 == result.exit_code
    assert f"exported {damaged} as {name} to {tmp_path / 'out'}, up to record 9\n" in result.stderr
    assert f"shown up to the damage: {damaged} is damaged at record 10" in result.stderr
    assert (tmp_path / "out").exists()


def test_rows_of_a_damaged_run(damaged: Path) -> None:
    """No row comes from records after the damage."""
    rows = [orjson.loads(line) for line in evaljournal("export", damaged).stdout.splitlines()]

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
    """If the disk fails, the old file remains and no part of the new one."""

    def fail(_: object, __: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("evaljournal.journal.disk.files.Files.fsync", fail)
    (tmp_path / "out").write_text("mine")
    result = evaljournal("export", run, "-o", tmp_path / "out", "--force")

    assert (3, True) == (result.exit_code, "No space left on device" in result.stderr)
    assert ("mine", ["out", "run"]) == ((tmp_path / "out").read_text(), sorted(os.listdir(tmp_path)))


def test_a_missing_package_is_named(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pyarrow, Parquet exits with 2 and names the package."""
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    result = evaljournal("export", run, "-f", "parquet")

    assert (2, True) == (result.exit_code, "pip install 'evaljournal[parquet]'" in result.stderr)


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
        (["-f", "markdown", "--summary"], "--summary needs the environment variable GITHUB_STEP_SUMMARY"),
        (["-f", "markdown", "--summary", "-o", "x.md"], "--summary and -o are mutually exclusive"),
        (["-f", "csv", "--summary"], "--summary applies to markdown, not to csv"),
        (["-f", "junit", "--baseline", "run"], "--baseline applies to markdown, not to junit"),
        (["-f", "markdown", "--summary", "--rows", "steps"], "--rows applies to jsonl, csv, parquet, not to markdown"),
        (["-f", "markdown", "--baseline", "nosuch"], "nosuch does not exist"),
        (["-f", "markdown", "--baseline", "other"], "no trial in common"),
    ],
)
def test_wrong_baseline_or_summary(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], problem: str
) -> None:
    """The exit code is 2, the error has the reason, and nothing is written."""
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    write_sync(tmp_path / "other", [started(), session(), *trial("elsewhere")])
    result = evaljournal("export", run, *arguments)

    assert (2, "") == (result.exit_code, result.stdout)
    assert problem in result.stderr
    assert not (tmp_path / "x.md").exists()


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
