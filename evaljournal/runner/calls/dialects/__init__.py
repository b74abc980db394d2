"""The dialects of chat APIs, by the prefix of a model's name: `anthropic:claude-haiku-5-5`."""

import functools
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from evaljournal.runner.calls.dialects.dialect import Dialect
from evaljournal.runner.errors import UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

DEFAULT_DIALECT: Final = "chat"
_BUILT_IN: Final = {
    "anthropic": "anthropic.Anthropic",
    "chat": "completions.Completions",
    "gemini": "gemini.Gemini",
    "responses": "responses.Responses",
}
_GROUP: Final = "evaljournal.dialects"
"""Entry points of other packages: name of a dialect → a class with the members of `Dialect`; it has no parameters."""


@functools.cache
def _entry_points() -> dict[str, "EntryPoint"]:
    """Return the dialects of other packages; they are read only for a prefix that is not a built-in dialect."""
    from importlib.metadata import entry_points  # noqa: PLC0415  # slow to import

    return {entry.name: entry for entry in entry_points(group=_GROUP) if entry.name not in _BUILT_IN}


def names() -> list[str]:
    """Return the names of all dialects."""
    return sorted({*_BUILT_IN, *_entry_points()})


def split_model(model: str) -> tuple[str, str]:
    """Return the dialect in a model's prefix, empty if it has none, and the model; `llama3:8b` has none."""
    prefix, separator, name = model.partition(":")
    return (prefix, name) if separator and (prefix in _BUILT_IN or prefix in _entry_points()) else ("", model)


def dialect_by_name(name: str) -> Dialect:
    """Return a dialect; raise a `UsageError` if there is none of this name, or it cannot be loaded."""
    if name in _BUILT_IN:
        module, _, class_name = _BUILT_IN[name].partition(".")
        factory: Any = getattr(import_module(f"{__name__}.{module}"), class_name)
        dialect: Dialect = factory()
        return dialect
    if name not in _entry_points():
        raise UsageError(f"unknown dialect {name!r}; use {', '.join(names())}")
    entry = _entry_points()[name]
    try:
        dialect = entry.load()()
    except Exception as exc:  # It is code of another package.
        raise UsageError(f"the dialect {name!r} ({entry.value}) cannot be loaded: {type(exc).__name__}: {exc}") from exc
    missing_members = [member for member in vars(Dialect) if not member.startswith("_") and not hasattr(dialect, member)]
    if missing_members:
        raise UsageError(f"the dialect {name!r} ({entry.value}) lacks {', '.join(missing_members)}")
    return dialect
