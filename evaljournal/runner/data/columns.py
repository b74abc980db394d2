"""The roles of a dataset's columns: id, input and expected output; all others are metadata.

Usual column names are recognized; where they are ambiguous, the user must choose.
"""

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Literal

from evaljournal.runner.data.case import Case
from evaljournal.runner.errors import UsageError, suggest

Role = Literal["id", "input", "expected"]

_NAMES: dict[Role, tuple[str, ...]] = {
    "id": ("id", "name", "key", "case_id", "uid", "uuid"),
    "input": ("input", "inputs", "question", "prompt", "query", "instruction", "problem", "messages", "text"),
    "expected": ("expected", "expected_output", "answer", "target", "reference", "label", "ideal", "gold", "ground_truth"),
}
_NO_INPUT = frozenset(_NAMES["id"] + _NAMES["expected"])
INPUT_NAMES = frozenset(_NAMES["input"])

_MAX_LISTED_NAMES = 20


class Columns:
    """The roles of a dataset's columns: set by the user, or recognized in the first row that has them."""

    def __init__(
        self, *, id_key: str | None, input_key: str | None, expected_key: str | None, prompt_columns: Sequence[str] = ()
    ) -> None:
        keys: dict[Role, str | None] = {"id": id_key, "input": input_key, "expected": expected_key}
        self._user_keys = {role: key for role, key in keys.items() if key is not None}
        self._recognized_keys: dict[Role, str] = {}
        self._prompt_columns = prompt_columns
        """Columns that a prompt or command names: the first is the input if no column, or several, have a usual name."""
        self._last_keys: tuple[tuple[str, ...], tuple[str | None, str, str | None]] | None = None
        """The columns of the previous row and their roles; most rows have the same."""

    def case(self, row: Mapping[str, Any]) -> Case:
        columns = tuple(row)
        if self._last_keys is None or self._last_keys[0] != columns:
            self._last_keys = columns, self._keys(columns)
        id_column, input_key, expected_key = keys = self._last_keys[1]

        metadata = {column: value for column, value in row.items() if column not in keys}
        expected = None if expected_key is None else row[expected_key]
        if id_column is None:
            return Case(input=row[input_key], expected=expected, metadata=metadata, input_name=input_key)
        name = _id_text(row[id_column], id_column)
        return Case(name=name, input=row[input_key], expected=expected, metadata=metadata, input_name=input_key)

    def _keys(self, columns: tuple[str, ...]) -> tuple[str | None, str, str | None]:
        input_key = self._key("input", columns)
        if input_key is None:
            names = (
                f"{self._recognized_keys['input']!r}"
                if "input" in self._recognized_keys
                else f"one of {list_names(_NAMES['input'])}"
            )
            similar_columns = [column for column in columns if get_close_matches(str(column).casefold(), _NAMES["input"])]
            guess = f"; is it {similar_columns[0]!r}?" if similar_columns else ""
            raise UsageError(f"no input column; expected {names}, got {list_names(columns)}{guess}", hint=column_hint("input"))
        return self._key("id", columns), input_key, self._key("expected", columns)

    def _key(self, role: Role, columns: tuple[str, ...]) -> str | None:
        if role in self._user_keys:
            key = self._user_keys[role]
            if key not in columns:
                flags = f"--{role}-key{' or --turns' if role == 'input' else ''}, {role}_key in Python"
                names = list_names(columns)
                raise UsageError(f"{key!r} is not a column ({flags}); columns: {names}{suggest(key, map(str, columns))}")
            return key

        free_columns = tuple(name for name in columns if name not in self._user_keys.values())
        named_columns = [name for name in self._prompt_columns if name in free_columns and name.casefold() not in _NO_INPUT]
        if role == "input" and named_columns and len(_candidates(role, free_columns)) != 1:
            column: str | None = named_columns[0]
        else:
            column = _usual_column(role, free_columns)

        if column is not None and column != self._recognized_keys.setdefault(role, column):
            earlier_column = self._recognized_keys[role]
            raise UsageError(
                f"the {role} seems to be in {column!r} here, but was in {earlier_column!r} before", hint=column_hint(role)
            )
        return column


def column_hint(role: Role) -> str:
    return f"choose the column with --{role}-key, or {role}_key=… in Python"


def _candidates(role: Role, columns: Iterable[str]) -> list[str]:
    return [column for column in columns if str(column).casefold() in _NAMES[role]]


def _usual_column(role: Role, columns: tuple[str, ...]) -> str | None:
    """Return the column with a usual name for a role; several are an error, unless one is `id`."""
    candidates = _candidates(role, columns)
    if role == "id" and "id" in candidates:
        return "id"
    if len(candidates) > 1:
        raise UsageError(f"{list_names(candidates)} could each be the {role}", hint=column_hint(role))
    return candidates[0] if candidates else None


def _id_text(value: object, key: str) -> str:
    """Return an id as a string, unchanged: "0042" stays "0042"."""
    if isinstance(value, str) and value.strip():
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if value is None or value == "" or isinstance(value, str):
        raise UsageError(f"the id in {key!r} is empty; fill it in, or remove the column to name cases after their content")
    raise UsageError(f"the id in {key!r} is {value!r}; an id must be a string or an integer")


def list_names(names: Iterable[object]) -> str:
    """List names, at most `_MAX_LISTED_NAMES` of them."""
    names = list(names)
    suffix = f" and {len(names) - _MAX_LISTED_NAMES:,} more" if len(names) > _MAX_LISTED_NAMES else ""
    return (", ".join(repr(name)[:60] for name in names[:_MAX_LISTED_NAMES]) or "none") + suffix
