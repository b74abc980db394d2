"""Suites on the command line: discovery, options, exit codes, resume, views, gates and mistakes."""

import base64
import contextlib
import errno
import gzip
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import Result

from benchmarks._provider_server import serving
from benchmarks.simulated.providers import OpenAI, per_minute
from evaljournal.journal.events import AttemptStarted, RunStarted
from evaljournal.runner.cli.commands.run import run as run_command
from evaljournal.runner.cli.options.no_code import read_settings
from evaljournal.runner.cli.options.table import OPTIONS, is_setting, overrides
from evaljournal.runner.cli.options.values import command_values
from evaljournal.runner.cli.suites.discovery import command_line_settings, discover
from evaljournal.runner.cli.suites.views import suite_exit_code
from evaljournal.runner.errors import UsageError, unwrap_exception_groups
from evaljournal.runner.sessions.session import Session
from tests.journal.samples import lines_of, overwrite, segment
from tests.processes import wait_until
from tests.runner_cli.commands import (
    evaljournal,
    failing_writes,
    printed,
    process,
    rejected,
    run_in_terminal,
    run_process,
    wait_for,
)
from tests.runs import events

TASK = """
import os
import trio
from evaljournal import Case, evaluation, note

@evaluation(cases=[Case(name=f"c{{n}}", input=n, expected=n) for n in range({cases})], slots=2, policy="fixed", loop="trio")
async def {name}(number):
    with open("calls", "a") as file:
        file.write(f"{name} {{number}}\\n")
    note(cost=0.01)
    if os.environ.get("HOLD") == "{name}" and number >= 4:
        await trio.sleep_forever()
    if number in {fails}:
        raise AttributeError("no such thing")
    return number

@{name}.score
def exact(output, expected):
    return output == expected
"""
SUITE = Path("runs/evals/0001")


def define(name: str, cases: int = 6, fails: tuple[int, ...] = (), folder: str = "evals") -> None:
    """Write an evaluation."""
    Path(folder).mkdir(exist_ok=True)
    Path(folder, f"{name}.py").write_text(TASK.format(name=name, cases=cases, fails=list(fails)))


def define_toml(file: str) -> None:
    """Write a configuration file, and its dataset."""
    Path("qa.jsonl").write_text('{"id": "a", "input": "x", "made": "y", "expected": "y"}\n')
    Path(file).write_text('data = "qa.jsonl"\noutput-key = "made"\nscore = "exact"\n')


def calls() -> list[str]:
    """Return the calls of all tasks so far."""
    return sorted(Path("calls").read_text().splitlines())


def rows(result: Result) -> dict[str, list[str]]:
    """Return the lines of the summary table by evaluation, without the header."""
    lines = [re.split(r"  +", line) for line in result.stdout.splitlines() if "  " in line]
    return {line[0]: line[1:] for line in lines if line[0] != "EVALUATION"}


def all_calls(**counts: int) -> list[str]:
    """Return the calls that evaluations with these numbers of cases need."""
    return sorted(f"{name} {number}" for name, count in counts.items() for number in range(count))


@pytest.fixture(autouse=True)
def two_evaluations() -> None:
    """Write two evaluations to the working directory."""
    define("alpha")
    define("beta", cases=4)


def test_prices_apply_to_evaluations_without_code(tmp_path: Path) -> None:
    """`--prices` sets the table of each chat model in a configuration file; a suite without one rejects it."""
    define_toml("evals/recorded.toml")
    assert "--prices applies to chat models and judges of evaluations without code" in rejected(
        "run", "evals", "--prices", "prices.toml"
    )
    Path("evals/chat.toml").write_text(
        'data = "qa.jsonl"\nname = "chat"\nchat = "m"\nbase-url = "http://127.0.0.1:9/v1"\nprompt = "{input}"\n'
    )
    Path("prices.toml").write_text('[models."m"]\ninput = 1.0\noutput = 2.0\n')
    suite = discover(["evals"], {"prices": Path("prices.toml")})
    prices = {item.evaluation.name: getattr(item.evaluation.tasks[""], "prices", None) for item in suite.evaluations}

    assert {"alpha": None, "beta": None, "qa": None, "chat": Path("prices.toml")} == prices


def test_a_directory() -> None:
    """All evaluations of a directory run; files without one and other TOML files are skipped."""
    define_toml("evals/qa.toml")
    Path("evals/helper.py").write_text("ANSWER = 42\n")
    Path("evals/pyproject.toml").write_text('[project]\nname = "x"\n')
    Path("evals/__init__.py").write_text("")
    Path("evals/notes.txt").write_text("")

    result = evaljournal("run", "evals/")

    assert 0 == result.exit_code, result.output
    assert {
        "alpha": ["6 of 6", "0", "exact 100.0 %", "$0.0600", "finished"],
        "beta": ["4 of 4", "0", "exact 100.0 %", "$0.0400", "finished"],
        "qa": ["1 of 1", "0", "exact 100.0 %", "-", "finished"],
    } == rows(result)
    assert result.stdout.endswith("next: evaljournal report runs/evals/0001 --open\n")
    assert ["alpha", "beta", "qa", "suite.json"] == sorted(path.name for path in SUITE.iterdir())
    suite = orjson.loads(Path(SUITE, "suite.json").read_bytes())
    definition = orjson.loads(suite["evaluations"][2].pop("reference"))
    assert ("evals/qa.toml", {"path", "file"}) == (definition["path"], definition.keys())
    assert {
        "format": "evaljournal-suite",
        "version": 1,
        "name": "evals",
        "settings": {},
        "evaluations": [
            {"name": "alpha", "reference": "evals/alpha.py:alpha", "run": "alpha"},
            {"name": "beta", "reference": "evals/beta.py:beta", "run": "beta"},
            {"name": "qa", "run": "qa"},
        ],
    } == suite
    assert 0 == evaljournal("run", "evals").exit_code
    assert ["0001", "0002"] == sorted(path.name for path in Path("runs/evals").iterdir())


def test_references() -> None:
    """Several references, in files with several evaluations or by name, are a suite."""
    Path("both.py").write_text(TASK.format(name="gamma", cases=1, fails=[]) + TASK.format(name="delta", cases=1, fails=[]))

    result = evaljournal("run", "evals/alpha.py:alpha", "both.py", "--limit", "1", "-o", "here/suite")

    assert (0, ["alpha", "gamma", "delta"]) == (result.exit_code, list(rows(result)))
    assert Path("here/suite/suite.json").exists()
    assert 2 == evaljournal("run", "evals/alpha.py", "both.py", "-o", "here/suite").exit_code
    assert 0 == evaljournal("run", "evals/alpha.py", "evals/beta.py", "--name", "some").exit_code
    assert Path("runs/some/0001/suite.json").exists()


def test_a_suite_file() -> None:
    """A TOML file names the evaluations and settings of a suite; options on the command line take precedence."""
    Path("nightly.toml").write_text(
        'suite = ["evals/beta.py", "evals/alpha.py"]\nslots = 7\nlimit = 2\nfail-under = ["exact=0.5"]\n'
    )

    result = evaljournal("run", "nightly.toml", "--limit", "3")

    assert (0, ["beta", "alpha"]) == (result.exit_code, list(rows(result))), result.output
    path = Path("runs/nightly/0001")
    assert {"slots": "7", "limit": "3", "fail-under": ["exact=0.5"]} == {
        key: value if isinstance(value, list) else str(value)
        for key, value in orjson.loads((path / "suite.json").read_bytes())["settings"].items()
    }
    assert [("3", "7")] * 2 == [
        (str(event.trials), str(event.settings["slots"]))
        for name in ("alpha", "beta")
        for event in events(path / name, RunStarted)
    ]


def test_one_configuration_file() -> None:
    """A configuration file without the key `suite` is one evaluation."""
    define_toml("qa.toml")

    assert 0 == evaljournal("run", "qa.toml").exit_code
    assert Path("runs/qa/0001/journal-000001.jsonl").exists()
    assert "both define the evaluation" in rejected("run", "qa.toml", "--chat", "gpt-5.6-luna")


@pytest.mark.parametrize(
    ("files", "arguments", "message"),
    [
        ({"evals/broken.py": "import no_such_module\n"}, "evals", r"evals/broken\.py cannot be imported"),
        ({"evals/broken.py": "raise SystemExit(3)\n"}, "evals", r"evals/broken\.py cannot be imported"),
        ({"evals/broken.toml": "data = \n"}, "evals", r"evals/broken\.toml: not valid TOML"),
        ({"evals/broken.toml": 'data = "none.jsonl"\noutput-key = "x"\n'}, "evals", r"none\.jsonl"),
        (
            {"evals/copy.py": TASK.format(name="alpha", cases=1, fails=[])},
            "evals",
            r"two evaluations are named 'alpha': .*alpha\.py:alpha and .*copy\.py:alpha",
        ),
        ({"empty/notes.txt": ""}, "empty", r"empty has no evaluation: no \*\.py file defines one"),
        ({"empty/x.py": ""}, "empty/x.py evals", r"empty/x\.py defines no evaluation"),
        ({}, "evals none.py", r"none\.py does not exist"),
        ({"s.toml": "suite = []\n"}, "s.toml", r"s\.toml: write suite as a list"),
        ({"s.toml": "suite = 3\n"}, "s.toml", r"s\.toml: write suite as a list"),
        ({"s.toml": 'suite = ["evals"]\nslot = 3\n'}, "s.toml", r"s\.toml, line 2: unknown key 'slot'; did you mean 'slots'"),
        ({"s.toml": 'suite = ["evals"]\nchat = "x"\n'}, "s.toml", r"s\.toml, line 2: unknown key 'chat'"),
        ({"s.toml": 'suite = ["evals"]\nslots = "many"\n'}, "s.toml", r"s\.toml, line 2: slots = 'many'"),
        ({"s.toml": 'suite = ["evals"]\n'}, "evals s.toml", r"s\.toml: is a suite, which another suite cannot contain"),
        ({}, "evals --data x.jsonl", r"--data defines one evaluation, not a suite"),
        ({}, "evals --config x.toml", r"--config|x\.toml"),
        ({}, "evals --shard 1/2", r"--shard applies to a single run, not a suite"),
        ({}, "evals --head-file h", r"--head-file applies to a single run"),
        ({}, "evals --export nat:d", r"--export applies to a single run"),
        ({}, "evals --fail-under other=0.5", r"other"),
        ({}, "evals --slots 0", r"--slots 0: "),
        ({"used/x": ""}, "evals -o used", r"used exists; pass another -o"),
    ],
)
def test_mistakes(files: dict[str, str], arguments: str, message: str) -> None:
    """A mistake is a usage error before anything starts: nothing is written, and no task is called."""
    for name, text in files.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)

    error = rejected("run", *arguments.split())

    assert re.search(message, error), error
    assert "Traceback" not in error or "broken.py" in error
    assert (False, False) == (Path("runs").exists(), Path("calls").exists())


def test_mistakes_of_several_runs() -> None:
    """Of runs that are rejected at the same moment, the first is named."""
    errors = [UsageError("first"), ExceptionGroup("", [UsageError("second")])]
    with pytest.raises(UsageError, match=r"^first$"), unwrap_exception_groups():
        raise ExceptionGroup("", [ExceptionGroup("", errors)])
    with pytest.raises(ExceptionGroup), unwrap_exception_groups():
        raise ExceptionGroup("", [*errors, OSError()])


def test_settings_survive_the_file() -> None:
    """Every setting on the command line is the same after it was written to suite.json and read again."""
    examples: dict[str, Any] = {"N": "3", "S": "2.5", "T": "0.5"}
    special = {
        "--max-failures": "5%",
        "--budget": "cost=5",
        "-s budget-per-trial": "cost=1",
        "--workers": "processes:2",
        "--fail-under": "exact=0.5",
    }
    words: list[str] = []
    for option in OPTIONS:
        if is_setting(option, experiment=True):
            choices = getattr(option.type, "choices", None)
            value = special.get(option.label) or (choices[0] if choices else examples.get(str(option.metavar), "7"))
            if option.flag:
                words += [option.flag] if option.metavar is None else [option.flag, value]
            else:
                words += ["-s", f"{option.key}={'true' if option.metavar is None else value}"]
    values = command_values(run_command.make_context("run", ["evals", *words]).params)

    table = orjson.loads(orjson.dumps(command_line_settings(values)))

    assert len(table) > 30
    assert overrides(values) == read_settings(table, Path("suite.json"))


def test_exit_codes() -> None:
    """The exit code of a suite is the first of 70, 4, 2, 3, 1, 5 and 0 that occurs."""
    order = [70, 4, 2, 3, 1, 5, 0]

    assert order == [suite_exit_code(order[number:][::-1]) for number in range(len(order))]
    assert 0 == suite_exit_code([])


def test_errors_and_retries() -> None:
    """A suite with errors ends with 1 and names what did not pass; only these trials are retried."""
    define("beta", cases=4, fails=(2,))
    first = evaljournal("run", "evals", "--fail-under", "exact=0.5")
    define("beta", cases=4)

    again = evaljournal("resume")
    retried = evaljournal("resume", "--retry-failed", "--adopt")

    assert (1, 1, 0) == (first.exit_code, again.exit_code, retried.exit_code), retried.output
    assert "beta: 1 trial with an error" in first.stdout
    assert first.stdout.endswith("next: evaljournal resume runs/evals/0001 --retry-failed\n")
    assert "nothing to resume" in again.stderr
    assert sorted([*all_calls(alpha=6, beta=4), "beta 2"]) == calls()


def test_gates_on_reviews() -> None:
    """A suite with a gate on the reviews of its runs is undecided until they have labels; then it passes."""
    for name in ("alpha", "beta"):
        define(name, cases=30)
    first = evaljournal("run", "evals", "--fail-under", "corrected:exact>=0.8@lower")
    for name in ("alpha", "beta"):
        run = SUITE / name
        sample = printed("review", run, "--sample", "30", "--list")
        rows = "".join(f"{trial['trial']},yes\n" for trial in sample["trials"])
        Path("labels.csv").write_text(f"trial,exact\n{rows}")
        evaljournal("annotate", run, "--import", "labels.csv")

    again = evaljournal("resume", SUITE)

    assert (5, 0) == (first.exit_code, again.exit_code), again.output
    assert "there are no labels of exact yet" in first.stdout


def test_an_unstarted_run_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """`resume` starts the runs that have no record with the settings of the suite; finished ones are neither run nor loaded."""
    assert 0 == evaljournal("run", "evals", "--limit", "3").exit_code
    content = Path(SUITE, "suite.json").read_bytes()
    shutil.rmtree(SUITE / "beta")
    Path("evals/alpha.py").write_text("raise RuntimeError\n")

    result = evaljournal("resume", "evals", "--slots", "5")

    assert (0, "3 of 3") == (result.exit_code, rows(result)["beta"][0]), result.output
    assert sorted([*all_calls(alpha=3, beta=3), *all_calls(beta=3)]) == calls()
    assert content == Path(SUITE, "suite.json").read_bytes()
    assert [(5, 3)] == [(event.settings["slots"], event.trials) for event in events(SUITE / "beta", RunStarted)]


def test_evaluations_that_changed_or_were_removed() -> None:
    """`resume` suggests the suite for a changed evaluation, and for a removed one how to resume the others."""
    for name in ("alpha", "beta"):
        define(name, cases=20)
    assert 3 == evaljournal("run", "evals", "--budget", "cost=0.08").exit_code
    define("beta", cases=19)
    changed = evaljournal("resume", SUITE, "--budget", "cost=1")
    Path("evals/beta.py").unlink()
    removed = evaljournal("resume", SUITE, "--budget", "cost=1")

    assert (2, True) == (changed.exit_code, f"`evaljournal resume {SUITE} --adopt`" in changed.output), changed.output
    assert (2, True) == (removed.exit_code, "evals/beta.py" in removed.stderr), removed.output
    hint = f"{SUITE}/beta --task REFERENCE`; to resume the others without it: `evaljournal resume {SUITE}/alpha`\n"
    assert removed.stderr.endswith(hint)
    assert 0 == evaljournal("resume", SUITE / "alpha", "--budget", "cost=1").exit_code


def test_a_module_that_two_evaluations_import() -> None:
    """An evaluation depends on the same files whether another one has imported them before or not."""
    define("beta", cases=20)
    Path("evals/prompt.txt").write_text("hello")
    Path("evals/common.py").write_text(
        'from pathlib import Path\nPROMPT = Path(__file__).with_name("prompt.txt").read_text()\n'
    )
    for name in ("alpha", "beta"):
        file = Path(f"evals/{name}.py")
        file.write_text(f"from common import PROMPT\n{file.read_text()}")
    assert 3 == run_process("run", "evals", "--budget", "cost=0.07")[0]

    alone = run_process("resume", SUITE / "beta", "--budget", "cost=0.1")  # It imports `common` for beta only.
    Path("evals/prompt.txt").write_text("changed")
    changed = run_process("resume", SUITE / "beta", "--budget", "cost=1")

    assert 3 == alone[0], alone
    assert (2, True) == (changed[0], "prompt.txt has changed" in changed[2]), changed


def test_the_budget_is_shared() -> None:
    """The budget is that of all evaluations together; a larger one continues all of them, and `verify` recomputes it."""
    stopped = evaljournal("run", "evals", "--budget", "cost=0.06")
    again = evaljournal("resume")

    assert (3, 3) == (stopped.exit_code, again.exit_code)
    assert len(calls()) == 6
    assert "cost $0.0600 · budget: cost $0.0600 of $0.0600" in again.stdout
    (command,) = re.findall(r"^next: evaljournal (.*)$", stopped.stdout, re.MULTILINE)
    assert 0 == evaljournal(*command.split()).exit_code, command
    assert 0 == evaljournal("verify").exit_code
    assert all_calls(alpha=6, beta=4) == calls()


def test_a_run_of_a_suite_alone() -> None:
    """A run that is resumed alone counts what the other runs of its suite have spent."""
    define("alpha", cases=9)
    assert 3 == evaljournal("run", "evals", "--budget", "cost=0.06").exit_code

    assert 3 == evaljournal("resume", SUITE / "alpha").exit_code
    assert 0 == evaljournal("resume", SUITE / "alpha", "--budget", "cost=0.5").exit_code
    starts = [event.other_runs["cost"] for event in events(SUITE / "alpha", AttemptStarted)]
    assert starts[-1] == round(0.01 * sum(call.startswith("beta") for call in calls()), 9)


@pytest.mark.parametrize(
    ("content", "code", "message"),
    [
        ("", 4, "is not JSON"),
        ("[]", 4, "is not the file of a suite"),
        ('{"format": "evaljournal-suite", "version": 2}', 2, "has version 2 of the format"),
        ('{"format": "evaljournal-suite", "version": 1}', 4, "has no name, no settings or no evaluations"),
        ("RUN:../alpha", 4, "has an invalid evaluation"),
        ("RUN:..", 4, "has an invalid evaluation"),
        ("RUN:/tmp/x", 4, "has an invalid evaluation"),
        ("RUN:beta", 4, "two evaluations with the same name or the same run"),
    ],
)
@pytest.mark.parametrize("command", ["resume", "status", "verify", "watch"])
def test_a_damaged_suite_file(command: str, content: str, code: int, message: str) -> None:
    """A file that is damaged, of another version or points out of the suite is an error, never a traceback."""
    assert 0 == evaljournal("run", "evals", "--limit", "1").exit_code
    file = SUITE / "suite.json"
    text = file.read_text().replace('"run": "alpha"', f'"run": "{content.removeprefix("RUN:")}"')
    file.write_text(text if content.startswith("RUN:") else content)

    result = evaljournal(command, SUITE)

    assert (code, True) == (result.exit_code, message in result.stderr), result.output
    assert "Traceback" not in result.output


def test_a_foreign_suite() -> None:
    """A reference that another user or machine has written is not loaded without --trust."""
    assert 0 == evaljournal("run", "evals", "--limit", "1").exit_code
    shutil.rmtree(SUITE / "beta")
    file = SUITE / "suite.json"
    file.write_text(file.read_text().replace("evals/beta.py:beta", "other.py:beta"))
    Path("other.py").write_text("open('loaded', 'w').close()\n" + TASK.format(name="beta", cases=1, fails=[]))

    error = rejected("resume", SUITE)

    assert "was not started by you on this machine, and names other.py:beta; pass --trust" in error
    assert not Path("loaded").exists()
    assert 0 == evaljournal("resume", SUITE, "--trust").exit_code


def test_the_file_that_was_read_decides_whose_a_suite_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A foreign file that is replaced by the user's own after it was read is still foreign, and its settings are shown."""
    assert 0 == evaljournal("run", "evals", "--limit", "1").exit_code
    shutil.rmtree(SUITE / "beta")
    file = SUITE / "suite.json"
    content = file.read_text()
    file.write_text(content.replace("evals/beta.py:beta", "other.py:beta"))
    Path("other.py").write_text("open('loaded', 'w').close()\n" + TASK.format(name="beta", cases=1, fails=[]))

    def replace(_: Path) -> bool:
        file.write_text(content)
        return False

    monkeypatch.setattr("evaljournal.runner.cli.suites.command.is_held", replace)
    error = rejected("resume", SUITE)

    assert "and names other.py:beta; pass --trust\nThese recorded settings would replace" in error
    assert error.endswith("\n  limit: 1\n")
    assert not Path("loaded").exists()


def test_a_run_that_appears_after_the_suite_was_read_is_not_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unstarted run whose journal another process creates meanwhile is an error: nothing of that journal was checked."""
    assert 0 == evaljournal("run", "evals", "--limit", "1").exit_code
    overwrite(segment(SUITE / "beta"), b"".join(lines_of(SUITE / "beta")[:3]))
    (SUITE / "beta").rename("beta")
    calls_before = calls()

    def appear(*arguments: Any) -> dict[str, Any]:
        if Path("beta").exists():
            Path("beta").rename(SUITE / "beta")
        return read_settings(*arguments)

    monkeypatch.setattr("evaljournal.runner.cli.suites.command.read_settings", appear)
    result = evaljournal("resume", SUITE)

    assert "beta was changed after it was read" in result.output
    assert (2, calls_before) == (result.exit_code, calls()), result.output


def test_views() -> None:
    """`status`, `watch`, `verify` and `ls` of a suite show all of its runs, also as JSON; the newest suite is the default."""
    define("beta", cases=4, fails=(1,))
    assert 1 == evaljournal("run", "evals").exit_code
    shutil.rmtree(SUITE / "alpha")

    status, watched, verified = (printed(name) for name in ("status", "watch", "verify"))

    names = [("alpha", "not started", 3), ("beta", "finished", 1)]
    for view in (status, watched):
        assert names == [(item["name"], item["status"], item["exit_code"]) for item in view["evaluations"]]
        assert ("evaljournal resume runs/evals/0001", 3) == (view["next_command"], view["exit_code"])
    assert (True, [str(SUITE / "beta")]) == (verified["ok"], [item["path"] for item in verified["runs"]])
    assert [str(SUITE / "alpha")] == verified["unstarted_runs"]
    assert "runs/evals/0001/alpha: no journal" in evaljournal("verify").stderr
    assert [str(SUITE / "beta")] == [item["path"] for item in printed("ls", SUITE)]
    assert ["not started", "finished"] == [cells[-1] for cells in rows(evaljournal("status", "evals")).values()]
    assert (0, 3) == (evaljournal("status").exit_code, evaljournal("watch").exit_code)
    assert (2, 2) == (evaljournal("status", "--by", "x").exit_code, evaljournal("verify", "--expect-head", "x").exit_code)


def test_a_damaged_run() -> None:
    """The other runs of a suite are shown and resumed; the exit code is 4."""
    assert 0 == evaljournal("run", "evals").exit_code
    shutil.rmtree(SUITE / "beta")
    journal = SUITE / "alpha/journal-000001.jsonl"
    journal.write_bytes(journal.read_bytes().replace(b'"c3"', b'"c9"'))

    codes = [evaljournal(name).exit_code for name in ("status", "verify", "resume", "watch")]

    assert [4, 4, 4, 4] == codes
    assert rows(evaljournal("status"))["beta"][-1] == "finished"


def test_a_report() -> None:
    """The page of a suite links the reports of its runs, finished or not, which are written next to it."""
    assert 3 == evaljournal("run", "evals", "--budget", "cost=0.06").exit_code
    Path("out").mkdir()
    Path("out/0001-beta.html").write_text("mine")

    kept = evaljournal("report", "-o", "out/index.html")
    written = evaljournal("report", "-o", "out/index.html", "--force")

    assert (2, 0) == (kept.exit_code, written.exit_code), written.output
    assert ["0001-alpha.html", "0001-beta.html", "index.html"] == sorted(path.name for path in Path("out").iterdir())
    match = re.search(r'id="data">([^<]*)<', Path("out/index.html").read_text())
    assert match is not None
    data = orjson.loads(gzip.decompress(base64.b64decode(match[1])))
    assert [[str(SUITE / name), f"0001-{name}.html"] for name in ("alpha", "beta")] == data["links"]


def test_a_gate() -> None:
    """Evaluations are paired by name: a new one is listed, a missing one fails, and each has a verdict with a reason."""
    for name in ("alpha", "beta"):
        define(name, cases=120)
    assert 2 == evaljournal("gate", "--suite", "--baseline", "newest").exit_code
    assert 0 == evaljournal("run", "evals").exit_code
    alone = evaljournal("gate", "--suite", "--baseline", "newest")
    assert 0 == evaljournal("run", "evals").exit_code
    same = evaljournal("gate", "--suite", "--baseline", "newest", "--json")
    define("gamma")
    file = Path("evals/alpha.py")
    file.write_text(file.read_text().replace("return number\n", "return -1\n"))
    assert 0 == evaljournal("run", "evals/alpha.py", "evals/gamma.py", "--name", "evals").exit_code
    worse = evaljournal("gate", "--suite", "--baseline", "newest")

    assert (2, 0, 1) == (alone.exit_code, same.exit_code, worse.exit_code), same.output
    assert ["passed", "passed"] == [item["verdict"] for item in orjson.loads(same.stdout)["evaluations"]]
    verdicts = {name: cells for name, cells in rows(worse).items() if name in {"alpha", "beta", "gamma"}}
    assert {"alpha": "regressed", "beta": "missing", "gamma": "new"} == {name: cells[0] for name, cells in verdicts.items()}
    assert verdicts["alpha"][1].startswith("exact 100.0 % → 0.0 %: -100.0 points")
    assert "runs/evals/0002" in worse.stdout
    assert 0 == evaljournal("run", "evals/gamma.py", "evals/beta.py", "--name", "evals").exit_code
    missing = evaljournal("gate", "--suite", "--baseline", "runs/evals/0002")
    assert (1, "failed: alpha is missing") == (missing.exit_code, missing.stdout.splitlines()[-1])
    assert 2 == evaljournal("gate", "runs/evals/0003", "--suite", "--baseline", "runs/evals/0003").exit_code


def test_commands_that_take_a_run() -> None:
    """A suite, its name or none if it is the newest is an error that names its runs, not one of them; nothing is written."""
    for command in ("run evals --limit 1", "run evals/alpha.py --limit 1"):
        assert 0 == evaljournal(*command.split()).exit_code
    message = f"{SUITE} is a suite; pass one of its runs: {SUITE}/alpha, {SUITE}/beta"
    commands = (
        "show {}", "show {} c0", "log {}", "replay {}", "export {}", "rescore {}", "compare {}",
        "compare alpha {}", "report {} alpha -o new", "report alpha {} -o new", "export alpha --format markdown --baseline {}",
        "fork {} -o new", "salvage {} -o new", "gate {} --baseline alpha", "gate alpha --baseline {}",
        "gate {}@x --baseline alpha",
    )  # fmt: skip
    for command in commands:
        for suite in (SUITE, "evals"):
            hint = "; or compare two suites with --suite" if command.startswith("gate") else ""
            assert f"Error: {message}{hint}\n" == rejected(*command.format(suite).split()), command
    assert 0 == evaljournal("show").exit_code  # The run of alpha alone is the newest.
    shutil.rmtree("runs/alpha")
    for command in (
        "show",
        "show c0",
        "log",
        "replay",
        "export",
        "rescore",
        "compare",
        "gate --baseline alpha",
    ):
        assert message in rejected(*command.split()), command
    assert not Path("new").exists()
    for path in (SUITE / "alpha", SUITE / "beta"):
        shutil.rmtree(path)
    assert f"{SUITE} is a suite; none of its runs has started\n" in evaljournal("show").stderr


def test_a_dry_run() -> None:
    """A dry run prints what each evaluation would do, and starts nothing."""
    result = evaljournal("run", "evals", "--dry-run", "--budget", "cost=5")

    assert 0 == result.exit_code
    assert ["6 cases", "4 cases"] == re.findall(r"\d+ cases", result.stdout)
    assert (False, False) == (Path("runs").exists(), Path("calls").exists())


def test_ctrl_c() -> None:
    """Ctrl-C stops all runs, and prints how to resume them; then only what was in flight is called again."""
    environment = {"HOLD": "alpha"}
    code, screen = run_in_terminal("run", "evals", until=b"4 of 6", environment=environment)

    assert (3, True) == (code, "next: evaljournal resume runs/evals/0001" in screen), screen
    assert 0 == evaljournal("resume").exit_code
    assert sorted([*all_calls(alpha=6, beta=4), "alpha 4", "alpha 5"]) == calls()


def test_a_running_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    """A suite that is running is shown as such, and cannot be resumed by another process; a second signal ends it at once."""
    monkeypatch.setenv("HOLD", "alpha")
    with process("run", "evals", "-s", "grace=60") as running:
        wait_for(SUITE / "alpha", "attempt_started", 6)
        assert wait_until(lambda: printed("status", SUITE)["evaluations"][1]["status"] == "finished")
        status, resumed = evaljournal("status"), rejected("resume")
        running.send_signal(signal.SIGINT)
        out = ""
        for patience in (5, None):  # Two signals in quick succession may arrive as one; a third replaces it.
            running.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                out, _ = running.communicate(timeout=patience)
                break

    assert status.stdout.startswith("evals running: 8 of 10 trials done")
    assert "runs/evals/0001 is running; `evaljournal watch" in resumed
    assert (3, True) == (running.returncode, "interrupted" in out)


@pytest.mark.parametrize("names", [["one", "two", "three"], pytest.param(["one"], marks=pytest.mark.exhaustive)])
def test_rate_limits_are_shared(monkeypatch: pytest.MonkeyPatch, names: list[str]) -> None:
    """Evaluations with one key follow one limit: no call is rejected, whether one or three evaluations make them."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    Path("chats").mkdir()
    with serving(lambda: OpenAI(limits=per_minute(requests=50), median=0.05)) as served:
        for name in names:
            cases = range(45 // len(names))
            Path(f"{name}.jsonl").write_text("".join(f'{{"id": "{n}", "input": "question {n}"}}\n' for n in cases))
            Path(f"chats/{name}.toml").write_text(f'data = "{name}.jsonl"\nchat = "gpt"\nbase-url = "{served.root}/v1"\n')
        result = evaljournal("run", "chats", "--slots", "8")

    assert 0 == result.exit_code, result.output
    [server] = served.servers.values()
    assert (45, 0) == (server.accepted, server.rejected)
    assert 0 == evaljournal("verify").exit_code


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("first", [2, 4, 8])
def test_a_disk_that_fails(error: int, first: int) -> None:
    """The suite ends with a message, not with a traceback; when the disk works again, the same suite can be finished."""
    with failing_writes(error, first):
        failed = evaljournal("run", "evals", "--slots", "1")

    assert failed.exit_code in {2, 3}, failed.output  # 2: a run could not be created.
    assert "Traceback" not in failed.output
    assert "next: evaljournal resume runs/evals/0001" in failed.stdout
    assert 0 == evaljournal("resume").exit_code
    assert 0 == evaljournal("verify").exit_code


def test_a_bug_in_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unexpected exception ends one run with exit code 70; the others finish."""
    record_end = Session._record_end

    def fail(self: Session, *arguments: Any) -> Any:
        if self.evaluation.name == "beta":
            raise ZeroDivisionError("a bug")
        return record_end(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Session, "_record_end", fail)
        result = evaljournal("run", "evals")

    assert (70, True) == (result.exit_code, "This is a bug in evaljournal; the journals are safe" in result.stderr)
    assert "finished" == rows(result)["alpha"][-1]
    assert 0 == evaljournal("resume").exit_code


def test_interrupted_while_it_is_prepared() -> None:
    """Ctrl-C before all evaluations are prepared ends the command; nothing is written, and no task is called."""
    file = Path("evals/beta.py")
    cases = (
        "def cases():\n    import time\n    open('preparing', 'w').close()\n    time.sleep(600)\n    yield Case(input=1)\n\n"
    )
    source = re.sub(r"cases=\[.*?\], slots", "cases=cases, slots", file.read_text())
    file.write_text(source.replace("@evaluation", f"{cases}@evaluation", 1))

    with process("run", "evals") as preparing:
        assert wait_until(Path("preparing").exists)
        preparing.send_signal(signal.SIGINT)
        _, err = preparing.communicate()

    assert (130, "Error: interrupted\n") == (preparing.returncode, err)
    assert (False, False) == (Path("runs").exists(), Path("calls").exists())


def test_a_budget_of_one_evaluation() -> None:
    """Without a budget of the suite, an evaluation is stopped by its own, which the next command raises."""
    file = Path("evals/beta.py")
    file.write_text(file.read_text().replace("slots=2", "slots=1, budget={'cost': 0.02}"))
    stopped = evaljournal("run", "evals")

    (command,) = re.findall(r"^next: evaljournal (.*)$", stopped.stdout, re.MULTILINE)
    assert (3, True) == (stopped.exit_code, command.startswith(f"resume {SUITE / 'beta'} --budget cost=")), stopped.output
    assert 0 == evaljournal(*command.split()).exit_code
    assert 0 == evaljournal("resume").exit_code
    assert all_calls(alpha=6, beta=4) == calls()
    assert {None} == {event.other_runs for event in events(SUITE / "beta", AttemptStarted)}
