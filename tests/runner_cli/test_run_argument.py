"""The RUN argument, and shell completion."""

import os
import shutil
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from evaljournal import scorers
from evaljournal.replay.export import FORMATS
from evaljournal.runner.cli import cli
from evaljournal.runner.cli.arguments import find_run, run_and_trial
from evaljournal.runner.errors import UsageError
from tests.journal.samples import complete_run, write_sync
from tests.runner_cli.commands import evaljournal, rejected


@pytest.fixture(autouse=True)
def runs(working_directory: None) -> None:
    """Two runs of `capitals`, the second newer, and one of `rivers`, the oldest."""
    for name in ("rivers/0001", "capitals/0001", "capitals/0002"):
        write_sync(Path("runs", name), complete_run())
    for age, name in enumerate(("capitals/0002", "capitals/0001", "rivers/0001")):
        for file in Path("runs", name).glob("journal-*.jsonl"):
            os.utime(file, (1_000_000 - age, 1_000_000 - age))


@pytest.mark.parametrize(
    ("argument", "path"),
    [
        ("capitals", "runs/capitals/0002"),
        ("runs/capitals", "runs/capitals/0002"),
        ("runs/capitals/0001", "runs/capitals/0001"),
        ("rivers", "runs/rivers/0001"),
        ("runs", "runs/capitals/0002"),
    ],
)
def test_a_run_is_found(argument: str, path: str) -> None:
    """RUN is a run, a directory of runs or an evaluation; the newest run is used."""
    assert Path(path) == find_run(argument)
    assert evaljournal("status", argument).stdout == evaljournal("status", path).stdout


def test_an_unknown_run() -> None:
    """An unknown name is an error that suggests a run."""
    with pytest.raises(UsageError, match="'capitals'"):
        find_run("capitls")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((None, None), ("runs/capitals/0002", None)),
        (("peru", None), ("runs/capitals/0002", "peru")),
        (("rivers", None), ("runs/rivers/0001", None)),
        (("rivers", "nile"), ("runs/rivers/0001", "nile")),
        (("runs/capitals/0001", None), ("runs/capitals/0001", None)),
    ],
)
def test_a_run_and_a_trial(arguments: tuple[str | None, str | None], expected: tuple[str, str | None]) -> None:
    """One argument is a run if it exists as one; otherwise it is a trial of the newest run."""
    path, trial = run_and_trial(*arguments)

    assert expected == (str(path), trial)


@pytest.mark.parametrize("command", ["log", "show"])
def test_a_path_is_never_a_trial(command: str) -> None:
    """An argument with a path separator that does not exist is an error."""
    assert "runs/capitals/0009 does not exist" in rejected(command, "runs/capitals/0009")


def completed(name: str, parameter: str, incomplete: str, **params: str) -> list[str]:
    """Return what the shell completes."""
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    context = click.Context(command)
    context.params.update(params)
    param = next(param for param in command.params if param.name == parameter)
    return [item.value for item in param.shell_complete(context, incomplete)]


def test_completion() -> None:
    """Runs, trials, export formats, scorers and event types are completed."""
    assert ["capitals"] == completed("status", "run", "cap")
    assert ["runs/capitals/0001", "runs/capitals/0002"] == completed("compare", "runs", "runs/c")
    assert ["capitals", "case-1", "case-2"] == completed("show", "run", "ca")
    assert ["case-1", "case-2"] == completed("show", "trial", "case", run="rivers")
    assert [name for name in FORMATS if name.startswith("j")] == completed("export", "name", "j")
    assert [name for name in scorers.NAMES if name.startswith("c")] == completed("run", "score", "c")
    assert ["run_started", "run_stopped"] == completed("log", "types", "run_st")


def test_options_are_completed_without_a_run() -> None:
    """The options of a command are completed where there is no run that it could be about."""
    shutil.rmtree("runs")
    variables = {"_EVALJOURNAL_COMPLETE": "bash_complete", "COMP_WORDS": "evaljournal export --forc", "COMP_CWORD": "2"}

    result = CliRunner().invoke(cli, prog_name="evaljournal", env=variables)

    assert (0, "plain,--force\n") == (result.exit_code, result.stdout)
