"""Opening a journal for writing: new and existing runs, and the lock."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from evaljournal.journal import verify, writing
from evaljournal.journal.errors import IllegalEvent, JournalExists, JournalLocked, NotAJournal
from tests.journal.samples import RUN, complete_run, content, fake_clock, inline, session, started, trial, write
from tests.processes import ROOT, run_command


async def test_new_run_is_rejected_where_one_exists(tmp_path: Path) -> None:
    """A new run in the directory of another is rejected with the hint to resume."""
    await write(tmp_path / "run", complete_run())
    before = content(tmp_path / "run")

    with pytest.raises(JournalExists, match="already contains a run; resume the run") as raised:
        await write(tmp_path / "run", complete_run())
    assert (tmp_path / "run", "resume") == (raised.value.path, raised.value.hint)
    assert before == content(tmp_path / "run")


async def test_new_run_does_not_replace_a_file(tmp_path: Path) -> None:
    """A file at the path, or above it, is kept."""
    (tmp_path / "file").write_text("mine")

    with pytest.raises(JournalExists, match="cannot create the directory"):
        await write(tmp_path / "file", complete_run())
    with pytest.raises(JournalExists, match="cannot create the directory"):
        await write(tmp_path / "file" / "run", complete_run())
    assert "mine" == (tmp_path / "file").read_text()


async def test_only_an_existing_journal_can_be_opened(tmp_path: Path) -> None:
    """Opening a path without a journal fails and creates nothing."""
    (tmp_path / "empty").mkdir()

    with pytest.raises(NotAJournal, match="does not exist"):
        await write(tmp_path / "nothing", [session()], new=False)
    with pytest.raises(NotAJournal, match="is not a run"):
        await write(tmp_path / "empty", [session()], new=False)
    assert [] == list((tmp_path / "empty").iterdir())


async def test_reopened_journal_has_its_state(tmp_path: Path) -> None:
    """A reopened journal has the run id, the trials and the attempts of earlier sessions."""
    await write(tmp_path / "run", [started(), session(), *trial("a", retries=2)[:-4]])
    async with writing(tmp_path / "run", new=False, clock=fake_clock(), in_thread=inline) as journal:
        assert RUN == journal.run
        assert ("in_session", 1, 1) == (journal.lifecycle.stage, journal.lifecycle.sessions, journal.lifecycle.open_trials)
        assert ("backing_off", 2) == (journal.lifecycle.stage_of("a"), journal.lifecycle.attempts_of("a"))
        with pytest.raises(IllegalEvent, match="expected session 2, got session 1"):
            journal.append(session(1))
        journal.append(session(2))

    assert verify(tmp_path / "run").ok


async def test_second_writer_is_rejected(tmp_path: Path) -> None:
    """While a journal is being written, a second writer gets an error that names the process."""
    async with writing(tmp_path / "run", new=True, clock=fake_clock(), in_thread=inline) as journal:
        journal.append(started())
        for new in (True, False):
            with pytest.raises(JournalLocked, match=rf"/run is being written by process {os.getpid()} on \S+; ") as raised:
                await write(tmp_path / "run", [session()], new=new)
            assert (tmp_path / "run", "watch") == (raised.value.path, raised.value.hint)
        journal.append(session())
    await write(tmp_path / "run", [session(2)], new=False)

    assert verify(tmp_path / "run").ok


SECOND = """
import sys, trio
from evaljournal.journal import errors
from tests.journal.samples import session, write
try:
    trio.run(lambda: write(__import__("pathlib").Path(sys.argv[1]), [session(int(sys.argv[2]))], new=False))
except errors.JournalLocked as exc:
    sys.exit(str(exc))
"""


def second_process(path: Path, n: int) -> subprocess.CompletedProcess[str]:
    """Let another process write to the journal."""
    return run_command(sys.executable, "-c", SECOND, path, n, cwd=ROOT)


async def test_second_process_is_rejected(tmp_path: Path) -> None:
    """Another process is rejected as long as the first one writes."""
    async with writing(tmp_path / "run", new=True, clock=fake_clock(), in_thread=inline) as journal:
        for event in complete_run()[:2]:
            await journal.wait_durable(journal.append(event).seq)
        during = second_process(tmp_path / "run", 2)
    after = second_process(tmp_path / "run", 2)

    assert (1, True) == (during.returncode, f"is being written by process {os.getpid()} on" in during.stderr)
    assert (0, "") == (after.returncode, after.stderr)


FORKING = """
import os, sys, trio
from pathlib import Path
from evaljournal.journal import writing
from tests.journal.samples import inline, session, fake_clock, started, write
read_end, write_end = os.pipe()
start_read_end, start_write_end = os.pipe()
async def main(path):
    async with writing(path, new=True, clock=fake_clock(), in_thread=inline) as journal:
        journal.append(started())
        if os.fork() == 0:
            os.close(write_end)
            os.write(start_write_end, b"x")
            os.read(read_end, 1)  # Until the parent has exited.
            os._exit(0)
        os.read(start_read_end, 1)  # The child closes the lock when it first runs.
    await write(path, [session()], new=False)
trio.run(main, Path(sys.argv[1]))
"""


def test_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    """A forked child that outlives its parent does not hold the lock."""
    process = run_command(sys.executable, "-W", "ignore", "-c", FORKING, tmp_path / "run", cwd=ROOT)

    assert (0, "") == (process.returncode, process.stderr)
    assert verify(tmp_path / "run").ok


async def test_failed_opening_releases_the_lock(tmp_path: Path) -> None:
    """After a failed start, the next writer can open the journal."""

    def clock() -> tuple[str, float]:
        raise RuntimeError("no time")

    with pytest.raises(RuntimeError, match="no time"):
        await write(tmp_path / "run", [], clock=clock)
    await write(tmp_path / "run", complete_run())

    assert verify(tmp_path / "run").ok
