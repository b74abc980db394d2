"""`run`, `resume`, `status` and `ls`: output, records and exit codes."""

import contextlib
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner, Result

from journal import read, verify
from journal.events import AttemptStarted, RunStarted, SessionStarted, TrialCompleted
from journal.files import DISK
from journal.lock import Lock, is_held
from replay import load
from runner import run
from runner.cli import cli
from runner.definition.loading import find
from tests.journal.samples import (
    complete_run,
    content,
    cut_tail,
    flip,
    forge,
    opened,
    segment,
    session,
    started,
    trial,
    write_sync,
)
from tests.processes import Process
from tests.runner_cli.test_commands import COMMAND

ONE_BY_ONE = ("--slots", "1", "--policy", "fixed")

QUICK = """
from runner import Case, Retry, evaluation, note

CASES = [Case(name=name, input=name, expected=name.upper()) for name in ("peru", "chile", "cuba", "france", "japan")]

@evaluation(cases=CASES, slots=2, timeout=5, retry=Retry(errors=0))
async def capitals(name: str) -> str:
    print("asked about", name)
    note(tokens=10, cost=0.5)
    if name == FAILS:
        raise ValueError("no such country")
    return name.upper()

@capitals.score
def exact(output: str, case: Case[str, str]) -> bool:
    return output == case.expected
"""

SLOW = """
import os
import trio
from runner import Case, evaluation

@evaluation(cases=[Case(name=f"t{number}", input=number) for number in range(40)], slots=4)
async def slow(number: int) -> int:
    with open("calls", "a") as file:
        file.write(f"t{number}\\n")
    if number >= 6 and "HOLD" in os.environ:
        await trio.sleep_forever()
    await trio.sleep(0.001)
    return number
"""


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Work in a directory with two evaluations, and restore Python's modules."""
    path = list(sys.path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CI", raising=False)
    (tmp_path / "evals").mkdir()
    define("FAILS = None" + QUICK)
    (tmp_path / "evals/slow.py").write_text(SLOW)
    yield tmp_path
    sys.path[:] = path
    user_modules = [name for name, module in sys.modules.items() if str(tmp_path) in (getattr(module, "__file__", None) or "")]
    for name in user_modules:
        del sys.modules[name]


def define(source: str) -> None:
    """Write the evaluation to a new file: Python distinguishes versions by second and length only."""
    file = Path("evals/capitals.py")
    file.unlink(missing_ok=True)
    file.write_text(f"{source}\n# {time.monotonic_ns()}\n")


def evaljournal(*arguments: object) -> Result:
    """Invoke a command; click leaves control characters in the output."""
    return CliRunner().invoke(cli, [str(argument) for argument in arguments], color=True)


def process(*arguments: object, hold: bool = False) -> Process:
    """Start a command as a process; `hold` pauses the slow evaluation in the middle."""
    environment = {**os.environ, "HOLD": "1"} if hold else os.environ
    return Process([*COMMAND, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)


def wait_for(path: Path, words: str, times: int) -> None:
    """Wait until a journal has a text a number of times."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if segment(path).read_text().count(words) >= times:
                return
        time.sleep(0.01)
    raise AssertionError(f"{path} never had {words!r} {times} times")


def events(path: Path | str, kind: type[Any]) -> list[Any]:
    """Read the events of one type."""
    return [record.event for record in read(path) if isinstance(record.event, kind)]


def test_run_to_the_end() -> None:
    """A successful run exits with 0; progress and the user's prints are on standard error, the summary on standard output."""
    result = evaljournal("run", "evals/capitals.py")

    assert 0 == result.exit_code
    assert "capitals in runs/capitals/0001; Ctrl-C stops it" in result.stderr
    assert "asked about peru" in result.stderr
    assert result.stdout.startswith("capitals finished: 5 of 5 trials done, in runs/capitals/0001\n  took ")
    assert "exact  100.0 %  5 of 5 passed" in result.stdout
    assert result.stdout.endswith("next: evaljournal verify runs/capitals/0001\n")
    assert verify("runs/capitals/0001").ok


def test_what_is_recorded_of_the_command_line() -> None:
    """The full reference, the settings and which of them were given are recorded."""
    evaljournal("run", "evals/capitals.py", *ONE_BY_ONE, "--timeout", "none", "--only", "c*", "--seed", 7)
    started_event = events("runs/capitals/0001", RunStarted)[0]

    assert "evals/capitals.py:capitals" == started_event.task
    overridden = {name: started_event.settings[name] for name in started_event.settings["overridden"]}
    assert {"slots": 1, "timeout": None, "only": ["c*"], "seed": 7, "policy": "fixed"} == overridden


def test_runs_are_numbered() -> None:
    """A run gets the next free number of its evaluation, or the directory of -o."""
    evaljournal("run", "evals/capitals.py")
    Path("runs/capitals/0041").mkdir()
    evaljournal("run", "evals/capitals.py")
    evaljournal("run", "evals/capitals.py", "-o", "elsewhere/mine")

    assert {"0001", "0041", "0042"} == {path.name for path in Path("runs/capitals").iterdir()}
    assert verify("elsewhere/mine").ok


def test_failures_end_with_1_and_come_last() -> None:
    """A run with failed trials exits with 1 and prints them last."""
    define("FAILS = 'cuba'" + QUICK)
    result = evaljournal("run", "evals/capitals.py")

    assert 1 == result.exit_code
    assert [
        "1 trial failed:",
        "  cuba: ValueError: no such country (exhausted, 1 attempt)",
        "details: evaljournal log runs/capitals/0001 cuba",
        f"head: {load('runs/capitals/0001').state.head}",
        "next: evaljournal resume runs/capitals/0001 --retry-failed",
    ] == result.stdout.splitlines()[-5:]


def test_a_scorer_that_fails_is_no_success() -> None:
    """A run with unscored outputs exits with 1."""
    define("FAILS = None" + QUICK.replace("return output ==", "return {}[output] =="))
    result = evaljournal("run", "evals/capitals.py")

    assert 1 == result.exit_code
    assert re.search(r"no score: 5 scorer failures \(KeyError: '[A-Z]+'\)", result.stdout)
    assert "score the outputs it failed on: evaljournal rescore runs/capitals/0001" in result.stdout


def test_the_summary_on_standard_output() -> None:
    """With --json, standard output has only the summary, whatever the user's code prints."""
    result = evaljournal("run", "evals/capitals.py", "--json", "--limit", 2)
    answer = orjson.loads(result.stdout)

    assert ("runs/capitals/0001", None, 0) == (answer["path"], answer["stopped"], answer["exit_code"])
    assert (2, 0, 2) == (answer["trials"]["completed"], answer["trials"]["failed"], answer["attempts"]["started"])
    assert verify("runs/capitals/0001", expect_head=answer["head"]).ok
    assert {"tokens": 20, "cost": 1.0} == answer["usage"]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--only", "c*"], ["chile", "cuba"]),
        (["--skip", "c*", "--limit", 2], ["peru", "france"]),
        (["--only", "peru", "--repeats", 2], ["peru", "peru#2"]),
    ],
)
def test_which_cases_are_run(options: list[object], names: list[str]) -> None:
    """Patterns, a limit and repeats select the trials."""
    evaljournal("run", "evals/capitals.py", *options)

    assert sorted(names) == sorted(event.trial for event in events("runs/capitals/0001", TrialCompleted))


def test_shuffling_depends_on_the_seed() -> None:
    """The same seed gives the same order."""
    orders: list[list[str]] = []
    for seed in (1, 1, 2):
        evaljournal("run", "evals/capitals.py", "--shuffle", "--seed", seed, *ONE_BY_ONE)
        orders.append([event.trial for event in events(f"runs/capitals/{len(orders) + 1:04}", AttemptStarted)])

    assert orders[0] == orders[1] != orders[2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--slots", 0], "Error: --slots 0: must be a whole number, 1 or more"),
        (["--timeout", "-1"], "--timeout -1.0: must be a number of seconds above 0; 'none' turns it off"),
        (["--timeout", "soon"], "'soon' is not a number of seconds"),
        (["--max-failures", "many"], "'many' is not a number of trials"),
        (["--max-failures", "101%"], "'101%' is not a number of trials"),
        (["--repeats", 0], "--repeats 0: must be a whole number, 1 or more"),
        (["--limit", 0], "--limit 0: must be a whole number, 1 or more"),
        (["--only", "x*"], "matches only=['x*']; names are, for example, 'peru', 'chile', 'cuba'"),
        (["--grace", "-1"], "--grace -1.0: must be a number of seconds, 0 or more"),
        (["--retry-base-delay", 0], "--retry-base-delay 0.0: must be more than 0"),
        (["--fail-under", "exact"], "--fail-under exact: expected SCORER=NUMBER"),
        (["--policy", "greedy"], "'greedy' is not one of"),
    ],
)
def test_wrong_options_start_nothing(options: list[object], message: str) -> None:
    """An invalid option exits with 2, names the flag and writes nothing."""
    result = evaljournal("run", "evals/capitals.py", *options)

    assert (2, "") == (result.exit_code, result.stdout)
    assert message in result.stderr
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("evals/captials.py", "did you mean evals/capitals.py?"),
        ("evals/capitals.py:rivers", "defines no evaluation 'rivers'; it defines 'capitals'"),
        ("evals", "is a directory"),
        ("nothing.here:x", "no file or module"),
    ],
)
def test_no_such_evaluation_starts_nothing(reference: str, message: str) -> None:
    """A missing evaluation exits with 2 and one line."""
    result = evaljournal("run", reference)

    assert (2, "") == (result.exit_code, result.stdout)
    assert message in result.stderr
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("cases", "message"),
    [
        ("[]", "the dataset has no cases"),
        ("iter([])", "the dataset has no cases"),
        ("(case for case in CASES if case.name == 'x')", "the dataset has no cases"),
        ("lambda: {}['nothing']", "the cases cannot be read: KeyError: 'nothing'"),
    ],
)
def test_cases_that_cannot_be_used_start_nothing(cases: str, message: str) -> None:
    """Invalid cases exit with 2 before anything is written, even if they can only be read once."""
    define("FAILS = None" + QUICK.replace("cases=CASES", f"cases={cases}"))
    result = evaljournal("run", "evals/capitals.py")

    assert (2, f"Error: {message}\n") == (result.exit_code, result.stderr)
    assert not Path("runs").exists()


def test_a_taken_path_is_rejected() -> None:
    """No run is started where one exists; an unfinished one can be resumed."""
    write_sync(Path("half"), complete_run()[:-1])
    write_sync(Path("whole"), complete_run())
    before = content(Path("half")), content(Path("whole"))
    half, whole = evaljournal("run", "evals/capitals.py", "-o", "half"), evaljournal("run", "evals/capitals.py", "-o", "whole")

    assert (2, "Error: half is an unfinished run; continue it with `evaljournal resume half`\n") == (
        half.exit_code,
        half.stderr,
    )
    assert (2, True) == (whole.exit_code, "whole is a finished run and is never overwritten" in whole.stderr)
    assert before == (content(Path("half")), content(Path("whole")))


def test_fail_fast_ends_with_3() -> None:
    """A run that stops at a failure exits with 3 and prints the resume command."""
    define("FAILS = 'peru'" + QUICK)
    result = evaljournal("run", "evals/capitals.py", "--fail-fast", *ONE_BY_ONE, "--json")

    assert (3, "failed_fast") == (result.exit_code, orjson.loads(result.stdout)["stopped"])
    assert "capitals stopped (too many trials failed): 1 of 5 trials done" in result.stderr
    assert result.stderr.endswith("next: evaljournal resume runs/capitals/0001\n")


@pytest.mark.parametrize(("max_failures", "code"), [("0", 3), ("1", 1), ("10%", 3), ("50%", 1)])
def test_max_failures(max_failures: str, code: int) -> None:
    """More failures than allowed, as a number or a percentage, stop the run."""
    define("FAILS = 'peru'" + QUICK)

    assert code == evaljournal("run", "evals/capitals.py", "--max-failures", max_failures, *ONE_BY_ONE).exit_code


def test_dry_run_writes_nothing() -> None:
    """A dry run prints counts and settings, and that the cost is unknown."""
    result = evaljournal("run", "evals/capitals.py", "--dry-run", "--repeats", 3, "--skip", "peru", "--timeout", "none")

    assert (0, "") == (result.exit_code, result.stderr)
    assert [
        "capitals (evals/capitals.py:capitals) would run in runs/capitals/0001; nothing was written",
        "  4 cases × 3 repeats = 12 trials",
        "  at least 12, at most 36 calls, plus retries after rate limits",
        "  retries: 0 after errors, 2 after timeouts, 10 min on rate limits",
        "  at most 2 slots (adaptive), timeout none",
        "  scorers: exact",
        "  cost: unknown; none of the last 5 runs recorded usage (record it with note(tokens=…, cost=…))",
    ] == result.stdout.splitlines()
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--fail-under", "exact=0.9", "--fail-under", "exact>=80%@lower"],
            "gates: exact=0.9, exact>=80%@lower; exit code 1 if one does not",
        ),
        (["--fail-fast", "--max-failures", 3], "stops at the first failed trial; `evaljournal resume` continues"),
        (["--max-failures", 3, "--deadline", 600], "stops when more than 3 of the trials have failed, or after 10 min; "),
        (["--max-failures", "7%"], "stops when more than 7 % of the trials have failed; "),
    ],
)
def test_dry_run_prints_gates_and_limits(flags: list[object], message: str) -> None:
    """A dry run prints gates and limits that are set."""
    result = evaljournal("run", "evals/capitals.py", "--dry-run", *flags)

    assert (0, True) == (result.exit_code, f"  scorers: exact\n  {message}" in result.stdout)


def test_dry_run_estimates_from_an_earlier_run() -> None:
    """The estimate is the mean usage per trial of an earlier run times the trials."""
    evaljournal("run", "evals/capitals.py", "--limit", 2)
    words = evaljournal("run", "evals/capitals.py", "--dry-run")
    answer = orjson.loads(evaljournal("run", "evals/capitals.py", "--dry-run", "--json").stdout)

    usage = "tokens 50 (150 with all retries), cost 2.5 (7.5 with all retries)"
    message = f"  expected in total: {usage}, based on runs/capitals/0001\n"
    assert words.stdout.endswith(message)
    assert {"min": 5, "max": 15} == answer["calls"]
    assert {"tokens": 150.0, "cost": 7.5} == answer["expected_usage_max"]
    assert ({"tokens": 50.0, "cost": 2.5}, 5, "runs/capitals/0002") == (
        answer["expected_usage"],
        answer["trials"],
        answer["path"],
    )


def test_dry_run_of_cases_that_can_be_read_only_once() -> None:
    """A dry run does not consume a generator, so its length is unknown."""
    define("FAILS = None" + QUICK.replace("cases=CASES", "cases=(case for case in CASES)"))

    words = evaljournal("run", "evals/capitals.py", "--dry-run").stdout
    assert "  unknown number of cases (they can only be read once), 1 trial each\n" in words
    assert "  at least 1, at most 3 calls for each trial, plus retries after rate limits\n" in words
    limited = evaljournal("run", "evals/capitals.py", "--dry-run", "--limit", "2").stdout
    assert "  at most 2 cases (they can only be read once), 1 trial each\n" in limited
    assert "  at least 1, at most 6 calls, plus retries after rate limits\n" in limited
    answer = orjson.loads(evaljournal("run", "evals/capitals.py", "--dry-run", "--limit", "2", "--json").stdout)
    assert (None, 2, 6) == (answer["trials"], answer["max_trials"], answer["calls"]["max"])


@pytest.mark.parametrize("flags", [[], ["--dry-run"]])
def test_a_percentage_of_an_unknown_number_is_rejected(flags: list[object]) -> None:
    """A percentage of an unknown number of trials is rejected before the start."""
    define("FAILS = None" + QUICK.replace("cases=CASES", "cases=(case for case in CASES)"))

    rejected = evaljournal("run", "evals/capitals.py", "--max-failures", "7%", *flags)
    assert (2, True) == (
        rejected.exit_code,
        "--max-failures 7%: cannot be a fraction: the number" in rejected.stderr,
    )
    assert not Path("runs").exists()
    assert 0 == evaljournal("run", "evals/capitals.py", "--max-failures", "3", *flags).exit_code


def test_no_run_replaces_a_directory_of_runs() -> None:
    """A run is not started at runs/, in a directory of runs or inside a run."""
    evaljournal("run", "evals/capitals.py", "-o", "mine/first")
    before = content(Path())
    rejected = [evaljournal("run", "evals/capitals.py", "-o", path) for path in ("runs", "mine", "mine/first/second")]

    assert [2, 2, 2] == [command_result.exit_code for command_result in rejected]
    assert "runs contains runs; pass a new directory in it: -o runs/NAME" in rejected[0].stderr
    assert "mine contains runs" in rejected[1].stderr
    assert "is inside the run" in rejected[2].stderr
    assert before == content(Path())


def test_resume_of_a_finished_run_changes_nothing() -> None:
    """A finished run is reported with exit code 0 and not changed."""
    evaljournal("run", "evals/capitals.py")
    before = content(Path("runs"))
    result = evaljournal("resume")

    assert (0, "") == (result.exit_code, result.stdout)
    assert "runs/capitals/0001 is finished: 5 ok, 0 failed; nothing to resume\n" == result.stderr
    assert 5 == orjson.loads(evaljournal("resume", "--json").stdout)["trials"]["completed"]
    assert 0 == evaljournal("resume", "--retry-failed").exit_code
    assert before == content(Path("runs"))


def test_resume_of_a_finished_run_has_the_code_of_the_run() -> None:
    """Resuming a finished run exits with its code; gates, also new ones, are checked."""
    define("FAILS = 'cuba'" + QUICK)
    evaljournal("run", "evals/capitals.py")
    assert (1, 1) == (evaljournal("resume").exit_code, orjson.loads(evaljournal("resume", "--json").stdout)["exit_code"])

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
    define("import os\nFAILS = os.environ.get('FAILS')" + QUICK)
    failed = CliRunner(env={"FAILS": "cuba"}).invoke(cli, ["run", "evals/capitals.py"])
    assert (1, True) == (failed.exit_code, "--retry-failed" in failed.stdout)
    assert "retries the failed trials" in evaljournal("resume").stderr
    result = evaljournal("resume", "--retry-failed")

    assert (0, ["asked about cuba"]) == (result.exit_code, re.findall("asked about .*", result.stderr))
    assert verify("runs/capitals/0001").ok


def test_resume_keeps_the_options_of_the_run() -> None:
    """Patterns, limits and settings of the run stay in force."""
    define("import os\nFAILS = os.environ.get('FAILS')" + QUICK)
    arguments = ["run", "evals/capitals.py", "--limit", "3", *ONE_BY_ONE, "--timeout", "9", "--fail-fast"]
    stopped = CliRunner(env={"FAILS": "peru"}).invoke(cli, arguments)
    result = evaljournal("resume", "--retry-failed")

    assert (3, 0) == (stopped.exit_code, result.exit_code)
    assert "3 of 3 trials done" in result.stdout
    assert {"peru", "chile", "cuba"} == {event.trial for event in events("runs/capitals/0001", TrialCompleted)}
    assert [None, None] == [event.settings for event in events("runs/capitals/0001", SessionStarted)]


def test_resume_with_other_settings() -> None:
    """Settings that `resume` or the file changes are printed, recorded and stay in force."""
    define("import os\nFAILS = os.environ.get('FAILS')" + QUICK)
    CliRunner(env={"FAILS": "peru"}).invoke(cli, ["run", "evals/capitals.py", *ONE_BY_ONE, "--fail-fast"])
    define(
        "import os\nFAILS = os.environ.get('FAILS')"
        + QUICK.replace("timeout=5, retry=Retry(", "timeout=6, retry=Retry(timeouts=7, ")
    )
    again = CliRunner(env={"FAILS": "chile"}).invoke(cli, ["resume", "--slots", "2", "--retry-failed"])
    result = evaljournal("resume", "--no-fail-fast", "--max-failures", "none")

    assert (3, 1) == (again.exit_code, result.exit_code)
    assert [
        "slots: 2 (was 1)",
        "timeout: 6.0 (was 5.0)",
        "retry.timeouts: 7 (was 2)",
    ] == re.findall(r".* \(was .*", again.stderr)
    assert ["fail_fast: false (was true)"] == re.findall(r".* \(was .*", result.stderr)
    changes = [event.settings for event in events("runs/capitals/0001", SessionStarted)]
    assert {"fail_fast": False, "overridden": ["slots", "policy", "fail_fast", "max_failures"]} == changes[2]
    assert 2 == changes[1]["slots"]


def test_resume_of_a_changed_task() -> None:
    """A changed task is rejected with the differences; --adopt accepts it."""
    define("FAILS = 'peru'" + QUICK)
    evaljournal("run", "evals/capitals.py", "--fail-fast", *ONE_BY_ONE)
    define("FAILS = 'peru'" + QUICK.replace("return name.upper()", "return name.upper() + ''"))
    rejected = evaljournal("resume")

    assert (2, True) == (rejected.exit_code, "+        return name.upper() + ''" in rejected.stderr)
    assert "--adopt` accepts the changes" in rejected.stderr
    assert 1 == evaljournal("resume", "--adopt").exit_code


@pytest.mark.parametrize(
    ("first", "message"),
    [
        ([started()], "was started from evals/capitals.py:capitals. Run this from that directory"),
        ([], "ends before its evaluation was recorded"),
    ],
)
def test_resume_that_does_not_find_its_evaluation(first: list[Any], message: str) -> None:
    """If the evaluation is not found, the error names it and how to pass its location."""
    Path("evals/capitals.py").unlink()
    forge(Path("r"), [opened(), *first])
    result = evaljournal("resume", "r", "--trust")

    assert (2, True) == (result.exit_code, message in result.stderr)
    assert "`evaljournal resume r --task " in result.stderr


def test_resume_after_the_evaluation_was_moved() -> None:
    """--task passes the new location; it is recorded."""
    define("FAILS = 'peru'" + QUICK)
    evaljournal("run", "evals/capitals.py", "--fail-fast", *ONE_BY_ONE)
    Path("evals/capitals.py").rename("moved.py")

    assert (2, 1) == (evaljournal("resume").exit_code, evaljournal("resume", "--task", "moved.py").exit_code)
    again = evaljournal("resume", "--retry-failed")
    assert (1, "moved.py:capitals") == (again.exit_code, load("runs/capitals/0001").summary().task)
    assert "adopted" not in again.stderr


def test_resume_of_a_run_started_from_python() -> None:
    """--task is needed once; then the next command finds the evaluation."""
    define("FAILS = 'peru'" + QUICK)
    run(find("evals/capitals.py").evaluation, "r", fail_fast=True, slots=1, policy="fixed")
    without_task = evaljournal("resume", "r")
    message = evaljournal("resume", "r", "--task", "evals/capitals.py", "--no-fail-fast")
    cut_tail(segment(Path("r"), 2), 1)
    with segment(Path("r"), 2).open("ab") as file:  # A torn line.
        file.write(b'{"seq":99,"at":"2026-11-15T00:00:00.000000Z","t":0.0,"type":"session_started","session":3')
    again = evaljournal("resume", "r", "--retry-failed")

    assert (2, True) == (without_task.exit_code, "was started from Python" in without_task.stderr)
    assert (1, True) == (message.exit_code, message.stdout.endswith("next: evaljournal resume r --retry-failed\n"))
    assert (1, True) == (again.exit_code, "1 trial failed" in again.stdout)
    assert verify("r").ok


def test_resume_without_any_run() -> None:
    """Without runs, `resume` exits with 2."""
    assert (2, 2) == (evaljournal("resume").exit_code, evaljournal("resume", "nothing").exit_code)


def test_resume_of_a_damaged_run_ends_with_4() -> None:
    """A damaged run is neither resumed nor changed."""
    write_sync(Path("r"), complete_run()[:-1])
    flip(segment(Path("r")), list(read("r"))[9].offset + 60)
    before = segment(Path("r")).read_bytes()
    result = evaljournal("resume", "r", "--trust")

    assert (4, True) == (result.exit_code, "is damaged at record 10" in result.stderr)
    assert before == segment(Path("r")).read_bytes()


def test_ctrl_c_then_resume(directory: Path) -> None:
    """An interrupted run exits with 3, prints the resume command, and resumes without repeating completed trials."""
    with process("run", "evals/slow.py", "--grace", "0.1", hold=True) as first:
        wait_for(directory / "runs/slow/0001", "attempt_started", 10)
        first.send_signal(signal.SIGINT)
        out, _ = first.communicate(timeout=30)

    assert 3 == first.returncode
    assert "slow interrupted: 6 of 40 trials done, in runs/slow/0001" in out
    assert "4 attempts were interrupted; if repeated" in out
    assert out.endswith("next: evaljournal resume runs/slow/0001\n")
    assert verify("runs/slow/0001").ok

    with process("resume") as second:
        out, _ = second.communicate(timeout=30)

    assert 0 == second.returncode
    assert "slow finished: 40 of 40 trials done" in out
    assert verify("runs/slow/0001").ok
    calls = Path("calls").read_text().split()
    assert {f"t{number}": 2 for number in range(6, 10)} == {name: times for name in calls if (times := calls.count(name)) > 1}


def test_ctrl_c_before_the_start() -> None:
    """Ctrl-C while the user's file is imported exits with 130."""
    define("raise KeyboardInterrupt" + QUICK)
    result = evaljournal("run", "evals/capitals.py")

    assert (130, "Error: interrupted\n") == (result.exit_code, result.stderr)
    assert not Path("runs").exists()


def test_kill_then_resume(directory: Path) -> None:
    """A killed run is reported as interrupted, not as running or stopped, and can be resumed."""
    with process("run", "evals/slow.py", hold=True) as first:
        wait_for(directory / "runs/slow/0001", "attempt_started", 10)
        live = orjson.loads(evaljournal("status", "--json").stdout)
        words = evaljournal("status")
        in_use = evaljournal("run", "evals/slow.py", "-o", "runs/slow/0001")
        second = evaljournal("resume")
        first.kill()
        first.communicate(timeout=30)
    dead = orjson.loads(evaljournal("status", "--json").stdout)

    assert ("running", True, 4) == (live["status"], live["is_live"], live["trials"]["running"])
    assert f"running in process {first.pid} on " in words.stdout
    assert "slots    4 of 4 busy" in words.stdout
    assert (2, True) == (in_use.exit_code, "is a run in progress" in in_use.stderr)
    assert (2, True) == (second.exit_code, "is being written by" in second.stderr)
    assert ("interrupted", False) == (dead["status"], dead["is_live"])
    assert "slow ended without a final record" in evaljournal("status").stdout
    assert 0 == evaljournal("resume").exit_code
    assert verify("runs/slow/0001").ok


def test_plain_lines(directory: Path) -> None:
    """Without a terminal, there is a line per tenth and no control characters."""
    with process("run", "evals/slow.py", "--grace", "0", hold=True) as running:
        wait_for(directory / "runs/slow/0001", "attempt_started", 10)
        time.sleep(0.5)
        running.terminate()
        _, err = running.communicate(timeout=30)

    assert re.search(r"^6 of 40 \(15 %\) · 6 ok, 0 failed, 0 recovered · .*seq \d+, on disk to \d+$", err, re.MULTILINE)
    assert all(char == "\n" or char.isprintable() for char in err)
    assert 3 == running.returncode


def at_a_terminal(*arguments: object, until: bytes, environment: dict[str, str] | None = None) -> tuple[int, str]:
    """Run a command in a pseudo-terminal; press Ctrl-C when a text appears."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(COMMAND[0], [*COMMAND, *map(str, arguments)], {**os.environ, "TERM": "xterm", **(environment or {})})  # noqa: S606
    screen, pressed = b"", False
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if select.select([terminal], [], [], 0.05)[0]:
            try:
                screen += os.read(terminal, 65_536)
            except OSError:
                break
        if until in screen and not pressed:
            os.write(terminal, b"\x03")
            pressed = True
    else:
        os.kill(pid, signal.SIGKILL)
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), screen.decode()


def test_the_live_screen() -> None:
    """At a terminal the screen is drawn; Ctrl-C stops the run, clears the screen and restores the cursor."""
    code, screen = at_a_terminal("run", "evals/slow.py", "--grace", "0", until=b"4 of 4 busy", environment={"HOLD": "1"})

    assert 3 == code
    assert "longest  slot" in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen)
    assert screen.count("\x1b[?25l") == screen.count("\x1b[?25h") == 1
    assert "slow interrupted: 6 of 40 trials done" in screen.rpartition("\x1b[?25h")[2]


def test_stopping_is_shown() -> None:
    """Ctrl-C is acknowledged on the screen, or by a line, before in-flight attempts end."""
    hold = {"HOLD": "1"}
    _, screen = at_a_terminal("run", "evals/slow.py", "--grace", "0.5", until=b"4 of 4 busy", environment=hold)
    _, printed = at_a_terminal("run", "evals/slow.py", "--grace", "0.5", "--plain", until=b"6 of 40", environment=hold)

    words = r"stopping.* 4 attempts in flight, 0\.\d+ s left; press Ctrl-C again to interrupt them"
    assert re.search(words, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen))
    assert re.search(words, printed)


STUCK = """
import time
import trio
from runner import Case, evaluation

@evaluation(cases=[Case(name="t0", input=0)])
async def stuck(number: int) -> None:
    with trio.CancelScope(shield=True):
        await trio.sleep_forever()

@evaluation(cases=[Case(name="t0", input=0), Case(name="t1", input=1)], loop="trio")
async def blocking(number: int) -> None:
    print("blocking")
    for _ in range(60_000):  # In pieces: a signal that comes just before a sleep begins does not end it.
        time.sleep(0.01)
"""


def test_the_screen_is_restored_before_a_forced_exit(directory: Path) -> None:
    """If an attempt cannot be cancelled, the cursor is restored and the run can be resumed."""
    (directory / "evals/stuck.py").write_text(STUCK)
    code, screen = at_a_terminal("run", "evals/stuck.py:stuck", "--grace", "0", until=b"1 of ")

    assert 3 == code
    assert screen.count("\x1b[?25l") == screen.count("\x1b[?25h") == 1
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.rpartition("\x1b[?25h")[2]).strip().split("\r\n")
    assert "not responding to cancellation, abandoned: t0 in slot 0" == lines[0]
    assert "stuck interrupted: 0 of 1 trial done, in runs/stuck/0001" == lines[1]
    assert "next: evaljournal resume runs/stuck/0001" == lines[-1]
    assert verify("runs/stuck/0001").ok


def test_repeated_ctrl_c_interrupts_a_blocking_task(directory: Path) -> None:
    """A further Ctrl-C interrupts a blocking task, and the resume command is printed."""
    (directory / "evals/stuck.py").write_text(STUCK)
    with process("run", "evals/stuck.py:blocking") as running:
        assert running.stderr is not None
        while running.stderr.readline() not in {"blocking\n", ""}:
            pass
        err = ""
        for patience in (0.1, 0.1, 10, 10):  # Two signals in quick succession may arrive as one; a fourth replaces it.
            running.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                _, err = running.communicate(timeout=patience)
                break
        running.kill()

    assert (3, "Error: interrupted; continue with `evaljournal resume runs/blocking/0001`") == (
        running.returncode,
        err.splitlines()[-1],
    )
    assert verify("runs/blocking/0001").ok


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("when", ["importing", "reading"])
def test_a_signal_before_the_start(directory: Path, number: signal.Signals, when: str) -> None:
    """A signal while the file is imported or the cases are read ends the command and leaves no files."""
    (directory / "evals/late.py").write_text(
        f"""
import sys, time
from runner import evaluation

def wait(when):
    if when == {when!r}:
        print("waiting", file=sys.stderr, flush=True)
        for _ in range(60_000):  # In pieces: a signal that comes just before a sleep begins does not end it.
            time.sleep(0.01)

class Cases(list):
    def __iter__(self):
        wait("reading")
        return super().__iter__()

wait("importing")

@evaluation(cases=Cases([1]))
async def late(number):
    return number
"""
    )
    with process("run", "evals/late.py") as running:
        assert running.stderr is not None
        assert "waiting\n" == running.stderr.readline()
        running.send_signal(number)
        out, err = running.communicate(timeout=30)

    assert (130, "", "Error: interrupted\n") == (running.returncode, out, err)
    assert not Path("runs").exists()


def test_a_signal_during_the_first_imports(tmp_path: Path) -> None:
    """Ctrl-C while the command line is imported ends the process without a traceback."""
    (tmp_path / "click.py").write_text("import signal; signal.raise_signal(signal.SIGINT); raise AssertionError")
    ended = subprocess.run(
        [sys.executable, "-c", "from runner.cli import main; main()"],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(tmp_path), "PATH": ""},
        timeout=30,
        check=False,
    )

    assert (128 + signal.SIGINT, "", "") == (ended.returncode, ended.stdout, ended.stderr)


@pytest.mark.parametrize("options", [["--plain"], []])
def test_no_live_screen_with_plain_or_in_ci(options: list[str]) -> None:
    """With --plain, or in CI, a terminal gets plain lines."""
    code, screen = at_a_terminal(
        "run", "evals/slow.py", *options, until=b"never", environment={} if options else {"CI": "true"}
    )

    assert (0, False, True) == (code, "\x1b" in screen, "slow finished: 40 of 40 trials done" in screen)


def test_status_of_a_finished_run() -> None:
    """`status` prints the final report of the run, or JSON with stable names."""
    ended = evaljournal("run", "evals/capitals.py").stdout
    words, answer = evaljournal("status"), orjson.loads(evaljournal("status", "--json").stdout)

    assert (0, "") == (words.exit_code, words.stderr)
    assert ended == words.stdout
    assert ("runs/capitals/0001", "finished", False, None) == (
        answer["path"],
        answer["status"],
        answer["is_live"],
        answer["problem"],
    )
    assert (5, 5) == (answer["trials"]["completed"], answer["attempts"]["started"])


def test_status_of_a_damaged_run() -> None:
    """A damaged run is shown up to the damage, with exit code 4, and not changed."""
    write_sync(Path("r"), complete_run())
    flip(segment(Path("r")), list(read("r"))[9].offset + 60)
    before = content(Path("r"))
    words, as_json = evaljournal("status", "r"), evaljournal("status", "r", "--json")
    answer = orjson.loads(as_json.stdout)

    assert (4, 4) == (words.exit_code, as_json.exit_code)
    assert "1 done of 2 so far" in words.stdout
    assert "shown up to the damage: r is damaged at record 10" in words.stderr
    assert ("damaged", 9, 1) == (answer["status"], answer["seq"], answer["trials"]["completed"])
    assert before == content(Path("r"))


def test_status_of_a_run_that_breaks_the_rules() -> None:
    """An intact journal with records about unknown trials exits with 4."""
    forge(Path("r"), [opened(), started(), session(), *trial("a")[1:]])
    result = evaljournal("status", "r")

    assert (4, True) == (result.exit_code, "record 4 has a correct hash but is invalid" in result.stderr)


def test_checking_a_lock_does_not_take_it(directory: Path) -> None:
    """The check creates no file and does not block the next writer."""
    assert not is_held(directory)
    assert not (directory / "LOCK").exists()

    lock = Lock(directory, DISK)
    assert is_held(directory)
    lock.release()
    assert not is_held(directory)
    Lock(directory, DISK).release()


def test_status_without_a_run() -> None:
    """A path that is not a run exits with 2."""
    assert (2, 2) == (evaljournal("status").exit_code, evaljournal("status", "nothing").exit_code)


def test_ls() -> None:
    """The runs are listed with evaluation, counts and outcome, in any status."""
    write_sync(Path("runs/capitals/0001"), complete_run())
    write_sync(Path("runs/capitals/0002"), complete_run()[:-1])
    write_sync(Path("runs/capitals/0003"), complete_run())
    flip(segment(Path("runs/capitals/0003")), list(read("runs/capitals/0003"))[9].offset + 60)
    forge(Path("runs/rivers"), [opened(version="7.0")])
    result = evaljournal("ls")
    answer = orjson.loads(evaljournal("ls", "--json").stdout)

    assert (0, "") == (result.exit_code, result.stderr)
    assert [
        "RUN                 EVALUATION  STARTED              OK  FAILED  TRIALS  SCORE          COST  TOOK   ENDED",
        "runs/capitals/0001  capitals    2026-11-15 00:00:00  2   0       2       exact 100.0 %  -     14 ms  finished",
        "runs/capitals/0002  capitals    2026-11-15 00:00:00  2   0       -       exact 100.0 %  -     14 ms  no final record",
        "runs/capitals/0003  capitals    2026-11-15 00:00:00  1   0       -       exact 100.0 %  -     9 ms   damaged",
    ] == result.stdout.splitlines()[:4]
    assert "unreadable" == answer[3]["status"]
    (variant,) = answer[1].pop("variants")
    assert ("", 2, 1.0) == (variant["variant"], variant["completed"], variant["scores"]["exact"]["mean"])
    assert answer[1] == {
        "path": "runs/capitals/0002",
        "evaluation": "capitals",
        "started_at": "2026-11-15T00:00:00.003000Z",
        "git": "",
        "shard": "",
        "completed": 2,
        "failed": 0,
        "trials": None,
        "elapsed": 0.014,
        "head": list(read("runs/capitals/0002"))[-1].h,
        "cost": None,
        "status": "interrupted",
        "outcome": "no final record",
    }


def test_status_reports_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an interrupted run, `status` reports a nearly full disk."""
    write_sync(Path("runs/capitals/0001"), complete_run()[:-1])
    with_space = evaljournal("status").stdout
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(100, 100, 1))
    full = evaljournal("status").stdout

    assert with_space + "its disk has 1 byte free, which may be the cause; free some space before you resume\n" == full


def test_ls_of_a_directory(directory: Path) -> None:
    """Another directory can be listed; a missing one exits with 2, and no runs are no error."""
    write_sync(directory / "archive/2026/capitals/0001", complete_run())

    assert str(directory / "archive/2026/capitals/0001") in evaljournal("ls", directory / "archive").stdout
    assert 2 == evaljournal("ls", "nowhere").exit_code
    assert (0, "", True) == ((result := evaljournal("ls")).exit_code, result.stdout, "no runs under runs/" in result.stderr)
