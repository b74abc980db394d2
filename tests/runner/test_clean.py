"""After a kill, `resume` or `clean` ends programs, tears down set-ups and removes workspaces, but only of one's own runs."""

import itertools
import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from evaljournal.journal import read
from evaljournal.journal.ownership import state_directory
from evaljournal.replay import fold
from evaljournal.runner.calls.workspaces import runs_directory
from tests.processes import wait_until
from tests.runner_cli.commands import evaljournal, process

RUN = Path("runs/fix/0001")
EVALUATION = """
import shutil, time
from pathlib import Path
from evaljournal import Command, evaluation, scorers

fix = evaluation(cases=[{"id": str(n), "input": n} for n in range(6)], name="fix", workspace="repo", slots=3, timeout=60)(
    Command("echo x > new; (setsid sleep 50 > /dev/null 2>&1 &) ; WORK; cat", shell=True)
)

fix.score(name="check")(scorers.command("sh -c '(setsid sleep 50 > /dev/null 2>&1 &) ; sleep 0.1'"))

@fix.setup
def sandbox(trial):
    Path("sandboxes", trial).mkdir(exist_ok=True)
    time.sleep(0.1)
    return f"sandboxes/{trial}"

@fix.teardown
def remove(PARAMETER):
    time.sleep(0.1)
    shutil.rmtree(BOX, ignore_errors=True)
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a directory with an evaluation whose teardown finds the sandbox by the id of the trial."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for directory in ("repo", "sandboxes"):
        Path(directory).mkdir()
    Path("repo/a.txt").write_text("a")
    write_evaluation("trial", 'f"sandboxes/{trial}"')


def write_evaluation(parameter: str, box: str, work: str = "sleep 0.2") -> None:
    """Write the evaluation; `work` is what its task does."""
    Path("fix.py").write_text(EVALUATION.replace("PARAMETER", parameter).replace("BOX", box).replace("WORK", work))


def remaining() -> tuple[list[str], list[str], list[int]]:
    """Return the sandboxes, the workspaces and the programs that still exist."""
    marker = f"{Path.cwd()}/cache".encode()
    programs = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if b"EVALJOURNAL_WORKSPACE=" + marker in Path("/proc", name, "environ").read_bytes():
                programs.append(int(name))
        except OSError:
            continue
    workspaces = [str(path) for path in runs_directory().glob("*/*/*")]
    return sorted(os.listdir("sandboxes")), workspaces, programs


def kill_at_work() -> None:
    """Start the run, and kill it once a program of an attempt is running, so after a set-up was recorded."""
    with process("run", "fix.py") as started:
        assert wait_until(lambda: bool(remaining()[2]))
        started.send_signal(signal.SIGKILL)
        started.communicate()


def kill(after: float) -> bool:
    """Start the run, and kill it some seconds after its first record; return whether it had not ended."""
    with process("run", "fix.py") as started:
        assert wait_until(lambda: any(b"session_started" in file.read_bytes() for file in RUN.glob("journal-*.jsonl")))
        time.sleep(after)
        is_running = started.poll() is None
        started.send_signal(signal.SIGKILL)
        started.communicate()
    return is_running


def kill_and_clean(seed: int) -> bool:
    """Kill the run at a random time; clean or resume it, check that nothing remains, and return whether it was running."""
    random_numbers = random.Random(seed)  # reproducible
    is_killed = kill(random_numbers.uniform(0.0, 1.5))
    if random_numbers.random() < 0.5:
        cleaned = evaljournal("clean", RUN)
        state = fold(read(RUN))
        unscored = state.totals.stages["scoring"]

        assert (0, [], []) == (cleaned.exit_code, (left := remaining())[0], left[2]), cleaned.stderr
        assert len([path for path in left[1] if "/attempts/" in path]) == unscored
        assert not state.set_ups.open
    resumed = evaljournal("resume", RUN, "-s", "keep=none")

    assert 0 == resumed.exit_code, resumed.stderr
    assert ([], [], []) == remaining()
    assert 0 == evaljournal("verify", RUN).exit_code
    return is_killed


@pytest.mark.parametrize("seed", range(2))
def test_nothing_remains_after_a_kill(seed: int) -> None:
    """After a kill at any time, `clean` or `resume` leaves no sandbox, workspace or program; the whole has 100 kills."""
    kill_and_clean(seed)


@pytest.mark.exhaustive
def test_nothing_remains_after_a_hundred_kills() -> None:
    """A hundred kills during set-up, attempt and teardown leave nothing after `resume` or `clean`."""
    seeds, kills = itertools.count(), 0
    while kills < 100:
        kills += kill_and_clean(next(seeds))
        for directory in ("runs", "cache"):
            shutil.rmtree(directory, ignore_errors=True)


def test_a_handle_is_passed_to_the_teardown() -> None:
    """`status` counts the set-ups without a teardown, `clean` tears them down with their handles, once, and starts nothing."""
    write_evaluation("sandbox", "sandbox")
    kill_at_work()
    count = len(fold(read(RUN)).set_ups.open)
    status = evaljournal("status", RUN).stdout
    cleaned = evaljournal("clean", RUN).stderr
    again = evaljournal("clean", RUN).stderr

    assert count > 0
    assert f"{count} set-ups were never torn down" in status or "1 set-up was never torn down" in status
    assert f"{count} set-up" in cleaned
    assert "0 set-ups torn down" in again
    assert 0 == len(fold(read(RUN)).set_ups.open)


def test_a_fork_does_not_tear_down_set_ups_of_its_source() -> None:
    """The source may be running, so its sandboxes stay, and the fork counts none; the source itself still does."""
    kill_at_work()
    fork, before = RUN.with_name("fork"), sorted(os.listdir("sandboxes"))
    set_ups = fold(read(RUN)).set_ups.open

    assert set_ups
    assert 0 == evaljournal("fork", RUN, "-o", fork).exit_code
    assert "never torn down" not in evaljournal("status", fork).stdout
    assert 0 == evaljournal("clean", fork).exit_code
    assert before == sorted(os.listdir("sandboxes"))
    assert set_ups == fold(read(RUN)).set_ups.open
    assert 0 == evaljournal("verify", fork).exit_code


@pytest.mark.slow
def test_a_copy_of_a_run_in_progress() -> None:
    """It has the same id, so it may neither be resumed nor cleaned: that would end the programs of the run."""
    duplicate = RUN.with_name("copy")
    write_evaluation("sandbox", "sandbox", work=f"until [ -e {Path.cwd()}/done ]; do sleep 0.1; done")
    with process("run", "fix.py", "-s", "keep=none") as started:
        assert wait_until(lambda: bool(remaining()[2]))
        shutil.copytree(RUN, duplicate)
        (duplicate / "LOCK").unlink()
        results = [evaljournal(command, duplicate) for command in ("resume", "clean")]
        Path("done").touch()
        started.communicate()

    for result in results:
        assert 2 == result.exit_code
        assert "a copy of this run is in progress, and uses its workspaces" in result.stderr
    assert 6 == fold(read(RUN)).completed
    assert ([], [], []) == remaining()


def test_kept_workspaces_are_removed_on_demand() -> None:
    """`clean` leaves the workspaces that a finished run keeps, and `clean --kept` removes them."""
    assert 0 == evaljournal("run", "fix.py", "-s", "keep=all").exit_code
    assert "0 workspaces removed" in evaljournal("clean", RUN).stderr
    assert 6 == len([path for path in remaining()[1] if "/attempts/" in path])
    assert "6 workspaces removed" in evaljournal("clean", RUN, "--kept").stderr
    assert ([], [], []) == remaining()


def test_a_foreign_run_is_not_cleaned() -> None:
    """Nothing that the journal of another user names is executed, ended or removed, not even with --task or --trust."""
    kill_at_work()
    before, programs, set_ups = remaining()[:2], set(remaining()[2]), fold(read(RUN)).set_ups.open
    shutil.rmtree(state_directory())
    cleaned = evaljournal("clean", RUN, "--task", "fix.py:fix")
    after = remaining()[:2]
    resumed = evaljournal("resume", RUN, "--trust")
    remaining_programs = set(remaining()[2])
    for program in remaining_programs:
        os.kill(program, signal.SIGKILL)

    assert 2 == cleaned.exit_code
    assert "another user or machine" in cleaned.stderr
    assert before == after
    assert programs & remaining_programs
    assert 0 == resumed.exit_code
    assert set_ups == fold(read(RUN)).set_ups.open
