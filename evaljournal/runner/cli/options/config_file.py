"""Configuration files: TOML whose keys are the names of the options of `run`, and tables `[[variant]]`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

import click
import orjson

from evaljournal.runner.cli.options.decorators import grouped_option
from evaljournal.runner.cli.options.table import OPTIONS, Option, is_setting, is_task_option
from evaljournal.runner.concurrency.limits import DECLARED
from evaljournal.runner.data.toml_file import read_toml
from evaljournal.runner.definition.variants import check_variant_name
from evaljournal.runner.errors import UsageError, suggest

VARIANTS: Final = "evaljournal.variants"
"""Key in the context's `meta` of the tables `[[variant]]`: name → values."""


def read_config(path: Path, command: click.Command) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Read a configuration file; return parameter → value, as on the command line, and the same by variant."""
    table = read_toml(path)
    variants = table.pop("variant", None)
    table |= _limit_options(table.pop("limits", {}), table, path)
    values = _values(table, {option.key: option for option in OPTIONS if option.in_file}, command, path)
    return values, {} if variants is None else _variants(variants, command, path)


def setting_values(table: Mapping[str, Any], command: click.Command, path: Path) -> dict[str, Any]:
    """Return the values in a table that has settings only: parameter → value, as on the command line."""
    table = dict(table)
    table |= _limit_options(table.pop("limits", {}), table, path)
    return _values(table, {option.key: option for option in OPTIONS if is_setting(option, experiment=True)}, command, path)


def _limit_options(limits: Any, table: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the table `[limits]`, with a table for each model that has its own, as the options of the same names."""
    if not isinstance(limits, dict):
        raise UsageError("write limits as a table [limits]", path=path)
    options: dict[str, Any] = {}
    for name, item in cast("dict[str, Any]", limits).items():
        is_model = isinstance(item, dict)
        if name == "headers" and not is_model:
            options["limit-headers"] = item
            continue
        for limit, amount in (cast("dict[str, Any]", item) if is_model else {name: item}).items():
            if limit not in DECLARED:
                hint = suggest(limit, [*DECLARED, "headers"])
                raise UsageError(f"[limits]: unknown limit {limit!r}{hint}", path=path)
            if limit in table:
                raise UsageError(f"{limit} is set twice, also in [limits]", path=path)
            options.setdefault(limit, []).append(f"{name}={amount}" if is_model else amount)
    return options


def _variants(tables: Any, command: click.Command, path: Path) -> dict[str, dict[str, Any]]:
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise UsageError("write a table [[variant]] for each variant", path=path)
    options = {option.key: option for option in OPTIONS if option.in_file and is_task_option(option)}
    variants: dict[str, dict[str, Any]] = {}
    for number, table in enumerate(tables, 1):
        if (name := table.pop("name", None)) is None:
            raise UsageError(f"variant {number} has no name; add name = …", path=path)
        try:
            check_variant_name(name)
        except UsageError as exc:
            raise UsageError(exc.message, path=path) from exc
        if name in variants:
            raise UsageError(f"two variants have the name {name!r}; rename one of them", path=path)
        variants[name] = _values(table, options, command, path, label=f"variant {name!r}: ")
    return variants


def _values(
    table: Mapping[str, Any], options: Mapping[str, Option], command: click.Command, path: Path, *, label: str = ""
) -> dict[str, Any]:
    params = {param.name: param for param in command.params}
    values: dict[str, Any] = {}
    for name, value in table.items():
        key = name.replace("_", "-")
        if key not in options:
            raise UsageError(f"{label}unknown key {name!r}{suggest(key, options)}", path=path)
        option = options[key]
        param = params[option.name]
        try:
            values[option.name] = texts = _to_arguments(option, value)
            items = [param.type.convert(text, param, None) for text in (texts if isinstance(texts, list) else [texts])]
            if label:  # Click converts the values outside of [[variant]].
                values[option.name] = tuple(items) if option.multiple else items[0]
                if option.varies and len(items) != 1:
                    raise click.BadParameter("expected a single value; add a table [[variant]] for each")
        except click.BadParameter as exc:
            raise UsageError(f"{label}{name} = {value!r}: {exc.message.rstrip('.')}", path=path) from exc
    return values


def _to_arguments(option: Option, value: Any) -> Any:
    """Convert a TOML value to one or more arguments, as on the command line."""
    if isinstance(value, str) and "\0" in value:
        raise click.BadParameter("contains a null character")
    if option.name in {"body", "extra_body"} and not isinstance(value, str):
        try:
            return orjson.dumps(value).decode()
        except TypeError as exc:
            raise click.BadParameter(f"cannot be sent as JSON: {exc}") from exc
    if not option.multiple:
        is_switch = option.metavar is None
        if is_switch != isinstance(value, bool) or isinstance(value, list | dict):
            raise click.BadParameter("expected true or false" if is_switch else "expected a single value")
        return value if is_switch else str(value)
    items: list[Any] = value if isinstance(value, list) else [value]
    if option.varies and any(isinstance(item, list | dict | bool) for item in items):
        raise click.BadParameter("expected a value, or a list of values")
    if isinstance(value, dict):
        separator = ": " if option.key == "header" else "="
        return [f"{key}{separator}{item}" for key, item in cast("dict[str, Any]", value).items()]
    return [str(item) for item in items]


def _use_config(ctx: click.Context, _: click.Parameter, path: Path | None) -> Path | None:
    if path is not None:
        values, ctx.meta[VARIANTS] = read_config(path, ctx.command)
        ctx.default_map = {**(ctx.default_map or {}), **values}
    return path


config_option = grouped_option(
    "Dataset",
    "--config",
    type=click.Path(path_type=Path),
    is_eager=True,
    callback=_use_config,
    metavar="FILE",
    help="TOML file with these options as keys; flags take precedence. `evaljournal init` writes one.",
)
