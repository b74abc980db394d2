"""The option table: flags, groups and defaults of the help, and errors about settings."""

from typing import Any

import attrs
import pytest
from click.testing import CliRunner

from evaljournal.runner.calls.chat import Chat
from evaljournal.runner.calls.command import Command
from evaljournal.runner.calls.endpoint import Endpoint
from evaljournal.runner.calls.recorded_output import RecordedOutput
from evaljournal.runner.cli import cli
from evaljournal.runner.cli.commands.run import run
from evaljournal.runner.cli.options.no_code import evaluation_from_reference
from evaljournal.runner.cli.options.table import ADVANCED, OPTIONS, TABLE, Option, render_error
from evaljournal.runner.definition.settings import Settings
from evaljournal.runner.errors import UsageError
from evaljournal.runner.retries.retry import Retry
from evaljournal.runner.scorers.llm_judge import Judge

OWNERS: dict[str, Any] = {
    "settings": Settings,
    "retry": Retry,
    "endpoint": Endpoint,
    "chat": Chat,
    "command": Command,
    "recorded": RecordedOutput,
}


@pytest.mark.parametrize("flag", ["--help", "--help-all"])
def test_the_help_is_grouped(flag: str) -> None:
    """The help of `run` has a section for each group of the table, in its order."""
    text = CliRunner().invoke(cli, ["run", flag]).stdout
    places = [text.index(f"\n{group}:\n") for group in TABLE]

    assert sorted(places) == places


def test_the_help_is_short() -> None:
    """`run --help` shows about half of the options, and `run --help-all` every flag."""
    short_text, text = (CliRunner().invoke(cli, ["run", flag]).stdout for flag in ("--help", "--help-all"))
    short_flags = {option.flag for option in OPTIONS if f"  {option.flag} " in short_text}

    assert [] == [option.flag for option in OPTIONS if f"  {option.flag} " not in text]
    assert {"--data", "--chat", "--score", "--slots", "--json"} < short_flags
    assert 35 <= len(short_flags) <= 42


def test_advanced_options() -> None:
    """Every flag that only `--help-all` shows is an option of `run`."""
    assert ADVANCED <= {flag for param in run.params for flag in param.opts}


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.key)
def test_a_row_of_the_table(option: Option) -> None:
    """A row names parameters that its targets have, and its default is theirs."""
    arguments = [(owner, argument) for owner in OWNERS for argument in option.arguments(owner)]
    for owner, argument in arguments:
        default = {field.name: field.default for field in attrs.fields(OWNERS[owner])}[argument]
        if "(default: " in option.help and isinstance(default, str | float | int) and argument not in {"prices", "slots"}:
            shown = f"{default:g}" if isinstance(default, float) else str(default)
            if isinstance(default, bool):
                shown = option.spec.split("/")[not default]
            assert f" {shown})" in option.help
    assert option.text.endswith(".")
    assert option.example or option.metavar is None or not option.in_file


def test_judge_options() -> None:
    """The options of a judge are parameters of `Judge` or of its chat model."""
    names = {field.name for kind in (Judge, Chat) for field in attrs.fields(kind)}

    assert {argument for option in OPTIONS for argument in option.arguments("judge")} <= names


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (UsageError("too small", setting="timeout", value=-1.0), "--timeout -1.0: too small; 'none' turns it off"),
        (UsageError("too small", setting="retry.errors", value=-1), "--retry-errors -1: too small"),
        (UsageError("too large", setting="max_failures", value=0.05), "--max-failures 5%: too large; 'none' turns it off"),
        (UsageError("too small", setting="slots", value=0, path="eval.toml"), "eval.toml: slots = 0: too small"),
        (UsageError("bad", setting="loop", value="x"), "loop='x': bad"),
        (UsageError("bad"), "bad"),
    ],
)
def test_errors_about_settings(error: UsageError, text: str) -> None:
    """A setting is named by its flag, or by its key in a file; one without a flag as in Python."""
    assert text == render_error(error)


def test_a_reference_does_not_change_the_help(monkeypatch: pytest.MonkeyPatch) -> None:
    """`-h` works after `run` has parsed the options that a run was started with; click keeps its first help option."""
    monkeypatch.setattr(run, "_help_option", None)
    with pytest.raises(UsageError):
        evaluation_from_reference("--chat m --data missing.jsonl --score exact")

    assert "-h, --help" in CliRunner().invoke(cli, ["run", "-h"]).stdout
