"""Values of keys: those of a configuration file, of `-s KEY=VALUE`, of options, and of the record of a run.

A configuration file is TOML. Its keys are rows of the table in `runner.cli.options.table`, and tables `[[variant]]` have those
keys that describe a task. All sources are read by the same functions, so that a value means the same wherever it is written.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import click
import orjson
from click.types import convert_type

from evaljournal.runner.cli.options.table import BY_KEY, NESTED, OPTIONS, Option, failures, is_task_option, removed_option
from evaljournal.runner.data.toml_file import read_toml
from evaljournal.runner.definition.variants import check_variant_name
from evaljournal.runner.errors import UsageError, suggest


def read_file(path: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Read a configuration file; return the values of its keys by name, and those of its variants."""
    table = read_toml(path)
    variants = table.pop("variant", None)
    return parse_values(table, BY_KEY, path), {} if variants is None else _variants(variants, path)


def _variants(tables: Any, path: Path) -> dict[str, dict[str, Any]]:
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise UsageError("write a table [[variant]] for each variant", path=path)

    keys = {key: option for key, option in BY_KEY.items() if is_task_option(option)}
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
        variants[name] = parse_values(table, keys, path, variant=name)
    return variants


def command_values(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the options and of `-s` that a command has got, by name."""
    values = {option.name: params[option.name] for option in OPTIONS if option.flag and option.name in params}
    values = {name: value for name, value in values.items() if value is not None and value != ()}
    assigned_values = read_assignments(params["assignments"])
    for option in OPTIONS:
        if option.name in values and option.name in assigned_values and option.table != "limits":
            raise UsageError(f"{option.flag} and -s {option.key} are the same; pass one of them")
    return {**assigned_values, **values}


def read_assignments(assignments: Iterable[str]) -> dict[str, Any]:
    """Return the values of `-s KEY=VALUE` by name.

    An assignment is a line of a configuration file; a value that is not TOML is a text, so that it needs no quotes in a shell.
    """
    values: dict[str, Any] = {}
    for text in assignments:
        key, equals, value = text.partition("=")
        table = _parse_line(f"{key} = {value}") or _parse_line(f"{key} = {_quoted(value)}")
        if not equals or not table:
            raise UsageError(f"-s {text!r}: expected KEY=VALUE, such as -s retry.errors=4")
        for name, item in parse_values(table, BY_KEY).items():
            if name in values and not isinstance(item, tuple):
                raise UsageError(f"-s {key.strip()} is passed twice; pass one of them")
            values[name] = (*values[name], *item) if name in values else item
    return values


def _parse_line(line: str) -> dict[str, Any] | None:
    """Parse a line of a TOML file; None if it is not one."""
    import tomllib  # noqa: PLC0415  # most commands need no TOML

    try:
        return None if "\n" in line else tomllib.loads(line)
    except (ValueError, RecursionError):
        return None


def _quoted(value: str) -> str:
    """Return a text as a TOML string, whose escapes are those of JSON."""
    return orjson.dumps(value.encode(errors="replace").decode()).decode().replace("\x7f", "\\u007f")


def parse_values(
    table: Mapping[str, Any], keys: Mapping[str, Option], path: Path | None = None, *, variant: str | None = None
) -> dict[str, Any]:
    """Return name → value of the keys in a table; raise a UsageError that names the file and the line of a wrong one."""
    values: dict[str, Any] = {}
    label = "" if variant is None else f"variant {variant!r}: "
    for key, value in flat_table(table, path).items():
        option = keys.get(key.replace("_", "-"))
        if option is None:
            other = removed_option(key.replace("_", "-"))
            hint = f"; did you mean {other.in_a_file}?" if other and other.key in keys else suggest(key, keys)
            raise UsageError(f"{label}unknown key {key!r}{hint}", path=path, line=_line(path, key))
        try:
            values[option.name] = _convert(option, value, is_single=variant is not None)
        except click.BadParameter as exc:
            prefix = label if path is not None else f"{label}-s "
            message = f"{prefix}{key} = {value!r}: {exc.message.rstrip('.')}"
            raise UsageError(message, path=path, line=_line(path, key)) from exc
    return values


def flat_table(table: Mapping[str, Any], path: Path | None = None) -> dict[str, Any]:
    """Return the table with the keys of `[retry]` and `[limits]` as `retry.errors`; a limit of one model is `MODEL=AMOUNT`."""
    values = {key: value for key, value in table.items() if key not in NESTED}
    for prefix in NESTED:
        items = table.get(prefix, {})
        if not isinstance(items, dict):
            raise UsageError(f"write {prefix} as a table [{prefix}]", path=path, line=_line(path, prefix))
        for name, item in cast("dict[str, Any]", items).items():
            if prefix == "limits" and isinstance(item, dict):
                for limit, amount in cast("dict[str, Any]", item).items():
                    values.setdefault(f"limits.{limit}", []).append(f"{name}={amount}")
            elif prefix == "limits" and name != "headers":
                values.setdefault(f"limits.{name}", []).extend(item if isinstance(item, list) else [item])
            else:
                values[f"{prefix}.{name}"] = item
    return values


def _line(path: Path | None, key: str) -> int | None:
    """Return the line of a key in a file, counted from 1; None if it is not found."""
    if path is None:
        return None
    text, name = path.read_text(encoding="utf-8"), re.escape(key.rpartition(".")[2])
    match = re.search(rf"^[^#\n]*?(?<![\w-])[\"']?{name}[\"']?[ \t]*[=\].]", text, re.MULTILINE)
    return None if match is None else text.count("\n", 0, match.start()) + 1


def _convert(option: Option, value: Any, *, is_single: bool) -> Any:
    """Return a TOML value as click returns it on a command line; `is_single`: several values cannot make variants."""
    texts = _to_arguments(option, value)
    if option.metavar is None:
        return texts
    kind = convert_type(option.type)
    items = tuple(kind.convert(text, None, None) for text in (texts if isinstance(texts, list) else [texts]))
    if is_single and option.varies and len(items) != 1:
        raise click.BadParameter("expected a single value; add a table [[variant]] for each")
    return items if option.multiple else items[0]


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


def to_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values as the keys of a configuration file have them, which JSON can represent."""
    return {option.key: _to_toml(option, values[option.name]) for option in OPTIONS if option.name in values}


def _to_toml(option: Option, value: Any) -> Any:
    if isinstance(value, tuple):
        return [_to_toml(option, item) for item in value]
    if option.type is failures and isinstance(value, float):
        return f"{100 * value:.12g}%"
    return str(value) if isinstance(value, Path) else value
