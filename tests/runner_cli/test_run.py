"""`run`: output, records, dry runs and exit codes."""

import re
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from evaljournal.journal import verify
from evaljournal.journal.events import AttemptFailed, AttemptStarted, AttemptSucceeded, RunStarted, TrialCompleted
from evaljournal.replay import load
from tests.journal.samples import complete_run, content, write_sync
from tests.runner_cli.commands import COMMAND, ONE_BY_ONE, QUICK, define, evaljournal, printed, rejected
from tests.runs import events

pytestmark = pytest.mark.usefixtures("evaluations")


def test_run_to_the_end() -> None:
    """A successful run exits with 0; progress and the user's prints are on standard error, the summary on standard output."""
    result = evaljournal("run", "evals/capitals.py")

    assert 0 == result.exit_code
    assert "capitals in runs/capitals/0001; Ctrl-C stops it" in result.stderr
    assert "asked about peru" in result.stderr
    assert result.stdout.startswith("capitals finished: 5 of 5 trials done, in runs/capitals/0001\n  exact ")
    assert "exact  100.0 %  5 of 5 passed" in result.stdout
    assert result.stdout.endswith("next: evaljournal report runs/capitals/0001 --open\n")
    assert verify("runs/capitals/0001").ok


def test_what_is_recorded_of_the_command_line() -> None:
    """The full reference, the settings and which of them were given are recorded."""
    evaljournal("run", "evals/capitals.py", *ONE_BY_ONE, "--timeout", "none", "--only", "c*", "--seed", 7)
    started_event = events("runs/capitals/0001", RunStarted)[0]

    assert "evals/capitals.py:capitals" == started_event.task
    overridden = {name: started_event.settings[name] for name in started_event.settings["overridden"]}
    assert {"slots": 1, "timeout": None, "only": ["c*"], "seed": 7, "policy": "fixed"} == overridden


def test_errors_end_with_1_and_follow_the_scores() -> None:
    """A run with errors exits with 1; after the scores come the errors and the command that retries them."""
    define("FAILS = 'cuba'" + QUICK)
    result = evaljournal("run", "evals/capitals.py")

    assert 1 == result.exit_code
    assert [
        "1 error:",
        "  cuba: ValueError: no such country (retries used up, 1 attempt)",
        "  retry: evaljournal resume runs/capitals/0001 --retry-failed",
    ] == result.stdout.splitlines()[2:5]
    assert result.stdout.endswith("next: evaljournal report runs/capitals/0001 --open\n")


def test_a_run_with_a_failed_scorer_does_not_pass() -> None:
    """A run with unscored outputs exits with 1."""
    define("FAILS = None" + QUICK.replace("return output ==", "return {}[output] =="))
    result = evaljournal("run", "evals/capitals.py")

    assert 1 == result.exit_code
    assert re.search(r"no score: 5 scorer errors \(KeyError: '[A-Z]+'\)", result.stdout)
    assert "score the outputs without a score: evaljournal rescore runs/capitals/0001" in result.stdout


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
        (["--limit", 2**63], "--limit 9223372036854775808: must be at most 9,223,372,036,854,775,807"),
        (["--seed", 2**63], "--seed 9223372036854775808: must be at most 9,223,372,036,854,775,807"),
        (["--seed", -(2**63)], "--seed -9223372036854775808: must be a whole number"),
        (["-s", f"retry.errors={2**63}"], "retry.errors = 9223372036854775808: must be at most"),
        (["--max-failures", 2**63], "--max-failures 9223372036854775808: must be a number of trials"),
        (["--workers", "processes:0"], "--workers processes:0: workers=0: must be a whole number, 1 or more"),
        (["--workers", "processes:2x0"], "--workers processes:2x0: concurrency=0: must be a whole number, 1 or more"),
        (["--workers", f"processes:{2**63}"], "workers=9223372036854775808: must be at most"),
        (["--skip", "x\udcff"], "must be strings that UTF-8 can encode"),
        (["--only", "x*"], "matches only=['x*']; names are, for example, 'peru', 'chile', 'cuba'"),
        (["-s", "grace=-1"], "grace = -1.0: must be a number of seconds, 0 or more"),
        (["-s", "retry.base-delay=0"], "retry.base-delay = 0.0: must be more than 0"),
        (["--fail-under", "exact"], "--fail-under exact: expected SCORER=NUMBER"),
        (["-s", "policy=greedy"], "'greedy' is not one of"),
        (["--workers", "process"], "--workers process: must be 'none', 'processes', "),
        (["--workers", "ray:127.0.0.1"], "--workers ray:127.0.0.1: address='127.0.0.1': must be HOST:PORT of a running"),
        (["--budget", "cost=0"], "--budget cost=0: must be a number above 0; k stands for thousands, M for millions"),
        (["--budget", "cost=1e308"], "--budget cost=1e308: must be at most 1,000,000,000,000"),
        (["--budget", "dollars=5"], "--budget dollars=5: unknown unit 'dollars'; use cost, input_tokens, output_tokens"),
        (["--budget", "output_token=5"], "--budget output_token=5: unknown unit 'output_token'; did you mean 'output_tokens'"),
        (["--budget", "5"], "--budget 5: expected UNIT=AMOUNT, such as cost=5"),
        (["--budget", "cost=1", "--budget", "cost=2"], "--budget cost=2: cost is set twice"),
        (["-s", "budget-per-trial=cost=-1"], "budget-per-trial = cost=-1: must be a number above 0"),
    ],
)
def test_wrong_options_start_nothing(options: list[object], message: str) -> None:
    """An invalid option exits with 2, names the flag and writes nothing."""
    assert message in rejected("run", "evals/capitals.py", *options)
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

    assert f"Error: {message}\n" == rejected("run", "evals/capitals.py")
    assert not Path("runs").exists()


def test_a_taken_path_is_rejected() -> None:
    """No run is started where a finished run or an unfinished one of another evaluation is."""
    write_sync(Path("half"), complete_run()[:-1])
    write_sync(Path("whole"), complete_run())
    before = content(Path("half")), content(Path("whole"))
    for options, message in (
        ("half", "Error: half was started with a different definition"),
        ("whole", "whole is a finished run and is never overwritten"),
        ("half --dry-run", "half is an unfinished run, which --dry-run cannot resume; pass another -o"),
    ):
        assert message in rejected("run", "evals/capitals.py", "-o", *options.split())
    assert before == (content(Path("half")), content(Path("whole")))


def test_an_unfinished_run_is_resumed_with_the_arguments() -> None:
    """`run -o` continues an unfinished run; settings that were passed before no longer apply."""
    define("FAILS = 'cuba'" + QUICK)
    command = ("run", "evals/capitals.py", *ONE_BY_ONE, "-o", "half")
    stopped, result = evaljournal(*command, "--fail-fast", "--timeout", 3), evaljournal(*command)

    assert (3, 1) == (stopped.exit_code, result.exit_code)
    assert result.stderr.startswith("half is an unfinished run; it is resumed with these arguments\n")
    assert ["peru", "chile", "cuba", "france", "japan"] == [event.trial for event in events("half", AttemptStarted)]
    assert 5 == load(Path("half")).state.settings["timeout"]


def test_fail_fast_ends_with_3() -> None:
    """A run that stops at a failure exits with 3 and prints the resume command."""
    define("FAILS = 'peru'" + QUICK)
    result = evaljournal("run", "evals/capitals.py", "--fail-fast", *ONE_BY_ONE, "--json")

    assert (3, "failed_fast") == (result.exit_code, orjson.loads(result.stdout)["stopped"])
    assert "capitals stopped (too many errors): 1 of 5 trials done" in result.stderr
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
        "  at least 12, at most 36 calls, plus retries after rate limits and outages",
        "  retries: 0 after errors, 2 after timeouts, 10 min on rate limits",
        "  at most 2 slots (adaptive), timeout none",
        "  scorers: exact",
        "  cost: unknown; no earlier run in runs/capitals",
    ] == result.stdout.splitlines()
    assert not Path("runs").exists()


def test_dry_run_after_a_run_without_usage() -> None:
    """The cost is unknown, and the reason is that no usage was recorded."""
    Path("qa.jsonl").write_text('{"question": "a?", "answer": "a"}\n')
    options = ["run", "--data", "qa.jsonl", "--command", "cat"]
    evaljournal(*options)

    assert "cost: unknown; none of the last 20 runs recorded usage" in evaljournal(*options, "--dry-run").stdout


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ("", "at most 8 slots (adaptive), "),
        ("--chat b", "at most 8 slots for each of 2 rate-limit keys (adaptive), "),
        ("-s limit-key=topic", "at most 8 slots for each topic (adaptive), "),
        (
            "--fail-under exact=0.9 --fail-under exact>=80%@lower",
            "gates: exact=0.9, exact>=80%@lower; exit code 1 if one does not",
        ),
        ("--fail-fast --max-failures 3", "stops at the first error; `evaljournal resume` continues"),
        ("--max-failures 3 --deadline 600", "stops after more than 3 errors, or after 10 min; "),
        ("--max-failures 7%", "stops when more than 7 % of the trials have an error; "),
    ],
)
def test_dry_run_prints_slots_gates_and_limits(options: str, line: str) -> None:
    """With several rate-limit keys, each has the slots; gates and limits are printed if they are set."""
    Path("qa.jsonl").write_text('{"question": "a?", "answer": "a", "topic": "b"}\n')
    chat = ["--chat", "a", "--base-url", "http://127.0.0.1:9", "--score", "exact", "--slots", 8]
    result = evaljournal("run", "--data", "qa.jsonl", *chat, *options.split(), "--dry-run")

    assert (0, True) == (result.exit_code, f"\n  {line}" in result.stdout), result.output


def test_dry_run_estimates_from_an_earlier_run() -> None:
    """The estimate is the mean usage per trial of an earlier run times the trials."""
    evaljournal("run", "evals/capitals.py", "--limit", 2)
    result = evaljournal("run", "evals/capitals.py", "--dry-run")
    answer = printed("run", "evals/capitals.py", "--dry-run")

    usage = "tokens 50 (150 with all retries), cost 2.5 (7.5 with all retries)"
    message = f"  expected in total: {usage}, based on runs/capitals/0001\n"
    assert result.stdout.endswith(message)
    assert {"min": 5, "max": 15} == answer["calls"]
    assert {"tokens": 150.0, "cost": 7.5} == answer["expected_usage_max"]
    assert ({"tokens": 50.0, "cost": 2.5}, 5) == (answer["expected_usage"], answer["trials"])
    assert "runs/capitals/0002" == answer["path"]


@pytest.mark.parametrize("dry_run", [[], ["--dry-run"]], ids=["run", "dry run"])
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["-s", "limit-key=topic"], "topic"),
        (["--chat", *" --chat ".join(map(str, range(1_001))).split()], "has 1,001 variants, more than 1,000"),
        (["--chat", "a", "--gateway"], "--gateway: only commands and functions call models through the gateway"),
        (["--workers", "scorers:processes"], "only scorers run in the workers, but no scorer is defined with workers=True"),
        (["--head-file", "no/head"], "the directory no of --head-file does not exist"),
        (["--export", "nat:qa.jsonl"], "qa.jsonl is not a directory"),
        (["-o", "runs"], "runs contains runs"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_dry_run_reports_the_usage_errors_of_a_run(flags: list[str], message: str, dry_run: list[str]) -> None:
    """Run and dry run end with the same error, and write nothing."""
    Path("qa.jsonl").write_text('{"question": "a?", "answer": "a"}\n')
    target = ["--base-url", "http://127.0.0.1:9"] if "--chat" in flags else ["--command", "cat"]

    assert message in rejected("run", "--data", "qa.jsonl", *target, *flags, *dry_run)
    assert not Path("runs").exists()


def test_dry_run_of_cases_that_can_be_read_only_once() -> None:
    """A dry run does not consume a generator, so its length is unknown."""
    define("FAILS = None" + QUICK.replace("cases=CASES", "cases=(case for case in CASES)"))

    text = evaljournal("run", "evals/capitals.py", "--dry-run").stdout
    assert "  unknown number of cases (they can only be read once), 1 trial each\n" in text
    assert "  at least 1, at most 3 calls for each trial, plus retries after rate limits and outages\n" in text
    limited = evaljournal("run", "evals/capitals.py", "--dry-run", "--limit", "2").stdout
    assert "  at most 2 cases (they can only be read once), 1 trial each\n" in limited
    assert "  at least 1, at most 6 calls, plus retries after rate limits and outages\n" in limited
    answer = printed("run", "evals/capitals.py", "--dry-run", "--limit", "2")
    assert (None, 2, 6) == (answer["trials"], answer["max_trials"], answer["calls"]["max"])
    in_workers = evaljournal("run", "evals/capitals.py", "--dry-run", "--workers", "processes:2").stdout
    assert "plus retries after rate limits, outages and ends of workers\n" in in_workers


@pytest.mark.parametrize("flags", [[], ["--dry-run"]])
def test_a_percentage_of_an_unknown_number_is_rejected(flags: list[object]) -> None:
    """A percentage of an unknown number of trials is rejected before the start."""
    define("FAILS = None" + QUICK.replace("cases=CASES", "cases=(case for case in CASES)"))

    error = rejected("run", "evals/capitals.py", "--max-failures", "7%", *flags)
    assert "--max-failures 7%: cannot be a fraction: the number" in error
    assert not Path("runs").exists()
    assert 0 == evaljournal("run", "evals/capitals.py", "--max-failures", "3", *flags).exit_code


def test_no_run_replaces_a_directory_of_runs() -> None:
    """A run is not started at runs/, in a directory of runs or inside a run."""
    evaljournal("run", "evals/capitals.py", "-o", "mine/first")
    before = content(Path())
    for path, message in (
        ("runs", "runs contains runs; pass a new directory in it: -o runs/NAME"),
        ("mine", "mine contains runs"),
        ("mine/first/second", "is inside the run"),
    ):
        assert message in rejected("run", "evals/capitals.py", "-o", path)
    assert before == content(Path())


MANY = """
from evaljournal import Case, evaluation


@evaluation(cases=[Case(name=f"c{number}", input=number) for number in range(600)])
def many(number):
    return number
"""
HUGE = """
from evaljournal import Case, evaluation

@evaluation(cases=[Case(name=f"t{number}", input=number) for number in range(3)])
async def huge(number: int) -> object:
    return ["x" * (1 << 20)] * 900 if number == 1 else number
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit the address space")
def test_an_output_that_does_not_fit_into_memory_fails_its_trial() -> None:
    """Its JSON would need more memory than the process may have: the trial fails, and the others are completed."""
    Path("huge.py").write_text(HUGE)
    command = ["sh", "-c", 'ulimit -v 1000000; exec "$@"', "sh", *COMMAND, "run", "huge.py", "-o", "run"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert 1 == done.returncode, done.stderr
    assert {"t0", "t2"} == {event.trial for event in events(Path("run"), AttemptSucceeded)}
    (failed,) = events(Path("run"), AttemptFailed)
    assert ("t1", "Unserializable", "fatal") == (failed.trial, failed.error, failed.category)
    assert "more than 268,435,456 bytes as JSON" in failed.message


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit the address space")
def test_threads_that_do_not_fit_into_memory_are_rejected() -> None:
    """A thread per slot needs address space for its stack; a run that would hang because of it is not started."""
    Path("many.py").write_text(MANY)
    command = ["sh", "-c", 'ulimit -s 8192; ulimit -v 500000; exec "$@"', "sh", *COMMAND, "run", "many.py", "-o", "run"]
    rejected_run, small_run = (
        subprocess.run([*command, "--slots", slots], capture_output=True, text=True, timeout=60, check=False)
        for slots in ("500", "4")
    )

    problem = r"--slots 500: 500 threads need 4,000 MiB .* leaves \d+ MiB; pass --slots \d+, or raise the limit\n"
    assert 2 == rejected_run.returncode
    assert re.search(problem, rejected_run.stderr), rejected_run.stderr
    assert 0 == small_run.returncode, small_run.stderr
