"""Which column of a dataset is the id, which the input, which the expected answer.

People name columns in many ways. The usual names are known here, and where they leave a doubt we ask and do not guess.
Everything that is none of the three becomes metadata.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from runner.data.case import Case
from runner.errors import UsageError

Role = Literal["id", "input", "expected"]

_USUAL: dict[Role, tuple[str, ...]] = {
    "id": ("id", "name", "key", "case_id", "uid", "uuid"),
    "input": ("input", "inputs", "question", "prompt", "query", "instruction", "problem", "messages", "text"),
    "expected": (
        "expected",
        "expected_output",
        "answer",
        "target",
        "reference",
        "label",
        "ideal",
        "gold",
        "ground_truth",
    ),
}
INPUT_NAMES = frozenset(_USUAL["input"])
"""Names under which people look for the input."""

_MOST_SHOWN = 20


class Columns:
    """The meaning of a dataset's columns: given by the user, or settled by the first row that shows it."""

    def __init__(self, *, id_key: str | None, input_key: str | None, expected_key: str | None) -> None:
        given: dict[Role, str | None] = {"id": id_key, "input": input_key, "expected": expected_key}
        self._given = {role: key for role, key in given.items() if key is not None}
        self._settled: dict[Role, str] = {}
        self._last: tuple[tuple[str, ...], tuple[str | None, str, str | None]] | None = None
        """The columns of the row before and what they mean: most rows have the same."""

    def case(self, row: Mapping[str, Any]) -> Case:
        """Make a case of a row."""
        columns = tuple(row)
        if self._last is None or self._last[0] != columns:
            self._last = columns, self._keys(columns)
        name_key, input_key, expected_key = used = self._last[1]
        rest = {column: value for column, value in row.items() if column not in used}
        expected = None if expected_key is None else row[expected_key]
        if name_key is None:
            return Case(input=row[input_key], expected=expected, metadata=rest, input_name=input_key)
        name = _name(row[name_key], name_key)
        return Case(name=name, input=row[input_key], expected=expected, metadata=rest, input_name=input_key)

    def _keys(self, columns: tuple[str, ...]) -> tuple[str | None, str, str | None]:
        input_key = self._key("input", columns)
        if input_key is None:
            known = f"{self._settled['input']!r}" if "input" in self._settled else f"one of {_listed(_USUAL['input'])}"
            raise UsageError(f"no column is the input; {known} was looked for, {_listed(columns)} found; say {which('input')}")
        return self._key("id", columns), input_key, self._key("expected", columns)

    def _key(self, role: Role, columns: tuple[str, ...]) -> str | None:
        if role in self._given:
            given = self._given[role]
            if given not in columns:
                raise UsageError(f"--{role}-key {given!r} ({role}_key in Python) is not among the columns {_listed(columns)}")
            return given
        key = _usual(role, tuple(column for column in columns if column not in self._given.values()))
        if key is not None and key != self._settled.setdefault(role, key):
            before = self._settled[role]
            raise UsageError(f"{key!r} looks like the {role} here, and it was {before!r} before; say {which(role)}")
        return key


def which(role: Role) -> str:
    """Name what says which column is meant, on a command line and in Python: nobody knows here where the user is."""
    return f"which: --{role}-key, or {role}_key=… in Python"


def _usual(role: Role, columns: tuple[str, ...]) -> str | None:
    """Find the one column that is usually called so.

    With an `id`, a `name` is only more to know. But of an `input` and an `instruction`, either may be what is asked.
    """
    found = [column for column in columns if str(column).casefold() in _USUAL[role]]
    if role == "id" and "id" in found:
        return "id"
    if len(found) > 1:
        raise UsageError(f"{_listed(found)} could each be the {role}; say {which(role)}")
    return found[0] if found else None


def _name(value: object, key: str) -> str:
    """Read an id as text, as it stands: "0042" stays "0042"."""
    if isinstance(value, str) and value.strip():
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if value is None or value == "" or isinstance(value, str):
        raise UsageError(f"the id in {key!r} is empty; fill it in, or leave the column out to name cases after their content")
    raise UsageError(f"the id in {key!r} is {value!r}; an id is text or a whole number")


def _listed(columns: Iterable[object]) -> str:
    columns = list(columns)
    more = f" and {len(columns) - _MOST_SHOWN} more" if len(columns) > _MOST_SHOWN else ""
    return (", ".join(map(repr, columns[:_MOST_SHOWN])) or "none") + more
