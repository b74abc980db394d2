"""The command `evaljournal init`."""

from pathlib import Path
from typing import Final

import click

from runner.errors import UsageError

_INTRO: Final = """\
# An evaluation without code. Run it with: evaljournal run --config {path}
#
# The keys are the names of the flags of `evaljournal run`; a flag on the command line wins over its key here.
# Paths are seen from where the command is run. Keys and passwords stay in the environment: write $NAME.

"""

_ACTIVE: Final = {"data": '"qa.jsonl"', "command": '"./answer.sh"', "score": '["exact"]', "slots": "8", "timeout": "60"}

_EXAMPLES: Final = {
    "id-key": '"id"',
    "input-key": '"question"',
    "expected-key": '"answer"',
    "name": '"qa"',
    "endpoint": '"http://localhost:8000/generate"',
    "body": '{ question = "{question}" }',
    "header": '{ Authorization = "Bearer $MY_KEY" }',
    "output-path": '"choices.0.text"',
    "error-path": '"error"',
    "done-path": '"done"',
    "idempotency-header": '"Idempotency-Key"',
    "connect-timeout": "10",
    "read-timeout": "60",
    "chat": '"gpt-4o-mini"',
    "base-url": '"http://localhost:8000/v1"',
    "key-env": '"MY_KEY"',
    "prompt": '"Answer briefly: {question}"',
    "system": '"@system.txt"',
    "messages": '"messages.json"',
    "temperature": "0.0",
    "max-tokens": "500",
    "schema": '"schema.json"',
    "more": "{ top_p = 0.9 }",
    "prices": '"prices.toml"',
    "output-key": '"output"',
    "judge": '"gpt-4o"',
    "rubric": '"@rubric.txt"',
    "choice": "{ good = 1, bad = 0 }",
    "judge-url": '"http://localhost:8000/v1"',
    "judge-key-env": '"MY_KEY"',
    "deadline": "3600",
    "retry-errors": "4",
    "retry-timeouts": "2",
    "retry-rate-limits": "600",
    "retry-base-delay": "1",
    "retry-max-delay": "60",
    "limit-key": '"model"',
    "max-failures": '"5%"',
    "fail-under": '["exact=0.9"]',
    "grace": "5",
    "nat-output": '"nat"',
    "only": '["peru*"]',
    "skip": '["test-*"]',
    "limit": "20",
}
"""What a key may look like, where its type does not say enough; a number that has a default is that."""


@click.command()
@click.argument("path", type=click.Path(path_type=Path), default=Path("eval.toml"), metavar="[FILE]")
def init(path: Path) -> None:
    """Write a file for `evaljournal run --config`, with every key explained; FILE is eval.toml unless you say otherwise.

    \b
    evaljournal init
    evaljournal init evals/qa.toml
    """
    from runner.cli.run import run  # noqa: PLC0415  # it has the options, and needs this module

    lines = [_INTRO.format(path=path)]
    for param in run.params:
        flag = next((option for option in param.opts if option.startswith("--")), None)
        if not isinstance(param, click.Option) or flag in {None, "--config", "--json", "--plain", "--dry-run", "--output"}:
            continue
        assert flag is not None
        key = flag.removeprefix("--")
        lines += [f"# {param.help}\n"] if param.help else []
        lines.append(f"{key} = {_ACTIVE[key]}\n\n" if key in _ACTIVE else f"# {key} = {_example(param, key)}\n\n")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write("".join(lines).rstrip("\n") + "\n")
    except FileExistsError:
        raise UsageError(f"{path} is there already; nothing is ever overwritten: give another name") from None
    except OSError as exc:
        raise UsageError(f"{path} cannot be written: {exc.strerror}") from exc
    click.echo(f"{path} is written; say in it whom to ask, then: evaljournal run --config {path}", err=True)


def _example(param: click.Option, key: str) -> str:
    if key in _EXAMPLES:
        return _EXAMPLES[key]
    if param.is_flag:
        return "true"
    if isinstance(param.type, click.Choice):
        return f'"{param.type.choices[0]}"'
    example = '"…"' if param.type.name not in {"integer", "float"} and param.type.name != "seconds" else "1"
    return f"[{example}]" if param.multiple else example
