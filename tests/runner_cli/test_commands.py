"""Output, streams and exit codes of the commands that read a run."""

import errno
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner

from journal import read, verify
from journal.events import AttemptSucceeded, Extension, Noted, TrialScored
from replay import load
from runner.cli import COMMANDS, cli, main
from tests.journal.samples import (
    RUN,
    complete_run,
    content,
    cut_tail,
    enqueued,
    fake_clock,
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
from tests.runner_cli.commands import COMMAND, evaljournal, process, run_process


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Write a run of two trials with records a second apart, so that all its durations are possible."""
    write_sync(tmp_path / "run", complete_run(), clock=fake_clock(1.0))
    return tmp_path / "run"


@pytest.fixture
def damaged(run: Path) -> Path:
    """Write a run of two trials whose tenth record is damaged."""
    flip(segment(run), list(read(run))[9].offset + 60)
    return run


def test_verify_of_an_intact_run(run: Path) -> None:
    """An intact run is reported on one line and its head on the next."""
    result = evaljournal("verify", run)

    assert (0, "") == (result.exit_code, result.stderr)
    assert result.stdout.startswith(f"{run} OK: {len(lines_of(run))} records, 1 file")
    assert f"head {verify(run).head}" == result.stdout.splitlines()[1]


def test_verify_ends_with_4_at_damage(damaged: Path) -> None:
    """Damage exits with 4 and names the problem and the next command."""
    result = evaljournal("verify", damaged)

    assert (4, "") == (result.exit_code, result.stdout)
    assert f"{damaged}: 9 records verified, then: {damaged} is damaged at record 10" in result.stderr
    assert f"`evaljournal salvage {damaged} -o NEW`" in result.stderr


def test_verify_ends_with_4_at_broken_rules(tmp_path: Path) -> None:
    """A run with intact hashes and an impossible order of records exits with 4 too."""
    forge(tmp_path, [opened(), started(), session(), *trial("a")[1:]])
    result = evaljournal("verify", tmp_path)

    assert 4 == result.exit_code
    assert "has a correct hash but is invalid" in result.stderr


@pytest.fixture
def failing_audit(tmp_path: Path) -> Path:
    """Write an intact run whose records are too close together for its durations."""
    write_sync(tmp_path / "run", complete_run())
    return tmp_path / "run"


def test_verify_of_a_failed_audit(failing_audit: Path) -> None:
    """An intact run that broke the rules exits with 4, with each finding and a note that the hash chain is intact."""
    result = evaljournal("verify", failing_audit)
    lines = result.stderr.splitlines()

    assert (4, "") == (result.exit_code, result.stdout)
    message = "record 6 (elapsed): elapsed is 0.250000 s, but 0.000000 to 0.001000 s have passed since the attempt started"
    assert message == lines[0]
    assert f"{failing_audit}: hash chain intact, but the audit failed: 4 findings" in result.stderr
    assert "salvage" not in result.stderr


def test_verify_of_a_failed_audit_as_json(failing_audit: Path) -> None:
    """JSON has the record, the rule and the text of each finding; the head is found."""
    printed = orjson.loads(evaljournal("verify", failing_audit, "--json", "--expect-head", verify(failing_audit).head).stdout)

    assert (False, "invalid", None) == (printed["ok"], printed["verdict"], printed["problem"])
    assert [(6, "elapsed"), (7, "elapsed")] == [(finding["seq"], finding["check"]) for finding in printed["findings"][:2]]


def test_verify_audits_up_to_the_damage(failing_audit: Path) -> None:
    """The verdict is damage, with the findings before it."""
    flip(segment(failing_audit), list(read(failing_audit))[9].offset + 60)
    result = evaljournal("verify", failing_audit)
    printed = orjson.loads(evaljournal("verify", failing_audit, "--json").stdout)

    assert (4, "damaged", 2) == (result.exit_code, printed["verdict"], len(printed["findings"]))
    assert "record 6 (elapsed)" in result.stderr
    assert "is damaged at record 10" in result.stderr.splitlines()[-1]


def test_verify_escapes_names(tmp_path: Path) -> None:
    """Control characters in a trial's name are escaped."""
    forge(tmp_path, [opened(), started(), session(), *trial("a\x1b[2Jb")[:2], *trial("b")[:2]])
    result = evaljournal("verify", tmp_path)

    assert 4 == result.exit_code
    assert r"'b' starts in slot 0, which 'a\x1b[2Jb' still holds" in result.stderr
    assert "\x1b" not in result.stdout + result.stderr


@pytest.mark.parametrize("command", ["verify", "log", "salvage"])
def test_commands_end_with_2_where_there_is_no_run(tmp_path: Path, command: str) -> None:
    """A path that is not a run exits with 2."""
    new = ["-o", tmp_path / "new"] if command == "salvage" else []
    result = evaljournal(command, tmp_path / "nothing", *new)

    assert (2, "") == (result.exit_code, result.stdout)
    assert f"Error: {tmp_path}/nothing does not exist" in result.stderr
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("command", ["verify", "log"])
def test_commands_end_with_2_at_another_format(tmp_path: Path, command: str) -> None:
    """A journal of a later format exits with 2 and the version that is needed."""
    forge(tmp_path, [opened(version="7.0")])
    result = evaljournal(command, tmp_path)

    assert (2, True) == (result.exit_code, "reads only version 1" in result.stderr)


def test_verify_as_json(run: Path) -> None:
    """The JSON result has every fact of the text, under stable names."""
    result = evaljournal("verify", run, "--json")

    assert {
        "path": str(run),
        "run": RUN,
        "ok": True,
        "verdict": "ok",
        "records": len(lines_of(run)),
        "segments": 1,
        "blobs": 0,
        "head": verify(run).head,
        "unfinished_bytes": 0,
        "zero_bytes": 0,
        "unconfirmed_records": 0,
        "warnings": [],
        "expected_head_seq": None,
        "problem": None,
        "problem_type": None,
        "findings": [],
        "findings_omitted": 0,
        "notes": ["decisions of session 1 were not recomputed: the journal does not record the policy and the seed"],
        "trials": {"enqueued": 2, "completed": 2, "failed": 0, "withdrawn": 0, "open": 0},
        "decisions_reproduced": 0,
        "decisions_not_reproduced": 0,
        "budget": {},
    } == orjson.loads(result.stdout)
    assert (0, "") == (result.exit_code, result.stderr)


def test_verify_as_json_of_damage(damaged: Path) -> None:
    """With --json, damage is on standard output and the exit code is 4."""
    result = evaljournal("verify", damaged, "--json")
    answer = orjson.loads(result.stdout)

    assert (4, "") == (result.exit_code, result.stderr)
    assert (False, 9, "JournalDamaged") == (answer["ok"], answer["records"], answer["problem_type"])
    assert answer["problem"].startswith(f"{damaged} is damaged at record 10")


def test_verify_finds_the_expected_head(run: Path) -> None:
    """An earlier head is found, and the records since are counted."""
    head = verify(run).head
    write_sync(run, [session(2)], new=False)
    result = evaljournal("verify", run, "--expect-head", head)

    assert 0 == result.exit_code
    assert f"the expected head is record {len(complete_run()) + 2}; 3 records added since" in result.stdout


@pytest.mark.parametrize("lines", [1, 4])
def test_verify_misses_the_expected_head(run: Path, lines: int) -> None:
    """Records that were removed from the end are detected with an earlier head."""
    head = verify(run).head
    cut_tail(segment(run), lines)

    assert 0 == evaljournal("verify", run).exit_code
    result = evaljournal("verify", run, "--expect-head", head)

    assert (4, True) == (result.exit_code, f"has no record with the hash {head}" in result.stderr)


def test_an_empty_expected_head_is_an_error(run: Path) -> None:
    """An empty head, as from an unset variable, is rejected."""
    assert evaljournal("verify", run, "--expect-head", "").exit_code in (2, 4)


def test_verify_reports_unconfirmed_bytes(run: Path) -> None:
    """Bytes that were never confirmed are reported and are no failure."""
    cut_tail(segment(run), 1)
    with segment(run).open("ab") as file:
        file.write(b'{"seq":')
    result = evaljournal("verify", run)

    assert 0 == result.exit_code
    assert "Warning: 7 bytes after the last record, not confirmed" in result.stderr
    assert "--expect-head HASH" in result.stderr


def test_verify_warns_of_zero_bytes(run: Path) -> None:
    """A zeroed end is a warning with its length; compared with a kept head, it is damage."""
    head = verify(run).head
    data = segment(run).read_bytes()
    overwrite(segment(run), data[:-600] + bytes(600))
    result = evaljournal("verify", run, "--json")

    assert (0, 600) == (result.exit_code, orjson.loads(result.stdout)["zero_bytes"])
    assert 1 == len(orjson.loads(result.stdout)["warnings"])
    assert 4 == evaljournal("verify", run, "--expect-head", head).exit_code


def test_verify_has_no_warning_for_a_sealed_run(run: Path) -> None:
    """A finished run, as it was written, has no warning."""
    result = evaljournal("verify", run)

    assert (0, "") == (result.exit_code, result.stderr)


def test_salvage_names_the_next_command(damaged: Path, tmp_path: Path) -> None:
    """Salvage prints counts and the next command."""
    before = content(damaged)
    result = evaljournal("salvage", damaged, "-o", tmp_path / "new")

    assert (0, "") == (result.exit_code, result.stdout)
    assert f"{tmp_path}/new: 8 records kept, 1 lost, 4 excluded" in result.stderr
    assert f"evaljournal verify {tmp_path}/new" in result.stderr
    assert 0 == evaljournal("verify", tmp_path / "new").exit_code
    assert before == content(damaged)


def test_salvage_reports_lost_scores(run: Path, tmp_path: Path) -> None:
    """Lost scores are reported with the command that restores them."""
    lost = next(record for record in read(run) if isinstance(record.event, TrialScored))
    flip(segment(run), lost.offset + 60)
    result, new = evaljournal("salvage", run, "-o", tmp_path / "new"), tmp_path / "new"
    printed = f"1 output not scored by exact: evaljournal rescore {new}\n"

    assert (0, True) == (result.exit_code, printed in result.stderr)
    assert (True, True) == (
        "capitals finished" in evaljournal("status", new).stdout,
        printed in evaljournal("status", new).stdout,
    )


def test_salvage_rejects_an_intact_run_and_a_taken_target(run: Path, tmp_path: Path) -> None:
    """An intact run or an existing target exits with 2 and changes nothing."""
    result = evaljournal("salvage", run, "-o", tmp_path / "new")

    assert (2, True) == (result.exit_code, "is not damaged" in result.stderr)
    flip(segment(run), list(read(run))[9].offset + 60)
    write_sync(tmp_path / "taken", complete_run())
    result = evaljournal("salvage", run, "-o", tmp_path / "taken")

    assert (2, True) == (result.exit_code, "already exists" in result.stderr)
    assert 2 == evaljournal("salvage", run).exit_code


def test_log_prints_one_line_a_record(run: Path) -> None:
    """Each record is one line: number, time, seconds, type and the fields that differ from their defaults."""
    result = evaljournal("log", run)
    lines = result.stdout.splitlines()

    assert (0, "", len(lines_of(run))) == (result.exit_code, result.stderr, len(lines))
    assert [
        "6",
        "00:00:00.006",
        "6.000",
        "attempt_succeeded",
        "trial=case-1",
        "attempt=1",
        "output=Lima",
        "elapsed=0.25",
    ] == lines[5].split()


def test_log_as_json_is_the_file(run: Path) -> None:
    """With --json, the log is the file, byte for byte."""
    assert b"".join(lines_of(run)) == evaljournal("log", run, "--json").stdout_bytes


def test_log_of_one_trial(run: Path) -> None:
    """With a trial, only its records are printed."""
    result = evaljournal("log", run, "case-2", "--json")

    assert [9, 10, 11, 12, 13] == [orjson.loads(line)["seq"] for line in result.stdout.splitlines()]


def test_log_of_some_types(run: Path) -> None:
    """Several types can be combined, and with a trial."""
    types = ["--type", "run_started", "--type", "trial_completed", "--type", "x-anything"]

    assert [2, 8, 13] == [orjson.loads(line)["seq"] for line in evaljournal("log", run, *types, "--json").stdout.splitlines()]
    assert [13] == [
        orjson.loads(line)["seq"] for line in evaljournal("log", run, "case-2", *types, "--json").stdout.splitlines()
    ]


def test_near_names_are_suggested(run: Path) -> None:
    """An unknown type, trial or command exits with 2 and a suggestion."""
    wrong_type = evaljournal("log", run, "--type", "attempt_strated")
    wrong_trial = evaljournal("log", run, "case-12")
    wrong_command = evaljournal("verfy", run)

    assert (2, 2, 2) == (wrong_type.exit_code, wrong_trial.exit_code, wrong_command.exit_code)
    assert "unknown event type 'attempt_strated'; did you mean 'attempt_started'" in wrong_type.stderr
    assert "has no trial 'case-12'; did you mean 'case-" in wrong_trial.stderr
    assert "verify" in wrong_command.stderr


def test_distant_names_are_not_suggested(run: Path) -> None:
    """A name that resembles no other has no suggestion."""
    result = evaljournal("log", run, "zzz")

    assert (2, True) == (result.exit_code, result.stderr.rstrip().endswith("has no trial 'zzz'"))


def test_log_ends_with_4_at_damage(damaged: Path) -> None:
    """The records before the damage are printed, then the damage, with exit code 4."""
    result = evaljournal("log", damaged)

    assert (4, 9) == (result.exit_code, len(result.stdout.splitlines()))
    assert "is damaged at record 10" in result.stderr


def test_log_reports_unconfirmed_bytes(run: Path) -> None:
    """A torn end is reported on standard error."""
    cut_tail(segment(run), 1)
    with segment(run).open("ab") as file:
        file.write(b'{"seq":')
    result = evaljournal("log", run)

    assert (0, f"after record {len(complete_run()) + 1}: the line is incomplete\n") == (result.exit_code, result.stderr)


def test_the_default_is_the_newest_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without RUN, the run written last is used, at any depth under runs/."""
    monkeypatch.chdir(tmp_path)
    for age, name in enumerate(["capitals/0002", "capitals/0003", "rivers", "capitals/0001"]):
        write_sync(Path("runs") / name, complete_run(age + 1), run=f"{age:032}")
        os.utime(segment(Path("runs") / name), (1000 - age, 1000 - age))

    assert f"{0:032}" == orjson.loads(evaljournal("verify", "--json").stdout)["run"]
    os.utime(segment(Path("runs/rivers")), (2000, 2000))
    assert f"{2:032}" == orjson.loads(evaljournal("verify", "--json").stdout)["run"]
    assert 5 == len(evaljournal("log", "case-3").stdout.splitlines())


def test_an_interrupted_copy_is_not_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The remains of a killed fork or salvage are neither listed nor used."""
    monkeypatch.chdir(tmp_path)
    write_sync(Path("runs/capitals/.0001-again.new"), complete_run()[:4])

    assert [] == orjson.loads(evaljournal("ls", "--json").stdout)
    assert "no runs under runs/" in evaljournal("status").stderr


def test_no_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without RUN and without runs, the error names both."""
    monkeypatch.chdir(tmp_path)
    for command in ("verify", "log"):
        result = evaljournal(command)

        assert (2, True) == (result.exit_code, "no RUN given and no runs under runs/" in result.stderr)


@pytest.mark.parametrize(
    ("arguments", "start"),
    [
        (["show", "run", "nosuch"], "Error: "),
        (["log", "run", "nosuch"], "Error: "),
        (["status", "run", "--by", "nope"], "Error: "),
        (["status"], "Error: "),
        (["show", "nosuch"], "Error: "),
        (["ls", "nosuch"], "Error: "),
        (["status", "--nosuch"], "Usage: "),
        (["log", "run", "--type", "nosuch"], "Usage: "),
    ],
)
def test_usage_is_printed_for_usage_errors_only(
    run: Path, arguments: list[str], start: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing run or trial is one line; the usage is printed only for wrong arguments."""
    monkeypatch.chdir(run.parent)
    result = evaljournal(*arguments)

    assert (2, "", True) == (result.exit_code, result.stdout, result.stderr.startswith(start))
    assert start == "Usage: " or result.stderr.count("\n") == 1


def test_output_cannot_control_the_terminal(tmp_path: Path) -> None:
    """Control characters in an output are escaped."""
    evil = "\x1b[2J\x1b]0;owned\x07\r\n\x9b31m\u202e\u2028evil"
    name = "na\x1b[31mme"
    events = [
        started(),
        session(),
        enqueued(name, {"question": evil, evil: [evil]}),
        *trial("b", output=evil)[:3],
        Noted(name=evil, value=evil),
        Extension(type=f"x-{evil}", data={evil: evil}),
    ]
    write_sync(tmp_path / "run", events)
    results = [
        evaljournal("log", tmp_path / "run"),
        evaljournal("log", tmp_path / "run", evil),
        evaljournal("log", "--type", evil),
    ]

    assert len(lines_of(tmp_path / "run")) == results[0].stdout.count("\n")
    for result in results:
        shown = (result.stdout + result.stderr).replace("\n", "")

        assert [] == sorted({char for char in shown if not char.isprintable()})


def test_foreign_journal_cannot_control_the_terminal(tmp_path: Path) -> None:
    """Control characters in any field of a foreign journal are escaped."""
    evil = "\x1b[2J"
    note = {"type": "noted", "name": "a", "value": 1}
    forge(tmp_path / "time", [opened(), started(), session(), {**note, "at": f"2026-11-15T{evil}"}])
    forge(tmp_path / "type", [opened(), started(), {"type": evil}])
    forge(tmp_path / "format", [opened(format=evil)])
    forge(tmp_path / "version", [opened(version=evil)])
    for name in ("time", "type", "format", "version"):
        for command in ("log", "verify"):
            result = evaljournal(command, tmp_path / name)

            assert "\x1b" not in result.stdout + result.stderr, (name, command)


def test_long_values_are_shortened(tmp_path: Path) -> None:
    """A long value is shown by its start, a blob by its size."""
    events = trial("a", output="long " * 100)
    write_sync(tmp_path / "run", [started(), session(), *events, Noted(name="b", value="v" * (300 << 10))])
    out = evaljournal("log", tmp_path / "run").stdout

    assert "output=long long" in out
    assert "…" in out
    assert "value=(307,202 bytes in a blob)" in out
    assert max(map(len, out.splitlines())) < 1000


def test_a_bug_exits_with_70(run: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """A bug exits with 70, a traceback and a request to report it."""

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("runner.cli.verify.verify_run", broken)
    monkeypatch.setattr("sys.argv", ["evaljournal", "verify", str(run)])
    monkeypatch.setattr("sys.stderr", sys.stderr)  # `main` replaces it.

    with pytest.raises(SystemExit) as end:
        main()
    out, err = capfd.readouterr()
    assert (70, "") == (end.value.code, out)
    assert "ZeroDivisionError: a bug" in err
    assert "This is a bug in evaljournal" in err


@pytest.mark.parametrize("command", ["log", "verify", "salvage"])
def test_an_unreadable_file_is_no_bug(tmp_path: Path, command: str) -> None:
    """A file that cannot be read is reported as damage, without a traceback."""
    segment(tmp_path / "run").mkdir(parents=True)
    code, out, err = run_process(command, tmp_path / "run", *(("-o", tmp_path / "new") if command == "salvage" else ()))

    assert (4, "") == (code, out)
    assert "Traceback" not in err
    assert "journal-000001.jsonl" in err


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_an_example(name: str) -> None:
    """The help of every command has an example."""
    result = evaljournal(name, "--help")

    assert 0 == result.exit_code
    assert f"evaljournal {name} " in result.stdout.partition("Usage:")[2].partition("\n")[2]
    assert result.stdout == evaljournal(name, "-h").stdout


def test_help_lists_every_command() -> None:
    """`--help` lists every command with the first line of its help."""
    result = evaljournal("--help")

    assert 0 == result.exit_code
    for name, line in COMMANDS.items():
        assert f"{name} " in result.stdout
        assert line in result.stdout
        command = cli.get_command(None, name)  # type: ignore[arg-type]  # it needs no context
        assert command is not None
        assert line.split()[0] == (command.help or "").split()[0]


def test_help_imports_nothing_heavy() -> None:
    """`--help` does not import what only a run needs."""
    code = (
        "import sys\n"
        "from runner.cli import cli\n"
        "cli(['--help'], standalone_mode=False)\n"
        "heavy = {'trio', 'orjson', 'attrs', 'rich', 'journal', 'replay'} & set(sys.modules)\n"
        "print(*sorted(heavy), file=sys.stderr, end='')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)

    assert "" == done.stderr
    assert "Commands:" in done.stdout


def test_version() -> None:
    """`--version` prints the name and the version."""
    assert evaljournal("--version").stdout.startswith("evaljournal 0.")


def test_real_process_verifies(run: Path) -> None:
    """The installed command prints data to standard output and exits with 0."""
    code, out, err = run_process("verify", run, "--json")

    assert (0, "", True) == (code, err, orjson.loads(out)["ok"])


def test_real_process_ends_with_4(damaged: Path) -> None:
    """The installed command exits with 4 at damage, without a traceback."""
    code, out, err = run_process("verify", damaged)

    assert (4, "") == (code, out)
    assert "is damaged at record 10" in err
    assert "Traceback" not in err


def test_follow_ends_quietly_at_an_interrupt(run: Path) -> None:
    """Ctrl-C ends `log -f` with 0, and every record was printed."""
    number = len(lines_of(run))
    with process("log", "-f", run) as following:
        assert following.stdout is not None
        assert following.stderr is not None
        lines = [following.stdout.readline() for _ in range(number)]
        following.send_signal(signal.SIGINT)
        code, err = following.wait(timeout=60), following.stderr.read()

    assert (0, "") == (code, err)
    assert "segment_sealed" in lines[-1]


def test_follow_prints_new_records(run: Path) -> None:
    """`log -f` prints records as another process writes them."""
    number = len(lines_of(run))
    with process("log", "-f", "--json", run) as following:
        assert following.stdout is not None
        lines = [following.stdout.readline() for _ in range(number)]
        write_sync(run, [session(2)], new=False)
        lines += [following.stdout.readline() for _ in range(3)]
        following.send_signal(signal.SIGINT)
        code = following.wait(timeout=60)

    assert (0, [line.decode() for line in lines_of(run)]) == (code, lines)


def test_follow_ends_with_4_at_damage(damaged: Path) -> None:
    """Damage ends `log -f` with 4."""
    code, out, err = run_process("log", "-f", damaged)

    assert (4, 9) == (code, len(out.splitlines()))
    assert "is damaged at record 10" in err
    assert "Traceback" not in err


def test_follow_ends_with_2_where_there_is_no_run(tmp_path: Path) -> None:
    """`log -f` without a run exits with 2."""
    (tmp_path / "empty").mkdir()
    code, out, err = run_process("log", "-f", tmp_path / "empty")

    assert (2, "") == (code, out)
    assert "is not a run" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("follow", [[], ["-f"]], ids=["log", "log -f"])
def test_closed_pipe_is_quiet(tmp_path: Path, follow: list[str]) -> None:
    """`log | head` prints its lines and no error."""
    write_sync(tmp_path / "run", [started(), session(), *(Noted(name="n", value="v" * 90) for _ in range(3000))], confirm=False)
    with process("log", *follow, tmp_path / "run") as reading:
        assert reading.stdout is not None
        assert reading.stderr is not None
        first = reading.stdout.readline()
        reading.stdout.close()
        err = reading.stderr.read()
        code = reading.wait(timeout=60)

    assert "segment_opened" in first
    assert "" == err
    assert 70 != code


def test_log_shows_outputs(run: Path) -> None:
    """The log shows the recorded output."""
    answers = [record.event.output for record in read(run) if isinstance(record.event, AttemptSucceeded)]

    assert len(answers) == evaljournal("log", run, "--type", "attempt_succeeded").stdout.count(f"output={answers[0]}")


def test_a_closed_pipe_of_standard_error_does_not_change_the_exit_code(tmp_path: Path) -> None:
    """The messages are lost, and nothing else: a missing run exits with 2."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([*COMMAND, "status", str(tmp_path / "none")], check=False, stderr=writing, timeout=60)
    os.close(writing)

    assert 2 == done.returncode


@pytest.mark.parametrize("command", [["log"], ["status"], ["export"], ["ls"], ["show", "case-1"]])
def test_a_closed_pipe_exits_with_141(tmp_path: Path, command: list[str]) -> None:
    """A closed pipe exits with 141 and no message."""
    write_sync(tmp_path / "run", complete_run())
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as pipe:
        arguments = [*COMMAND, command[0], str(tmp_path / "run"), *command[1:]]
        done = subprocess.run(arguments, stdout=pipe, stderr=subprocess.PIPE, text=True, timeout=60, check=False)

    assert (141, "") == (done.returncode, done.stderr)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("command", ["run --json --data {data} --command cat -o {new}", "log {run}", "status {run}", "--help"])
def test_a_full_standard_output_exits_with_141(tmp_path: Path, command: str) -> None:
    """If only printing fails, the exit code is 141, and a run that has finished is reported as finished."""
    write_sync(tmp_path / "run", complete_run())
    (tmp_path / "data.jsonl").write_text('{"id": "peru", "input": "Peru"}\n')
    words = command.format(data=tmp_path / "data.jsonl", new=tmp_path / "new", run=tmp_path / "run").split()
    with open("/dev/full", "wb") as full:
        done = subprocess.run([*COMMAND, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)

    assert 141 == done.returncode
    error = done.stderr.splitlines()[-1]
    assert "cannot write standard output: No space left on device" in error
    assert ("run" == words[0]) == ("the run is finished" in error)
    assert "free some space" not in error
    if words[0] == "run":
        assert "finished" == load(tmp_path / "new").state.outcome


def test_a_full_disk_exits_with_3(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk exits with 3, because the command can be repeated."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("runner.cli.export.write_atomically", full)
    result = CliRunner().invoke(cli, ["export", str(run), "-o", str(tmp_path / "trials.jsonl")])

    assert 3 == result.exit_code
    assert "No space left on device; free some space and run the command again" in result.stderr


@pytest.mark.parametrize("command", ["status", "log", "rescore", "report", "watch", "replay", "simulate", "export", "resume"])
def test_a_file_is_not_a_run(tmp_path: Path, command: str) -> None:
    """A file instead of a run is reported with what a run is, by every command."""
    (tmp_path / "file").write_text("")
    result = evaljournal(command, tmp_path / "file")

    assert 2 == result.exit_code
    assert f"Error: {tmp_path}/file is a file; a run is a directory that contains journal-000001.jsonl\n" == result.stderr


@pytest.mark.parametrize("command", ["show", "log"])
def test_a_trial_without_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """Without any runs, the name of a trial is reported as such."""
    monkeypatch.chdir(tmp_path)
    result = evaljournal(command, "peru")

    assert 2 == result.exit_code
    assert "Error: 'peru' is neither a run nor an evaluation, and runs/ has no runs to find a trial in\n" == result.stderr


def test_standard_output_may_be_closed(tmp_path: Path) -> None:
    """A closed standard output is no bug."""
    write_sync(tmp_path / "run", complete_run())
    closed = shlex.join([*COMMAND, "log", str(tmp_path / "run")]) + " >&-"
    done = subprocess.run(["/bin/sh", "-c", closed], stderr=subprocess.PIPE, text=True, timeout=60, check=False)

    assert (0, "") == (done.returncode, done.stderr)
