"""The dialects of chat APIs, by the prefix of a model's name: `anthropic:claude-haiku-5-5`."""

from importlib import import_module
from typing import Any, Final

from evaljournal import entry_points
from evaljournal.runner.calls.dialects.dialect import Dialect
from evaljournal.runner.errors import UsageError

DEFAULT_DIALECT: Final = "chat"
_BUILT_IN: Final = {
    "anthropic": "anthropic.Anthropic",
    "chat": "completions.Completions",
    "gemini": "gemini.Gemini",
    "responses": "responses.Responses",
}
_GROUP: Final = "dialects"
"""Entry points of other packages: name of a dialect → a class with the members of `Dialect`; it has no parameters."""


def names() -> list[str]:
    return sorted([*_BUILT_IN, *entry_points.names(_GROUP, excluding=_BUILT_IN)])


def split_model(model: str) -> tuple[str, str]:
    """Return the dialect in a model's prefix, empty if it has none, and the model; `llama3:8b` has none."""
    prefix, separator, name = model.partition(":")
    return (prefix, name) if separator and (prefix in _BUILT_IN or entry_points.find(_GROUP, prefix)) else ("", model)


def dialect_by_name(name: str) -> Dialect:
    """Return a dialect; raise a `UsageError` if there is none of this name, or it cannot be loaded."""
    if name in _BUILT_IN:
        module, _, class_name = _BUILT_IN[name].partition(".")
        factory: Any = getattr(import_module(f"{__name__}.{module}"), class_name)
        dialect: Dialect = factory()
        return dialect

    entry = entry_points.find(_GROUP, name)
    if entry is None:
        raise UsageError(f"unknown dialect {name!r}; use {', '.join(names())}")
    with entry_points.using(entry, UsageError):
        dialect = entry.load()()

    missing_members = [member for member in vars(Dialect) if not member.startswith("_") and not hasattr(dialect, member)]
    if missing_members:
        raise UsageError(f"the dialect {name!r} ({entry.value}) lacks {', '.join(missing_members)}")
    return dialect
