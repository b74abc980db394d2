"""Texts and JSON values with fields in braces, filled from a case: `Answer briefly: {question}`.

A field names members and places in them (`{user.name}`, `{turns.0.text}`), never attributes or methods: what is filled in comes
from a dataset, which may be anybody's. `{{` and `}}` stand for the braces themselves. What a case lacks is found before
anything runs.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, cast

import attrs
import orjson

from replay.text import as_text
from runner.data.case import Case
from runner.data.columns import INPUT_NAMES
from runner.errors import UsageError
from runner.suggest import nearest

_PIECE: Final = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_FIELD: Final = re.compile(r"[^\s.{}]+(?:\.[^\s.{}]+)*")
_MISSING: Final = object()
_MOST_SHOWN: Final = 12


class MissingField(UsageError):
    """A path leads to nothing in a value."""


def find(value: Any, path: str) -> Any:
    """Follow a dotted path into a value: names lead into mappings, numbers into lists."""
    at = value
    steps = path.split(".")
    for depth, step in enumerate(steps):
        match at:
            case Mapping() if step in at:
                at = cast("Mapping[str, Any]", at)[step]
            case list() | tuple() if step.lstrip("-").isdecimal() and -len(at) <= int(step) < len(at):
                at = cast("list[Any]", at)[int(step)]
            case _:
                before = ".".join(steps[:depth])
                raise MissingField(f"there is no {step!r} in {f'its {before!r}' if before else 'it'}, which is {_seen(at)}")
    return at


def _seen(value: object) -> str:
    """Say what a value is, without what it says."""
    match value:
        case Mapping():
            return f"an object of {listed(cast('Mapping[str, Any]', value))}"
        case list() | tuple():
            return f"a list of {len(cast('list[Any]', value)):,}"
        case None:
            return "null"
        case _:
            return {"str": "text", "bool": "true or false"}.get(type(value).__name__, "a number")


def listed(names: Iterable[object]) -> str:
    """List names, not too many of them, for people."""
    names = list(names)
    more = f" and {len(names) - _MOST_SHOWN:,} more" if len(names) > _MOST_SHOWN else ""
    return (", ".join(repr(name)[:60] for name in names[:_MOST_SHOWN]) or "nothing") + more


@attrs.frozen
class Fields:
    """What can be filled in for one case, by name.

    There are four places to look, the nearest first: what is given besides (a judge's `{output}`), the members of an input that
    is an object, what else the row held, and the input itself under any name that inputs usually have. The expected answer is
    not among them unless it is given: a task that is told it is not being tested.
    """

    case: Case
    more: Mapping[str, Any] = attrs.field(factory=dict[str, Any])

    def get(self, path: str) -> Any:
        """Find a field; raise `MissingField` where there is none."""
        name, _, rest = path.partition(".")
        found = self._find(name)
        if found is _MISSING:
            hint = nearest(name, [*self._names(), *sorted(INPUT_NAMES)], most=1, shown="{{{}}}".format)
            raise MissingField(f"the case {self.case.name!r} has no field {{{path}}}; there are {listed(self._names())}{hint}")
        try:
            return find(found, rest) if rest else found
        except MissingField as exc:
            raise MissingField(f"the case {self.case.name!r} has no field {{{path}}}: {exc}") from exc

    def _find(self, name: str) -> Any:
        given, metadata = self.case.input, self.case.metadata
        for place in (self.more, given if isinstance(given, Mapping) else {}, metadata):
            if name in place:
                return place[name]
        if name in {"id", "name"}:
            return self.case.name
        if name == self.case.input_name or name.casefold() in INPUT_NAMES:
            return given
        return _MISSING

    def _names(self) -> list[str]:
        given = self.case.input
        members = list(given) if isinstance(given, Mapping) else []
        return list(dict.fromkeys([*self.more, *members, *self.case.metadata, "id", self.case.input_name]))


@attrs.frozen
class Text:
    """A text with fields."""

    pieces: tuple[str | tuple[str], ...]
    """Texts, and between them the fields, each in a tuple."""

    @classmethod
    def parse(cls, template: str, what: str) -> "Text":
        """Read a template; `what` is what to call it in an error."""
        pieces: list[str | tuple[str]] = []
        at = 0
        for found in _PIECE.finditer(template):
            pieces.append(template[at : found.start()])
            at = found.end()
            if found[0] in {"{{", "}}"}:
                pieces.append(found[0][0])
            elif found[1] is not None and _FIELD.fullmatch(found[1]):
                pieces.append((found[1],))
            else:
                near = template[max(0, found.start() - 10) : found.end() + 10]
                raise UsageError(f"{what} is not a template at {near!r}; a field is {{name}}, a brace itself is {{{{ or }}}}")
        pieces.append(template[at:])
        return cls(tuple(piece for piece in pieces if piece))

    @property
    def fields(self) -> list[str]:
        """The fields that it names."""
        return [piece[0] for piece in self.pieces if isinstance(piece, tuple)]

    def fill(self, fields: Fields, written: Callable[[str], str] = str) -> str:
        """Put the case's values in: texts as they are, all else as JSON; each `written` as the place wants it."""
        return "".join(piece if isinstance(piece, str) else written(as_text(fields.get(piece[0]))) for piece in self.pieces)

    def fill_whole(self, fields: Fields) -> Any:
        """Put the case's values in; a template that is nothing but one field becomes its value, of whatever type."""
        if len(self.pieces) == 1 and isinstance(self.pieces[0], tuple):
            return fields.get(self.pieces[0][0])
        return self.fill(fields)


@attrs.frozen
class Body:
    """A JSON value in whose texts there are fields. Nothing that is filled in can change what is around it."""

    value: Any
    """The same value, with a `Text` wherever it holds a text; the names of members are as they are."""

    @classmethod
    def parse(cls, template: Any, what: str) -> "Body":
        """Read a template: a JSON value, or (as a text) the JSON of one."""
        if isinstance(template, str):
            try:
                template = orjson.loads(template)
            except ValueError as exc:
                raise UsageError(f"{what} is not JSON ({exc}): {template[:200]!r}") from exc
        return cls(_parsed(template, what))

    def fill(self, fields: Fields) -> Any:
        """Put the case's values in."""
        return _filled(self.value, fields)


def _parsed(value: Any, what: str) -> Any:
    match value:
        case str():
            return Text.parse(value, what)
        case Mapping():
            return {key: _parsed(member, f"{what}.{key}") for key, member in cast("Mapping[str, Any]", value).items()}
        case list() | tuple():
            return [_parsed(member, f"{what}[{at}]") for at, member in enumerate(cast("list[Any]", value))]
        case _:
            return value


def _filled(value: Any, fields: Fields) -> Any:
    match value:
        case Text():
            return value.fill_whole(fields)
        case dict():
            return {key: _filled(member, fields) for key, member in cast("dict[str, Any]", value).items()}
        case list():
            return [_filled(member, fields) for member in value]
        case _:
            return value
