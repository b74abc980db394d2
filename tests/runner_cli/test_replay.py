"""`evaljournal replay`."""

import itertools
from pathlib import Path

import pytest

from evaljournal.journal import Clock, read
from evaljournal.journal.events import RunStopped
from tests.journal.samples import finished, flip, forge, opened, segment, session, started, trial, write_sync
from tests.runner_cli.commands import evaljournal, journal_lines, printed, rejected


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


def test_the_screen_as_of_a_record(run: Path) -> None:
    """As of a record, the screen shows the state at that point and the fork command."""
    result = evaljournal("replay", run, "--at", 8)

    assert 0 == result.exit_code
    assert "trials   1 output · 0 errors" in result.stdout
    assert ["journal  seq 8 · synced up to 7"] == journal_lines(result)
    assert "to continue from here: evaljournal fork run --at 8 -o NEW" in result.stderr


def test_the_default_is_the_last_record(run: Path) -> None:
    """Without a point, the last record and the next command are shown."""
    result = evaljournal("replay", run)

    assert (0, ["journal  seq 15 · synced up to 14"]) == (result.exit_code, journal_lines(result))
    assert result.stderr.endswith("next: evaljournal report run --open\n")


def test_a_point_as_json(run: Path) -> None:
    """A point as JSON has the shape of `status --json`, with the reasons for idle slots at that time."""
    earlier, now = printed("replay", run, "--at", 6), printed("replay", run)

    assert printed("status", run) == now
    assert list(now) == list(earlier)
    assert (6, "running", True, 1) == (earlier["seq"], earlier["status"], earlier["is_live"], earlier["trials"]["scoring"])
    assert "evaljournal fork run --at 6 -o NEW" == earlier["next_command"]
    assert (["dataset: cases to come"], []) == tuple([reason["text"] for reason in view["waiting"]] for view in (earlier, now))


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
    assert seq == printed("replay", slow_run, "--at-time", when)["seq"]


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
    ],
)
def test_invalid_points(run: Path, options: list[str], message: str) -> None:
    """A missing or invalid point exits with 2 and names the valid ones."""
    assert message in rejected("replay", run, *options)


def test_replay_of_a_damaged_run(run: Path) -> None:
    """A damaged run is shown up to the damage, with exit code 4; a point before it exits with 0."""
    flip(segment(run), list(read(run))[9].offset + 60)

    last, before, behind = (evaljournal("replay", run, *options) for options in ((), ("--at", 9), ("--at", 10)))
    assert (4, ["journal  seq 9 · synced up to 8"]) == (last.exit_code, journal_lines(last))
    assert "shown up to the damage: run is damaged at record 10" in last.stderr
    assert (0, ["journal  seq 9 · synced up to 8"]) == (before.exit_code, journal_lines(before))
    assert (4, "") == (behind.exit_code, behind.stdout)


@pytest.mark.parametrize("command", ["replay", "watch"])
def test_an_invalid_record_is_not_a_bug(command: str) -> None:
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
