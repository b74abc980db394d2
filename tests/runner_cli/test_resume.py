"""`resume`: what is kept, what is rejected, and exit codes."""

import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from evaljournal import run
from evaljournal.journal import read, verify
from evaljournal.journal.events import AttemptSucceeded, SessionStarted, TrialCompleted
from evaljournal.replay import load
from evaljournal.runner.cli import cli
from evaljournal.runner.definition.loading import load_evaluation
from evaljournal.runner.runs.paths import last_record
from tests.journal.samples import (
    complete_run,
    content,
    cut_tail,
    flip,
    forge,
    opened,
    overwrite,
    segment,
    session,
    started,
    trial,
    write_sync,
)
from tests.runner_cli.commands import ONE_BY_ONE, QUICK, define, evaljournal, printed, rejected
from tests.runs import events

pytestmark = pytest.mark.usefixtures("evaluations")


FAILING = "import os\nFAILS = os.environ.get('FAILS')"
"""The case that fails is named by a variable, which is no change of the evaluation."""


def stop_at_peru(*options: str) -> None:
    """Start a run that stops at its first case."""
    define(FAILING + QUICK)
    arguments = ["run", "evals/capitals.py", *ONE_BY_ONE, "--fail-fast", *options]
    assert 3 == CliRunner(env={"FAILS": "peru"}).invoke(cli, arguments).exit_code


def test_resume_of_a_finished_run_changes_nothing() -> None:
    """A finished run is reported with exit code 0 and not changed."""
    evaljournal("run", "evals/capitals.py")
    before = content(Path("runs"))
    result = evaljournal("resume")

    assert (0, "") == (result.exit_code, result.stdout)
    assert "runs/capitals/0001 is finished: 5 outputs, 0 errors; nothing to resume\n" == result.stderr
    assert 5 == printed("resume")["trials"]["completed"]
    assert 0 == evaljournal("resume", "--retry-failed").exit_code
    assert before == content(Path("runs"))


@pytest.mark.parametrize("tail", [b"", b'{"seq":99,"at":"2026'])
@pytest.mark.parametrize("in_python", [True, False])
def test_a_finished_run_that_was_killed_before_its_seal_is_sealed(tail: bytes, *, in_python: bool) -> None:
    """`resume` syncs and seals it, and sets torn bytes aside; the next one changes nothing."""
    evaljournal("run", "evals/capitals.py")
    path = Path("runs/capitals/0001")
    cut_tail(segment(path), 1)
    overwrite(segment(path), segment(path).read_bytes() + tail)
    assert verify(path).unconfirmed_records
    if in_python:
        head = run(load_evaluation("evals/capitals.py").evaluation, path, resume=True, quiet=True).head
    else:
        assert 0 == evaljournal("resume", "--head-file", "head").exit_code
        head = Path("head").read_text().split()[0]

    result = verify(path)
    assert (True, 0, 0, head) == (result.ok, result.unfinished_bytes, result.unconfirmed_records, result.head)
    assert ([tail] if tail else []) == [file.read_bytes() for file in path.glob("torn/*")]
    before = content(path)
    assert (0, 0, before) == (evaljournal("verify").exit_code, evaljournal("resume").exit_code, content(path))


def test_resume_of_a_finished_run_has_the_code_of_the_run() -> None:
    """Resuming a finished run exits with its code; gates, including new ones, are checked."""
    define("FAILS = 'cuba'" + QUICK)
    evaljournal("run", "evals/capitals.py")
    assert (1, 1) == (evaljournal("resume").exit_code, printed("resume")["exit_code"])

    define("FAILS = None" + QUICK.replace("expected=name.upper()", "expected='PERU'"))
    evaljournal("run", "evals/capitals.py", "--fail-under", "exact=0.5")
    before = content(Path("runs"))
    own, lower, higher = (
        evaljournal("resume", *gate) for gate in ((), ("--fail-under", "exact=0.2"), ("--fail-under", "exact=0.3"))
    )
    mistyped = evaljournal("resume", "--fail-under", "exat=1")

    assert [1, 0, 1, 2] == [command_result.exit_code for command_result in (own, lower, higher, mistyped)]
    assert "gate did not pass: exact=0.5: the mean of exact is 0.2" == own.stderr.splitlines()[-1]
    assert "gate did not pass: exact=0.3: the mean of exact is 0.2" == higher.stderr.splitlines()[-1]
    assert "--fail-under exat=1: no scorer 'exat'; did you mean 'exact'?" in mistyped.stderr
    assert before == content(Path("runs"))


def test_retry_failed() -> None:
    """`resume --retry-failed` retries failed trials and nothing else."""
    define(FAILING + QUICK)
    failed = CliRunner(env={"FAILS": "cuba"}).invoke(cli, ["run", "evals/capitals.py"])
    assert (1, True) == (failed.exit_code, "--retry-failed" in failed.stdout)
    assert "retries the trials that have an error" in evaljournal("resume").stderr
    result = evaljournal("resume", "--retry-failed")

    assert (0, ["asked about cuba"]) == (result.exit_code, re.findall("asked about .*", result.stderr))
    assert verify("runs/capitals/0001").ok


def test_a_long_last_record_of_a_later_session() -> None:
    """A finished run whose next session was killed after a long output is not finished."""
    write_sync(Path("r"), complete_run(1))
    write_sync(Path("r"), [session(2), *trial("case-2", "x" * 100_000)[:3]], new=False)
    cut_tail(segment(Path("r"), 2), 1)
    last = last_record(Path("r"))

    assert last is not None
    assert isinstance(last.event, AttemptSucceeded)


def test_resume_without_a_setting_with_fields() -> None:
    """A budget or a worker pool that `resume` turns off is printed with all its fields."""
    stop_at_peru("--budget", "cost=100", "--budget", "input_tokens=500k", "--budget", "output_tokens=2M")
    result = evaljournal("resume", "--retry-failed", "--budget", "none")

    changes = ["budget: none (was cost=100.0 input_tokens=500000.0 output_tokens=2000000.0)"]
    assert changes == re.findall(r".* \(was .*", result.stderr)


def test_resume_keeps_the_options_of_the_run() -> None:
    """Patterns, limits and settings of the run stay in force."""
    stop_at_peru("--limit", "3", "--timeout", "9")
    result = evaljournal("resume", "--retry-failed")

    assert 0 == result.exit_code
    assert "3 of 3 trials done" in result.stdout
    assert {"peru", "chile", "cuba"} == {event.trial for event in events("runs/capitals/0001", TrialCompleted)}
    assert [None, None] == [event.settings for event in events("runs/capitals/0001", SessionStarted)]


def test_resume_with_other_settings() -> None:
    """Settings that `resume` or the file changes are printed, recorded and stay in force."""
    stop_at_peru()
    define(FAILING + QUICK.replace("timeout=5, retry=Retry(", "timeout=6, retry=Retry(timeouts=7, "))
    resumed = CliRunner(env={"FAILS": "chile"}).invoke(cli, ["resume", "--slots", "2", "--retry-failed"])
    result = evaljournal("resume", "--no-fail-fast", "--max-failures", "none")

    assert (3, 1) == (resumed.exit_code, result.exit_code)
    assert [
        "slots: 2 (was 1)",
        "timeout: 6.0 (was 5.0)",
        "retry.timeouts: 7 (was 2)",
    ] == re.findall(r".* \(was .*", resumed.stderr)
    assert ["fail_fast: false (was true)"] == re.findall(r".* \(was .*", result.stderr)
    changes = [event.settings for event in events("runs/capitals/0001", SessionStarted)]
    assert {"fail_fast": False, "overridden": ["slots", "policy", "fail_fast", "max_failures"]} == changes[2]
    assert 2 == changes[1]["slots"]


@pytest.mark.parametrize(
    ("first", "message"),
    [
        ([started()], "was started from evals/capitals.py:capitals. Run this from that directory"),
        ([], "nothing was recorded in r; start it again: `evaljournal run … -o r`"),
    ],
)
def test_resume_that_does_not_find_its_evaluation(first: list[Any], message: str) -> None:
    """If the evaluation is not found, the error names it and how to pass its location."""
    Path("evals/capitals.py").unlink()
    forge(Path("r"), [opened(), *first])
    error = rejected("resume", "r", "--trust")

    assert message in error
    assert bool(first) == ("`evaljournal resume r --task " in error)


@pytest.mark.parametrize(
    "arguments", [["evals/capitals.py"], ["--data", "qa.jsonl", "--output-key", "input", "--score", "exact"]]
)
def test_a_run_that_was_killed_before_its_start(arguments: list[str]) -> None:
    """The same `run` command starts it, in the same directory and journal."""
    Path("qa.jsonl").write_text('{"id": "a", "input": "Lima", "expected": "Lima"}\n')
    forge(Path("r"), [opened()])
    before = segment(Path("r")).read_bytes()
    result = evaljournal("run", *arguments, "-o", "r", "--plain")

    assert 0 == result.exit_code, result.output
    assert (True, True) == (verify("r").ok, segment(Path("r")).read_bytes().startswith(before))


def test_resume_after_the_evaluation_was_moved() -> None:
    """--task passes the new location; it is recorded."""
    define("FAILS = 'peru'" + QUICK)
    evaljournal("run", "evals/capitals.py", "--fail-fast", *ONE_BY_ONE)
    Path("evals/capitals.py").rename("moved.py")

    assert (2, 1) == (evaljournal("resume").exit_code, evaljournal("resume", "--task", "moved.py").exit_code)
    resumed = evaljournal("resume", "--retry-failed")
    assert (1, "moved.py:capitals") == (resumed.exit_code, load("runs/capitals/0001").summary().task)
    assert "adopted" not in resumed.stderr


def test_resume_of_a_run_started_from_python() -> None:
    """--task is needed once; then the next command finds the evaluation."""
    define("FAILS = 'peru'" + QUICK)
    run(load_evaluation("evals/capitals.py").evaluation, "r", fail_fast=True, slots=1, policy="fixed")
    without_task = evaljournal("resume", "r")
    with_task = evaljournal("resume", "r", "--task", "evals/capitals.py", "--no-fail-fast")
    cut_tail(segment(Path("r"), 2), 1)
    with segment(Path("r"), 2).open("ab") as file:  # A torn line.
        file.write(b'{"seq":99,"at":"2026-11-15T00:00:00.000000Z","t":0.0,"type":"session_started","session":3')
    resumed = evaljournal("resume", "r", "--retry-failed")

    assert (2, True) == (without_task.exit_code, "was started from Python" in without_task.stderr)
    assert (1, True) == (with_task.exit_code, "  retry: evaljournal resume r --retry-failed\n" in with_task.stdout)
    assert (1, True) == (resumed.exit_code, "1 error" in resumed.stdout)
    assert verify("r").ok


def test_resume_of_a_damaged_run_ends_with_4() -> None:
    """A damaged run is neither resumed nor changed."""
    write_sync(Path("r"), complete_run()[:-1])
    flip(segment(Path("r")), list(read("r"))[9].offset + 60)
    before = segment(Path("r")).read_bytes()
    result = evaljournal("resume", "r", "--trust")

    assert (4, True) == (result.exit_code, "is damaged at record 10" in result.stderr)
    assert before == segment(Path("r")).read_bytes()
