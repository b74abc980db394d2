"""Commands as scorers of workspaces: exit codes, numbers, restored files, and commands that hang, flood or look for keys."""

from pathlib import Path
from typing import Any

import pytest

from evaljournal import UsageError, rescore, scorers
from evaljournal.journal.events import ScoringFailed, TrialScored
from evaljournal.runner.calls.command import Command
from evaljournal.runner.calls.http import reply_memory
from evaljournal.runner.calls.workspaces import runs_directory
from tests.runs import AnyEvaluation, define_real, events, run_real

AGENT = "echo changed > a.txt; rm tests/check.sh; ln -s /etc tests/link; echo 'exit 0' > tests/check.sh; echo x > tests/new"


@pytest.fixture(autouse=True)
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory with a test; workspaces are in a directory of the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-short")
    repo = tmp_path / "repo"
    (repo / "tests").mkdir(parents=True)
    (repo / "a.txt").write_text("a\n")
    (repo / "tests/check.sh").write_text("ls tests; grep -q changed a.txt")
    return repo


def define_scored(repo: Path, command: Any, *, files: Any = (), agent: str = AGENT, **options: Any) -> AnyEvaluation:
    """Return an evaluation whose workspaces are scored by a command."""
    task = Command(agent, shell=True)  # noqa: S604  # of the test
    evaluation_ = define_real(task, workspace=repo, **options)
    evaluation_.score(name="check")(scorers.command(command, files))
    return evaluation_


@pytest.mark.parametrize(
    ("command", "files", "value", "reason"),
    [
        ("sh -c 'cat a.txt'", (), True, "changed"),
        ("sh -c 'echo no >&2; exit 3'", (), False, "no\nexited with code 3"),
        ("sh -c 'kill -9 $$'", (), False, "was killed by SIGKILL"),
        ("""echo '{"score": 0.25, "reason": "why"}'""", (), 0.25, "why"),
        ("""echo '{"score": null}'""", (), True, '{"score": null}'),
        ("sh tests/check.sh", (), True, ""),
        ("sh tests/check.sh", ["tests"], True, "check.sh"),
        ("sh tests/check.sh", "tests/check.sh", True, "check.sh\nnew"),
        ("sh -c 'printenv OPENAI_API_KEY'", (), False, "exited with code 1"),
        ("sh -c '[ -L tests/link ] || echo gone'", (), True, "gone"),
        ("sh -c 'echo x > a.txt; cat'", (), True, '{"input":"lima","output":"","expected":null}'),
    ],
)
def test_a_command_scores_a_workspace(  # noqa: PLR0917  # fixtures and parameters
    path: Path, repo: Path, command: str, files: Any, value: object, reason: str
) -> None:
    """The exit code, or a printed object, is the score; named files are restored; links outside and keys are not there."""
    run_real(define_scored(repo, command, files=files), path)
    (scored,) = events(path, TrialScored)

    assert (value, reason) == (scored.value, scored.reason)
    assert (repo / "a.txt").read_text() == "a\n"


@pytest.mark.parametrize(
    ("command", "files", "error"),
    [
        ("sleep 100", (), "no score within 1 s"),
        ("yes", (), "larger than 0 MiB"),
        ("sh -c 'exit 127'", (), "exited with code 127"),
        ("true", ["missing"], "'missing' is not in the directory"),
    ],
)
def test_a_command_that_cannot_score(  # noqa: PLR0917  # fixtures and parameters
    path: Path, repo: Path, monkeypatch: pytest.MonkeyPatch, command: str, files: Any, error: str
) -> None:
    """A command that hangs, floods or does not exist, and a missing file, are failures of the score; the output is kept."""
    monkeypatch.setattr(reply_memory, "MAX_BYTES", 100_000)
    run_real(define_scored(repo, command, files=files, timeout=1.0), path)
    (failed,) = events(path, ScoringFailed)

    assert error in failed.message


def test_rescore_needs_a_kept_workspace(path: Path, repo: Path) -> None:
    """`rescore` uses kept workspaces, and without one it is an error that names the trial."""
    run_real(define_scored(repo, "false", files=["tests"]), path)
    again = rescore(define_scored(repo, "sh tests/check.sh", files=["tests"]), path)
    run_real(define_scored(repo, "true"), other := path.with_name("other"))

    assert 1 == again.outputs
    assert [False, True] == [event.value for event in events(path, TrialScored)]
    with pytest.raises(UsageError, match="some were removed: 'lima'; run these trials again, with --keep all"):
        rescore(define_scored(repo, "false"), other)


@pytest.mark.parametrize(
    ("command", "files", "problem"),
    [
        ("", (), "is missing"),
        ("'", (), "check its quotes"),
        ("no-such-program", (), "not found"),
        ("true", ["../x"], "not a path inside"),
    ],
)
def test_invalid_commands(command: str, files: Any, problem: str) -> None:
    """An empty or unknown command, and a file outside, are usage errors."""
    with pytest.raises(UsageError, match=problem):
        scorers.command(command, files)


def test_a_command_scorer_needs_a_workspace(path: Path) -> None:
    """Without a workspace there is nothing to execute it in."""
    evaluation_ = define_real(Command("true"))
    evaluation_.score(scorers.command("true"))
    with pytest.raises(UsageError, match="pass --workspace DIR"):
        run_real(evaluation_, path)

    assert not runs_directory().exists()
