"""Every example runs, those with an SDK against the local server."""

import asyncio
import json
import os
import shlex
from pathlib import Path
from typing import Any, Final

import pytest

from evaljournal.replay import load
from evaljournal.runner.definition.loading import load_evaluation
from tests.processes import ROOT, run_forked
from tests.programs import find_program, import_optional
from tests.server import Server

pytestmark = pytest.mark.slow

EXAMPLES: Final = ROOT / "examples"


def run_example(name: str, directory: Path, **environment: str) -> Path:
    """Run an example with the command line; return the path of its run."""
    return run_in(directory, str(EXAMPLES / name), **environment)


def run_in(directory: Path, *arguments: str, **environment: str) -> Path:
    """Run `evaljournal run` in a directory; return the path of its run."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    code, printed, err = run_forked(["evaljournal", "run", *arguments], directory, variables)
    assert 0 == code, printed + err
    [path] = directory.glob("runs/*/0001")
    return path


@pytest.mark.parametrize(("package", "api"), [("openai", "v1"), ("anthropic", "api")])
def test_sdks(tmp_path: Path, server: Server, package: str, api: str) -> None:
    """The SDK calls its API once for each case; the usage is recorded."""
    import_optional(package)
    name = f"example-{package}"
    variables = {f"{package.upper()}_BASE_URL": server.url(name, "ok", api), f"{package.upper()}_API_KEY": "test-key-1234"}
    run = load(run_example(f"{package}_sdk.py", tmp_path, **variables))

    assert "WHAT IS THE CAPITAL OF PERU?" == dict(run.outputs())["peru"]
    assert 3 == len(server.requests(name))
    assert {"input_tokens": 3000, "output_tokens": 300} == run.state.usage


def test_variants(tmp_path: Path, server: Server) -> None:
    """Two models and two prompts are four variants of each case, with a rate-limit key for each model."""
    import_optional("openai")
    url = server.url("example-variants", "ok", "v1")
    path = run_example("variants.py", tmp_path, OPENAI_BASE_URL=url, OPENAI_API_KEY="test-key-1234")
    state = load(path).state

    assert 3 * 4 == len(server.requests("example-variants"))
    assert [3, 3, 3, 3] == [totals.completed for totals in state.variants.values()]
    assert {"gpt-5.6-luna", "gpt-5.6-terra"} == set(state.policy.attempt_limits)


def test_an_agent_in_javascript(tmp_path: Path, server: Server) -> None:
    """A command without any code for evaljournal calls the model through the gateway."""
    node = find_program("node", package="nodejs")
    data, command = str(EXAMPLES / "capitals.jsonl"), f"{node} {shlex.quote(str(EXAMPLES / 'agent.mjs'))}"
    environment = {"OPENAI_BASE_URL": server.url("example-agent", "ok", "v1"), "OPENAI_API_KEY": "test-key-1234"}
    path = run_in(tmp_path, "--data", data, "--command", command, "--gateway", "--limit", "2", **environment)
    state = load(path).state

    assert (2, 2) == (state.completed, state.steps.completed)
    assert 2 == len(server.requests("example-agent"))


@pytest.mark.parametrize(("sdk", "end"), [("openai", "v1"), ("anthropic", "api")])
def test_agents(tmp_path: Path, server: Server, sdk: str, end: str) -> None:
    """Each case takes three model calls and two tool calls, all of them steps."""
    import_optional(sdk)
    name = f"example-{sdk}-agent"
    environment = {f"{sdk.upper()}_BASE_URL": server.url(name, "tools", end), f"{sdk.upper()}_API_KEY": "test-key-1234"}
    path = run_example(f"{sdk}_agent.py", tmp_path, **environment)
    state = load(path).state

    assert {"lima": '["JACKET", "SHIRT"]', "oslo": '["JACKET", "SHIRT"]'} == dict(load(path).outputs())
    assert 2 * 3 == len(server.requests(name))
    assert 2 * (3 + 2) == state.steps.completed
    assert 2 * 3 * 1000 == state.usage["input_tokens"]


@pytest.mark.parametrize(
    ("program", "passed", "reason"),
    [
        ("def solve(n): return n * n", True, "returned [9, 16]"),
        ("print([9, 16])\ndef solve(n): return 9", False, "returned [9, 9]"),
        ("import os; os._exit(3)", False, "exit code 3: "),
        ("import signal; signal.raise_signal(signal.SIGKILL)", False, "exit code -9: "),
        ("```python", False, "SyntaxError"),
    ],
    ids=["right", "wrong", "exit", "killed", "invalid"],
)
def test_programs_that_are_executed(program: str, passed: bool, reason: str) -> None:  # noqa: FBT001  # a parameter of the test
    """Every program gets a score, even one that exits or is invalid."""
    unit_tests: Any = load_evaluation(str(EXAMPLES / "code_execution.py")).evaluation.scorers["unit_tests"].function
    score = unit_tests(program, metadata={"tests": [[[3], 9], [[-4], 16]]})

    assert passed is score.value
    assert reason in score.reason


def test_the_documented_example() -> None:
    """The page about workers contains the example with containers verbatim."""
    page = (ROOT / "docs" / "workers.md").read_text(encoding="utf-8")

    for file in (EXAMPLES / "code_execution.py", EXAMPLES / "sandbox" / "Dockerfile"):
        assert file.read_text(encoding="utf-8").partition('"""\n\n')[2] in page


def test_plain_function(tmp_path: Path) -> None:
    """Each ticket goes to the expected queue."""
    state = load(run_example("plain_function.py", tmp_path)).state

    assert (3, 1.0) == (state.completed, state.scores["exact"].mean)


def test_llm_judge(tmp_path: Path, server: Server) -> None:
    """The judge's verdict and the other score are recorded."""
    url = server.url("example-judge", "reply:It does. verdict: yes", "v1")
    state = load(run_example("llm_judge.py", tmp_path, OPENAI_BASE_URL=url, OPENAI_API_KEY="test-key-1234")).state

    assert {"brief": 1.0, "judge": 1.0} == {name: tally.mean for name, tally in state.scores.items()}


def test_quickstart(tmp_path: Path) -> None:
    """The simulated model answers all sixty questions, some of them wrongly."""
    state = load(run_example("quickstart.py", tmp_path)).state

    assert 60 == state.completed
    assert 0.8 < (state.scores["exact"].mean or 0) < 1


def test_notebook(capsys: pytest.CaptureFixture[str]) -> None:
    """The cells run one after the other, next to the event loop of a kernel."""
    cells = json.loads((EXAMPLES / "notebook.ipynb").read_text(encoding="utf-8"))["cells"]
    names: dict[str, Any] = {"__name__": "__main__"}

    async def kernel() -> None:
        for number, cell in enumerate(cells):
            if cell["cell_type"] == "code":
                exec(compile("".join(cell["source"]), f"<cell {number}>", "exec"), names)  # noqa: S102  # as a kernel does

    asyncio.run(kernel())
    state = load(names["outcome"].path).state

    assert {"exact": 0.5, "ignoring_case": 1.0} == {name: tally.mean for name, tally in state.scores.items()}
    assert "ignoring_case" in capsys.readouterr().out
