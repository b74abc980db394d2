"""`evaljournal fork`."""

import shutil
from pathlib import Path

import attrs
import pytest

from evaljournal.journal import read, verify
from evaljournal.journal.events import Extension, JournalRecovered, RunStarted, RunStopped, SegmentOpened
from evaljournal.replay import load
from evaljournal.runner.testing import events_of
from tests.journal.samples import RUN, content, flip, forge, opened, segment, session, started, trial, write_sync
from tests.runner_cli.commands import evaljournal
from tests.runs import events


def forked_from(path: Path | str) -> object:
    """Return the origin that a run records."""
    return next(event.forked_from for event in events(path, RunStarted))


def test_a_fork_copies_the_records(run: Path) -> None:
    """A fork has every record up to the point and its origin."""
    before = content(run)
    result = evaljournal("fork", run, "--at", 10, "-o", "new")

    assert (0, "") == (result.exit_code, result.stdout)
    assert "new: forked from run at record 10; 1 trial done, 2 read so far\nnext: evaljournal resume new\n" == result.stderr
    assert (before, True) == (content(run), verify("new").ok)
    assert events_of(run)[1:9] == events_of("new")[1:]
    assert {"run": RUN, "seq": 10, "h": list(read(run))[9].h, "session": 1} == forked_from("new")
    assert [record.t for record in read(run)][2:10] == [record.t for record in read("new")][2:10]


@pytest.mark.parametrize(
    ("planned", "at", "message"),
    [(60, 3, "0 of 60 trials done"), (60, 4, "0 of 60 trials done"), (0, 3, "0 trials done, 0 read so far")],
)
def test_a_fork_counts_the_remaining_trials(tmp_path: Path, planned: int, at: int, message: str) -> None:
    """Trials that were not read at the point of the fork are counted."""
    started_event = attrs.evolve(started(), trials=planned)  # type: ignore[misc]  # an event is an attrs class
    write_sync(tmp_path / "old", [started_event, session(), *trial("a")])
    result = evaljournal("fork", "old", "--at", at, "-o", "new")

    assert f"new: forked from old at record {at}; {message}\nnext: evaljournal resume new\n" == result.stderr


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


def test_sessions_of_a_fork() -> None:
    """`status` names a fork of a running run, and counts the sessions that ended without a final record."""
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
        (
            ["--at", "1", "-o", "new"],
            2,
            "at record 1: the run had not started by then; pass a later record with --at",
        ),
        (["--at", "99", "-o", "new"], 2, "run has no record 99; the last is 15"),
        (["-o", "taken"], 2, "taken already exists; choose another path"),
        (["-o", "taken/file"], 2, "taken/file already exists"),
        (["-o", "run/inside"], 2, "run/inside is inside run, which is only read"),
        ([], 2, "Missing option '-o'"),
    ],
)
def test_invalid_forks(tmp_path: Path, run: Path, options: list[str], code: int, message: str) -> None:
    """An invalid fork is rejected before anything is written."""
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/file").write_text("mine")
    before = content(tmp_path)
    result = evaljournal("fork", run, *options)

    assert (code, True) == (result.exit_code, message in result.stderr)
    assert before == content(tmp_path)


def test_a_damaged_run_is_forked_before_the_damage(run: Path) -> None:
    """A damaged run can be forked before the damage, not after it."""
    flip(segment(run), list(read(run))[9].offset + 60)
    codes = [evaljournal("fork", run, *at, "-o", "new").exit_code for at in ((), ("--at", 10), ("--at", 9))]

    assert [4, 4, 0] == codes
    assert (1, True) == (load("new").state.totals.done, verify("new").ok)


@pytest.mark.parametrize("loss", ["a blob", "the rules"])
def test_a_fork_is_complete_or_missing(loss: str) -> None:
    """A missing blob or an invalid record leaves no partial fork."""
    if loss == "a blob":
        write_sync(Path("old"), [started(), session(), *trial("a", "x" * 300_000)])
        shutil.rmtree("old/blobs")
    else:
        forge(Path("old"), [opened(), started(), session(), *trial("a"), *trial("a")[1:]])
    result = evaljournal("fork", "old", "-o", "new")

    assert (4, False) == (result.exit_code, Path("new").exists())
