"""Commands as scorers of workspaces: exit codes, numbers, restored files, and commands that hang, flood or look for keys."""

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from evaljournal import Case, UsageError, rescore, scorers
from evaljournal.journal import read
from evaljournal.journal.events import AttemptSucceeded, ScoringFailed, TrialScored
from evaljournal.runner.calls.command import Command
from evaljournal.runner.calls.http import reply
from evaljournal.runner.calls.workspaces import runs_directory
from evaljournal.runner.runs.fork import fork
from evaljournal.runner.runs.merge import merge
from tests.journal.samples import flip, segment
from tests.runner_cli.commands import evaljournal
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
    monkeypatch.setattr(reply, "MAX_BYTES", 100_000)
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


def test_workspaces_stay_with_the_run_that_made_them(path: Path, repo: Path) -> None:
    """Merged, forked and salvaged runs score the workspaces of their sources, whose original restores files."""
    cases = [Case(name=name, input=name) for name in ("lima", "oslo", "rome", "cairo")]
    defined = partial(define_scored, repo, files=["tests"], keep="all", cases=cases)
    shards = [path.with_name(f"shard-{number}") for number in (1, 2)]
    for number, shard in enumerate(shards, 1):
        run_real(defined("true"), shard, shard=f"{number}/2")
    trio.run(merge, shards, path.with_name("merged"))
    again = rescore(defined("sh tests/check.sh"), path.with_name("merged"))
    reasons = [event.reason for event in events(path.with_name("merged"), TrialScored)]
    assert (4, ["check.sh"] * 4) == (again.outputs, reasons[4:])

    outputs = [record.seq for record in read(shards[0]) if isinstance(record.event, AttemptSucceeded)]
    trio.run(fork, shards[0], path.with_name("fork"), outputs[0])
    forked = run_real(defined("true"), path.with_name("fork"), resume=True)
    assert ("finished", []) == (forked.state.outcome, events(path.with_name("fork"), ScoringFailed))

    scored = [record for record in read(shards[0]) if isinstance(record.event, TrialScored)]
    flip(segment(shards[0]), scored[0].offset + 20)
    result = evaljournal("salvage", shards[0], "-o", path.with_name("salvaged"))
    assert "1 output not scored by check: evaljournal rescore " in result.stderr
    assert "commands score only outputs whose workspaces were kept" in result.stderr
    assert 1 == rescore(defined("true"), path.with_name("salvaged")).outputs


def test_a_workspace_that_its_run_has_removed(path: Path, repo: Path) -> None:
    """The error of a fork names the run that made the workspace: in `rescore` before anything is scored, else of the score."""
    run_real(define_scored(repo, "true", keep="all"), path)
    target = path.with_name("fork")
    output = next(record.seq for record in read(path) if isinstance(record.event, AttemptSucceeded))
    for name, seq in (("fork", None), ("early", output)):
        trio.run(fork, path, path.with_name(name), seq)
    [owner] = [directory for directory in runs_directory().iterdir() if (directory / "attempts").exists()]
    run_id = owner.name
    shutil.rmtree(owner)

    with pytest.raises(
        UsageError, match=f"some were removed, or are not on this machine \\(run '{run_id}' made them\\): 'lima'"
    ):
        rescore(define_scored(repo, "false", keep="all"), target)
    run_real(define_scored(repo, "true", keep="all"), path.with_name("early"), resume=True)
    (failed,) = events(path.with_name("early"), ScoringFailed)
    assert f"is not on this machine, or was removed: run {run_id} made it" in failed.message


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
