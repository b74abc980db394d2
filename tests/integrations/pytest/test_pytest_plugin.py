"""Evaluations as tests of pytest: what is collected, which run is used, and what the tests report."""

import textwrap
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

import pytest

import evaljournal.integrations.pytest.plugin  # noqa: F401  # pytester would unload it after each session, and import it again
from evaljournal import load
from evaljournal.runner.errors import RunFailed
from tests.runner_cli.commands import COMMAND

pytest_plugins = ["pytester"]

AUTOLOAD = "PYTEST_DISABLE_PLUGIN_AUTOLOAD"
PLUGINS = ("-p", "evaljournal.pytest_plugin", "-p", "xdist")
"""The only plug-ins: others that are installed take seconds to import."""
QA = """
    import pytest
    from evaljournal import Case, Retry, evaluation

    CASES = [Case(name=name, input=name, expected=name.upper()) for name in ("peru", "chad", "mali", "iran")]

    @pytest.mark.smoke
    @evaluation(
        cases=CASES,
        variants={"mini": {"size": 1}, "max": {"size": 2}},
        repeats=2,
        fail_under=["exact=0.5", "exact=0.9"],
        retry=Retry(errors=0),
    )
    def qa(name, size):
        with open("calls", "a") as file:
            file.write(f"{name}@{size}\\n")
        if name == "iran" and size == 2:
            raise ConnectionError("no route")
        return "\\x1b[31m" if name == "mali" else name.upper()

    @qa.score
    def exact(output, expected):
        return output == expected

    def test_plain():
        assert qa("peru", size=1) == "PERU"
"""
SMALL = """
    from evaljournal import evaluation

    @evaluation(cases=["a", "b", "c"])
    def small(text):
        with open("calls", "a") as file:
            file.write(f"{text}\\n")
        return text
"""
TRIALS = [f"{case}@{variant}" for case in ("peru", "chad", "mali", "iran") for variant in ("mini", "mini#2", "max", "max#2")]


class Project:
    """A project with tests, and sessions of pytest in it."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        self.path = pytester.path
        self.write("pytest.ini", "[pytest]\nmarkers = smoke\n")

    def write(self, name: str, text: str) -> None:
        (self.path / name).write_text(textwrap.dedent(text))

    def run(self, *options: str, evals: str = "--evals") -> pytest.RunResult:
        """Run pytest."""
        return self.pytester.runpytest_inprocess(*PLUGINS, *filter(None, [evals]), *options)

    def calls(self) -> dict[str, int]:
        """Return how often each input was called since the last call of this method."""
        file = self.path / "calls"
        calls = Counter(file.read_text().split()) if file.exists() else Counter[str]()
        file.unlink(missing_ok=True)
        return dict(calls)

    def runs(self, name: str) -> list[str]:
        """Return the status of each run of an evaluation."""
        return [load(path).status for path in sorted((self.path / "runs" / name).iterdir())]


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    """An empty project."""
    monkeypatch.setenv(AUTOLOAD, "1")
    return Project(pytester)


def test_without_the_option_nothing_is_collected(project: Project) -> None:
    """Without `--evals`, evaluations are no tests, not even one whose name starts with `test`."""
    project.write("test_qa.py", QA + "\n    test_alias = qa\n")
    result = project.run(evals="")

    assert {"passed": 1} == result.parseoutcomes()


def test_the_ini_file_turns_it_on(project: Project) -> None:
    """`evaljournal = true` has the effect of `--evals`."""
    project.write("pytest.ini", "[pytest]\nevaljournal = true\naddopts = --strict-config\n")
    project.write("test_small.py", SMALL)
    result = project.run(evals="")

    assert {"passed": 3} == result.parseoutcomes()


def test_collecting_runs_nothing(project: Project) -> None:
    """`--collect-only` lists trials, gates and plain tests in the order of the file; nothing is called or written."""
    project.write("test_qa.py", QA)
    result = project.run("--collect-only", "-q")
    names = [*(f"qa::{name}" for name in (*TRIALS, "gate:exact=0.5", "gate:exact=0.9")), "test_plain"]

    assert [f"test_qa.py::{name}" for name in names] == result.outlines[: len(names)]
    assert ({}, False) == (project.calls(), (project.path / "runs").exists())


def test_trials_and_gates_report(project: Project) -> None:
    """A trial without output is an error with its attempts; a failing score is listed; a gate names the failing cases."""
    project.write("test_qa.py", QA)
    result = project.run("-rP")

    assert {"passed": 16, "errors": 2, "failed": 1} == result.parseoutcomes()
    result.stdout.fnmatch_lines(
        [
            "qa: 16 trials in runs/qa/0001; follow the run with `evaljournal watch runs/qa/0001`",
            "* ERROR at setup of qa::iran@max *",
            "error after 1 attempt: retries used up: ConnectionError: no route",
            "attempt 1: ConnectionError: no route",
            "* qa::gate:exact=0.9 *",
            "runs/qa/0001: exact=0.9: *; failing: mali@mini, mali@mini#2, mali@max, mali@max#2, iran@max, iran@max#2",
            "* qa::mali@mini *",
            "exact: fail",
            "input: mali",
            "expected: MALI",
            "output: ?x1b?31m",
            "* runs/qa/0001 *",
            "qa finished: 16 of 16 trials done, in runs/qa/0001",
            "4 of 14 outputs fail, in 1 case:",
        ]
    )
    assert "\x1b[31m" not in result.stdout.str()
    calls = {f"{name}@{size}": 2 for name in ("peru", "chad", "mali", "iran") for size in (1, 2)}
    assert calls | {"peru@1": 3} == project.calls()  # Once by the plain test.


def test_a_failing_score_fails_strict_tests(project: Project) -> None:
    """With `evals_strict`, a failing score fails its test."""
    project.write("test_qa.py", QA)
    result = project.run("-o", "evals_strict=true", "-k", "mini and not gate")

    assert {"passed": 6, "failed": 2, "deselected": 11} == result.parseoutcomes()
    result.stdout.fnmatch_lines(["* qa::mali@mini *", "exact: fail", "input: mali", "expected: MALI", "output: ?x1b?31m"])


SKIPPED = """
    import pytest
    from evaljournal import evaluation

    @pytest.mark.skip(reason="no key")
    @evaluation(cases=["a", "b", "c"])
    def skipped(text):
        raise AssertionError("it is not called")

    def test_other():
        pass
"""


def test_a_skipped_evaluation(project: Project) -> None:
    """A mark that skips an evaluation skips its tests, and there is no run; other tests are not affected."""
    project.write("test_skipped.py", SKIPPED)
    result = project.run("-rs")

    assert {"passed": 1, "skipped": 3} == result.parseoutcomes()
    assert "no key" in result.stdout.str()
    assert not (project.path / "runs").exists()


def test_a_part_of_the_trials(project: Project) -> None:
    """`-k` and node ids select trials, the others stay open, and a gate needs all of them; all tests resume the run."""
    project.write("test_qa.py", QA)
    parts = [project.run("-k", "peru or gate"), project.run("test_qa.py::qa::chad@max#2")]
    calls = project.calls()
    whole = project.run("-m", "smoke")

    assert [{"passed": 4, "skipped": 2, "deselected": 13}, {"passed": 1}] == [part.parseoutcomes() for part in parts]
    assert {"peru@1": 2, "peru@2": 2, "chad@2": 1} == calls
    assert {"passed": 15, "errors": 2, "failed": 1, "deselected": 1} == whole.parseoutcomes()
    assert {"chad@1": 2, "chad@2": 1, "mali@1": 2, "mali@2": 2, "iran@1": 2, "iran@2": 2} == project.calls()
    assert ["finished"] == project.runs("qa")


def test_a_finished_part_is_run_again(project: Project) -> None:
    """If all selected trials of an unfinished run have results, or the run is finished, another run is started."""
    project.write("test_small.py", SMALL)
    for options in (["-k", "a-"], ["-k", "a-"], [], []):
        project.run(*options)

    assert {"a": 3, "b": 2, "c": 2} == project.calls()
    assert ["stopped", "finished", "finished"] == project.runs("small")


def test_last_failed_trials_are_retried_in_the_same_run(project: Project) -> None:
    """`--lf` retries the errors of a finished run in its journal; without failures, it starts a new run as pytest does."""
    project.write("test_qa.py", QA.replace('fail_under=["exact=0.5", "exact=0.9"]', 'fail_under=["exact=0.5"]'))
    project.run()
    project.calls()
    project.write("test_small.py", SMALL)
    still_broken = project.run("--lf")

    assert (2, {"iran@2": 2}) == (still_broken.parseoutcomes()["errors"], project.calls())
    assert ["finished"] == project.runs("qa")
    assert [2, 2] == [load(project.path / "runs/qa/0001").trials[f"iran@max{suffix}"].attempts for suffix in ("", "#2")]
    project.run("test_small.py")
    project.run("test_small.py", "--lf")
    assert ["finished", "finished"] == project.runs("small")


@pytest.mark.parametrize("name", ["x[1]", "a::b", "a::b[1]::c"])
def test_last_failed_ids_can_have_any_characters(project: Project, name: str) -> None:
    """`--lf` selects only the failed case, also if its id has characters with a meaning in node ids."""
    cases = f"[Case(name=name, input=name) for name in ({name!r}, 'a', 'x')]"
    source = SMALL.replace('["a", "b", "c"]', f"{cases}, retry=Retry(errors=0)").replace("import ", "import Case, Retry, ")
    project.write("test_small.py", source.replace("return text", f"assert text != {name!r}; return text"))
    project.run()
    project.calls()
    result = project.run("--lf")

    assert ({"errors": 1, "deselected": 2}, {name: 1}) == (result.parseoutcomes(), project.calls())


def test_a_changed_definition_starts_a_new_run(project: Project) -> None:
    """A run with another task or other cases is not resumed, and stays as it is; cases of a generator are compared, too."""
    source = SMALL.replace('["a", "b", "c"]', "(text for text in 'abc')")
    project.write("test_small.py", source)
    outcomes = [project.run("-k", "a-").parseoutcomes()]
    for old, new in (("'abc'", "'abd'"), ("return text", "return text * 2")):
        source = source.replace(old, new)
        project.write("test_small.py", source)
        outcomes.append(project.run("-k", "a-").parseoutcomes())

    assert [{"passed": 1, "deselected": 2}] * 3 == outcomes
    assert ({"a": 3}, ["stopped"] * 3) == (project.calls(), project.runs("small"))


def test_the_first_error_stops_the_run(project: Project) -> None:
    """With `-x`, the first error stops the run; the next session resumes it and retries the error."""
    source = QA.replace('("peru", "chad", "mali", "iran")', '("iran", "peru", "chad", "mali")')
    project.write("test_qa.py", source.replace("repeats=2", "slots=1"))
    project.write("pytest.ini", "[pytest]\nmarkers = smoke\naddopts = -k 'not plain'\n")
    stopped = project.run("-x")
    calls = project.calls()
    resumed = project.run()

    assert ({"passed": 1, "errors": 1, "deselected": 1}, {"iran@1": 1, "iran@2": 1}) == (stopped.parseoutcomes(), calls)
    stopped.stdout.fnmatch_lines(["qa stopped (too many errors): 2 of 8 trials done, in runs/qa/0001"])
    assert {"passed": 8, "errors": 1, "failed": 1, "deselected": 1} == resumed.parseoutcomes()
    assert {"iran@2": 1, **{f"{name}@{size}": 1 for name in ("peru", "chad", "mali") for size in (1, 2)}} == project.calls()
    assert ["finished"] == project.runs("qa")


def test_trials_of_a_stopped_run_fail(project: Project) -> None:
    """A run that ends early for a reason that is no trial's error fails the tests without a result."""
    budget = SMALL.replace('"c"]', '"c"], slots=1, budget={"output_tokens": 10}').replace("import ", "import note, ")
    project.write("test_small.py", budget.replace("return", "note(output_tokens=10); return"))
    result = project.run()

    assert {"passed": 1, "errors": 2} == result.parseoutcomes()
    result.stdout.fnmatch_lines(["no result for this case in runs/small/0001: stopped by its budget"])


def test_recorded_outputs_are_scored(project: Project) -> None:
    """`--evals-reuse` scores the outputs of a run without calling the task; a changed case has no result in it."""
    project.write("test_qa.py", QA)
    project.run("-k", "mini and not gate")
    project.calls()
    project.write("test_qa.py", QA.replace("expected=name.upper()", "expected=name[::-1]"))
    changed = project.run("--evals-reuse", "runs", "-k", "mini and not gate")
    project.write("test_qa.py", QA.replace("output == expected", "len(output) > 0"))
    reused = project.run("--evals-reuse", "runs/qa/0001", "-o", "evals_strict=true", "-k", "not plain")

    assert {"errors": 8, "deselected": 11} == changed.parseoutcomes()
    assert {"passed": 8, "errors": 8, "failed": 2, "deselected": 1} == reused.parseoutcomes()
    assert ({}, ["stopped"]) == (project.calls(), project.runs("qa"))


def test_only_selected_outputs_are_scored_again(project: Project) -> None:
    """`--evals-reuse` calls the scorers for the selected tests only."""
    project.write("test_qa.py", QA)
    project.run("-k", "mini and not gate")
    project.write("test_qa.py", QA.replace("output == expected", "len(output) > 0"))
    project.run("--evals-reuse", "runs", "-k", "peru and mini")
    trials = load(project.path / "runs/qa/0001").trials
    versions = {name: trial.scores["exact"][0] for name, trial in trials.items()}
    new_version = versions["peru@mini"]

    assert 8 == len(versions)
    assert {"peru@mini", "peru@mini#2"} == {name for name, version in versions.items() if version == new_version}


def test_a_run_to_reuse_must_exist(project: Project) -> None:
    """A directory without runs is a usage error; one without a run of the evaluation is an error of its tests."""
    project.write("test_small.py", SMALL)
    missing = project.run("--evals-reuse", "elsewhere")
    project.write("test_qa.py", QA)
    project.run("test_qa.py", "-k", "peru")
    other = project.run("--evals-reuse", "runs", "test_small.py")

    assert pytest.ExitCode.USAGE_ERROR == missing.ret
    missing.stderr.fnmatch_lines(["ERROR: --evals-reuse: elsewhere is not a run, and there is none below it"])
    assert {"errors": 3} == other.parseoutcomes()
    other.stdout.fnmatch_lines(["runs is not a run of 'small', and there is none below it that you started on this machine"])


def test_replies_must_exist(project: Project) -> None:
    """What is neither a run nor a file is one usage error, and no test begins."""
    project.write("test_small.py", SMALL)
    missing = project.run("--evals-replies", "elsewhere")

    assert pytest.ExitCode.USAGE_ERROR == missing.ret
    missing.stderr.fnmatch_lines(["ERROR: --evals-replies: elsewhere is not a run and not a packed file of replies"])


def test_runs_of_others_are_not_used(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that the user has not started is neither resumed nor searched for outputs, which may be forged; a path is used."""
    scorer = "\n    @small.score\n    def is_text(output):\n        return True\n"
    project.write("test_small.py", SMALL.replace('"c"]', '"c"], fail_under=["is_text=1"]') + scorer)
    project.run("-k", "a-")
    project.calls()
    monkeypatch.setenv("XDG_STATE_HOME", str(project.path / "state-of-another-user"))
    gate, searched = project.run("-k", "gate"), project.run("--evals-reuse", "runs", "-k", "a-")
    named, resumed = project.run("--evals-reuse", "runs/small/0001", "-k", "a-"), project.run()

    gate.stdout.fnmatch_lines(["you have started no run under runs/small/ on this machine*"])
    searched.stdout.fnmatch_lines(["runs is not a run of 'small', and there is none below it that you started on this machine"])
    assert {"passed": 1, "deselected": 3} == named.parseoutcomes()
    assert ({"passed": 4}, {"a": 1, "b": 1, "c": 1}) == (resumed.parseoutcomes(), project.calls())
    assert ["stopped", "finished"] == project.runs("small")


def test_runs_of_what_if_are_not_used(project: Project) -> None:
    """A run with another model or system prompt is not the newest run of the evaluation; its path can be passed."""
    scorer = "\n    @small.score\n    def is_text(output):\n        return True\n"
    source = SMALL.replace('"c"]', '"c"], fail_under=["is_text=1"]').replace("import evaluation", "import durable, evaluation")
    project.write("test_small.py", source.replace("return text", "return durable(str)(text)") + scorer)
    project.run()
    project.write(
        "what_if.py",
        """
        from evaljournal import run
        from test_small import small

        run(small, replies="runs/small/0001", live_from=1, live_system="Be brief.")
    """,
    )
    project.pytester.runpython(project.path / "what_if.py")
    project.calls()
    results = [project.run("-k", "gate"), project.run("--evals-reuse", "runs", "-k", "a-")]
    used = [next(line for line in result.outlines if "runs/small/" in line) for result in results]

    assert ["finished", "finished"] == project.runs("small")
    assert [True, True] == ["runs/small/0001" in line for line in used]
    assert {} == project.calls()


def test_a_session_that_was_killed_is_not_repeated(project: Project) -> None:
    """A finished run of a session that did not end is used again, unless its definition has changed; then it is repeated."""
    project.write("test_small.py", SMALL)
    marker = project.path / "runs/small/.pytest-session"
    project.run()
    after_end = marker.exists()
    calls = []
    for source in (SMALL, SMALL, SMALL.replace("return text", "return text * 2")):
        project.write("test_small.py", source)
        project.calls()
        marker.write_text(max(path.name for path in marker.parent.glob("0*")))  # As if the session had been killed.
        calls.append((project.run().parseoutcomes(), len(project.calls())))

    assert ([({"passed": 3}, 0), ({"passed": 3}, 0), ({"passed": 3}, 3)], False) == (calls, after_end)
    assert ["finished", "finished"] == project.runs("small")


def test_only_a_gate(project: Project) -> None:
    """If only a gate is selected, it is checked in the newest run."""
    project.write("test_qa.py", QA)
    missing = project.run("-k", "gate")
    project.run()
    project.calls()
    checked = project.run("-k", "gate")

    missing.stdout.fnmatch_lines(["you have started no run under runs/qa/ on this machine*"])
    assert ({"errors": 2, "deselected": 17}, {}) == (missing.parseoutcomes(), project.calls())
    assert {"passed": 1, "failed": 1, "deselected": 17} == checked.parseoutcomes()


def test_an_imported_evaluation_has_one_run(project: Project) -> None:
    """Test files that import the same evaluation share its run; another one of the same name is an error."""
    project.write("evals.py", SMALL)
    project.write("test_one.py", "from evals import small\n")
    project.write("test_two.py", "from evals import small as two\n")
    shared = project.run()
    project.write("test_two.py", SMALL)

    assert ({"passed": 6}, {"a": 1, "b": 1, "c": 1}) == (shared.parseoutcomes(), project.calls())
    clash = project.run()
    clash.stdout.fnmatch_lines(["two evaluations are named 'small'; rename one of them with name=…"])
    assert {"errors": 1} == clash.parseoutcomes()


@pytest.mark.parametrize(
    ("cases", "message"),
    [
        ("[]", "the dataset has no cases"),
        ("['a', float('nan')]", "case 2: input is nan, which JSON does not support*"),
        ("'missing.jsonl'", "missing.jsonl*"),
        ("iter([1, 1 / 0])", "*ZeroDivisionError*"),
    ],
)
def test_invalid_cases_are_collection_errors(project: Project, cases: str, message: str) -> None:
    """Cases that cannot be read are an error before anything runs; plain tests of other files are collected."""
    project.write("test_small.py", SMALL.replace('["a", "b", "c"]', cases))
    result = project.run()

    assert ({"errors": 1}, 2) == (result.parseoutcomes(), result.ret)
    result.stdout.fnmatch_lines([f"*{message}"])


def test_a_damaged_run_is_not_overwritten(project: Project) -> None:
    """If the newest run is damaged, the tests are errors that name the damage, and nothing is written."""
    project.write("test_small.py", SMALL)
    project.run("-k", "a-")
    [file] = (project.path / "runs/small/0001").glob("journal-*.jsonl")
    content = file.read_bytes().replace(b'"output":"a"', b'"output":"x"')
    file.write_bytes(content)
    results = [project.run(), project.run("--evals-reuse", "runs")]

    assert [{"errors": 3}] * 2 == [result.parseoutcomes() for result in results]
    assert ([file.parent], content) == ([*file.parent.parent.iterdir()], file.read_bytes())


def test_junit_xml_has_the_items(project: Project) -> None:
    """The XML of pytest distinguishes errors from failures, and has the run of each test."""
    project.write("test_qa.py", QA)
    project.run("-o", "evals_strict=true", "--junitxml=results.xml", "-k", "max and not gate")
    cases = ET.parse(project.path / "results.xml").getroot().findall(".//testcase")  # noqa: S314  # our own file
    kinds = {case.get("name"): [child.tag for child in case if child.tag != "properties"] for case in cases}
    runs = {prop.get("value") for case in cases for prop in case.findall(".//property")}

    expected: dict[str, list[str]] = {"peru": [], "chad": [], "mali": ["failure"], "iran": ["error"]}
    assert {name: expected[name[:4]] for name in TRIALS if "max" in name} == kinds
    assert {"runs/qa/0001"} == runs


def test_xdist_needs_groups(project: Project) -> None:
    """With another distribution, the usage error names `--dist loadgroup`."""
    result = project.run("-n", "2")

    assert pytest.ExitCode.USAGE_ERROR == result.ret
    result.stderr.fnmatch_lines(["*add --dist loadgroup"])


def test_a_run_can_be_resumed_by_the_command(project: Project) -> None:
    """`evaljournal resume` continues the run of a part of the trials: the location of the evaluation is recorded."""
    project.write("test_small.py", SMALL)
    project.run("-k", "a-")
    project.pytester.run(*COMMAND, "resume", "runs/small/0001")

    assert ({"a": 1, "b": 1, "c": 1}, ["finished"]) == (project.calls(), project.runs("small"))


def test_failures_are_named() -> None:
    """The error of a run that did not pass names the first failing trials."""
    error = RunFailed(Path("runs/qa/0001"), ["2 trials with an error"], [f"t{number}" for number in range(12)])

    assert "runs/qa/0001: 2 trials with an error; failing: t0, t1, t2, t3, t4, t5, t6, t7, t8, t9, …" == str(error)
