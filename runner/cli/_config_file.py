"""Configuration files: TOML whose keys are the names of the options of `run`."""

from pathlib import Path
from typing import Any, cast

import click
import orjson

from runner.cli._options import OPTIONS, Option, grouped_option
from runner.data.toml_file import read_toml
from runner.errors import UsageError
from runner.suggest import suggest


def read_config(path: Path, command: click.Command) -> dict[str, Any]:
    """Read a configuration file; return parameter → value, as the command line would have it."""
    table = read_toml(path)
    options = {option.key: option for option in OPTIONS if option.in_file}
    params = {param.name: param for param in command.params}
    values: dict[str, Any] = {}
    for name, value in table.items():
        key = name.replace("_", "-")
        if key not in options:
            raise UsageError(f"unknown key {name!r}{suggest(key, options)}", path=path)
        param = params[options[key].name]
        try:
            values[options[key].name] = texts = _as_arguments(options[key], value)
            for text in texts if isinstance(texts, list) else [texts]:
                param.type.convert(text, param, None)
        except click.BadParameter as exc:
            raise UsageError(f"{name} = {value!r}: {exc.message.rstrip('.')}", path=path) from exc
    return values


def _as_arguments(option: Option, value: Any) -> Any:
    """Convert a TOML value to what the command line would pass."""
    if option.key in {"body", "more"} and not isinstance(value, str):
        return orjson.dumps(value).decode()
    if not option.multiple:
        is_switch = option.metavar is None
        if isinstance(value, list | dict) or (isinstance(value, bool) and not is_switch):
            raise click.BadParameter("expected true or false" if is_switch else "expected a single value")
        return value if is_switch else str(value)
    if isinstance(value, dict):
        separator = ": " if option.key == "header" else "="
        return [f"{key}{separator}{part}" for key, part in cast("dict[str, Any]", value).items()]
    return [str(part) for part in (value if isinstance(value, list) else [value])]


def _use_config(ctx: click.Context, _: click.Parameter, path: Path | None) -> Path | None:
    if path is not None:
        ctx.default_map = {**(ctx.default_map or {}), **read_config(path, ctx.command)}
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
