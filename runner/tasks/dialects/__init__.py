"""The dialects of chat APIs, by the prefix of a model's name: `anthropic:claude-haiku-5-5`."""

from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Final

from evaljournal.runner.errors import UsageError
from evaljournal.runner.tasks.dialects.dialect import Dialect

DEFAULT_DIALECT: Final = "chat"
_BUILT_IN: Final = {
    "anthropic": "anthropic.Anthropic",
    "chat": "completions.Completions",
    "gemini": "gemini.Gemini",
    "responses": "responses.Responses",
}
_GROUP: Final = "evaljournal.dialects"
"""Entry points of other packages: name of a dialect → a class with the methods of `Dialect`."""


def names() -> list[str]:
    """Return the names of all dialects."""
    return sorted({*_BUILT_IN, *(entry.name for entry in entry_points(group=_GROUP))})


def split_model(model: str) -> tuple[str, str]:
    """Return the dialect in a model's prefix, empty if it has none, and the model; `llama3:8b` has none."""
    prefix, separator, name = model.partition(":")
    return (prefix, name) if separator and (prefix in _BUILT_IN or prefix in names()) else ("", model)


def dialect_by_name(name: str) -> Dialect:
    """Return a dialect; raise a `UsageError` if there is none of this name."""
    if name in _BUILT_IN:
        module, _, class_name = _BUILT_IN[name].partition(".")
        factory: Any = getattr(import_module(f"{__name__}.{module}"), class_name)
    else:
        entries = entry_points(group=_GROUP, name=name)
        if not entries:
            raise UsageError(f"unknown dialect {name!r}; use {', '.join(names())}")
        factory = next(iter(entries)).load()
    dialect: Dialect = factory()
    return dialect
