"""The files that a configuration names, and the list of what cannot be imported.

A configuration is untrusted: only regular files in its directory and below are read, because their content is copied.

YAML and JSON are read with the line of every value. Scalars are resolved as promptfoo resolves them (YAML 1.2: `yes` is text).
Files are untrusted: aliases may repeat or contain themselves, and nesting may be deep.
"""

import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping
from glob import glob
from pathlib import Path
from typing import Any, Final, NoReturn, cast

import attrs

from evaljournal.replay.text import escape_controls
from evaljournal.runner.data.exact_json import read_json
from evaljournal.runner.errors import UsageError
from evaljournal.runner.secrets.masking import mask_literal

MAX_BYTES: Final = 10_000_000
"""Maximum size of a file that is imported."""
_MAX_VALUES: Final = 1_000_000
"""Maximum values of a file with its aliases expanded."""
_MAX_DEPTH: Final = 100
_MAX_INTEGER: Final = 2**53
_MAX_DIGITS: Final = 60
_MERGE: Final = "<<"
_TAG: Final = "tag:yaml.org,2002:"
_CONSTANTS: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER: Final = re.compile(r"[-+]?(?:[0-9][0-9_]*|0x[0-9a-fA-F_]+|0o[0-7_]+|0b[01_]+)")
_FLOAT: Final = re.compile(r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*|[0-9][0-9_]*(?=[eE]))(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_DATE: Final = re.compile(r"\d{4}-\d\d?-\d\d?(?:[Tt\s].*)?")

FILE: Final = "file://"
_GLOB: Final = frozenset("*?[")


@attrs.frozen
class Value:
    """A value, and where it is."""

    data: Any
    """A string, number, bool or None, a list of `Value`s, or a dict of `Value`s."""
    path: Path = attrs.field(repr=False)
    line: int
    """The line of its key, or of the item of a list, counted from 1."""

    def error(self, message: str) -> UsageError:
        return UsageError(message, path=self.path, line=self.line)

    @property
    def kind(self) -> str:
        """What it is, for messages."""
        names = {dict: "a mapping", list: "a list", str: "text", bool: "a boolean", type(None): "empty"}
        return names.get(type(self.data), "a number")

    @property
    def plain(self) -> Any:
        """The value without places."""
        match self.data:
            case dict():
                return {key: item.plain for key, item in cast("dict[str, Value]", self.data).items()}
            case list():
                return [item.plain for item in self.items("")]
            case _:
                return self.data

    def items(self, name: str) -> "list[Value]":
        if not isinstance(self.data, list):
            raise self.error(f"{name} must be a list, not {self.kind}")
        return cast("list[Value]", self.data)

    def fields(self, name: str) -> "dict[str, Value]":
        """Return a copy of a mapping; a missing one is empty."""
        if self.data is None:
            return {}
        if not isinstance(self.data, dict):
            raise self.error(f"{name} must be a mapping, not {self.kind}")
        return dict(cast("dict[str, Value]", self.data))

    def text(self, name: str) -> str:
        if not isinstance(self.data, str):
            raise self.error(f"{name} must be text, not {self.kind}")
        return self.data

    def number(self, name: str) -> float:
        if isinstance(self.data, bool) or not isinstance(self.data, int | float):
            raise self.error(f"{name} must be a number, not {self.kind}")
        return self.data

    def count(self, name: str) -> int:
        number = self.number(name)
        if not isinstance(number, int) or number < 1:
            raise self.error(f"{name} must be a whole number of at least 1, not {number!r}")
        return number


def present(fields: Mapping[str, Value]) -> dict[str, Value]:
    """Return the fields that have a value: a key with null is a missing key."""
    return {key: value for key, value in fields.items() if value.data is not None}


def pop_text(fields: dict[str, Value], key: str, default: str = "") -> str:
    """Remove a text from the fields and return it; the default if it is missing."""
    return fields.pop(key).text(key) if key in fields else default


def with_place(data: Any, path: Path, line: int) -> Value:
    """Return a JSON value whose parts all have one place."""
    match data:
        case dict():
            items = cast("dict[str, Any]", data).items()
            return Value({key: with_place(item, path, line) for key, item in items}, path, line)
        case list():
            return Value([with_place(item, path, line) for item in data], path, line)
        case int() if abs(data) > _MAX_INTEGER:
            raise _too_long_error(data, path, line)
        case float() if not math.isfinite(data):
            raise UsageError(f"{data} is not a finite number", path=path, line=line)
        case _:
            return Value(_number(data) if isinstance(data, float) else data, path, line)


def parse_json(text: str, path: Path, line: int = 1) -> Value:
    try:
        return with_place(read_json(text), path, line)
    except RecursionError:
        raise UsageError("nested too deeply", path=path, line=line) from None
    except ValueError as exc:
        raise UsageError(f"not valid JSON: {exc}", path=path, line=line) from exc


def parse_yaml(text: str, path: Path) -> Value:
    try:
        import yaml  # noqa: PLC0415  # an extra
    except ImportError as exc:
        raise UsageError("the import of promptfoo files needs PyYAML: pip install 'evaljournal[promptfoo]'") from exc

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # Only its events are used: nothing is constructed.
    builder = _Builder(path)
    try:
        for event in yaml.parse(text, Loader=loader):
            builder.add(event)
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        message = " ".join(filter(None, (exc.context, exc.problem)))
        raise UsageError(f"not valid YAML: {message}", path=path, line=mark.line + 1 if mark else None) from exc
    except yaml.YAMLError as exc:
        raise UsageError(f"not valid YAML: {' '.join(str(exc).split())}", path=path) from exc
    return builder.document or Value(None, path, 1)


@attrs.define
class _Open:
    """A list or a mapping that is being read."""

    items: list[Any] | dict[str, Any]
    line: int
    anchor: str | None
    size: int = 1
    key: tuple[str, int] | None = None
    merged: list[Value] = attrs.field(factory=list[Value])


@attrs.define
class _Builder:
    """Builds a value from the events of a parser, without recursion."""

    path: Path
    document: Value | None = None
    _open: list[_Open] = attrs.field(factory=list[_Open])
    _anchors: dict[str, tuple[Value, int] | None] = attrs.field(factory=dict[str, "tuple[Value, int] | None"])
    """Anchor → its value and the number of values in it; None while it is being read."""

    def add(self, event: Any) -> None:
        line = event.start_mark.line + 1
        match type(event).__name__:
            case "ScalarEvent":
                self._end(Value(self._scalar(event, line), self.path, line), 1, event.anchor)
            case "SequenceStartEvent":
                self._start(event, "seq", _Open([], line, event.anchor))
            case "MappingStartEvent":
                self._start(event, "map", _Open({}, line, event.anchor))
            case "SequenceEndEvent" | "MappingEndEvent":
                part = self._open.pop()
                for merged in part.merged:
                    part.items = {**merged.fields("a merged value"), **cast("dict[str, Any]", part.items)}
                self._end(Value(part.items, self.path, part.line), part.size, part.anchor)
            case "AliasEvent":
                self._add_alias(event.anchor, line)
            case "DocumentStartEvent" if self.document is not None:
                self._reject("the file has several YAML documents, expected one", line)
            case _:
                pass

    def _start(self, event: Any, kind: str, part: _Open) -> None:
        if event.tag not in {None, "!", f"{_TAG}{kind}"}:
            self._reject(f"the tag {event.tag!r} is not supported", part.line)
        if len(self._open) >= _MAX_DEPTH:
            self._reject(f"nested more than {_MAX_DEPTH} levels deep", part.line)
        if part.anchor is not None:
            self._anchors[part.anchor] = None
        self._open.append(part)

    def _add_alias(self, anchor: str, line: int) -> None:
        if anchor not in self._anchors:
            self._reject(f"the alias *{anchor} has no anchor before it", line)
        if (target := self._anchors[anchor]) is None:
            self._reject(f"the anchor &{anchor} contains itself", line)
        value, size = target
        self._end(attrs.evolve(value, line=line), size, None)

    def _reject(self, message: str, line: int) -> NoReturn:
        raise UsageError(message, path=self.path, line=line)

    def _end(self, value: Value, size: int, anchor: str | None) -> None:
        """Add a complete value to the open list or mapping; `size` is the number of values in it."""
        if anchor is not None:
            self._anchors[anchor] = value, size
        if not self._open:
            self.document = value
            return

        parent = self._open[-1]
        parent.size += size
        if parent.size > _MAX_VALUES:
            self._reject(f"more than {_MAX_VALUES:,} values", value.line)

        if isinstance(parent.items, list):
            parent.items.append(value)
        elif parent.key is None:
            parent.key = self._key(value, parent.items), value.line
        else:
            (key, line), parent.key = parent.key, None
            if key == _MERGE:
                parent.merged += value.items("") if isinstance(value.data, list) else [value]
            else:
                parent.items[key] = attrs.evolve(value, line=line)

    def _key(self, value: Value, items: dict[str, Any]) -> str:
        if isinstance(value.data, list | dict):
            self._reject(f"a key must be text, not {value.kind}", value.line)
        constants = {None: "null", True: "true", False: "false"}
        key = constants[value.data] if value.data is None or isinstance(value.data, bool) else str(value.data)
        if key in items:
            self._reject(f"duplicate key {key!r}", value.line)
        return key

    def _scalar(self, event: Any, line: int) -> Any:
        text, tag = cast("str", event.value), event.tag
        if tag == f"{_TAG}str" or (tag in {None, "!"} and not event.implicit[0]):
            return text
        if tag is not None:
            self._reject(f"the tag {tag!r} is not supported", line)

        if text in _CONSTANTS:
            return _CONSTANTS[text]
        digits = text.replace("_", "")
        if _INTEGER.fullmatch(text):
            is_decimal = digits.lstrip("+-")[:2] not in {"0x", "0o", "0b"}
            number = int(digits, 10 if is_decimal else 0) if len(digits) <= _MAX_DIGITS else math.inf
            if abs(number) > _MAX_INTEGER:
                raise _too_long_error(text[:30], self.path, line)
            return number

        if _FLOAT.fullmatch(text) and float(digits) not in {math.inf, -math.inf}:
            return _number(float(digits))
        if _NOT_FINITE.fullmatch(text) or _FLOAT.fullmatch(text):
            self._reject(f"{text} is not a finite number", line)
        if _DATE.fullmatch(text):
            self._reject(f"{text} is read as a date; put it in quotes", line)
        return text


def _too_long_error(number: object, path: Path, line: int) -> UsageError:
    return UsageError(f"promptfoo rounds the number {number}; put it in quotes", path=path, line=line)


def _number(value: float) -> float:
    """Return a number as JavaScript prints it: 5.0 is 5."""
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


class NotMapped(Exception):  # not an error: with `--partial` the rest is imported
    """Something has no counterpart; the message names it."""


@attrs.frozen
class Omission:
    """Something in a file that is not imported."""

    path: Path
    line: int
    text: str

    def __str__(self) -> str:
        return one_line(f"{self.path}, line {self.line:,}: {mask_literal(self.text)}")


@attrs.define
class Project:
    config: Path
    omissions: dict[Omission, None] = attrs.field(factory=dict[Omission, None])
    """In order, each once."""
    _parts: dict[str, dict[int, tuple[Value, bool]]] = attrs.field(factory=dict[str, dict[int, tuple[Value, bool]]])
    """Kind of a part → identity → the part, and whether it is converted; the value is kept so that its identity is its own."""
    _root: Path = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._root = self.config.absolute().parent.resolve()

    def omit(self, value: Value, text: str) -> None:
        self.omissions[Omission(value.path, value.line, text)] = None

    def convert_part(self, kind: str, value: Value) -> None:
        """Count a part, such as one of the `tests`, as converted, unless it was omitted where it is used elsewhere."""
        self._parts.setdefault(kind, {}).setdefault(id(value), (value, True))

    def omit_part(self, kind: str, value: Value, text: str) -> None:
        """Count a part as not converted, and add it to the list of what is not imported."""
        self._parts.setdefault(kind, {})[id(value)] = value, False
        self.omit(value, text)

    @property
    def shares(self) -> str:
        """The share of each kind of parts that was converted: `3 of 3 prompts, 12 of 14 assertions`."""
        flags = {kind: [is_converted for _, is_converted in parts.values()] for kind, parts in self._parts.items()}
        return ", ".join(f"{sum(converted)} of {len(converted)} {kind}" for kind, converted in flags.items())

    def omit_keys(self, fields: dict[str, Value], name: str) -> None:
        for key, value in fields.items():
            self.omit(value, f"{name}.{key} is not mapped" if name else f"{key} is not mapped")

    def path(self, reference: str, value: Value, directory: Path | None = None) -> Path:
        """Return the path of a file that a value names; raise an error if it is not a file in the project.

        It is relative to a directory, by default that of the configuration.
        """
        path = (directory or self.config.parent) / reference.removeprefix(FILE)
        try:
            is_inside = path.resolve(strict=True).is_relative_to(self._root)
        except (OSError, ValueError, RuntimeError) as exc:
            problem = exc.strerror if isinstance(exc, OSError) and exc.strerror else "not a valid path"
            raise value.error(f"{reference!r} cannot be read: {problem}") from exc

        if not is_inside:
            raise value.error(f"{reference!r} is outside {self._root}, the directory of the configuration; copy it there")
        if not path.is_file():
            raise value.error(f"{reference!r} is not a regular file")
        return path

    def paths(self, reference: str, value: Value, directory: Path | None = None) -> list[Path]:
        """Return the files that a reference with `*` names, in order; without one, the file itself."""
        name, directory = reference.removeprefix(FILE), directory or self.config.parent
        if not _GLOB & set(name):
            return [self.path(reference, value, directory)]
        try:
            names = sorted(glob(name, root_dir=directory, recursive=True))
        except (OSError, ValueError, re.error) as exc:
            raise value.error(f"{reference!r} is not a valid pattern: {exc}") from exc
        if not names:
            raise value.error(f"no file matches {reference!r}")
        return [self.path(name, value, directory) for name in names]

    def read(self, path: Path) -> str:
        try:
            with path.open("rb") as file:
                content = file.read(MAX_BYTES + 1)
        except OSError as exc:
            raise UsageError(f"cannot be read: {exc.strerror}", path=path) from exc
        if len(content) > MAX_BYTES:
            raise UsageError(f"larger than {MAX_BYTES // 1_000_000} MB; split it, or convert it to a dataset", path=path)
        try:
            return content.decode("utf-8-sig").replace("\r\n", "\n")
        except UnicodeDecodeError as exc:
            line = content[: exc.start].count(b"\n") + 1
            raise UsageError("not UTF-8; save it as UTF-8", path=path, line=line) from exc

    def read_values(self, path: Path) -> Value:
        """Read a YAML or JSON file."""
        text = self.read(path)
        try:
            return parse_yaml(text, path)
        except UsageError:
            if path.suffix != ".json":
                raise
            return parse_json(text, path)  # JSON that is not YAML, such as pairs of surrogates; its lines are unknown.

    def content(self, value: Value) -> Value:
        """Return a value; if it is `file://` of YAML, JSON or text, the content of that file."""
        if not (isinstance(value.data, str) and value.data.startswith(FILE)):
            return value
        path = self.path(value.data, value)
        if path.suffix in {".yaml", ".yml", ".json"}:
            return self.read_values(path)
        if path.suffix in {".txt", ".md"}:
            return Value(self.read(path), path, 1)
        raise NotMapped(f"{value.data} would be executed or needs a reader of its own")


def numbered(name: str, separator: str = "-") -> Iterator[str]:
    """Yield a name, then the same name with the numbers from 2."""
    yield name
    yield from (f"{name}{separator}{number}" for number in itertools.count(2))


def one_line(text: str) -> str:
    """Return a text without line breaks and control characters, for a comment."""
    return escape_controls(text).replace("\n", "\\n")


def json_text(data: Any) -> str:
    """Return a value as JSON text, as JavaScript writes it."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))
