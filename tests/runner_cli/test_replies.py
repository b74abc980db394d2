"""`run --replies`, `resume` and `pack` as commands: keys that are not set, sources that do not fit, suites."""

from pathlib import Path

import pytest

from evaljournal.journal.events import StepReplayed
from tests.runner_cli.commands import evaljournal, rejected
from tests.runs import events

AGENT = """
import os
from evaljournal import durable, evaluation

KEY = os.environ["OPENAI_API_KEY"]

@durable(kind="model")
def ask(question):
    return {"text": question.upper(), "usage": {"cost": 0.5}}

@evaluation(cases=["lima", "oslo", "rome"], slots=1)
def agent(name):
    return ask(f"PROMPT {name}")["text"]
"""


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> str:
    """Run an agent whose file needs a key; return the run. Then, the key is not set."""
    Path("evals").mkdir()
    Path("evals/agent.py").write_text(AGENT)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    assert 0 == evaljournal("run", "evals/agent.py", "-o", "recorded", "--plain").exit_code
    monkeypatch.delenv("OPENAI_API_KEY")
    return "recorded"


def test_resume_needs_no_key_either(recorded: str) -> None:
    """The file of the evaluation is imported offline by `run` and by `resume`, which reports no change."""
    options = ("--replies", recorded, "--offline", "--plain")
    stopped = evaljournal("run", "evals/agent.py", *options, "-o", "replayed", "--deadline", "0.000001", "-s", "grace=0")

    resumed = evaljournal("resume", "replayed", "--deadline", "none", "--plain")

    assert (3, 0) == (stopped.exit_code, resumed.exit_code), stopped.output + resumed.output
    assert "replayed: 3 replies, $1.50 not paid" in resumed.output
    assert ["deadline: none (was 1e-6)"] == [line for line in resumed.stderr.splitlines() if "(was " in line]
    assert 0 == evaljournal("verify", "replayed", "--sources").exit_code


def test_a_suite_is_offline(recorded: str) -> None:
    """All evaluations of a directory are answered from the same run."""
    result = evaljournal("run", "evals/", "--replies", recorded, "--offline", "--plain")

    assert 0 == result.exit_code, result.output
    assert 3 == len(events(Path("runs/evals/0001/agent"), StepReplayed))


def test_a_packed_file_needs_trust(recorded: str) -> None:
    """`pack` writes a file, which `run` uses with --trust only."""
    packed = evaljournal("pack", recorded, "-o", "replies.jsonl.gz")
    options = ("run", "evals/agent.py", "--replies", "replies.jsonl.gz", "--offline", "--plain", "-o", "replayed")

    assert "if you trust them, add --trust" in rejected(*options)
    assert (0, 0) == (packed.exit_code, evaljournal(*options, "--trust").exit_code)


@pytest.mark.parametrize(
    ("replies", "error"),
    [
        ("missing", "missing is not a run and not a packed file of replies"),
        ("evals/agent.py", "is not a packed file, or is damaged"),
        ("plain", "plain has recorded no replies"),
        ("damaged", "hash"),
    ],
)
def test_a_source_that_cannot_be_used(recorded: str, replies: str, error: str) -> None:
    """The error names the source and what is wrong with it."""
    Path("plain.py").write_text("from evaljournal import evaluation\n@evaluation(cases=[1])\ndef plain(n): return n\n")
    evaljournal("run", "plain.py", "-o", "plain", "--plain")
    journal = Path(recorded, "journal-000001.jsonl").read_bytes()
    Path("damaged").mkdir()
    Path("damaged/journal-000001.jsonl").write_bytes(journal.replace(b"PROMPT oslo", b"PROMPT 0slo"))

    result = evaljournal("run", "evals/agent.py", "--replies", replies, "--offline", "--plain", "-o", "replayed")

    assert result.exit_code in {2, 4}, result.output
    assert error in result.stderr
    assert not Path("replayed").exists()
