"""Templates: strings and JSON values with fields in braces that a case fills, as in `Answer briefly: {question}`.

A field names a column (`{Question text}`), keys and list indexes (`{user.name}`, `{turns.0.text}`), never attributes,
because datasets are untrusted. `{{` and `}}` are literal braces. Missing fields are found when the cases are checked.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import attrs
import orjson

from evaljournal.replay.text import as_text
from evaljournal.runner.data.case import Case
from evaljournal.runner.data.columns import INPUT_NAMES, list_names
from evaljournal.runner.errors import UsageError, suggest

_PIECE: Final = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_FIELD: Final = re.compile(r"(?!\s)[^.{}\n\r]+(?:\.[^.{}\n\r]+)*(?<!\s)")
_PLAIN_FIELD: Final = re.compile(r"[\w.-]+")
"""A name that is probably meant as a field: the error for it does not explain literal braces."""
_DOUBLED_FIELD: Final = re.compile(r"\{\s*([^{}\s]+)\s*\}")
"""A name that was in double braces, in a rendered template."""
_MISSING: Final = object()
_OBJECT: Final = (dict, Mapping)
"""JSON objects are dicts; the check for an abstract class takes much longer."""
_LIST: Final = (list, tuple)
_SCALARS: Final = frozenset({str, int, float, bool, type(None)})


class MissingField(UsageError):
    """A field or a path does not exist in a value."""


def value_at(value: Any, path: str) -> Any:
    """Return the value at a dotted path of mapping keys and list indexes."""
    item = value
    parts = path.split(".")
    for depth, part in enumerate(parts):
        if isinstance(item, _OBJECT) and part in item:
            item = item[part]
        elif isinstance(item, _LIST) and part.lstrip("-").isdecimal() and -len(item) <= int(part) < len(item):
            item = item[int(part)]
        else:
            parent = ".".join(parts[:depth])
            raise MissingField(f"no {part!r} in {repr(parent) if parent else 'the value'}, which is {_type_of(item)}")
    return item


def _type_of(value: object) -> str:
    """Describe a value without its content."""
    match value:
        case Mapping():
            return f"an object with {list_names(cast('Mapping[str, Any]', value))}" if value else "an empty object"
        case list() | tuple():
            return f"a list of length {len(cast('list[Any]', value)):,}"
        case None:
            return "null"
        case _:
            return {"str": "a string", "bool": "a boolean"}.get(type(value).__name__, "a number")


@attrs.frozen
class Fields:
    """The fields of one case.

    Lookup order: extra fields (a judge's `{output}`), the keys of an object as input, the metadata, the name of the case as
    `id` or `name`, and the input itself under the name of its column or any usual name. The expected output is not a field of a
    task.
    """

    case: Case
    extra_fields: Mapping[str, Any] = attrs.field(factory=dict[str, Any])

    def get(self, path: str) -> Any:
        """Return the value of a field; raise `MissingField` if there is none."""
        value = self._find(path)  # A column may have a dot in its name.
        if value is not _MISSING:
            return value

        name, _, inner_path = path.partition(".")
        value = self._find(name)
        if value is _MISSING:
            names = self.names
            hint = suggest(name, [*names, *sorted(INPUT_NAMES)], limit=1, render="{{{}}}".format)
            if not hint and not _PLAIN_FIELD.fullmatch(path):
                hint = "; write {{ and }} for literal braces"
            raise MissingField(f"the case {self.case.name!r} has no field {{{path}}}; fields: {list_names(names)}{hint}")

        try:
            return value_at(value, inner_path) if inner_path else value
        except MissingField as exc:
            raise MissingField(f"the case {self.case.name!r} has no field {{{path}}}: {exc}") from exc

    def __contains__(self, name: str) -> bool:
        return self._find(name) is not _MISSING

    def _find(self, name: str) -> Any:
        value, metadata = self.case.input, self.case.metadata
        if name in self.extra_fields:
            return self.extra_fields[name]
        if value.__class__ not in _SCALARS and isinstance(value, Mapping) and name in value:
            return value[name]
        if name in metadata:
            return metadata[name]
        if name in {"id", "name"}:
            return self.case.name
        if name == self.case.input_name or name.casefold() in INPUT_NAMES:
            return value
        return _MISSING

    @property
    def names(self) -> list[str]:
        """The names of the fields; the input also has all usual names."""
        value = self.case.input
        keys = value if isinstance(value, Mapping) else ()
        return list(dict.fromkeys([*self.extra_fields, *keys, *self.case.metadata, "id", self.case.input_name]))


@attrs.frozen
class Template:
    pieces: tuple[str | tuple[str], ...]
    """Literal strings, and fields, each in a tuple."""

    @classmethod
    def parse(cls, template: str, name: str) -> "Template":
        """Parse a template; `name` is its name in errors."""
        pieces: list[str | tuple[str]] = []
        end = 0
        for match in _PIECE.finditer(template):
            pieces.append(template[end : match.start()])
            end = match.end()
            if match[0] in {"{{", "}}"}:
                pieces.append(match[0][0])
            elif match[1] is not None and _FIELD.fullmatch(match[1]):
                pieces.append((match[1],))
            else:
                part = template[max(0, match.start() - 10) : match.end() + 10]
                raise UsageError(f"{name} is not a template at {part!r}; write {{name}} for a field, {{{{ or }}}} for a brace")

        pieces.append(template[end:])
        return cls(tuple(piece for piece in pieces if piece))

    @property
    def fields(self) -> list[str]:
        return [piece[0] for piece in self.pieces if isinstance(piece, tuple)]

    def fill(self, fields: Fields, escape: Callable[[str], str] = str) -> str:
        """Replace the fields with their values: strings unchanged, all others as JSON; each is passed through `escape`."""
        # A list, because a generator expression is slower.
        return "".join([piece if isinstance(piece, str) else escape(as_text(fields.get(piece[0]))) for piece in self.pieces])

    def fill_value(self, fields: Fields) -> Any:
        """Replace the fields; a template that is only one field becomes its value, of any type."""
        if len(self.pieces) == 1 and isinstance(self.pieces[0], tuple):
            return fields.get(self.pieces[0][0])
        return self.fill(fields)


def parse_body(template: Any, name: str) -> Any:
    """Parse a JSON value, or a string with JSON: each string becomes a `Template`; keys are not templates."""
    if isinstance(template, str):
        try:
            template = orjson.loads(template)
        except ValueError as exc:
            raise UsageError(f"{name} is not JSON ({exc}): {template[:200]!r}") from exc
    try:
        return _parse(template, name)
    except RecursionError as exc:
        raise UsageError(f"{name} is nested too deeply") from exc


def _parse(value: Any, name: str) -> Any:
    match value:
        case str():
            return Template.parse(value, name)
        case Mapping():
            return {key: _parse(item, f"{name}.{key}") for key, item in cast("Mapping[str, Any]", value).items()}
        case list() | tuple():
            return [_parse(item, f"{name}[{index}]") for index, item in enumerate(cast("list[Any]", value))]
        case _:
            return value


def fill_body(value: Any, fields: Fields) -> Any:
    """Replace the fields of a parsed template with their values, which cannot change its structure."""
    match value:
        case Template():
            return value.fill_value(fields)
        case dict():
            items: dict[str, Any] = value
            return {key: fill_body(item, fields) for key, item in items.items()}
        case list():
            return [fill_body(item, fields) for item in value]
        case _:
            return value


def has_fields(value: Any) -> bool:
    match value:
        case Template():
            return bool(value.fields)
        case dict():
            return any(map(has_fields, cast("dict[str, Any]", value).values()))
        case list():
            return any(has_fields(item) for item in value)
        case _:
            return False


def constant_template_error(name: str, text: str, case: Case) -> UsageError:
    """Return the error for a template without a field, whose rendered text is the same for this case and all others."""
    fields = Fields(case)
    field = next((match[1] for match in _DOUBLED_FIELD.finditer(text) if match[1] in fields), None)
    return UsageError(
        f"{name} has no field, so all cases would send the same request; add one of these fields: {list_names(fields.names)}",
        hint="" if field is None else f"write {{{field}}}; {{{{{field}}}}} is literal text in braces",
    )
