"""The option table: flags, groups and defaults of the help, and errors about settings."""

import re
from typing import Any

import attrs
import orjson
import pytest
from click.testing import CliRunner

from evaljournal.runner.calls.chat import Chat
from evaljournal.runner.calls.command import Command
from evaljournal.runner.calls.endpoint import Endpoint
from evaljournal.runner.calls.recorded_output import RecordedOutput
from evaljournal.runner.cli import cli
from evaljournal.runner.cli.commands.rescore import rescore
from evaljournal.runner.cli.commands.resume import resume
from evaljournal.runner.cli.commands.run import run
from evaljournal.runner.cli.options.table import ADVANCED, BY_KEY, OPTIONS, TABLE, Option, render_error
from evaljournal.runner.cli.options.values import parse_values, read_assignments, to_keys
from evaljournal.runner.concurrency.limits import DECLARED
from evaljournal.runner.definition.settings import Settings
from evaljournal.runner.errors import UsageError
from evaljournal.runner.retries.retry import NUMERIC_FIELDS, Retry
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
    hidden = {""} if flag == "--help-all" else {"", *ADVANCED}
    places = [text.index(f"\n{group}:\n") for group, options in TABLE.items() if {option.flag for option in options} - hidden]

    assert sorted(places) == places


def test_the_help_is_short() -> None:
    """`run --help` has at most 35 options and `run --help-all` at most 80, every flag of the table among them."""
    short_text, text = (CliRunner().invoke(cli, ["run", flag]).stdout for flag in ("--help", "--help-all"))
    short_flags, flags = (
        set(re.findall(r"(?:^ +|, |/)(--?[a-z][a-z-]*)", help_, re.MULTILINE)) for help_ in (short_text, text)
    )

    assert set() == {option.flag for option in OPTIONS if option.flag} - flags
    assert {"--data", "--chat", "--score", "--slots", "--json", "-s"} < short_flags
    assert (len(short_flags) <= 35, len(flags) <= 80) == (True, True)


def test_advanced_options() -> None:
    """Every flag that only `--help-all` shows is an option of `run`, `resume` or `rescore`."""
    assert ADVANCED <= {flag for command in (run, resume, rescore) for param in command.params for flag in param.opts}


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.key)
def test_a_row_of_the_table(option: Option) -> None:
    """A row names parameters that its targets have, and its default is theirs."""
    arguments = [(owner, argument) for owner in OWNERS for argument in option.arguments(owner)]
    for owner, argument in arguments:
        default = {field.name: field.default for field in attrs.fields(OWNERS[owner])}[argument]
        if "(default: " in option.help and isinstance(default, str | float | int) and argument not in {"prices", "slots"}:
            shown = f"{default:g}" if isinstance(default, float) else str(default)
            if isinstance(default, bool):
                shown = option.spec.split("/")[not default] if option.flag else str(default).lower()
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
        (UsageError("too small", setting="retry.errors", value=-1), "retry.errors = -1: too small"),
        (UsageError("too large", setting="max_failures", value=0.05), "--max-failures 5%: too large; 'none' turns it off"),
        (UsageError("too small", setting="slots", value=0, path="eval.toml"), "eval.toml: slots = 0: too small"),
        (UsageError("bad", setting="loop", value="x"), "loop='x': bad"),
        (UsageError("bad"), "bad"),
    ],
)
def test_errors_about_settings(error: UsageError, text: str) -> None:
    """A setting is named by its flag, or by its key in a file; one without a flag as in Python."""
    assert text == render_error(error)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            "--retry-errors 4",
            "is the key retry.errors of the configuration file: [retry] errors = 4 in FILE.toml, or -s ",
        ),
        ("--retry-errors=4", "or -s retry.errors=4"),
        ("--no-requests", "--no-requests is the key requests of the configuration file: requests = false in FILE.toml, "),
        ("--limit-headers ignore", "or -s limits.headers=ignore"),
        ("--itpm 5", "--itpm is the key limits.itpm"),
        ("--durability os", "or -s durability=sync"),
        ("--polcy x", "No such option"),
        ("-s polcy=x", "unknown key 'polcy'; did you mean 'policy'"),
        ("-s retry.erors=1", "unknown key 'retry.erors'; did you mean 'retry.errors'"),
        ("-s retry-errors=1", "unknown key 'retry-errors'; did you mean [retry] errors = 4?"),
        ("-s retry=1", "write retry as a table [retry]"),
        ("-s retry.errors", "-s 'retry.errors': expected KEY=VALUE, such as -s retry.errors=4"),
        ("-s retry.errors=x", "-s retry.errors = 'x': 'x' is not a valid integer"),
        ("-s batch-fallback=yes", "-s batch-fallback = 'yes': expected true or false"),
        ("-s policy=aimd", "-s policy = 'aimd': 'aimd' is not one of 'adaptive', 'fixed'"),
        ("-s slots=2 --slots 3", "--slots and -s slots are the same; pass one of them"),
        ("-s grace=2 -s grace=3", "-s grace is passed twice; pass one of them"),
        ("-s =1", "expected KEY=VALUE"),
        ("-s #x=1", "expected KEY=VALUE"),
    ],
)
def test_keys_on_the_command_line(arguments: str, text: str) -> None:
    """A key is set with `-s`; an option that is a key by now, and a wrong key or value, are errors that show what is right."""
    result = CliRunner().invoke(cli, ["run", "evals.py", *arguments.split()])

    assert 2 == result.exit_code
    assert text in result.stderr


@pytest.mark.parametrize(
    ("assignments", "values"),
    [
        (["retry.errors=4", "retry.rate_limits=2.5"], {"retry_errors": 4, "retry_rate_limits": 2.5}),
        (["durability=os", "delimiter=;"], {"durability": "os", "delimiter": ";"}),
        (["idempotency-header="], {"idempotency_header": ""}),
        (["prompt=a\nb = 'c'"], {"prompt": ("a\nb = 'c'",)}),
        (['image=["a", "b"]', "file=c"], {"image": ("a", "b"), "file": ("c",)}),
        (["choice=good=1", "choice=bad=0"], {"choice": ("good=1", "bad=0")}),
        (["limits.rpm=5", 'limits."m.1".rpm=3', "limits.headers=ignore"], {"rpm": ("5", "m.1=3"), "limits_headers": "ignore"}),
        (["max-failures=5%", "timeout=none", "requests=false"], {"max_failures": 0.05, "timeout": "none", "requests": False}),
        (['extra-body={"top_p": 0.5}'], {"extra_body": '{"top_p": 0.5}'}),
    ],
)
def test_assignments(assignments: list[str], values: dict[str, Any]) -> None:
    """`-s KEY=VALUE` is a line of a configuration file; a value that is not TOML is a text."""
    assert values == read_assignments(assignments)
    assert values == parse_values(orjson.loads(orjson.dumps(to_keys(values))), BY_KEY)


def test_every_setting_has_a_key() -> None:
    """Each field of `Settings` and each number of `Retry` and `limits` has one row; `loop` is for Python only."""
    names = {field.name for field in attrs.fields(Settings)} - {"loop", "retry", "limits"}
    rows = [
        (owner, name) for option in OPTIONS for owner in ("settings", "retry", "limits") for name in option.arguments(owner)
    ]

    assert len(rows) == len(set(rows))
    assert names == {name for owner, name in rows if owner == "settings"}
    assert set(NUMERIC_FIELDS) == {name for owner, name in rows if owner == "retry"}
    assert {*DECLARED, "headers"} == {name for owner, name in rows if owner == "limits"}
