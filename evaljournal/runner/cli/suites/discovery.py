"""The evaluations of a suite: those of a directory, of several references, or of a TOML file with the key `suite`."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, cast

import attrs

from evaljournal.runner.cli.options.no_code import DEFINITION, Definition, build_evaluation, is_definition_record, read_settings
from evaljournal.runner.cli.options.table import OPTIONS, is_setting
from evaljournal.runner.cli.options.values import flat_table, to_keys
from evaljournal.runner.data.toml_file import read_toml
from evaljournal.runner.definition.loading import LoadedEvaluation, load_evaluation, load_evaluations
from evaljournal.runner.errors import UsageError

SUITE: Final = "suite"
"""The key of a suite's TOML file."""
_REJECTED: Final = ("shard", "export", "otlp", "otlp_content", "head_file")
"""Options of a single run, besides those that define an evaluation."""
_SHARED: Final = ("prices",)
"""Options that apply to each evaluation without code that has a model; one in Python has its own."""


@attrs.frozen
class NewSuite:
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


def load_toml(reference: str, options: Mapping[str, Any] = MappingProxyType({})) -> LoadedEvaluation:
    """Load the evaluation that a configuration file describes; `options` are for those with a chat model or a judge."""
    definition = Definition.read(Path(reference))
    if any("chat" in layer or "judge" in layer for layer in definition.layers):
        definition = attrs.evolve(definition, options=options)
    return build_evaluation(definition, is_new=True)


def discover(references: Sequence[str], values: Mapping[str, Any]) -> NewSuite:
    """Load the evaluations of a suite; raise a UsageError that names the file if one cannot be loaded."""
    table = _toml(references[0]) if len(references) == 1 else {}
    paths = table.pop(SUITE, references)
    if not isinstance(paths, list | tuple) or not paths or not all(isinstance(path, str) for path in paths):
        raise UsageError(f'write {SUITE} as a list of files and directories, such as ["evals/capitals.py"]', path=references[0])

    name = (
        values.get("name") or table.pop("name", None) or (Path(references[0]).resolve().stem if len(references) == 1 else SUITE)
    )
    if not isinstance(name, str):
        raise UsageError("name must be a text", path=references[0])

    settings = flat_table(table, Path(references[0])) | command_line_settings(values)
    changes = read_settings(settings, Path(references[0]))  # A wrong key is an error before the evaluations are imported.
    options = {option: values[option] for option in _SHARED if option in values}

    evaluations = [item for path in cast("Sequence[str]", paths) for item in _load(path, options)]
    if not evaluations:
        raise UsageError(f"{' '.join(paths)} has no evaluation: no *.py file defines one, and no *.toml file has `data`")
    records = [item.reference for item in evaluations if is_definition_record(item.reference)]
    if options and not any(Definition.decode(record).options for record in records):
        raise UsageError("--prices applies to chat models and judges of evaluations without code; the suite has none")

    _check_names(evaluations)
    return NewSuite(re.sub(r"[^\w.-]+", "-", name).strip("-.") or SUITE, evaluations, settings, changes)


def _load(reference: str, options: Mapping[str, Any]) -> Iterator[LoadedEvaluation]:
    path = Path(reference)
    if path.is_dir():
        for file in sorted([*path.glob("*.py"), *path.glob("*.toml")]):
            if file.suffix == ".py" and not file.name.startswith("_"):
                yield from load_evaluations(file)
            elif file.suffix == ".toml" and "data" in read_toml(file):
                yield load_toml(str(file), options)
    elif path.suffix == ".toml":
        if SUITE in read_toml(path):
            raise UsageError("is a suite, which another suite cannot contain; pass its evaluations", path=path)
        yield load_toml(reference, options)
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


def check_options(values: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    rejected_names = [name for name in ("config", *_REJECTED) if options[name] is not None]
    labels = {option.name: option.label for option in OPTIONS}
    for name in (*rejected_names, *(name for name in values if name in DEFINITION and name not in {"name", *_SHARED})):
        reason = "applies to a single run" if name in _REJECTED else "defines one evaluation"
        flag = labels.get(name, f"--{name}")
        raise UsageError(f"{flag} {reason}, not a suite; omit it, or run the evaluation alone")


def command_line_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings among values of the command line, with the keys of a configuration file."""
    names = {option.name for option in OPTIONS if is_setting(option, experiment=True)}
    return to_keys({name: value for name, value in values.items() if name in names})
