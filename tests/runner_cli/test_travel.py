"""`replay`, `watch` and `fork`."""

import itertools
import re
import shutil
import signal
from pathlib import Path

import attrs
import orjson
import pytest
import trio
import trio.testing
from click.testing import Result

from journal import Clock, read, verify
from journal.events import (
    AttemptSucceeded,
    Extension,
    JournalRecovered,
    RunFinished,
    RunStarted,
    RunStopped,
    SegmentOpened,
)
from journal.files import DISK
from journal.lock import Lock, is_held
from replay import LoadedRun, load
from runner.cli._live import FRAME
from runner.cli.replay import play_back
from runner.cli.watch import RunWatcher
from runner.testing import events_of
from tests.journal.samples import (
    RUN,
    complete_run,
    content,
    cut_tail,
    finished,
    flip,
    forge,
    lines_of,
    opened,
    overwrite,
    segment,
    session,
    started,
    trial,
    write,
    write_sync,
)
from tests.runner_cli.test_commands import ended, evaljournal
from tests.runner_cli.test_run import QUICK, SLOW, at_a_terminal, process, wait_for


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a temporary directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CI", raising=False)
    return tmp_path


@pytest.fixture
def run() -> Path:
    """Write a run of two trials: 15 records, a millisecond apart."""
    write_sync(Path("run"), complete_run())
    return Path("run")


def seconds(hour: int) -> Clock:
    """Clock the first record with the first second of an hour, the second with the second, and so on."""
    ticks = itertools.count(1)

    def read() -> tuple[str, float]:
        tick = next(ticks)
        return f"2026-11-15T{hour:02}:00:{tick:02}.000000Z", float(tick)

    return read


@pytest.fixture
def slow_run() -> Path:
    """Write a run of two sessions an hour apart: ten records a second apart, and nine more."""
    write_sync(Path("slow"), [started(), session(), *trial("a"), RunStopped(reason="deadline")], clock=seconds(0))
    write_sync(Path("slow"), [session(2), *trial("b"), finished(2)], new=False, clock=seconds(1))
    return Path("slow")


def numbers(result: Result) -> list[str]:
    """Return the words of the last line of a screen, which has the number of the record."""
    return [line for line in result.stdout.splitlines() if line.startswith("journal")]


def test_the_screen_as_of_a_record(run: Path) -> None:
    """As of a record, the screen shows the state at that point and the fork command."""
    result = evaljournal("replay", run, "--at", 8)

    assert 0 == result.exit_code
    assert "trials   1 ok of 1 done" in result.stdout
    assert ["journal  seq 8 · on disk to 7"] == numbers(result)
    assert "to continue from here: evaljournal fork run --at 8 -o NEW" in result.stderr


def test_the_default_is_the_last_record(run: Path) -> None:
    """Without a point, the last record and the next command are shown."""
    result = evaljournal("replay", run)

    assert (0, ["journal  seq 15 · on disk to 14"]) == (result.exit_code, numbers(result))
    assert result.stderr.endswith("next: evaljournal verify run\n")


def test_a_point_as_json(run: Path) -> None:
    """A point as JSON has the shape of `status --json`."""
    earlier = orjson.loads(evaljournal("replay", run, "--at", 6, "--json").stdout)
    now = orjson.loads(evaljournal("replay", run, "--json").stdout)

    assert orjson.loads(evaljournal("status", run, "--json").stdout) == now
    assert list(now) == list(earlier)
    assert (6, "running", True, 1) == (earlier["seq"], earlier["status"], earlier["is_live"], earlier["trials"]["scoring"])
    assert "evaljournal fork run --at 6 -o NEW" == earlier["next_command"]


def test_idle_slots_as_json(run: Path) -> None:
    """A point as JSON has the reasons for idle slots at that time; a run that has ended has none."""
    earlier = orjson.loads(evaljournal("replay", run, "--at", 6, "--json").stdout)

    assert [("cases", None, "dataset: cases to come")] == [
        (reason["reason"], reason["seconds"], reason["text"]) for reason in earlier["waiting"]
    ]
    assert [] == orjson.loads(evaljournal("status", run, "--json").stdout)["waiting"]


@pytest.mark.parametrize(
    ("when", "seq"),
    [
        ("0", 2),
        ("3", 3),
        ("4.5", 4),
        ("9", 9),
        ("3000", 9),  # Between the sessions.
        ("3602.9", 12),
        ("3604", 14),
        ("2026-11-15T00:00:04.5", 4),
        ("2026-11-15T01:00:04.5+01:00", 4),
        ("2026-11-15T00:30", 10),
        ("2026-11-15T01:00:03", 13),
    ],
)
def test_a_time_is_a_point(slow_run: Path, when: str, seq: int) -> None:
    """Seconds count from the start, gaps included; a time is in UTC unless it has an offset."""
    shown = orjson.loads(evaljournal("replay", slow_run, "--at-time", when, "--json").stdout)

    assert seq == shown["seq"]


def test_time_between_two_records(slow_run: Path) -> None:
    """Between two records, the duration of running attempts grows."""
    assert "attempt 1  0.75 s" in evaljournal("replay", slow_run, "--at-time", "5.75").stdout
    assert "attempt 1  0 s" in evaljournal("replay", slow_run, "--at", 5).stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--at", "99"], "run has no record 99; the last is 15"),
        (["--at", "0"], "run has no record 0; the first is 1"),
        (["--at", "-1"], "run has no record -1; the first is 1"),
        (["--at", "soon"], "'soon' is not a valid integer"),
        (["--at", "3", "--at-time", "1"], "--at and --at-time are mutually exclusive"),
        (["--at-time", "99"], "run has no state at 99 s; its last record is at 0.014 s"),
        (["--at-time", "-1"], "--at-time '-1': expected seconds"),
        (["--at-time", "soon"], "--at-time 'soon': expected seconds"),
        (["--at-time", "0001-01-01T00:00+14:00"], "expected seconds"),
        (["--at-time", "2020-01-01"], "its first record is at 2026-11-15T00:00:00.001000Z"),
        (["--at-time", "2030-01-01"], "its last record is at 2026-11-15T00:00:00.015000Z"),
        (["--play", "fast"], "'fast' is not a speed"),
        (["--play", "0x"], "'0x' is not a speed"),
        (["--play", "2x", "--json"], "--json and --play are mutually exclusive"),
    ],
)
def test_invalid_points(run: Path, options: list[str], message: str) -> None:
    """A missing or invalid point exits with 2 and names the valid ones."""
    result = evaljournal("replay", run, *options)

    assert (2, "", True) == (result.exit_code, result.stdout, message in result.stderr)


def test_replay_of_a_damaged_run(run: Path) -> None:
    """A damaged run is shown up to the damage, with exit code 4; a point before it exits with 0."""
    flip(segment(run), list(read(run))[9].offset + 60)

    last, before, behind = (evaljournal("replay", run, *options) for options in ((), ("--at", 9), ("--at", 10)))
    assert (4, ["journal  seq 9 · on disk to 8"]) == (last.exit_code, numbers(last))
    assert "shown up to the damage: run is damaged at record 10" in last.stderr
    assert (0, ["journal  seq 9 · on disk to 8"]) == (before.exit_code, numbers(before))
    assert (4, "") == (behind.exit_code, behind.stdout)


@pytest.mark.parametrize("command", ["replay", "watch", "show", "fork"])
def test_not_a_run(command: str) -> None:
    """A path that is not a run exits with 2."""
    more = {"show": ["a"], "fork": ["-o", "new"]}.get(command, [])
    result = evaljournal(command, "nothing", *more)

    assert (2, "", True) == (result.exit_code, result.stdout, "nothing does not exist" in result.stderr)


@pytest.mark.parametrize("times", [1.0, 10.0])
def test_playback_speed(slow_run: Path, times: float) -> None:
    """Playback takes the duration of the run divided by the speed, without the time between sessions."""
    shown: list[tuple[int, float]] = []

    async def main() -> float:
        start = trio.current_time()
        await play_back(load(slow_run), times, lambda run, now: shown.append((run.seq, now)))
        return trio.current_time() - start

    elapsed = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert (10 - 3 + 9 - 2) / times == pytest.approx(elapsed, abs=2 * FRAME)
    assert (19, 9.0) == shown[-1]
    assert [seq for seq, _ in shown] == sorted(seq for seq, _ in shown)
    assert 14 / times / FRAME == pytest.approx(len(shown), abs=3)


def test_playback_in_lines(run: Path) -> None:
    """Without a terminal, playback prints plain lines."""
    result = evaljournal("replay", run, "--play", "2x")

    assert 0 == result.exit_code
    assert result.stdout.splitlines()[-1].startswith("2 of 2 (100 %) · 2 ok, 0 failed, 0 recovered")
    assert "\x1b" not in result.stdout


def test_playback_at_a_terminal(run: Path) -> None:
    """At a terminal, playback redraws the screen; the last frame and the cursor remain."""
    code, screen = at_a_terminal("replay", run, "--play", "1x", until=b"never")

    assert 0 == code
    assert screen.count("\x1b[?25l") == screen.count("\x1b[?25h") == 1
    assert "seq 15 · on disk to 14" in screen


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

    assert (4, ["journal  seq 9 · on disk to 8"]) == (result.exit_code, numbers(result))
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


def test_ctrl_c_ends_the_watching_and_not_the_run(directory: Path) -> None:
    """Ctrl-C exits with 3 and does not stop the run; a killed run is reported."""
    (directory / "slow.py").write_text(SLOW)
    with process("run", "slow.py", "-o", "live", hold=True) as running:
        wait_for(Path("live"), "attempt_started", 10)
        with process("watch", "live") as first:
            assert first.stdout is not None
            assert first.stdout.readline().startswith("6 of 40 (15 %)")
            first.send_signal(signal.SIGINT)
            _, err = first.communicate(timeout=60)
        assert (3, "the run continues; watch it with `evaljournal watch live`\n") == (first.returncode, err)
        assert running.poll() is None
        with process("watch", "live") as second:
            assert second.stdout is not None
            assert second.stdout.readline().startswith("6 of 40 (15 %)")
            running.kill()
            out, err = second.communicate(timeout=60)
        assert (3, True) == (second.returncode, out.startswith("slow ended without a final record"))
        assert f"process {running.pid} on" in err


def test_watching_at_a_terminal(directory: Path) -> None:
    """At a terminal, the run's own screen is drawn."""
    (directory / "slow.py").write_text(SLOW)
    with process("run", "slow.py", "-o", "live", "--grace", "0", hold=True) as running:
        wait_for(Path("live"), "attempt_started", 10)
        code, screen = at_a_terminal("watch", "live", until=b"4 of 4 busy")
        running.kill()
        running.communicate(timeout=60)

    assert (3, True) == (code, "longest" in screen)
    assert screen.count("\x1b[?25l") == screen.count("\x1b[?25h") == 1


def forked_from(path: Path | str) -> object:
    """Return the origin that a run records."""
    return next(event.forked_from for event in events_of(path) if isinstance(event, RunStarted))


def test_a_fork_copies_the_records(run: Path) -> None:
    """A fork has every record up to the point and its origin."""
    before = content(run)
    result = evaljournal("fork", run, "--at", 10, "-o", "new")

    assert (0, "") == (result.exit_code, result.stdout)
    assert "new: forked from run at record 10; 1 trials done, 2 read so far\nnext: evaljournal resume new\n" == result.stderr
    assert (before, True) == (content(run), verify("new").ok)
    assert events_of(run)[1:9] == events_of("new")[1:]
    assert {"run": RUN, "seq": 10, "h": list(read(run))[9].h, "session": 1} == forked_from("new")
    assert [record.t for record in read(run)][2:10] == [record.t for record in read("new")][2:10]


@pytest.mark.parametrize(
    ("planned", "at", "message"),
    [(60, 3, "0 of 60 trials done"), (60, 4, "0 of 60 trials done"), (0, 3, "0 trials done, 0 read so far")],
)
def test_a_fork_counts_the_remaining_trials(directory: Path, planned: int, at: int, message: str) -> None:
    """Trials that were not read at the point of the fork are counted."""
    started_event = attrs.evolve(started(), trials=planned)  # type: ignore[misc]  # a fact is an attrs class
    write_sync(directory / "old", [started_event, session(), *trial("a")])
    result = evaljournal("fork", "old", "--at", at, "-o", "new")

    assert f"new: forked from old at record {at}; {message}\nnext: evaljournal resume new\n" == result.stderr


def test_a_fork_is_resumed(directory: Path) -> None:
    """Trials that were completed before the point are not called again; both runs end finished and intact."""
    (directory / "capitals.py").write_text("FAILS = None" + QUICK)
    assert 0 == ended("run", "capitals.py", "-o", "old", "--slots", 1)[0]
    # Not at a completed trial: scoring has no slot, and all attempts may have ended before the second trial is completed.
    at = [record.seq for record in read("old") if isinstance(record.event, AttemptSucceeded)][1]
    assert 0 == evaljournal("fork", "old", "--at", at, "-o", "new").exit_code
    code, out, err = ended("resume", "new")

    assert (0, True) == (code, "capitals finished: 5 of 5 trials done, in new" in out)
    answered = {record.event.trial for record in read("old") if record.seq <= at and isinstance(record.event, AttemptSucceeded)}
    remaining = {"peru", "chile", "cuba", "france", "japan"} - answered
    assert sorted(remaining) == sorted(re.findall("asked about (peru|chile|cuba|france|japan)", err))
    assert 3 == len(remaining)
    assert (True, True) == (verify("old").ok, verify("new").ok)
    assert dict(load("old").outputs()) == dict(load("new").outputs())


def test_a_fork_of_a_finished_run_is_finished(run: Path) -> None:
    """Without --at, everything is copied, with a hash chain of its own."""
    assert 0 == evaljournal("fork", run, "-o", "new").exit_code

    end = next(record for record in read("new") if isinstance(record.event, RunFinished))
    assert isinstance(end.event, RunFinished)
    assert list(read("new"))[end.seq - 2].h == end.event.head
    assert "finished" == load("new").state.outcome


def test_a_fork_of_a_fork(run: Path) -> None:
    """A fork of a fork records both origins."""
    evaljournal("fork", run, "--at", 10, "-o", "first")
    evaljournal("fork", "first", "--at", 5, "-o", "second")

    opened_ = next(iter(read("first")))
    assert isinstance(opened_.event, SegmentOpened)
    assert {
        "run": opened_.event.run,
        "seq": 5,
        "h": list(read("first"))[4].h,
        "session": 1,
        "forked_from": forked_from("first"),
    } == forked_from("second")


def test_open_attempts_of_a_fork() -> None:
    """A fork records its open attempts as 'forked', and those of a dead session as 'process_died'."""
    events = [started(), session(), session(2), *trial("a")]
    write_sync(Path("old"), events)
    evaljournal("fork", "old", "-o", "new")
    before = evaljournal("status", "new").stdout
    write_sync(Path("new"), [session(3), RunStopped(reason="interrupted")], new=False)

    assert "capitals forked while running: 1 trial done, in new" == before.splitlines()[0]
    assert "1 of 3 sessions ended without a final record" in evaljournal("status", "new").stdout
    assert "1 of 2 sessions ended without a final record" in before


def test_a_fork_copies_blobs_and_foreign_events() -> None:
    """Blobs, foreign events and dead sessions are copied; records about files are not."""
    extension = Extension(type="x-mine", data={"a": 1})
    recovered = JournalRecovered(last_seq=1, bytes=1, file="torn/x")
    events = [started(), session(), *trial("a", "x" * 300_000), extension, recovered, session(2), *trial("b", retries=1)]
    write_sync(Path("old"), events)
    evaljournal("fork", "old", "-o", "new")

    assert [*events[1:8], *events[9:]] == events_of("new")[1:]
    assert dict(load("old").outputs()) == dict(load("new").outputs())


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--at", "1", "-o", "new"], 2, "run cannot be forked at record 1: the run had not started by then"),
        (["--at", "99", "-o", "new"], 2, "run has no record 99; the last is 15"),
        (["-o", "taken"], 2, "taken already exists; choose another path"),
        (["-o", "taken/file"], 2, "taken/file already exists"),
        (["-o", "run/inside"], 2, "run/inside is inside run, which is only read"),
        ([], 2, "Missing option '-o'"),
    ],
)
def test_invalid_forks(directory: Path, run: Path, options: list[str], code: int, message: str) -> None:
    """An invalid fork is rejected before anything is written."""
    (directory / "taken").mkdir()
    (directory / "taken/file").write_text("mine")
    before = content(directory)
    result = evaljournal("fork", run, *options)

    assert (code, True) == (result.exit_code, message in result.stderr)
    assert before == content(directory)


def test_a_damaged_run_is_forked_before_the_damage(directory: Path, run: Path) -> None:
    """A damaged run can be forked before the damage, not after it."""
    flip(segment(run), list(read(run))[9].offset + 60)
    codes = [evaljournal("fork", run, *at, "-o", "new").exit_code for at in ((), ("--at", 10), ("--at", 9))]

    assert [4, 4, 0] == codes
    assert (1, True) == (load("new").state.done, verify("new").ok)


@pytest.mark.parametrize("loss", ["a blob", "the rules"])
def test_a_fork_is_complete_or_missing(directory: Path, loss: str) -> None:
    """A missing blob or an invalid record leaves no partial fork."""
    if loss == "a blob":
        write_sync(Path("old"), [started(), session(), *trial("a", "x" * 300_000)])
        shutil.rmtree("old/blobs")
    else:
        forge(Path("old"), [opened(), started(), session(), *trial("a"), *trial("a")[1:]])
    result = evaljournal("fork", "old", "-o", "new")

    assert (4, False) == (result.exit_code, Path("new").exists())


@pytest.mark.parametrize("command", ["replay", "watch"])
def test_an_invalid_record_is_no_bug(command: str) -> None:
    """An intact journal with an invalid record exits with 4 and names it."""
    forge(
        Path("odd"),
        [opened(), started(), session(), {"type": "limit_changed", "t": "soon", "before": 0, "after": 1, "reason": ""}],
    )
    forge(
        Path("odd"), [*trial("a")[:2], {"type": "attempt_succeeded", "trial": "b", "attempt": 1, "output": 1, "elapsed": 1.0}]
    )
    result = evaljournal(command, "odd")

    assert (4, True) == (result.exit_code, "is invalid" in result.stderr)


def test_an_invalid_time_is_not_drawn() -> None:
    """A record whose `t` is not a number is rejected."""
    fact = {"type": "attempt_started", "trial": "a", "attempt": 1, "slot": 0, "t": "soon"}
    forge(Path("odd"), [opened(), started(), session(), *trial("a")[:1], fact])
    result = evaljournal("replay", "odd")

    assert (4, True) == (result.exit_code, "is invalid" in result.stderr)
