"""`evaljournal watch`."""

import signal
from pathlib import Path

import orjson
import pytest

from evaljournal.journal import read
from evaljournal.journal.disk.files import DISK
from evaljournal.journal.disk.lock import Lock, is_held
from evaljournal.replay import LoadedRun
from evaljournal.runner.cli.commands.watch import RunWatcher
from tests.journal.samples import complete_run, cut_tail, flip, lines_of, overwrite, segment, write
from tests.runner_cli.commands import SLOW, evaljournal, journal_lines, process, run_in_terminal, wait_for


def test_watching_an_ended_run(run: Path) -> None:
    """A run that is not being written is reported immediately, with its exit code."""
    result = evaljournal("watch", run)

    assert (0, "") == (result.exit_code, result.stderr)
    assert evaljournal("status", run).stdout == result.stdout
    assert orjson.loads(evaljournal("status", run, "--json").stdout) == orjson.loads(evaljournal("watch", run, "--json").stdout)


def test_watching_an_interrupted_run(run: Path) -> None:
    """The process that exited without ending the run is named; the exit code is 3."""
    cut_tail(segment(run), 3)
    result = evaljournal("watch", run)

    assert (3, True) == (
        result.exit_code,
        result.stdout.startswith("capitals ended without a final record (killed, power loss or disk full): 1 trial done"),
    )
    assert "process 4711 on here exited without ending the run\n" == result.stderr


def test_watching_a_damaged_run(run: Path) -> None:
    """A damaged run is shown up to the damage, with exit code 4."""
    flip(segment(run), list(read(run))[9].offset + 60)
    result = evaljournal("watch", run)

    assert (4, ["journal  seq 9 · synced up to 8"]) == (result.exit_code, journal_lines(result))
    assert "run is damaged at record 10" in result.stderr


@pytest.mark.parametrize("unwritten", [0, 3])
@pytest.mark.parametrize("torn", [b"", b'{"seq":'])
async def test_a_run_is_watched_until_its_process_ends(unwritten: int, torn: bytes) -> None:
    """New records are shown; watching ends when the lock is free and all records are read."""
    path = Path("live")
    await write(path, complete_run())
    lines = lines_of(path)
    overwrite(segment(path), b"".join(lines[:5]))
    lock = Lock(path, DISK)
    watching = RunWatcher(path)
    shown: list[int] = []

    def show(run: LoadedRun, now: float) -> None:
        """Append some records at each call, and release the lock after the last."""
        shown.append(run.seq)
        written_ = len(lines_of(path))
        if written_ < len(lines) - unwritten:
            overwrite(segment(path), b"".join(lines[: written_ + 1]))
        elif lock.is_held:
            overwrite(segment(path), b"".join(lines[:written_]) + torn)
            lock.release()
        assert now >= run.state.t

    await watching.show_until_end(show)
    assert (False, not torn) == (is_held(path), watching.has_read_all)
    assert len(lines) - unwritten == watching.run.seq
    assert (5, sorted(shown)) == (shown[0], shown)


async def test_a_watcher_detects_damage() -> None:
    """Damage ends the watching, even while the process is running."""
    path = Path("live")
    await write(path, complete_run())
    lock = Lock(path, DISK)
    flip(segment(path), list(read(path))[9].offset + 60)
    watching = RunWatcher(path)
    await watching.show_until_end(lambda _, __: None)

    assert (9, False, True) == (watching.run.seq, watching.has_read_all, lock.is_held)
    lock.release()


def test_ctrl_c_ends_the_watching_and_not_the_run(tmp_path: Path) -> None:
    """Ctrl-C exits with 3 and does not stop the run; a killed run is reported."""
    (tmp_path / "slow.py").write_text(SLOW)
    with process("run", "slow.py", "-o", "live", hold=True) as running:
        wait_for(Path("live"), "attempt_started", 10)
        with process("watch", "live") as first:
            assert first.stdout is not None
            assert first.stdout.readline().startswith("6 of 40 (15 %)")
            first.send_signal(signal.SIGINT)
            _, err = first.communicate()
        assert (3, "the run continues; watch it with `evaljournal watch live`\n") == (first.returncode, err)
        assert running.poll() is None
        with process("watch", "live") as second:
            assert second.stdout is not None
            assert second.stdout.readline().startswith("6 of 40 (15 %)")
            running.kill()
            out, err = second.communicate()
        assert (3, True) == (second.returncode, out.startswith("slow ended without a final record"))
        assert f"process {running.pid} on" in err


def test_watching_at_a_terminal(tmp_path: Path) -> None:
    """At a terminal, the run's own screen is drawn."""
    (tmp_path / "slow.py").write_text(SLOW)
    with process("run", "slow.py", "-o", "live", "-s", "grace=0", hold=True) as running:
        wait_for(Path("live"), "attempt_started", 10)
        code, screen = run_in_terminal("watch", "live", until=b"4 of 4 busy")
        running.kill()
        running.communicate()

    assert (3, True) == (code, "longest" in screen)
    assert screen.count("\x1b[?25l") == screen.count("\x1b[?25h") == 1
