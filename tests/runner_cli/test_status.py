"""`status` and `ls`: what they print of a run in any state."""

import re
import shutil
import subprocess
import sys
from operator import itemgetter
from pathlib import Path

import orjson
import pytest

from evaljournal.journal import read
from evaljournal.journal.disk.files import DISK
from evaljournal.journal.disk.lock import Lock, is_held
from tests.journal.samples import complete_run, content, flip, forge, opened, segment, session, started, trial, write_sync
from tests.processes import TIMEOUT, small_environment
from tests.runner_cli.commands import evaljournal, printed

pytestmark = pytest.mark.usefixtures("evaluations")


def test_status_of_a_finished_run() -> None:
    """`status` prints the final report of the run, or JSON with stable names."""
    ended = evaljournal("run", "evals/capitals.py").stdout
    status, answer = evaljournal("status"), printed("status")

    assert (0, "") == (status.exit_code, status.stderr)
    assert ended == status.stdout
    assert ("runs/capitals/0001", "finished", False, None) == itemgetter("path", "status", "is_live", "problem")(answer)
    assert (5, 5) == (answer["trials"]["completed"], answer["attempts"]["started"])


def test_status_of_a_damaged_run() -> None:
    """A damaged run is shown up to the damage, with exit code 4, and not changed."""
    write_sync(Path("r"), complete_run())
    flip(segment(Path("r")), list(read("r"))[9].offset + 60)
    before = content(Path("r"))
    status, as_json = evaljournal("status", "r"), evaljournal("status", "r", "--json")
    answer = orjson.loads(as_json.stdout)

    assert (4, 4) == (status.exit_code, as_json.exit_code)
    assert "1 done of 2 so far" in status.stdout
    assert "shown up to the damage: r is damaged at record 10" in status.stderr
    assert ("damaged", 9, 1) == (answer["status"], answer["seq"], answer["trials"]["completed"])
    assert before == content(Path("r"))


def test_status_of_a_run_that_breaks_the_rules() -> None:
    """An intact journal with records about unknown trials exits with 4."""
    forge(Path("r"), [opened(), started(), session(), *trial("a")[1:]])
    result = evaljournal("status", "r")

    assert (4, True) == (result.exit_code, "record 4 has a correct hash but is invalid" in result.stderr)


def test_checking_a_lock_does_not_take_it(tmp_path: Path) -> None:
    """The check creates no file and does not block the next writer."""
    assert not is_held(tmp_path)
    assert not (tmp_path / "LOCK").exists()

    lock = Lock(tmp_path, DISK)
    assert is_held(tmp_path)
    lock.release()
    assert not is_held(tmp_path)
    Lock(tmp_path, DISK).release()


def test_ls() -> None:
    """The runs are listed with evaluation, counts and outcome, in any status."""
    write_sync(Path("runs/capitals/0001"), complete_run())
    write_sync(Path("runs/capitals/0002"), complete_run()[:-1])
    write_sync(Path("runs/capitals/0003"), complete_run())
    flip(segment(Path("runs/capitals/0003")), list(read("runs/capitals/0003"))[9].offset + 60)
    forge(Path("runs/rivers"), [opened(version="7.0")])
    result = evaljournal("ls")
    answer = printed("ls")

    assert (0, "") == (result.exit_code, result.stderr)
    assert [
        "RUN | EVALUATION | STARTED | OUTPUTS | ERRORS | TRIALS | SCORE | COST | DURATION | ENDED | CHANGED",
        "runs/capitals/0001 | capitals | 2026-11-15 00:00:00 | 2 | 0 | 2 | exact 100.0 % | - | 14 ms | finished",
        "runs/capitals/0002 | capitals | 2026-11-15 00:00:00 | 2 | 0 | - | exact 100.0 % | - | 14 ms | no final record",
        "runs/capitals/0003 | capitals | 2026-11-15 00:00:00 | 1 | 0 | - | exact 100.0 % | - | 9 ms | damaged",
    ] == [re.sub(r"  +", " | ", line) for line in result.stdout.splitlines()[:4]]
    assert "unreadable" == answer[3]["status"]
    (variant,) = answer[1].pop("variants")
    assert ("", 2, 1.0) == (variant["variant"], variant["completed"], variant["scores"]["exact"]["mean"])
    assert answer[1] == {
        "path": "runs/capitals/0002",
        "evaluation": "capitals",
        "started_at": "2026-11-15T00:00:00.003000Z",
        "changed": [],
        "models": [],
        "git": "",
        "shard": "",
        "completed": 2,
        "failed": 0,
        "trials": None,
        "elapsed": 0.014,
        "head": list(read("runs/capitals/0002"))[-1].h,
        "cost": None,
        "status": "interrupted",
        "outcome": "no final record",
    }


def test_status_reports_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an interrupted run, `status` reports a nearly full disk."""
    write_sync(Path("runs/capitals/0001"), complete_run()[:-1])
    with_space = evaljournal("status").stdout
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(100, 100, 1))
    full = evaljournal("status").stdout

    assert with_space + "its disk has 1 byte free, which may be why it ended; free some space before you resume\n" == full


def test_ls_of_a_directory(tmp_path: Path) -> None:
    """Another directory can be listed; a missing one exits with 2, an empty one with 0."""
    write_sync(tmp_path / "archive/2026/capitals/0001", complete_run())

    assert str(tmp_path / "archive/2026/capitals/0001") in evaljournal("ls", tmp_path / "archive").stdout
    assert 2 == evaljournal("ls", "nowhere").exit_code
    assert (0, "", True) == ((result := evaljournal("ls")).exit_code, result.stdout, "no runs under runs/" in result.stderr)


@pytest.mark.parametrize("arguments", [("--help",), ("status", "run")])
def test_quick_commands_import_little(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """`--help` and `status` import neither the event loop nor the database, which take as long as all other imports."""
    write_sync(tmp_path / "run", complete_run())
    command = [sys.executable, "-X", "importtime", "-m", "evaljournal", *arguments]
    result = subprocess.run(command, cwd=tmp_path, env=small_environment(), capture_output=True, check=True, timeout=TIMEOUT)
    modules = {line.rpartition("|")[2].strip() for line in result.stderr.decode().splitlines()}

    assert "evaljournal.runner.cli" in modules
    assert set() == modules & {"trio", "asyncio", "sqlite3", "cattrs", "rich", "httpcore2"}
