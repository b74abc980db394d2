"""`evaljournal log`."""

import signal
from pathlib import Path

import orjson
import pytest

from tests.journal.samples import complete_run, cut_tail, lines_of, segment, session, write_sync
from tests.runner_cli.commands import evaljournal, process


def test_log_prints_one_line_a_record(timed_run: Path) -> None:
    """Each record is one line: number, time, seconds, type and the fields that differ from their defaults."""
    result = evaljournal("log", timed_run)
    lines = result.stdout.splitlines()

    assert (0, "", len(lines_of(timed_run))) == (result.exit_code, result.stderr, len(lines))
    line = "6  00:00:00.006  6.000  attempt_succeeded  trial=case-1 attempt=1 output=Lima elapsed=0.25"
    assert line.split() == lines[5].split()


def test_log_as_json_is_the_file(timed_run: Path) -> None:
    """With --json, the log is the file, byte for byte."""
    assert b"".join(lines_of(timed_run)) == evaljournal("log", timed_run, "--json").stdout_bytes


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        ([], [9, 10, 11, 12, 13]),
        (["--type", "run_started", "--type", "trial_completed", "--type", "x-anything"], [13]),
    ],
)
def test_log_of_one_trial(timed_run: Path, options: list[str], numbers: list[int]) -> None:
    """With a trial, only its records are printed; several types can be combined with it."""
    lines = evaljournal("log", timed_run, "case-2", *options, "--json").stdout.splitlines()

    assert numbers == [orjson.loads(line)["seq"] for line in lines]


@pytest.mark.parametrize("options", [(), ("-f",)])
def test_log_ends_with_4_at_damage(damaged_run: Path, options: tuple[str, ...]) -> None:
    """The records before the damage are printed, then the damage, with exit code 4; it also ends `log -f`."""
    result = evaljournal("log", damaged_run, *options)

    assert (4, 9) == (result.exit_code, len(result.stdout.splitlines()))
    assert "is damaged at record 10" in result.stderr


def test_log_reports_unconfirmed_bytes(timed_run: Path) -> None:
    """A torn end is reported on standard error."""
    cut_tail(segment(timed_run), 1)
    with segment(timed_run).open("ab") as file:
        file.write(b'{"seq":')
    result = evaljournal("log", timed_run)

    assert (0, f"after record {len(complete_run()) + 1}: the line is incomplete\n") == (result.exit_code, result.stderr)


def test_follow_prints_new_records(timed_run: Path) -> None:
    """`log -f` prints records as another process writes them; Ctrl-C ends it with 0."""
    number = len(lines_of(timed_run))
    with process("log", "-f", "--json", timed_run) as following:
        assert following.stdout is not None
        lines = [following.stdout.readline() for _ in range(number)]
        write_sync(timed_run, [session(2)], new=False)
        lines += [following.stdout.readline() for _ in range(3)]
        following.send_signal(signal.SIGINT)
        rest = following.communicate()

    assert (0, ("", "")) == (following.returncode, rest)
    assert [line.decode() for line in lines_of(timed_run)] == lines
