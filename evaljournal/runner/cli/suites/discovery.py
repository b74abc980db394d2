"""The evaluations of a suite: those of a directory, of several references, or of a TOML file with the key `suite`."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import attrs
import click

from evaljournal.runner.cli.options.no_code import evaluation_from_reference, is_on_command_line, read_settings
from evaljournal.runner.cli.options.table import OPTIONS, failures, is_definition, is_setting
from evaljournal.runner.data.toml_file import read_toml
from evaljournal.runner.definition.loading import LoadedEvaluation, load_evaluation, load_evaluations
from evaljournal.runner.errors import UsageError

SUITE: Final = "suite"
"""The key of a suite's TOML file."""
_REJECTED: Final = ("shard", "export", "head_file")
"""Options of a single run, besides those that define an evaluation."""


@attrs.frozen
class NewSuite:
    """A suite to run."""

    name: str
    evaluations: Sequence[LoadedEvaluation]
    settings: Mapping[str, Any]
    """Settings of its TOML file and of the command line, which takes precedence, with the keys of a configuration file."""
    changes: Mapping[str, Any]
    """The same settings, as `Settings.with_values` takes them."""


def is_suite_reference(references: Sequence[str]) -> bool:
    """Return whether these references are a suite: several, a directory, or a TOML file with the key `suite`."""
    return len(references) > 1 or any(Path(text).is_dir() or SUITE in _toml(text) for text in references)


def _toml(reference: str) -> dict[str, Any]:
    """Return the content of a TOML file; empty if the reference is something else."""
    return read_toml(Path(reference)) if reference.endswith(".toml") else {}


def load_toml(reference: str) -> LoadedEvaluation:
    """Load the evaluation that a configuration file describes."""
    return evaluation_from_reference(shlex.join(["--config", reference]), is_new=True)


def discover(ctx: click.Context, references: Sequence[str]) -> NewSuite:
    """Load the evaluations of a suite; raise a UsageError that names the file if one cannot be loaded."""
    table = _toml(references[0]) if len(references) == 1 else {}
    paths = table.pop(SUITE, references)
    if not isinstance(paths, list | tuple) or not paths or not all(isinstance(path, str) for path in paths):
        raise UsageError(f'write {SUITE} as a list of files and directories, such as ["evals/capitals.py"]', path=references[0])
    name = (
        ctx.params["name"] or table.pop("name", None) or (Path(references[0]).resolve().stem if len(references) == 1 else SUITE)
    )
    if not isinstance(name, str):
        raise UsageError("name must be a text", path=references[0])
    settings = table | command_line_settings(ctx)
    changes = read_settings(settings, Path(references[0]))  # A wrong key is an error before the evaluations are imported.
    evaluations = [item for path in cast("Sequence[str]", paths) for item in _load(path)]
    if not evaluations:
        raise UsageError(f"{' '.join(paths)} has no evaluation: no *.py file defines one, and no *.toml file has `data`")
    _check_names(evaluations)
    return NewSuite(re.sub(r"[^\w.-]+", "-", name).strip("-.") or SUITE, evaluations, settings, changes)


def _load(reference: str) -> Iterator[LoadedEvaluation]:
    path = Path(reference)
    if path.is_dir():
        for file in sorted([*path.glob("*.py"), *path.glob("*.toml")]):
            if file.suffix == ".py" and not file.name.startswith("_"):
                yield from load_evaluations(file)
            elif file.suffix == ".toml" and "data" in read_toml(file):
                yield load_toml(str(file))
    elif path.suffix == ".toml":
        if SUITE in read_toml(path):
            raise UsageError("is a suite, which another suite cannot contain; pass its evaluations", path=path)
        yield load_toml(reference)
    elif path.suffix == ".py" and path.is_file():
        evaluations = load_evaluations(path)
        if not evaluations:
            load_evaluation(reference)  # Raises an error that says how to define one.
        yield from evaluations
    else:
        yield load_evaluation(reference)


def _check_names(evaluations: list[LoadedEvaluation]) -> None:
    """Remove evaluations that are listed twice; raise a UsageError if two have the same name."""
    references: dict[str, LoadedEvaluation] = {}
    for item in list(evaluations):
        first = references.setdefault(item.evaluation.name.casefold(), item)
        if first.evaluation is item.evaluation and first is not item:
            evaluations.remove(item)
        elif first is not item:
            raise UsageError(
                f"two evaluations are named {item.evaluation.name!r}: {first.reference} and {item.reference}; "
                "rename one of them with name=…, or pass only one"
            )


def check_options(ctx: click.Context) -> None:
    """Raise a UsageError for options that a suite does not have."""
    names = [option.name for option in OPTIONS if is_definition(option) and option.name != "name"]
    for name in ("config", *names, *_REJECTED):
        if name in ctx.params and is_on_command_line(ctx, name):
            flag = f"--{name.replace('_', '-')}"
            reason = "applies to a single run" if name in _REJECTED else "defines one evaluation"
            raise UsageError(f"{flag} {reason}, not a suite; omit it, or run the evaluation alone")


def command_line_settings(ctx: click.Context) -> dict[str, Any]:
    """Return the settings on the command line, with the keys and values of a configuration file."""
    return {
        option.key: _to_toml(option.type, ctx.params[option.name])
        for option in OPTIONS
        if is_setting(option, experiment=True) and option.name in ctx.params and is_on_command_line(ctx, option.name)
    }


def _to_toml(kind: object, value: Any) -> Any:
    if isinstance(value, tuple):
        return [_to_toml(kind, item) for item in value]
    if kind is failures and isinstance(value, float):
        return f"{100 * value:.12g}%"
    return value if isinstance(value, bool) else str(value)
