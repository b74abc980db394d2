"""`evaljournal verify` and `evaljournal salvage`."""

from pathlib import Path

import orjson
import pytest

from evaljournal.journal import read, verify
from evaljournal.journal.events import TrialScored
from tests.journal.samples import (
    RUN,
    complete_run,
    content,
    cut_tail,
    flip,
    forge,
    lines_of,
    opened,
    overwrite,
    segment,
    session,
    started,
    trial,
    write_sync,
)
from tests.runner_cli.commands import evaljournal, printed


def test_verify_of_an_intact_run(timed_run: Path) -> None:
    """An intact run is reported on one line and its head on the next."""
    result = evaljournal("verify", timed_run)

    assert (0, "") == (result.exit_code, result.stderr)
    assert result.stdout.startswith(f"{timed_run} OK: {len(lines_of(timed_run))} records, 1 file")
    assert f"head {verify(timed_run).head}" == result.stdout.splitlines()[1]


def test_verify_ends_with_4_at_damage(damaged_run: Path) -> None:
    """Damage exits with 4 and names the problem and the next command; with --json it is on standard output."""
    result, as_json = evaljournal("verify", damaged_run), evaljournal("verify", damaged_run, "--json")
    answer = orjson.loads(as_json.stdout)

    assert (4, "") == (result.exit_code, result.stdout)
    assert f"{damaged_run}: 9 records verified, then: {damaged_run} is damaged at record 10" in result.stderr
    assert f"`evaljournal salvage {damaged_run} -o NEW`" in result.stderr
    assert (4, "") == (as_json.exit_code, as_json.stderr)
    assert (False, 9, "JournalDamaged") == (answer["ok"], answer["records"], answer["problem_type"])
    assert answer["problem"].startswith(f"{damaged_run} is damaged at record 10")


def test_verify_ends_with_4_at_broken_rules(tmp_path: Path) -> None:
    """A run with intact hashes and an impossible order of records exits with 4 too."""
    forge(tmp_path, [opened(), started(), session(), *trial("a")[1:]])
    result = evaljournal("verify", tmp_path)

    assert (4, True) == (result.exit_code, "has a correct hash but is invalid" in result.stderr)


@pytest.fixture
def failing_audit(tmp_path: Path) -> Path:
    """Write an intact run whose records are too close together for its durations."""
    write_sync(tmp_path / "run", complete_run())
    return tmp_path / "run"


def test_verify_of_a_failed_audit(failing_audit: Path) -> None:
    """An intact run that broke the rules exits with 4, with each finding; the hash chain is intact, and the head is found."""
    result = evaljournal("verify", failing_audit)
    answer = printed("verify", failing_audit, "--expect-head", verify(failing_audit).head)

    assert (4, "") == (result.exit_code, result.stdout)
    message = "record 6 (elapsed): elapsed is 0.250000 s, but 0.000000 to 0.001000 s have passed since the attempt started"
    assert message == result.stderr.splitlines()[0]
    assert f"{failing_audit}: hash chain intact, but the audit has 4 findings" in result.stderr
    assert "salvage" not in result.stderr
    assert (False, "invalid", None) == (answer["ok"], answer["verdict"], answer["problem"])
    assert [(6, "elapsed"), (7, "elapsed")] == [(finding["seq"], finding["check"]) for finding in answer["findings"][:2]]


def test_verify_audits_up_to_the_damage(failing_audit: Path) -> None:
    """The verdict is damage, with the findings before it."""
    flip(segment(failing_audit), list(read(failing_audit))[9].offset + 60)
    result = evaljournal("verify", failing_audit)
    answer = printed("verify", failing_audit)

    assert (4, "damaged", 2) == (result.exit_code, answer["verdict"], len(answer["findings"]))
    assert "record 6 (elapsed)" in result.stderr
    assert "is damaged at record 10" in result.stderr.splitlines()[-1]


def test_verify_escapes_names(tmp_path: Path) -> None:
    """Control characters in a trial's name are escaped."""
    forge(tmp_path, [opened(), started(), session(), *trial("a\x1b[2Jb")[:2], *trial("b")[:2]])
    result = evaljournal("verify", tmp_path)

    assert 4 == result.exit_code
    assert r"'b' starts in slot 0, which 'a\x1b[2Jb' still holds" in result.stderr
    assert "\x1b" not in result.stdout + result.stderr


def test_verify_as_json(timed_run: Path) -> None:
    """The JSON result has every fact of the text, under stable names."""
    result = evaljournal("verify", timed_run, "--json")

    assert {
        "path": str(timed_run),
        "run": RUN,
        "ok": True,
        "verdict": "ok",
        "records": len(lines_of(timed_run)),
        "segments": 1,
        "blobs": 0,
        "head": verify(timed_run).head,
        "unfinished_bytes": 0,
        "zero_bytes": 0,
        "unconfirmed_records": 0,
        "warnings": [],
        "expected_head_seq": None,
        "problem": None,
        "problem_type": None,
        "review": None,
        "findings": [],
        "findings_omitted": 0,
        "notes": ["retries of session 1 were not recomputed: the journal does not record the seed"],
        "trials": {"enqueued": 2, "completed": 2, "failed": 0, "withdrawn": 0, "open": 0},
        "decisions_reproduced": 0,
        "budget": {},
    } == orjson.loads(result.stdout)
    assert (0, "") == (result.exit_code, result.stderr)


def test_verify_finds_the_expected_head(timed_run: Path) -> None:
    """An earlier head is found, and the records since are counted."""
    head = verify(timed_run).head
    write_sync(timed_run, [session(2)], new=False)
    result = evaljournal("verify", timed_run, "--expect-head", head)

    assert 0 == result.exit_code
    assert f"the expected head is record {len(complete_run()) + 2}; 3 records added since" in result.stdout


def test_an_empty_expected_head_is_an_error(timed_run: Path) -> None:
    """An empty head, as from an unset variable, is rejected."""
    assert evaljournal("verify", timed_run, "--expect-head", "").exit_code in (2, 4)


def test_verify_reports_unconfirmed_bytes(timed_run: Path) -> None:
    """Bytes that were never confirmed are reported and are not a failure."""
    cut_tail(segment(timed_run), 1)
    with segment(timed_run).open("ab") as file:
        file.write(b'{"seq":')
    result = evaljournal("verify", timed_run)

    assert 0 == result.exit_code
    assert "Warning: 7 bytes after the last record, not confirmed" in result.stderr
    assert "--expect-head HASH" in result.stderr


def test_verify_warns_of_zero_bytes(timed_run: Path) -> None:
    """A zeroed end is a warning with its length; compared with a kept head, it is damage."""
    head = verify(timed_run).head
    data = segment(timed_run).read_bytes()
    overwrite(segment(timed_run), data[:-600] + bytes(600))
    result = evaljournal("verify", timed_run, "--json")

    assert (0, 600) == (result.exit_code, orjson.loads(result.stdout)["zero_bytes"])
    assert 1 == len(orjson.loads(result.stdout)["warnings"])
    assert 4 == evaljournal("verify", timed_run, "--expect-head", head).exit_code


def test_salvage_names_the_next_command(damaged_run: Path, tmp_path: Path) -> None:
    """Salvage prints counts and the next command."""
    before = content(damaged_run)
    result = evaljournal("salvage", damaged_run, "-o", tmp_path / "new")

    assert (0, "") == (result.exit_code, result.stdout)
    assert f"{tmp_path}/new: 8 records kept, 1 lost, 4 excluded" in result.stderr
    assert f"evaljournal verify {tmp_path}/new" in result.stderr
    assert 0 == evaljournal("verify", tmp_path / "new").exit_code
    assert before == content(damaged_run)


def test_salvage_reports_lost_scores(timed_run: Path, tmp_path: Path) -> None:
    """Lost scores are reported with the command that restores them."""
    lost = next(record for record in read(timed_run) if isinstance(record.event, TrialScored))
    flip(segment(timed_run), lost.offset + 60)
    result, new = evaljournal("salvage", timed_run, "-o", tmp_path / "new"), tmp_path / "new"
    message = f"1 output not scored by exact: evaljournal rescore {new}\n"

    status = evaljournal("status", new).stdout
    assert (0, True) == (result.exit_code, message in result.stderr)
    assert (True, True) == ("capitals finished" in status, message in status)
