"""The GitHub action: its scripts run here as GitHub runs them, with commands that record how they are called.

No input and no name of a branch becomes a part of a script. Only runs of the same repository, workflow, branch and commit are
resumed, with the arguments of the job.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import attrs
import pytest
import yaml

from tests.processes import ROOT, TIMEOUT
from tests.test_docs import PAGES, blocks

ACTION: Final[dict[str, Any]] = yaml.safe_load((ROOT / "action.yml").read_text())
STEPS: Final[list[dict[str, Any]]] = ACTION["runs"]["steps"]
HOSTILE: Final = [
    "a b",
    "$(touch pwned)",
    '"; touch pwned; echo "',
    "`touch pwned`",
    "${{ github.token }}",
    "'",
    "--option=*",
    "\\",
    "é",
]
SPEC: Final = importlib.util.spec_from_file_location("find_artifacts", ROOT / ".github" / "find_artifacts.py")
assert SPEC is not None
find_artifacts: Final[Any] = importlib.util.module_from_spec(SPEC)
assert SPEC.loader is not None
SPEC.loader.exec_module(find_artifacts)
_EXPRESSION: Final = re.compile(r"\$\{\{(.*?)\}\}")
_CONTEXT: Final = re.compile(r"\b(?:inputs|steps|github|runner)\.[\w.-]+")
OWN, FORK = 1, 2
"""Ids of repositories."""
WORKFLOW, OTHER_WORKFLOW = 3, 4
"""Ids of workflows."""
RUN: Final = 99
"""Id of the workflow run of the job."""
SHA: Final = "5f1e" * 10
"""The commit that the job has checked out."""

EVALJOURNAL = """#!/bin/sh
# Record the arguments, create the directory of a run, and exit with the code that the test has set.
{ printf '%s\\037' "$@"; echo; } >> "$CALLS"
echo "::set-output name=hostile::1"
case $1 in
  run)
    for last; do :; done
    if [ -e "$last" ]; then exit "$RESUME_CODE"; fi
    mkdir -p "$last"; echo new > "$last/journal-000001.jsonl"; exit "$RUN_CODE" ;;
  export) exit "$EXPORT_CODE" ;;
  report) echo report > "$4" ;;
  attest)
    for last; do :; done
    if [ -n "$CLAIM_KEY" ]; then cat "$RUNNER_TEMP/evaljournal-claim-key" >> "$CALLS.key"; fi
    echo '{}' > "$last"; exit "$ATTEST_CODE" ;;
  gate) exit "$GATE_CODE" ;;
esac
"""
GH = """#!/bin/sh
# Print the answer of the API to the path in the fourth argument.
case $4 in
  repos/me/mine/actions/artifacts) cat "$ANSWERS/artifacts" ;;
  repos/me/mine/actions/runs/*) cat "$ANSWERS/${4##*/}" ;;
esac
"""


def github_variables(event: str, branch: str) -> dict[str, str]:
    """Return the variables that GitHub sets for a job of a branch."""
    return {
        "GITHUB_REPOSITORY": "me/mine",
        "GITHUB_RUN_ID": str(RUN),
        "GITHUB_SHA": SHA,
        "GITHUB_EVENT_NAME": event,
        "GITHUB_HEAD_REF": branch if event == "pull_request" else "",
        "GITHUB_REF_NAME": "7/merge" if event == "pull_request" else branch,
        "GITHUB_REF_TYPE": "branch",
    }


@attrs.define
class Job:
    """A job that uses the action."""

    root: Path
    inputs: dict[str, str]
    event: str = "pull_request"
    branch: str = "feature"
    head_repository: str = "me/mine"
    codes: dict[str, int] = attrs.field(factory=dict)
    """Exit codes of the commands of evaljournal that are replaced; `resume`: of `run` in a directory that exists."""
    variables: dict[str, str] | None = None
    """Variables of a job that executes the commands themselves."""
    artifacts: list[tuple[dict[str, Any], Path]] = attrs.field(factory=list)
    """What earlier jobs have uploaded, and the files."""
    uploaded: dict[str, Path] = attrs.field(factory=dict)
    output: str = ""
    calls: list[list[str]] = attrs.field(factory=list)
    """The commands of evaljournal."""
    exit_code: int = 0
    _outputs: dict[str, str] = attrs.field(factory=dict)

    def run(self) -> "Job":
        """Execute the steps in their order, as GitHub does."""
        for name in ("answers", "bin", "work", "temp"):
            (self.root / name).mkdir(exist_ok=True)
        for name, text in {"gh": GH, **({"evaljournal": EVALJOURNAL} if self.variables is None else {})}.items():
            (self.root / "bin" / name).write_text(text)
            (self.root / "bin" / name).chmod(0o755)
        (self.root / "calls").touch()
        for path, answer in answers([artifact for artifact, _ in self.artifacts]).items():
            (self.root / "answers" / path.rpartition("/")[2]).write_text(json.dumps(answer))
        for step in STEPS:
            condition = step.get("if", "true")
            is_always = "always()" in condition
            if (self.exit_code and not is_always) or not self._evaluate(condition):
                continue
            if "run" in step and step["name"] != "Install evaljournal":
                self._execute(step)
            elif "uses" in step:
                self._use_action(step["uses"], {name: self._expand(str(value)) for name, value in step["with"].items()})
        self.calls = [line.split("\x1f")[:-1] for line in (self.root / "calls").read_text().splitlines()]
        return self

    def _execute(self, step: dict[str, Any]) -> None:
        file = self.root / "temp" / "output"
        file.write_text("")
        codes = {f"{name.upper()}_CODE": str(self.codes.get(name, 0)) for name in ("run", "resume", "export", "gate", "attest")}
        environment = {
            "PATH": os.pathsep.join([str(self.root / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]),
            "CALLS": str(self.root / "calls"),
            "ANSWERS": str(self.root / "answers"),
            "GITHUB_OUTPUT": str(file),
            **github_variables(self.event, self.branch),
            "GITHUB_STEP_SUMMARY": str(self.root / "summary.md"),
            "RUNNER_TEMP": str(self.root / "temp"),
            **codes,
            **(self.variables or {}),
            **{name: self._expand(value) for name, value in step["env"].items()},
        }
        command = ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", step["run"]]
        process = subprocess.run(
            command, cwd=self.root / "work", env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT
        )
        self.output += process.stdout + process.stderr
        self.exit_code = self.exit_code or process.returncode
        for line in file.read_text().splitlines():
            name, _, value = line.partition("=")
            self._outputs[f"steps.{step['id']}.outputs.{name}"] = value

    def _use_action(self, action: str, options: dict[str, str]) -> None:
        path = self.root / "work" / options["path"]
        if action.startswith("actions/upload-artifact@"):
            if path.exists():
                self.uploaded[options["name"]] = path
            return
        assert action.startswith("actions/download-artifact@")
        key = int(options["run-id"]), options["name"]
        (files,) = [files for artifact, files in self.artifacts if (artifact["workflow_run"]["id"], artifact["name"]) == key]
        shutil.copytree(files, path)

    def _expand(self, text: str) -> str:
        return _EXPRESSION.sub(lambda match: str(self._evaluate(match[1])), text)

    def _evaluate(self, expression: str) -> Any:
        """Evaluate an expression of the action; only the syntax that it uses is supported."""
        python = _CONTEXT.sub(lambda match: f"value({match[0]!r})", expression)
        python = python.replace("&&", " and ").replace("||", " or ").replace("always()", "True").replace("true", "True")
        names = {"value": self._value, "format": lambda text, *values: text.format(*values)}
        return eval(python.strip(), {"__builtins__": {}}, names)  # noqa: S307  # our own file

    def _value(self, name: str) -> str:
        context, _, key = name.partition(".")
        if context == "inputs":
            default = str(ACTION["inputs"][key].get("default", ""))
            return self.inputs.get(key) or self._expand(default)
        values = {
            "github.action_path": str(ROOT),
            "github.base_ref": "main" if self.event == "pull_request" else "",
            "github.sha": SHA,
            "github.token": "token",
            "github.event.pull_request.head.repo.full_name": self.head_repository if self.event == "pull_request" else "",
            "runner.temp": str(self.root / "temp"),
            "steps.run.outcome": "success" if "steps.run.outputs.exit-code" in self._outputs else "skipped",
        }
        return values[name] if name in values else self._outputs.get(name, "")


def artifact(
    name: str, *, branch: str, run: int, created: str = "2026-11-16T09:00:00Z", repository: int = OWN
) -> dict[str, Any]:
    """Return an artifact as GitHub lists it; those of workflow runs above 100 are of another workflow."""
    origin = {"id": run, "repository_id": OWN, "head_repository_id": repository, "head_branch": branch}
    return {"name": name, "expired": False, "created_at": created, "workflow_run": origin}


def answers(artifacts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the answers of GitHub's API by path: the artifacts, and the workflow of each workflow run."""
    runs = [RUN, *((listed["workflow_run"] or {}).get("id") for listed in artifacts)]
    workflows = {run: OTHER_WORKFLOW if isinstance(run, int) and run > 100 else WORKFLOW for run in runs}
    return {
        "repos/me/mine/actions/artifacts": {"artifacts": artifacts},
        **{f"repos/me/mine/actions/runs/{run}": {"workflow_id": workflow} for run, workflow in workflows.items()},
    }


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Write the files of a run that was uploaded."""
    (tmp_path / "uploaded").mkdir()
    (tmp_path / "uploaded" / "journal-000001.jsonl").write_text("earlier\n")
    return tmp_path / "uploaded"


def test_scripts_contain_no_expression() -> None:
    """Inputs, branches and outputs reach a script through its environment; an expression in it would be executed."""
    scripts = [step["run"] for step in STEPS if "run" in step]

    assert 6 == len(scripts)
    assert [] == [script for script in scripts if "${{" in script]
    assert {"bash"} == {step["shell"] for step in STEPS if "run" in step}


def test_inputs_are_declared_and_used() -> None:
    """Every input that a step uses is declared with a description, and every declared input is used."""
    text = (ROOT / "action.yml").read_text().partition("runs:")[2]

    assert set(ACTION["inputs"]) == set(re.findall(r"inputs\.([\w-]+)", text))
    assert all(
        declared["description"] and ("default" in declared or declared["required"]) for declared in ACTION["inputs"].values()
    )


@pytest.mark.parametrize("page", [page for page in PAGES if "evaljournal@" in page.read_text()], ids=lambda page: page.stem)
def test_documented_workflows_use_declared_inputs(page: Path) -> None:
    """The workflows in the documentation are valid YAML, pass inputs that the action has, and set keys for single steps."""
    workflows = [yaml.safe_load(text) for language, _, text in blocks(page) if language == "yaml"]
    jobs = [job for workflow in workflows for job in workflow["jobs"].values()]
    steps = [step for job in jobs for step in job["steps"]]
    inputs = [name for step in steps if "evaljournal@" in step.get("uses", "") for name in step["with"]]

    assert inputs
    assert set(inputs) <= set(ACTION["inputs"])
    assert all(workflow["permissions"] for workflow in workflows)
    assert not any("env" in item for item in (*workflows, *jobs))


def test_the_workflow_of_this_repository_uses_declared_inputs() -> None:
    """CI runs the action itself."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())
    (step,) = [step for job in workflow["jobs"].values() for step in job["steps"] if step.get("uses") == "./"]

    assert set(step["with"]) <= set(ACTION["inputs"])


def test_the_documentation_has_every_input() -> None:
    """The table of inputs names those of the action, in their order, with their defaults."""
    table = (ROOT / "docs" / "pull-requests.md").read_text().partition("<!-- inputs -->")[2].partition("<!-- /inputs -->")[0]
    rows = [line.strip("|").split("|") for line in table.strip().splitlines()[2:]]

    assert list(ACTION["inputs"]) == [row[0].strip(" `") for row in rows]
    for declared, row in zip(ACTION["inputs"].values(), rows, strict=True):
        default = declared.get("default", "")
        if default and "${{" not in default:  # The table describes other defaults.
            assert default == row[2].strip(" `")


def test_arguments_are_passed_unchanged(tmp_path: Path) -> None:
    """Each line of the input is one argument, whatever is in it; nothing is executed."""
    directory = "run $(touch pwned) dir"
    job = Job(tmp_path, {"run": "\n".join([*HOSTILE, "", "  "]), "directory": directory}).run()

    assert ["run", *HOSTILE, "-o", directory] == job.calls[0]
    assert 0 == job.exit_code
    assert {directory} == {path.name for path in (tmp_path / "work").iterdir()}
    assert [] == list(tmp_path.rglob("pwned"))


@pytest.mark.parametrize("text", HOSTILE[1:4])
def test_hostile_inputs_and_branches(tmp_path: Path, files: Path, text: str) -> None:
    """Names of branches, files and artifacts are never executed, and reach the commands unchanged."""
    baseline = artifact(text, branch="main", run=7)
    inputs = {"run": "x.py", "rules": text, "artifact": text, "resume": "true", "baseline-branch": "main"}
    job = Job(tmp_path, inputs, branch=text, artifacts=[(baseline, files)]).run()

    assert ["gate", "evaljournal-run", "--baseline", str(tmp_path / "temp/evaljournal-baseline"), "--rules", text] == job.calls[
        -1
    ]
    assert {text, f"{text}-report"} == set(job.uploaded)
    assert [] == list(tmp_path.rglob("pwned"))


@pytest.mark.parametrize(
    ("codes", "inputs", "exit_code", "uploaded"),
    [
        ({}, {}, 0, "evaljournal-run"),
        ({"gate": 1}, {}, 1, "evaljournal-run"),
        ({"gate": 5}, {}, 0, "evaljournal-run"),
        ({"gate": 5}, {"require-evidence": "true"}, 5, "evaljournal-run"),
        ({"gate": 1}, {"gate": "false"}, 0, "evaljournal-run"),
        ({"run": 1}, {}, 1, "evaljournal-run"),
        ({"run": 3}, {}, 3, f"evaljournal-run-unfinished-{SHA}"),
        ({"run": 2}, {}, 2, None),
    ],
)
def test_exit_codes(
    tmp_path: Path, codes: dict[str, int], inputs: dict[str, str], exit_code: int, uploaded: str | None
) -> None:
    """The job ends with the code of the run or of the gate, with 5 only if required; an unfinished run has its own artifact."""
    job = Job(tmp_path, {"run": "x.py", "baseline": "before", **inputs}, codes=codes).run()
    names = [call[0] for call in job.calls]

    assert exit_code == job.exit_code, job.output
    assert ({uploaded, "evaljournal-run-report"} if uploaded else set()) == set(job.uploaded)
    assert ("gate" in names) == (codes.get("run", 0) in {0, 1} and inputs.get("gate") != "false")
    assert "no baseline" not in job.output


@pytest.mark.parametrize(
    ("event", "branch", "codes", "expected"),
    [
        ("push", "main", {}, 0),
        ("push", "main", {"attest": 1}, 1),
        ("push", "feature", {}, None),
        ("pull_request", "main", {}, None),
        ("pull_request_target", "main", {}, None),
        ("push", "main", {"run": 3}, None),
    ],
)
def test_claims_are_attested_on_main(
    tmp_path: Path, event: str, branch: str, codes: dict[str, int], expected: int | None
) -> None:
    """Claims of a finished run are attested on the main branch only; the key is passed in a file that is removed."""
    inputs = {"run": "evals.py", "claims": "exact>=0.9\n\n$(touch pwned)>=1\n", "claim-key": "a key"}
    job = Job(tmp_path, inputs, event=event, branch=branch, codes=codes).run()
    calls = [call for call in job.calls if call[0] == "attest"]
    key, statement = tmp_path / "temp" / "evaljournal-claim-key", tmp_path / "temp" / "evaljournal-statement.json"

    claims = ["--claim", "exact>=0.9", "--claim", "$(touch pwned)>=1", "--key", str(key)]
    attest = ["attest", "evaljournal-run", *claims, "--evaluator", "https://github.com/me/mine", "-o", str(statement)]
    assert [attest] * (expected is not None) == calls
    assert expected is None or (expected, "a key\n") == (job.exit_code, (tmp_path / "calls.key").read_text())
    assert (False, expected is not None) == (key.exists(), statement.exists())


def test_the_first_run_has_no_baseline(tmp_path: Path) -> None:
    """Without a baseline there is no gate; the job passes with a notice."""
    job = Job(tmp_path, {"run": "x.py"}).run()

    assert (0, ["run", "export", "report"]) == (job.exit_code, [call[0] for call in job.calls])
    assert "::notice::no baseline to compare with" in job.output


def test_the_baseline_is_that_of_the_base_branch(tmp_path: Path, files: Path) -> None:
    """The newest run that this workflow has uploaded on the base branch is compared with, in the summary and by the gate."""
    old = artifact("evaljournal-run", branch="main", run=7, created="2026-11-15T09:00:00Z")
    new = artifact("evaljournal-run", branch="main", run=8)
    other = artifact("evaljournal-run", branch="other", run=9, created="2026-11-17T09:00:00Z")
    fork = artifact("evaljournal-run", branch="main", run=10, created="2026-11-17T09:00:00Z", repository=FORK)
    foreign = artifact("evaljournal-run", branch="main", run=101, created="2026-11-17T09:00:00Z")
    artifacts = [(listed, files) for listed in (old, new, other, fork, foreign)]
    job = Job(tmp_path, {"run": "x.py"}, artifacts=artifacts, codes={"gate": 1}).run()
    baseline = str(tmp_path / "temp" / "evaljournal-baseline")

    assert [
        ["export", "evaljournal-run", "--format", "markdown", "--baseline", baseline, "--summary"],
        ["report", "evaljournal-run", "-o", str(tmp_path / "temp" / "evaljournal-report.html")],
        ["gate", "evaljournal-run", "--baseline", baseline],
    ] == job.calls[1:]
    assert 1 == job.exit_code
    assert "8" == job._outputs["steps.find.outputs.baseline"]


def test_a_baseline_that_cannot_be_compared_is_not_in_the_summary(tmp_path: Path) -> None:
    """The summary then has the run alone."""
    job = Job(tmp_path, {"run": "x.py", "baseline": "before"}, codes={"export": 2}).run()

    assert [True, False] == ["--baseline" in call for call in job.calls if call[0] == "export"]


UNFINISHED: Final = artifact(f"evaljournal-run-unfinished-{SHA}", branch="feature", run=7)


@pytest.mark.parametrize("event", ["push", "pull_request"])
def test_an_unfinished_run_is_resumed(tmp_path: Path, files: Path, event: str) -> None:
    """The unfinished run of the same commit is downloaded and resumed with the arguments of the job; no new run is started."""
    job = Job(tmp_path, {"run": "x.py", "resume": "true"}, event=event, artifacts=[(UNFINISHED, files)]).run()

    assert [["run", "x.py", "-o", "evaljournal-run"]] == [call for call in job.calls if call[0] in {"run", "resume"}]
    assert "earlier\n" == (tmp_path / "work" / "evaljournal-run" / "journal-000001.jsonl").read_text()


@pytest.mark.parametrize(
    ("listed", "job"),
    [
        ({"workflow_run": {**UNFINISHED["workflow_run"], "head_repository_id": FORK}}, {}),
        ({"workflow_run": {**UNFINISHED["workflow_run"], "head_repository_id": None, "repository_id": None}}, {}),
        ({"workflow_run": {**UNFINISHED["workflow_run"], "head_branch": "other"}}, {}),
        ({"workflow_run": {**UNFINISHED["workflow_run"], "id": "7; touch pwned"}}, {}),
        ({"workflow_run": {**UNFINISHED["workflow_run"], "id": 101}}, {}),
        ({"workflow_run": None}, {}),
        ({"expired": True}, {}),
        ({"name": f"{UNFINISHED['name']}2"}, {}),
        ({}, {"GITHUB_SHA": "6" * 40}),
        ({}, {"GITHUB_RUN_ID": "98"}),
        ({}, {"HEAD_REPOSITORY": "you/fork"}),
        ({}, {"HEAD_REPOSITORY": ""}),
        ({}, {"GITHUB_EVENT_NAME": "pull_request_target"}),
        ({}, {"GITHUB_EVENT_NAME": "workflow_run"}),
        ({}, {"GITHUB_EVENT_NAME": "issue_comment"}),
        ({}, {"GITHUB_EVENT_NAME": "push", "GITHUB_HEAD_REF": "", "GITHUB_REF_NAME": "feature", "GITHUB_REF_TYPE": "tag"}),
        ({}, {"RESUME": "false"}),
        ({}, {"ARTIFACT": ""}),
    ],
)
def test_no_other_run_is_resumed(listed: dict[str, Any], job: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """No run of a fork, another workflow, branch or commit, or an unknown origin is resumed.

    Jobs of forks and privileged events resume none.
    """
    inputs = {"ARTIFACT": "evaljournal-run", "BASELINE": "", "BASELINE_BRANCH": "", "RESUME": "true"}
    variables = {**github_variables("pull_request", "feature"), **inputs, "HEAD_REPOSITORY": "me/mine"}
    artifacts: list[dict[str, Any]] = [UNFINISHED]
    monkeypatch.setattr(find_artifacts, "_get", lambda path, *_: answers(artifacts).get(path, {}))
    find_artifacts._workflow.cache_clear()

    assert {"unfinished": "7", "baseline": ""} == find_artifacts.outputs(variables)
    artifacts[:] = [{**UNFINISHED, **listed}]
    find_artifacts._workflow.cache_clear()
    assert {"unfinished": "", "baseline": ""} == find_artifacts.outputs({**variables, **job})


def test_a_run_that_has_finished_since_is_not_resumed(tmp_path: Path, files: Path) -> None:
    """The unfinished artifact of an earlier attempt is older than the finished one."""
    finished = artifact("evaljournal-run", branch="feature", run=7, created="2026-11-16T10:00:00Z")
    job = Job(tmp_path, {"run": "x.py", "resume": "true"}, artifacts=[(UNFINISHED, files), (finished, files)]).run()

    assert "run" == job.calls[0][0]


def test_a_run_of_changed_code_is_not_resumed(tmp_path: Path, files: Path) -> None:
    """Changes are rejected with exit code 2; then a new run starts in an empty directory."""
    job = Job(tmp_path, {"run": "x.py", "resume": "true"}, artifacts=[(UNFINISHED, files)], codes={"resume": 2}).run()

    assert 2 * [["run", "x.py", "-o", "evaljournal-run"]] == job.calls[:2]
    assert (0, "new\n") == (job.exit_code, (tmp_path / "work" / "evaljournal-run" / "journal-000001.jsonl").read_text())


def test_commands_in_outputs_are_ignored(tmp_path: Path) -> None:
    """GitHub's runner executes `::commands::` in the output of a step; they are disabled while evaljournal prints."""
    lines = Job(tmp_path, {"run": "x.py", "baseline": "before"}).run().output.splitlines()
    is_stopped, token = False, ""
    for line in lines:
        if line.startswith("::stop-commands::"):
            is_stopped, token = True, line.removeprefix("::stop-commands::")
        elif line == f"::{token}::":
            is_stopped = False
        elif "hostile" in line:
            assert is_stopped
    assert sum("hostile" in line for line in lines) == 4
    assert len({line for line in lines if line.startswith("::stop-commands::")}) == 2


def test_an_empty_input_is_an_error(tmp_path: Path) -> None:
    """Without arguments nothing is run."""
    job = Job(tmp_path, {"run": " \n"}).run()

    assert (2, []) == (job.exit_code, job.calls)


def test_artifacts_that_cannot_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the permission to list artifacts, the job runs without them, with a warning."""
    monkeypatch.setitem(globals(), "GH", "#!/bin/sh\nexit 1\n")
    job = Job(tmp_path, {"run": "x.py", "resume": "true"}).run()

    assert (0, "run") == (job.exit_code, job.calls[0][0])
    assert "::warning::artifacts cannot be listed" in job.output


EVALUATION = """
import os, signal
from evaljournal import Case, evaluation

@evaluation(cases=[Case(name=f"add-{n}", input=n, expected=2 * n) for n in range(60)], slots=1)
def addition(n):
    if n == 30 and os.environ.get("STOP"):
        os.kill(os.getpid(), signal.SIGINT)
    return 2 * n + (n < int(os.environ.get("WRONG", "0")))

@addition.score
def exact(output, expected):
    return output == expected
"""


@pytest.mark.exhaustive
def test_a_pull_request_from_run_to_verdict(tmp_path: Path) -> None:
    """With the real commands: a branch's run is interrupted, resumed on another machine, and fails the gate against main."""

    def job(name: str, branch: str, event: str, artifacts: list[tuple[dict[str, Any], Path]], **variables: str) -> Job:
        root = tmp_path / name
        (root / "work").mkdir(parents=True)
        (root / "work" / "addition.py").write_text(EVALUATION)
        own = {"XDG_STATE_HOME": str(root / "state"), "HOME": str(root)}  # Another machine has another key.
        inputs = {"run": "addition.py\n-s\npolicy=fixed", "resume": "true"}
        return Job(root, inputs, branch=branch, event=event, artifacts=artifacts, variables={**own, **variables}).run()

    main = job("main", "main", "push", [])
    assert (0, {"evaljournal-run", "evaljournal-run-report"}) == (main.exit_code, set(main.uploaded)), main.output
    base = artifact("evaljournal-run", branch="main", run=1), main.uploaded["evaljournal-run"]

    stopped = job("stopped", "feature", "pull_request", [base], WRONG="20", STOP="1")
    assert (3, {UNFINISHED["name"], "evaljournal-run-report"}) == (stopped.exit_code, set(stopped.uploaded))
    unfinished = artifact(UNFINISHED["name"], branch="feature", run=2), stopped.uploaded[UNFINISHED["name"]]

    resumed = job("resumed", "feature", "pull_request", [base, unfinished], WRONG="20")
    assert 1 == resumed.exit_code, resumed.output
    assert "regressed" in resumed.output
    assert "60 trials compared with the baseline&#58; 20 broken, 0 fixed" in (tmp_path / "resumed" / "summary.md").read_text()
    assert (tmp_path / "resumed" / "work" / "evaljournal-run").is_dir()
    assert not (tmp_path / "resumed" / "temp" / "evaljournal-not-resumed").exists()
