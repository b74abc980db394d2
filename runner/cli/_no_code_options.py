"""An evaluation without code: a dataset, a target and scorers, described by options or a configuration file.

A run records the options that were given on the command line, and `resume` parses them again. A configuration file is recorded
by its name and read again, like a Python file.
"""

import contextlib
import re
import shlex
from collections.abc import Container, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import click
import orjson
from click.core import ParameterSource

from runner import scorers
from runner.cli import CONTEXT_SETTINGS
from runner.cli._common import OFF
from runner.cli._config_file import VARIANTS
from runner.cli._literal_keys import reject_literal_keys
from runner.cli._openai_url import options_from_environment
from runner.cli._options import OPTIONS, TABLE, TARGETS, is_definition, is_task_option, overrides, render_error
from runner.cli._output import echo
from runner.data.dataset import Dataset
from runner.data.to_json import to_json
from runner.definition.evaluation import Evaluation
from runner.definition.loading import AnyEvaluation, LoadedEvaluation, load_function
from runner.definition.settings import Settings
from runner.definition.variants import Variant, checked_variants, product
from runner.errors import UsageError
from runner.secret_shapes import MASK
from runner.secrets import mask_keys, mask_values
from runner.suggest import suggest

DEFINITION: Final = frozenset(["config", *(option.name for option in OPTIONS if is_definition(option))])
_TEXTS: Final = ("body", "more", "prompt", "system", "rubric")
"""Options whose value may be read from a file: `@prompt.txt`."""
_CAN_BE_OFF: Final = frozenset(option.name for option in OPTIONS if option.can_be_off)
_MASKED_KEY: Final = "***masked***"
"""Recorded instead of a key in one of `_TEXTS`."""


def evaluation_from_options(ctx: click.Context, *, is_new: bool = False) -> LoadedEvaluation:
    """Build the evaluation that the options of a command describe.

    Only a new run reads OPENAI_BASE_URL. It is recorded as if it had been passed, so that `resume` uses the same URL.
    """
    values = {name: value for name, value in ctx.params.items() if value is not None and value != ()}
    from_file = {name: value for name, value in values.items() if not is_on_command_line(ctx, name)}
    tables = ctx.meta.get(VARIANTS, {})
    if is_new:
        values |= options_from_environment(values, *tables.values())
    on_command_line = {name: value for name, value in values.items() if name not in from_file}
    reject_literal_keys(on_command_line)
    _check_texts(on_command_line)
    variants = _variants(values, from_file, tables)
    task = next(iter(variants.values())).task if variants else _task(_single_values(values), from_file)
    if "data" not in values:
        raise UsageError("--data is missing: pass the file with the cases")
    try:
        settings = Settings().changed(overrides(from_file))
    except UsageError as exc:
        exc.path = values.get("config")
        raise
    evaluation: AnyEvaluation = Evaluation(
        task,
        cases=Dataset(**({"input_key": values["turns"]} if "turns" in values else {}) | _arguments("dataset", values)),
        settings=settings,
        name=values.get("name") or re.sub(r"[^\w.-]+", "-", values["data"].stem).strip("-.") or "data",
        variants=variants or None,
    )
    for name, scorer in scorers_from_options(values):
        evaluation.score(name=name)(scorer)
    return LoadedEvaluation(evaluation, _reference(ctx, on_command_line))


def _variants(
    values: Mapping[str, Any], from_file: Mapping[str, Any], tables: Mapping[str, Mapping[str, Any]]
) -> dict[str, Variant]:
    """Return the tables `[[variant]]`, or the product of the options with several values; empty if there are neither."""
    repeated = {
        option.name: values[option.name] for option in OPTIONS if option.varies and len(values.get(option.name, ())) > 1
    }
    if not tables:
        if not repeated:
            return {}
        labels = {name: [_label(name, value) for value in options] for name, options in repeated.items()}
        cells = product(repeated, labels)
        return checked_variants(
            Variant(name, _parameters(cell), _task(_single_values({**values, **cell}), from_file))
            for name, cell in cells.items()
        )
    if repeated:
        raise UsageError(f"[[variant]] and several values of {_flag(min(repeated))} are mutually exclusive; use one of them")
    on_command_line = {name: value for name, value in values.items() if name not in from_file}
    variants: list[Variant] = []
    for name, table in tables.items():
        cell = {**_shared_options(from_file, table), **table, **on_command_line}
        try:
            variants.append(Variant(name, _parameters(table), _task(_single_values(cell), cell.keys() - on_command_line)))
        except UsageError as exc:
            raise UsageError(f"variant {name!r}: {exc.message}", path=values.get("config"), hint=exc.hint) from exc
    return checked_variants(variants)


def _shared_options(from_file: Mapping[str, Any], table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a file that a variant shares; those of another target do not count if it has its own."""
    targets = [name for name in TARGETS if name in table]
    if not targets:
        return dict(from_file)
    options = {option.name: option for option in OPTIONS}
    others = [name for name, option in options.items() if not any(any(option.arguments(target)) for target in targets)]
    return {name: value for name, value in from_file.items() if name not in others or not is_task_option(options[name])}


def _single_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values as a task takes them: those of options that make variants are single values."""
    varying = {option.name for option in OPTIONS if option.varies}
    return {name: value[0] if name in varying and isinstance(value, tuple) else value for name, value in values.items()}


def _parameters(cell: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a variant as a run records them; texts are read from their files."""
    return {name: to_json(_value(name, value)) for name, value in _single_values(cell).items()}


def _label(name: str, value: Any) -> Any:
    """Return what a variant is named after: of a text in a file, the name of the file."""
    return Path(value[1:]).stem if name in _TEXTS and value.startswith("@") else value


def is_on_command_line(ctx: click.Context, name: str) -> bool:
    """Return whether an option was given on the command line, not in a file."""
    return ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _arguments(target: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a target among the values of the options."""
    return {
        argument: _value(option.name, values[option.name])
        for option in OPTIONS
        if option.name in values
        for argument in option.arguments(target)
    }


def _recorded_text(name: str, text: str) -> str:
    """Return an option as it is recorded, with keys masked."""
    masked = mask_keys(text)
    if name in {"body", "more"}:
        with contextlib.suppress(ValueError):  # Reported where it is parsed.
            value = orjson.loads(text)
            if mask_values(value) != value:
                masked = orjson.dumps(mask_values(value)).decode()
    return text if masked == text else masked.replace(MASK, _MASKED_KEY)


def _check_texts(values: Mapping[str, Any]) -> None:
    """Print a warning if a text contains a key; reject a text that was recorded without its key."""
    texts = [(name, text) for name in _TEXTS if name in values for text in _all_values(values[name])]
    for name, text in texts:
        if _MASKED_KEY in text:
            raise UsageError(f"the recorded {_flag(name)} lacks its key; put the text in a file and pass {_flag(name)} @FILE")
        if _recorded_text(name, text) != text:
            echo(
                f"Warning: {_flag(name)} contains a key, which is recorded as {_MASKED_KEY}; "
                f"to be able to resume the run, put the text in a file and pass {_flag(name)} @FILE",
                err=True,
            )


def _all_values(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _task(values: Mapping[str, Any], from_file: Container[str]) -> Any:
    """Build the task of the one target that is selected; options of another target are rejected."""

    def flag(name: str) -> str:
        return f"{_flag(name)} (in the file)" if name in from_file else _flag(name)

    selected = [name for name in TARGETS if name in values]
    if len(selected) != 1:
        problem = f"{' and '.join(map(flag, selected))} are mutually exclusive" if selected else "no target"
        raise UsageError(f"{problem}: pass one of --endpoint URL, --chat MODEL, --command LINE or --output-key COLUMN")
    (target,) = selected
    for option in OPTIONS:
        owners = [name for name in TARGETS if any(option.arguments(name))]
        if option.name in values and owners and target not in owners and not any(option.arguments("judge")):
            raise UsageError(f"{flag(option.name)} requires {' or '.join(map(_flag, owners))}, not {flag(target)}")
    class_name = TARGETS[target]
    module = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", class_name).lower()
    task = getattr(import_module(f"runner.tasks.{module}"), class_name)  # Imported here: an HTTP client is slow to import.
    return task(**_arguments(target, values))


def _value(name: str, value: Any) -> Any:
    """Return the value of an option as its target expects it."""
    if name in _TEXTS and value.startswith("@"):
        try:
            value = Path(value[1:]).read_text(encoding="utf-8")
        except (OSError, ValueError) as exc:
            raise UsageError(f"{_flag(name)} {value}: cannot be read: {exc}") from exc
    match name:
        case "body":
            return value.strip()
        case "header":
            return dict(_pairs(value, ":", "header", "'Name: value'"))
        case "choice":
            return {word: _score(score) for word, score in _pairs(value, "=", "choice", "WORD=VALUE")}
        case "more":
            return _json_object(value)
        case _:
            return None if value == OFF and name in _CAN_BE_OFF else value


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = orjson.loads(text)
    except ValueError as exc:
        raise UsageError(f"--more is not JSON ({exc}): {text[:200]!r}") from exc
    if not isinstance(value, dict):
        raise UsageError(f"--more must be a JSON object, not {text[:200]!r}")
    return value


def _pairs(texts: Iterable[str], separator: str, name: str, form: str) -> Iterator[tuple[str, str]]:
    for text in texts:
        key, delimiter, value = text.partition(separator)
        if not delimiter or not key.strip():
            raise UsageError(f"--{name} {text!r}: expected {form}")
        yield key.strip(), value.strip()


def scorers_from_options(values: Mapping[str, Any]) -> Iterator[tuple[str | None, Any]]:
    """Yield the scorers in the options, each with its name; None for a scorer that has its own name."""
    for text in values.get("score", ()):
        scorer: Any = scorers.scorer_by_name(text)
        if scorer is None and ":" not in text:
            choices = f"use {', '.join(scorers.NAMES)} or file.py:function"
            raise UsageError(f"unknown scorer {text!r}; {choices}{suggest(text, scorers.NAMES)}")
        yield None, load_function(text) if scorer is None else scorer
    judge = _arguments("judge", values)
    if "model" not in judge:
        judge_options = [option.name for option in TABLE["Scoring"] if option.name in values and any(option.arguments("judge"))]
        if judge_options:
            raise UsageError(f"{_flag(judge_options[0])} requires --judge")
        return
    if "base_url" not in judge:
        judge = {"base_url": values.get("base_url"), "key_env": values.get("key_env"), **judge}
    yield "judge", scorers.judge(judge.pop("model"), **{name: value for name, value in judge.items() if value is not None})


def _score(text: str) -> bool | float | str:
    if text in {"true", "false"}:
        return text == "true"
    try:
        return float(text)
    except ValueError:
        return text


def _reference(ctx: click.Context, on_command_line: Mapping[str, Any]) -> str:
    """Return the part of the command line that describes the evaluation."""
    words: list[str] = []
    for param in ctx.command.params:
        name = str(param.name)
        if name not in on_command_line or name not in DEFINITION:
            continue
        for value in _all_values(on_command_line[name]):
            text = _recorded_text(name, value) if name in _TEXTS else str(value)
            words += [_flag(name)] if value is True else [_flag(name), text]
    return shlex.join(words)


def is_option_reference(reference: str) -> bool:
    """Return whether a recorded reference is a command line, not a location in a file."""
    return reference.startswith("--")


def evaluation_from_reference(reference: str, command: click.Command) -> LoadedEvaluation:
    """Build the evaluation that the options in a reference describe, recorded or passed to `--task`."""
    try:
        return evaluation_from_options(command.make_context("run", shlex.split(reference), **CONTEXT_SETTINGS))
    except click.ClickException as exc:
        raise UsageError(f"the options {reference!r} are invalid: {exc.format_message()}") from exc
    except UsageError as exc:
        if exc.setting is None:
            raise
        raise UsageError(render_error(exc)) from exc
