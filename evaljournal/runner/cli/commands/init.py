"""The command `evaljournal init`."""

import shlex
from pathlib import Path
from typing import Final

import click

from evaljournal.runner.cli.options.table import OPTIONS, TABLE, Option
from evaljournal.runner.cli.terminal.output import echo
from evaljournal.runner.errors import UsageError

_INTRO: Final = """\
# Run with: evaljournal run --config {path}
# Options of `evaljournal run` take precedence. Paths are relative to the working directory.
"""
_CHOICE: Final = (
    "# Target: uncomment one of these, or write a file for one: `evaljournal init --chat`, --endpoint or --command.\n"
)
_COMMON: Final = ("slots", "timeout", "max-failures", "fail-under")
_TARGETS: Final = {
    "chat": ("chat", "prompt", "base-url", "key-env", "temperature"),
    "endpoint": ("endpoint", "body", "output-path", "header"),
    "command": ("command", "output-format"),
}
"""Target → its keys in a short file; those in `_ACTIVE` are not commented out."""
_ACTIVE: Final = {"data", "score", "chat", "prompt", "endpoint", "body", "output-path", "command"}


@click.command()
@click.argument("path", type=click.Path(path_type=Path), default=Path("eval.toml"), metavar="[FILE]")
@click.option("--chat", "target", flag_value="chat", help="Write the keys for a chat model.")
@click.option("--endpoint", "target", flag_value="endpoint", help="Write the keys for an HTTP endpoint.")
@click.option("--command", "target", flag_value="command", help="Write the keys for a command.")
@click.option("--all", "with_all", is_flag=True, help="Write all keys, with their help texts.")
def init(path: Path, target: str | None, with_all: bool) -> None:
    """Write a configuration file for `evaljournal run --config` (default: eval.toml).

    \b
    evaljournal init --chat
    evaljournal init --endpoint evals/qa.toml
    evaljournal init --all
    """
    if with_all and target is not None:
        raise UsageError(f"--all and --{target} are mutually exclusive; pass one of them")
    text = _INTRO.format(path=shlex.quote(str(path))) + (_all_keys() if with_all else _short_file(target))
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError("already exists and is never overwritten; pass another name", path=path) from None
    except OSError as exc:
        raise UsageError(f"cannot be written: {exc.strerror}; create its directory or pass another path", path=path) from exc
    edit = f"set data and {target}" if target else "set data and a target"
    echo(f"{path} written; {edit}, then: evaljournal run --config {shlex.quote(str(path))}", err=True)


def _all_keys() -> str:
    """Return every key as a comment; those of tables are at the end, where a table of TOML is written."""
    rows: dict[str, list[str]] = {}
    for group, options in TABLE.items():
        for option in options:
            if option.in_file:
                table, _, key = option.key.rpartition(".")
                row = f"# {option.help}\n# {key} = {option.example or 'true'}\n"
                rows.setdefault(f"# [{table}]" if table else f"# {group}", []).append(row)
    ordered_rows = sorted(rows.items(), key=lambda item: item[0].startswith("# ["))
    return "".join(f"\n{heading}\n\n" + "\n".join(texts) for heading, texts in ordered_rows)


def _short_file(target: str | None) -> str:
    """Return a short file: data, the keys of the target, score and common options; without a target, the key of each target."""
    options = {option.key: option for option in OPTIONS}

    def rows(*keys: str, active: bool = True) -> str:
        return "".join(_row(options[key], is_active=active and key in _ACTIVE) for key in keys)

    targets = rows(*_TARGETS[target]) if target else _CHOICE + rows("chat", "endpoint", "command", "output-key", active=False)
    return f"\n{rows('data')}\n{targets}\n{rows('score')}\n{rows(*_COMMON, active=False)}"


def _row(option: Option, *, is_active: bool) -> str:
    text = option.text.partition(";")[0].rstrip(".")
    return f"{'' if is_active else '# '}{option.key} = {option.example or 'true'}  # {text}\n"
