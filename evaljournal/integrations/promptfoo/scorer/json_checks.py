"""JSON in outputs: parsing as JavaScript does, finding objects in a text, and validating values against a schema.

Outputs and schemas are untrusted. A schema is checked with a time limit, and nothing is fetched. What Ajv 8, the
validator of promptfoo, rejects in its strict mode is rejected here, too, so that a keyword is never ignored.
"""

import functools
import ipaddress
import json
import math
import re
import time
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from contextvars import ContextVar
from datetime import date
from decimal import Decimal
from typing import Any, Final, cast

import orjson

from evaljournal.integrations.promptfoo.scorer.javascript_regex import to_python
from evaljournal.runner.errors import UsageError
from evaljournal.runner.retries.classify import Fatal
from evaljournal.runner.scorers.bounded_search import search

EXTRA: Final = "pip install 'evaljournal[promptfoo]'"
_MAX_OBJECT: Final = 100_000
"""Maximum characters of an object that is searched for in a text."""
_MAX_DEPTH: Final = 100
"""Maximum levels of nesting in YAML."""
_MAX_ALIASES: Final = 20
"""Maximum aliases in YAML; a few more could stand for millions of values."""
_MAX_PARSED: Final = 500_000
"""Maximum characters that are parsed as YAML in one text, some of them repeatedly; PyYAML takes about 10 s for them."""
_TIMESTAMP: Final = (
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt]|[ \t]+)[0-9]{1,2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]*)?"
    r"(?:[ \t]*(?:Z|[-+][0-9]{1,2}(?::[0-9]{2})?))?"
)
_MAX_MESSAGE: Final = 500
"""Maximum characters of an error; those of jsonschema contain the value."""
_deadline: ContextVar[float] = ContextVar("evaljournal_schema_deadline")
"""Monotonic time at which the check of a schema ends."""
_BRACE: Final = re.compile("[{}]")

_SCHEMA_KEYWORDS: Final = frozenset(
    {
        "additionalItems",
        "additionalProperties",
        "allOf",
        "anyOf",
        "contains",
        "else",
        "if",
        "items",
        "not",
        "oneOf",
        "propertyNames",
        "then",
    }
)
"""Keywords whose value is a schema or a list of them."""
_MAPPING_KEYWORDS: Final = frozenset({"$defs", "definitions", "dependencies", "patternProperties", "properties"})
"""Keywords whose value maps names to schemas."""
_FURTHER_KEYWORDS: Final = frozenset({"$defs", "deprecated", "nullable", "writeOnly"})
"""Keywords that Ajv allows in addition to those of draft-07."""
_MAX_QUOTIENT: Final = 1e21
"""Ajv takes no larger quotient for an integer."""
_DRAFT_7: Final = re.compile(r"https?://json-schema\.org/(?:draft-07/)?schema#?")
_TIME: Final = re.compile(r"([0-9]{2}):([0-9]{2}):([0-9]{2}(?:\.[0-9]+)?)(z|([+-])([0-9]{2})(?::?([0-9]{2}))?)?", re.IGNORECASE)


class InvalidJson(ValueError):
    """A text is not JSON."""


class TooComplex(Fatal):
    """A text or a schema cannot be checked in reasonable time."""


def parse_json(text: str) -> Any:
    """Return the JSON value of a text, with numbers as floats, as in JavaScript; raise `InvalidJson` if it has none."""
    try:
        return json.loads(text, parse_int=float, parse_constant=_reject_constant)
    except RecursionError as exc:
        raise TooComplex("the JSON is nested too deeply") from exc
    except ValueError as exc:
        raise InvalidJson(str(exc)) from exc


def _reject_constant(name: str) -> None:
    raise InvalidJson(f"{name} is not JSON")


def is_same(value: Any, other: Any) -> bool:
    """Return whether two JSON values are equal, as JavaScript compares them: 1 is 1.0, and 0 is not -0."""
    match value, other:
        case dict(), dict():
            return value.keys() == other.keys() and all(is_same(value[key], other[key]) for key in value)
        case list(), list():
            return len(value) == len(other) and all(map(is_same, value, other))
        case (bool() | str() | None, _) | (_, bool() | str() | None):
            return type(value) is type(other) and value == other
        case (int() | float(), int() | float()):
            return float(value) == float(other) and math.copysign(1, value) == math.copysign(1, other)
        case _:
            return False


def number_text(number: float) -> str:
    """Return a number as JavaScript writes it."""
    if not number:
        return "0"

    sign, digit_tuple, exponent = Decimal(repr(float(number))).normalize().as_tuple()
    digits, prefix = "".join(map(str, digit_tuple)), "-" if sign else ""
    point = len(digits) + int(exponent)  # Digits before the decimal point.

    if len(digits) <= point <= 21:  # noqa: PLR2004  # as ECMAScript defines
        return f"{prefix}{digits}{'0' * (point - len(digits))}"
    if 0 < point <= 21:  # noqa: PLR2004  # as above
        return f"{prefix}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:  # noqa: PLR2004  # as above
        return f"{prefix}0.{'0' * -point}{digits}"
    fraction = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{prefix}{digits[0]}{fraction}e{'+' if point > 0 else '-'}{abs(point - 1)}"


def javascript_text(value: Any, *, is_inner: bool = False) -> str:
    """Return a value as text: a text unchanged, all others as JSON, as JavaScript writes it."""
    match value:
        case str():
            return json.dumps(value, ensure_ascii=False) if is_inner else value
        case bool() | None:
            return json.dumps(value)
        case int() | float():
            return number_text(value)
        case Mapping():
            items = cast("Mapping[str, Any]", value).items()
            members = [f"{json.dumps(key, ensure_ascii=False)}:{javascript_text(item, is_inner=True)}" for key, item in items]
            return f"{{{','.join(members)}}}"
        case _:
            return f"[{','.join(javascript_text(item, is_inner=True) for item in value)}]"


def objects_in(text: str) -> Iterator[Any]:
    """Yield the objects in a text: from each brace to the one that closes it, if that is JSON or a YAML flow mapping.

    Braces inside strings count, too. If the text ends before an object does, the missing braces are added.
    """
    position, allowance = text.find("{"), _MAX_PARSED
    while 0 <= position < len(text) - 1:
        end, missing_braces, depth = _object_end(text, position)
        candidate = text[position:end] + "}" * missing_braces
        try:
            value = parse_json(candidate)
        except InvalidJson:
            allowance -= len(candidate)
            if allowance < 0:
                raise TooComplex(
                    f"the text has too many braces to find the JSON objects in its {len(text):,} characters"
                ) from None
            value = parse_yaml(_with_hash_comments(candidate)) if depth <= _MAX_DEPTH else None
        is_object = isinstance(value, dict)
        if is_object:
            yield value
        position = text.find("{", end if is_object else position + 1)


def _object_end(text: str, start: int) -> tuple[int, int, int]:
    """Return where the object that starts with a brace ends, the number of missing braces, and the levels of nesting."""
    depth = deepest = 0
    for match in _BRACE.finditer(text, start, start + _MAX_OBJECT):
        depth += 1 if match[0] == "{" else -1
        deepest = max(deepest, depth)
        if not depth:
            return match.end(), 0, deepest
    return min(start + _MAX_OBJECT, len(text)), depth, deepest


def parse_yaml(text: str) -> Any:
    """Return the value of a YAML 1.2 text; None if it has none, or is nested too deeply."""
    return _yaml_loader()(text)


_SLASHES: Final = re.compile("//+")


def _with_hash_comments(text: str) -> str:
    """Return JSON with comments (`// …`) as YAML (`# …`); slashes in strings and URLs are no comments."""
    return "\n".join(map(_with_hash_comment, text.split("\n")))


def _with_hash_comment(line: str) -> str:
    quote, backslashes, is_url = "", 0, False
    for index, char in enumerate(line) if "//" in line else ():
        before, after = line[index - 1 : index], line[index + 1 : index + 2]
        is_url = not char.isspace() and (is_url or line.startswith("://", index))
        if quote:
            if char == quote and backslashes % 2 == 0 and not (char == "'" and re.match("[a-zA-Z]", after)):
                quote = ""
        elif char == '"' or (char == "'" and not re.match("[a-zA-Z]", before)):
            quote = char
        elif not is_url and (slashes := _SLASHES.match(line, index)):
            return line[:index] + "#" * (len(slashes[0]) // 2) + line[slashes.end() :]
        backslashes = backslashes + 1 if char == "\\" else 0
    return line


@functools.cache
def _yaml_loader() -> Callable[[str], Any]:
    """Return a function that parses YAML; PyYAML is an extra and reads YAML 1.1, so scalars are resolved here."""
    try:
        import yaml  # noqa: PLC0415  # an extra
    except ImportError as exc:
        raise UsageError(f"contains-json and judges of assertions need PyYAML: {EXTRA}") from exc

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no type hints
        """Reads the core schema of YAML 1.2."""

        yaml_implicit_resolvers: Any = {}  # noqa: RUF012  # PyYAML's own name
        _aliases = _depth = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            self._aliases += self.check_event(yaml.AliasEvent)
            if self._aliases > _MAX_ALIASES or self._depth >= _MAX_DEPTH:
                raise yaml.YAMLError("it has too many aliases or levels")
            self._depth += 1
            node = super().compose_node(parent, index)
            self._depth -= 1
            return node

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002  # PyYAML's own
            return {javascript_text(key): value for key, value in super().construct_mapping(node, deep).items()}

    for tag, pattern in (
        ("merge", "<<"),
        ("null", r"~|null|Null|NULL|"),
        ("timestamp", _TIMESTAMP),
        ("bool", r"true|True|TRUE|false|False|FALSE"),
        ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+"),
        ("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"),
    ):
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(rf"(?:{pattern})\Z"), None)
    Loader.add_constructor("tag:yaml.org,2002:timestamp", lambda *_: {})  # JavaScript's dates are objects without properties.
    Loader.add_constructor("tag:yaml.org,2002:int", _yaml_integer)

    def load(text: str) -> Any:
        try:
            return yaml.load(text, Loader)  # noqa: S506  # a SafeLoader
        except (yaml.YAMLError, ValueError, TypeError):
            return None

    return load


def _yaml_integer(_: Any, node: Any) -> float:
    text: str = node.value
    return float(int(text, 0)) if text.startswith(("0o", "0x")) else float(text)


def check_schema(schema: Any) -> None:
    """Raise a UsageError if a schema is invalid, or has a keyword or a format that is not supported."""
    _validator(orjson.dumps(schema, option=orjson.OPT_SORT_KEYS))


def schema_error(value: Any, schema: Any, deadline: float) -> str | None:
    """Return why a value does not conform to a schema; None if it does. Raise `TooComplex` after the deadline."""
    validator = _validator(orjson.dumps(schema, option=orjson.OPT_SORT_KEYS))
    token = _deadline.set(deadline)
    try:
        error = next(validator.iter_errors(value), None)
    except RecursionError as exc:
        raise TooComplex("the schema or the value is nested too deeply") from exc
    finally:
        _deadline.reset(token)
    return None if error is None else f"{error.json_path}: {error.message}"


@functools.lru_cache(100)
def _validator(schema_json: bytes) -> Any:
    try:
        import jsonschema  # noqa: PLC0415  # an extra
        from jsonschema.validators import create  # noqa: PLC0415
        from referencing import Registry  # noqa: PLC0415  # a part of jsonschema
        from referencing.exceptions import Unresolvable  # noqa: PLC0415
        from referencing.jsonschema import DRAFT7  # noqa: PLC0415
    except ImportError as exc:
        raise UsageError(f"a JSON schema needs jsonschema: {EXTRA}") from exc

    schema = orjson.loads(schema_json)
    try:
        jsonschema.Draft7Validator.check_schema(schema, jsonschema.FormatChecker(()))  # Its patterns are not Python's.
        resolver = Registry[Any]().resolver_with_root(DRAFT7.create_resource(schema))
        for subschema in _subschemas(schema, jsonschema.Draft7Validator.META_SCHEMA["properties"]):
            if isinstance(reference := subschema.get("$ref"), str):
                resolver.lookup(reference)
    except RecursionError as exc:
        raise UsageError("the JSON schema is nested too deeply") from exc
    except jsonschema.SchemaError as exc:
        raise UsageError(f"the JSON schema is invalid at {exc.json_path}: {exc.message[:_MAX_MESSAGE]}") from exc
    except Unresolvable as exc:
        raise UsageError(f"the JSON schema has an unknown reference: {exc}") from exc

    own_keywords = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "format": _format,
        "multipleOf": _multiple_of,
        "type": _type,
        "uniqueItems": _unique_items,
    }
    validator_class = create(
        jsonschema.Draft7Validator.META_SCHEMA,
        {name: _limited(keyword) for name, keyword in {**jsonschema.Draft7Validator.VALIDATORS, **own_keywords}.items()},
        type_checker=jsonschema.Draft7Validator.TYPE_CHECKER,  # Without `applicable_validators`, keywords beside `$ref` count.
        id_of=cast("Any", jsonschema.Draft7Validator).ID_OF,
    )
    return validator_class(schema, registry=Registry())


def _subschemas(schema: Any, keywords: Collection[str]) -> Iterator[Mapping[str, Any]]:
    """Yield a schema and all schemas inside it; raise a UsageError for a part that Ajv rejects and the meta-schema allows."""
    if isinstance(schema, bool):
        return
    yield schema
    if problem := _problem(schema):
        raise UsageError(f"the JSON schema is not supported: {problem}")
    for keyword, value in schema.items():
        if keyword not in keywords and keyword not in _FURTHER_KEYWORDS:
            raise UsageError(f"the JSON schema has an unknown keyword {keyword!r}; only those of draft-07 are supported")
        inner_values = value.values() if keyword in _MAPPING_KEYWORDS else value if isinstance(value, list) else [value]
        if keyword in _MAPPING_KEYWORDS or keyword in _SCHEMA_KEYWORDS:
            for inner_schema in inner_values:
                if not isinstance(inner_schema, list):  # Dependencies may be names.
                    yield from _subschemas(inner_schema, keywords)


def _problem(schema: Mapping[str, Any]) -> str | None:
    if not _DRAFT_7.fullmatch(schema.get("$schema", "http://json-schema.org/schema")):
        return f"$schema is {schema['$schema']!r}, expected draft-07"
    if schema.get("format", "date") not in _FORMATS:
        return f"format {schema['format']!r}"
    if schema.get("enum") == [] or ("nullable" in schema and "type" not in schema):
        return "an empty enum, or nullable without type"
    if ("if" in schema) != bool({"then", "else"} & schema.keys()):
        return "if needs then or else, and these need if"
    if "additionalItems" in schema and not isinstance(schema.get("items"), list):
        return "additionalItems needs a list of items"
    patterns = [schema["pattern"]] if "pattern" in schema else []
    for pattern in [*patterns, *schema.get("patternProperties", {})]:
        to_python(pattern, unicode=True)
    return None


def _remaining_seconds() -> float:
    seconds = _deadline.get() - time.monotonic()
    if seconds <= 0:
        raise TooComplex("the JSON schema was not checked within the time limit; simplify it, its references in particular")
    return seconds


def _limited(keyword: Callable[..., Any]) -> Callable[..., Iterator[Any]]:
    """Return the check of a keyword with a time limit: a schema of a few references can have millions of parts."""

    def check(*arguments: Any) -> Iterator[Any]:
        _remaining_seconds()
        for error in keyword(*arguments) or ():
            _remaining_seconds()
            error.message = error.message[:_MAX_MESSAGE]
            yield error

    return check


def _matches(pattern: str, text: str) -> bool:
    return search(to_python(pattern, unicode=True), text, _remaining_seconds())


def _error(message: str) -> Any:
    from jsonschema import ValidationError  # noqa: PLC0415  # an extra

    return ValidationError(message)


def _pattern(_: Any, pattern: str, value: Any, __: Any) -> Iterator[Any]:
    if isinstance(value, str) and not _matches(pattern, value):
        yield _error(f"no match for {pattern!r}")


def _pattern_properties(validator: Any, schemas: Mapping[str, Any], value: Any, _: Any) -> Iterator[Any]:
    for pattern, schema in schemas.items() if isinstance(value, dict) else ():
        for key, item in value.items():
            if _matches(pattern, str(key)):
                yield from validator.descend(item, schema, path=key, schema_path=pattern)


def _additional_properties(validator: Any, additional: Any, value: Any, schema: Mapping[str, Any]) -> Iterator[Any]:
    for key, item in value.items() if isinstance(value, dict) else ():
        if key not in schema.get("properties", {}) and not any(
            _matches(pattern, str(key)) for pattern in schema.get("patternProperties", {})
        ):
            yield from validator.descend(item, additional, path=key)


def _type(validator: Any, types: Any, value: Any, schema: Mapping[str, Any]) -> Iterator[Any]:
    names = [types] if isinstance(types, str) else types
    is_infinite = isinstance(value, float) and not math.isfinite(value)
    is_valid = any(validator.is_type(value, name) for name in names) and not is_infinite
    if not is_valid and not (value is None and schema.get("nullable") is True):
        yield _error(f"expected {' or '.join(names)}")


def _unique_items(_: Any, is_required: Any, value: Any, __: Any) -> Iterator[Any]:
    if is_required and isinstance(value, list) and len(set(map(_comparable, value))) < len(value):
        yield _error("it has items that are equal")


def _comparable(value: Any) -> Hashable:
    """Return what is equal for equal JSON values; true is not 1."""
    match value:
        case dict():
            return dict, frozenset((key, _comparable(item)) for key, item in value.items())
        case list():
            return list, tuple(map(_comparable, value))
        case _:
            return isinstance(value, bool), value


def _multiple_of(_: Any, divisor: float, value: Any, __: Any) -> Iterator[Any]:
    quotient = value / divisor if isinstance(value, float) else 0.0
    if not quotient.is_integer() or abs(quotient) >= _MAX_QUOTIENT:
        yield _error(f"it is not a multiple of {divisor}")


def _format(_: Any, name: str, value: Any, __: Any) -> Iterator[Any]:
    type_, is_valid = _FORMATS[name]
    if isinstance(value, type_) and not isinstance(value, bool) and not is_valid(value):
        yield _error(f"it is not a valid {name}")


def _is_date(text: str) -> bool:
    if not re.fullmatch("[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
        return False
    year, month, day = map(int, text.split("-"))
    try:
        date(year or 2000, month, day)  # The year 0 is a leap year, too.
    except ValueError:
        return False
    return True


def _is_time(text: str, *, needs_zone: bool = True) -> bool:
    match = _TIME.fullmatch(text)
    if match is None:
        return False
    hour, minute, second = int(match[1]), int(match[2]), float(match[3])
    sign, zone_hour, zone_minute = -1 if match[5] == "-" else 1, int(match[6] or 0), int(match[7] or 0)
    if zone_hour > 23 or zone_minute > 59 or (needs_zone and not match[4]):  # noqa: PLR2004  # of a clock
        return False
    if hour <= 23 and minute <= 59 and second < 60:  # noqa: PLR2004  # of a clock
        return True
    utc_minute = minute - zone_minute * sign
    utc_hour = hour - zone_hour * sign - (utc_minute < 0)
    return utc_hour in {23, -1} and utc_minute in {59, -1} and second < 61  # noqa: PLR2004  # a leap second


def _is_date_time(text: str, *, needs_zone: bool = True) -> bool:
    parts = re.split(r"[tT]|\s", text)
    return len(parts) == 2 and _is_date(parts[0]) and _is_time(parts[1], needs_zone=needs_zone)  # noqa: PLR2004  # date and time


def _is_address(text: str, version: type[ipaddress.IPv4Address | ipaddress.IPv6Address]) -> bool:
    try:
        return "%" not in text and bool(version(text))
    except ValueError:
        return False


def _is_hostname(text: str) -> bool:
    name = text.removesuffix(".")
    return len(name) <= 253 and all(  # noqa: PLR2004  # the maximum length of a name
        re.fullmatch("[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", label, re.IGNORECASE) for label in name.split(".")
    )


def _is_email(text: str) -> bool:
    local_part, _, domain = text.rpartition("@")
    return (
        all(re.fullmatch(r"[a-z0-9!#$%&'*+/=?^_`{|}~-]+", part, re.IGNORECASE) for part in local_part.split("."))
        and "." in domain
        and all(
            re.fullmatch("[a-z0-9-]+", label, re.IGNORECASE) and "-" not in (label[0], label[-1]) for label in domain.split(".")
        )
    )


def _full_match(pattern: str, flags: re.RegexFlag = re.IGNORECASE) -> Callable[[str], bool]:
    compiled = re.compile(pattern, flags | re.ASCII)
    return lambda text: compiled.fullmatch(text) is not None


_PATH: Final = r"(?:[a-z0-9\-._~!$&'()*+,;=:@/]|%[0-9a-f]{2})"
_NAME: Final = r"(?:[a-z0-9\-._~!$&'()*+,;=]|%[0-9a-f]{2})"
_AUTHORITY: Final = rf"(?:(?:{_NAME}|:)*@)?(?:\[[0-9a-fv:.]+\]|{_NAME}*)(?::[0-9]*)?"
_QUERY: Final = r"(?:[a-z0-9\-._~!$&'()*+,;=:@/?]|%[0-9a-f]{2})*"

_FORMATS: Final[Mapping[str, tuple[Any, Callable[[Any], bool]]]] = {
    "date": (str, _is_date),
    "time": (str, _is_time),
    "date-time": (str, _is_date_time),
    "iso-time": (str, functools.partial(_is_time, needs_zone=False)),
    "iso-date-time": (str, functools.partial(_is_date_time, needs_zone=False)),
    "duration": (
        str,
        _full_match(r"P(?!\Z)(?:(?:\d+Y)?(?:\d+M)?(?:\d+D)?(?:T(?=\d)(?:\d+H)?(?:\d+M)?(?:\d+S)?)?|(?:\d+W)?)", re.NOFLAG),
    ),
    "uri": (
        str,
        _full_match(rf"[a-z][a-z0-9+\-.]*:(?://{_AUTHORITY}(?:/{_PATH}*)?|(?!//){_PATH}+)(?:\?{_QUERY})?(?:\#{_QUERY})?"),
    ),
    "email": (str, _is_email),
    "hostname": (str, _is_hostname),
    "ipv4": (str, functools.partial(_is_address, version=ipaddress.IPv4Address)),
    "ipv6": (str, functools.partial(_is_address, version=ipaddress.IPv6Address)),
    "uuid": (str, _full_match("(?:urn:uuid:)?[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")),
    "json-pointer": (str, _full_match("(?:/(?:[^~/]|~0|~1)*)*")),
    "int32": (float, lambda number: number.is_integer() and -(2**31) <= number < 2**31),
    "int64": (float, float.is_integer),
    "float": (float, lambda _: True),
    "double": (float, lambda _: True),
    "password": (str, lambda _: True),
    "binary": (str, lambda _: True),
}
"""Format → the type of the values that it applies to, and the check; those of ajv-formats that are used in practice."""
