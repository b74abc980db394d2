"""Resuming after the code of an evaluation, or a file that it depends on, has changed."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import TIMEOUT
from tests.runner_cli.commands import evaljournal, printed, run_process

EVALUATION = """
import os, signal
import trio
from evaljournal import Case, evaluation
{header}

CASES = [Case(name=f"t{{number}}", input=number, expected=number) for number in range(6)]

def right(output, expected):
    return output == expected

@evaluation(cases=CASES, slots=1, policy="fixed", grace=0, {options})
async def numbers(number):
    with open("calls", "a") as file:
        file.write(f"{{number}}\\n")
    if number == 3 and "STOP" in os.environ:
        os.kill(os.getpid(), signal.SIGINT)
        await trio.sleep_forever()
    return -1 if number in {wrong} else number

@numbers.score
def exact(output, expected):
    return right(output, expected)
"""
READ = 'json.loads(Path(__file__).with_name("prompt.json").read_text())'
JSON = "import json\nfrom pathlib import Path"
WAYS = {
    "a module": ("evals/prompts/first.py", "from prompts import first", "", "first.WRONG", "WRONG = {} "),
    "a module of a module": ("evals/prompts/base.py", "from prompts import first", "", "first.WRONG", "WRONG = {}"),
    "a file read by a module": ("evals/prompt.json", "import read", "", "read.WRONG", "{}"),
    "a file read on loading": ("evals/prompt.json", f"{JSON}\nWRONG = {READ}", "", "WRONG", "{}"),
    "a file that it depends on": ("evals/prompt.json", JSON, 'depends=["prompt.json"]', READ, "{}"),
    "a variable": ("evals/numbers_.py", "WRONG = {}", "", "WRONG", ""),
}
"""How a task depends on a prompt → its file, the imports, an option, the expression that reads it, and the file's content."""
FIRST, SECOND = "[0]", "[3, 4]"
"""Two prompts: which of the six answers are wrong."""


def write(way: str, prompt: str) -> None:
    """Write an evaluation that depends on a prompt."""
    file, header, options, wrong, content = WAYS[way]
    package = Path("evals/prompts")
    package.mkdir(parents=True, exist_ok=True)
    Path("pyproject.toml").touch()
    (package / "__init__.py").touch()
    (package / "first.py").write_text("from .base import WRONG\n")
    (package / "base.py").write_text("WRONG = []\n")
    Path("evals/read.py").write_text(f"{JSON}\nWRONG = {READ}\n")
    Path("evals/prompt.json").write_text("[]")
    Path("evals/numbers_.py").write_text(EVALUATION.format(header=header.format(prompt), options=options, wrong=wrong))
    if content:
        Path(file).write_text(content.format(prompt))


def calls() -> list[str]:
    """Return the inputs of all calls."""
    return Path("calls").read_text().split()


def passed(run: str) -> int:
    """Return how many of the six answers passed."""
    return sum(trial["scores"]["exact"] for trial in printed("show", run)["trials"])


@pytest.fixture(autouse=True)
def no_bytecode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile each version of a module: Python distinguishes them by second and length only."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")


def interrupted_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the evaluation until three of its six trials are done."""
    monkeypatch.setenv("STOP", "1")
    code, _, err = run_process("run", "evals/numbers_.py", "-o", "run")
    monkeypatch.delenv("STOP")

    assert (3, ["0", "1", "2", "3"]) == (code, calls()), err


@pytest.mark.parametrize("way", [*WAYS][1:])  # The second is a module, too.
def test_a_changed_prompt_is_rejected_and_can_be_adopted(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is not resumed with another prompt, which would mix their scores; with --adopt, each output has its version."""
    write(way, FIRST)
    interrupted_run(monkeypatch)
    write(way, SECOND)
    code, _, err = run_process("resume", "run")

    assert (2, ["0", "1", "2", "3"]) == (code, calls()), err
    name = Path(WAYS[way][0]).relative_to("evals").as_posix()
    assert [f"  {name} has changed"] == [line for line in err.splitlines() if "changed" in line and "accepts" not in line]

    code, out, err = run_process("resume", "run", "--adopt")

    assert (0, ["0", "1", "2", "3", "3", "4", "5"]) == (code, calls()), err
    assert 3 == passed("run")
    assert f"session 2 adopted changes: file {name}\n  3 of 6 outputs are from an older version of the task\n" in out
    trials = printed("show", "run")["trials"]
    assert [1, 1, 1, 2, 2, 2] == [trial["task_version"] for trial in trials]
    assert f"version   1 of 2 of the task; session 2 adopted file {name}\n" in evaljournal("show", "run", "t0").stdout


def test_a_file_that_the_command_has_seen_is_compared_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that was opened while the command loaded the evaluation counts if the run is resumed from Python, too."""
    write("a file read on loading", FIRST)
    interrupted_run(monkeypatch)
    code = "from evaljournal import run; from evals.numbers_ import numbers; run(numbers, 'run', resume=True)"
    write("a file read on loading", SECOND)
    changed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=TIMEOUT)
    write("a file read on loading", FIRST)
    unchanged = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=TIMEOUT)

    assert (1, True) == (changed.returncode, "prompt.json has changed" in changed.stderr)
    assert (0, 5) == (unchanged.returncode, passed("run")), unchanged.stderr


def test_shards_with_different_files_are_not_merged() -> None:
    """`merge` rejects shards of different versions, and names the file; the directory of a checkout does not matter."""
    for shard, prompt in (("1/2", FIRST), ("2/2", SECOND)):
        write("a file read by a module", prompt)
        assert 0 == run_process("run", "evals/numbers_.py", "-o", f"shard-{shard[0]}", "--shard", shard)[0]
    rejected = evaljournal("merge", "shard-1", "shard-2", "-o", "merged")
    Path("elsewhere").mkdir()
    write("a file read by a module", FIRST)
    shutil.copytree("evals", "elsewhere/evals")
    assert 0 == run_process("run", "elsewhere/evals/numbers_.py", "-o", "shard-3", "--shard", "2/2")[0]

    assert (2, True) == (rejected.exit_code, "\n  prompt.json has changed\n" in rejected.stderr)
    assert 0 == evaljournal("merge", "shard-1", "shard-3", "-o", "merged").exit_code


def test_a_changed_git_revision_is_recorded_and_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new git revision alone is recorded and shown in one line."""
    write("a module", FIRST)
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run([*git, "init", "--quiet"], check=True, timeout=TIMEOUT)
    for message in ("first", "second"):
        subprocess.run([*git, "commit", "--quiet", "--allow-empty", "-m", message], check=True, timeout=TIMEOUT)
        if message == "first":
            interrupted_run(monkeypatch)
    log = subprocess.run([*git, "log", "--format=%H"], check=True, capture_output=True, text=True, timeout=TIMEOUT)
    revisions = log.stdout.split()
    code, _, err = run_process("resume", "run")

    assert (0, [f"git revision: {revisions[0]} (was {revisions[1]})"]) == (
        code,
        [line for line in err.splitlines() if "git" in line],
    )
    lines = Path("run/journal-000001.jsonl").read_text() + Path("run/journal-000002.jsonl").read_text()
    assert 1 == lines.count(f'"git":"{revisions[0]}"')
