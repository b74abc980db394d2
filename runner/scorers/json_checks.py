"""JSON in outputs: parsing as JavaScript does, finding objects in a text, and validating values against a schema.

Outputs and schemas are untrusted. Patterns of a schema are searched with a time limit, and nothing is fetched. What Ajv 8, the
validator of promptfoo, rejects in its strict mode is rejected here, too, so that a keyword is never ignored.
"""

import functools
import json
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, cast

import orjson

from evaljournal.runner.data import yaml_file
from evaljournal.runner.errors import UsageError
from evaljournal.runner.retries.classify import Fatal
from evaljournal.runner.scorers.bounded_search import search
from evaljournal.runner.scorers.javascript_regex import to_python
from evaljournal.runner.scorers.scorer import MAX_SECONDS

EXTRA: Final = "pip install 'evaljournal[promptfoo]'"
_MAX_OBJECT: Final = 100_000
"""Maximum characters of an object that is searched for in a text."""
_MAX_PARSED: Final = 500_000
"""Maximum characters that are parsed as YAML in one text, some of them repeatedly."""
_BRACE: Final = re.compile("[{}]")
_STRING_OR_COMMENT: Final = re.compile(r'("(?:\\.|[^"\\])*")|(?<!:)//+', re.DOTALL)
"""A string, or the start of a comment; the slashes of a URL are not one."""

_TIME: Final = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d+)?"
_ZONE: Final = r"(?:z|[+-](?:[01]\d|2[0-3])(?::?[0-5]\d)?)"
_LABEL: Final = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_WORD: Final = r"[a-z0-9!#$%&'*+/=?^_`{|}~-]+"
_PATH: Final = r"(?:[a-z0-9\-._~!$&'()*+,;=:@/]|%[0-9a-f]{2})"
_NAME: Final = r"(?:[a-z0-9\-._~!$&'()*+,;=]|%[0-9a-f]{2})"
_AUTHORITY: Final = rf"(?:(?:{_NAME}|:)*@)?(?:\[[0-9a-fv:.]+\]|{_NAME}*)(?::[0-9]*)?"
_QUERY: Final = rf"(?:{_PATH}|\?)*"
_FORMATS: Final = {
    "time": _TIME + _ZONE,
    "iso-time": f"{_TIME}{_ZONE}?",
    "date-time": rf".{{10}}[t\s]{_TIME}{_ZONE}",
    "iso-date-time": rf".{{10}}[t\s]{_TIME}{_ZONE}?",
    "duration": r"(?-i:P(?!\Z)(?:(?:\d+Y)?(?:\d+M)?(?:\d+D)?(?:T(?=\d)(?:\d+H)?(?:\d+M)?(?:\d+S)?)?|(?:\d+W)?))",
    "uri": rf"[a-z][a-z0-9+\-.]*:(?://{_AUTHORITY}(?:/{_PATH}*)?|(?!//){_PATH}+)(?:\?{_QUERY})?(?:\#{_QUERY})?",
    "email": rf"{_WORD}(?:\.{_WORD})*@{_LABEL}(?:\.{_LABEL})+",
    "hostname": rf"(?=.{{1,254}}\Z){_LABEL}(?:\.{_LABEL})*\.?",
    "uuid": "(?:urn:uuid:)?[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}",
    "json-pointer": "(?:/(?:[^~/]|~0|~1)*)*",
}
"""Format → pattern of the texts that have it; jsonschema itself has date, ipv4 and ipv6."""
_OTHER_FORMATS: Final = ("date", "ipv4", "ipv6", "int32", "int64", "float", "double", "password", "binary")
_STRICT_PROPERTIES: Final[Mapping[str, Any]] = {
    "$defs": {"type": "object", "additionalProperties": {"$ref": "#"}},
    "$ref": {"type": "string", "format": "known reference"},
    "$schema": {"type": "string", "pattern": r"^https?://json-schema\.org/(draft-07/)?schema#?$"},
    "deprecated": True,
    "enum": {"type": "array", "minItems": 1},
    "format": {"enum": [*_FORMATS, *_OTHER_FORMATS]},
    "nullable": {"type": "boolean"},
    "writeOnly": True,
}
"""Keywords that draft-07 does not have and Ajv has, or for which Ajv is stricter."""
_STRICT_DEPENDENCIES: Final[Mapping[str, Any]] = {
    "additionalItems": {"required": ["items"], "properties": {"items": {"type": "array"}}},
    "else": ["if"],
    "if": {"anyOf": [{"required": ["then"]}, {"required": ["else"]}]},
    "nullable": ["type"],
    "then": ["if"],
}


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


def number_text(number: float) -> str:
    """Return a number as JavaScript writes it."""
    if not number:
        return "0"
    text = repr(float(number)).removesuffix(".0")
    if "e" in text and 1e-6 <= abs(number) < 1e21:  # noqa: PLR2004  # as ECMAScript defines
        return format(Decimal(text), "f")
    return text.replace("e-0", "e-")


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
    position, budget = text.find("{"), _MAX_PARSED
    while 0 <= position < len(text) - 1:
        end, missing_braces = _object_end(text, position)
        candidate = text[position:end] + "}" * missing_braces
        try:
            value = parse_json(candidate)
        except InvalidJson:
            budget -= len(candidate)
            if budget < 0:
                raise TooComplex(
                    f"the text has too many braces to find the JSON objects in its {len(text):,} characters"
                ) from None
            value = parse_yaml(_STRING_OR_COMMENT.sub(lambda match: match[1] or "#", candidate))
        is_object = isinstance(value, dict)
        if is_object:
            yield value
        position = text.find("{", end if is_object else position + 1)


def _object_end(text: str, start: int) -> tuple[int, int]:
    """Return where the object that starts with a brace ends, and the number of missing braces."""
    depth = 0
    for match in _BRACE.finditer(text, start, start + _MAX_OBJECT):
        depth += 1 if match[0] == "{" else -1
        if not depth:
            return match.end(), 0
    return min(start + _MAX_OBJECT, len(text)), depth


def parse_yaml(text: str) -> Any:
    """Return the value of a YAML text; None if it is not valid, nested too deeply, or repeats itself with aliases."""
    yaml_file.import_yaml()
    try:
        return yaml_file.parse_yaml(text, Path(), is_exact=False, max_values=1 + len(text)).plain
    except UsageError:
        return None


def check_schema(schema: Any) -> None:
    """Raise a UsageError if a schema is invalid, or has a keyword or a format that is not supported."""
    _validator(orjson.dumps(schema, option=orjson.OPT_SORT_KEYS))


def schema_error(value: Any, schema: Any) -> str | None:
    """Return why a value does not conform to a schema; None if it does."""
    try:
        error = next(_validator(orjson.dumps(schema, option=orjson.OPT_SORT_KEYS)).iter_errors(value), None)
    except RecursionError as exc:
        raise TooComplex("the schema or the value is nested too deeply") from exc
    return None if error is None else f"{error.json_path}: {error.message[:500]}"


@functools.lru_cache(100)
def _validator(schema_json: bytes) -> Any:
    try:
        import jsonschema  # noqa: PLC0415  # an extra
        from jsonschema.exceptions import best_match  # noqa: PLC0415
        from jsonschema.validators import create  # noqa: PLC0415
        from referencing import Registry  # noqa: PLC0415  # a part of jsonschema
        from referencing.exceptions import Unresolvable  # noqa: PLC0415
        from referencing.jsonschema import DRAFT7  # noqa: PLC0415
    except ImportError as exc:
        raise UsageError(f"a JSON schema needs jsonschema: {EXTRA}") from exc
    schema, draft_7 = orjson.loads(schema_json), jsonschema.Draft7Validator
    meta_schema = {
        **{key: value for key, value in cast("Mapping[str, Any]", draft_7.META_SCHEMA).items() if key != "$id"},
        "properties": {**draft_7.META_SCHEMA["properties"], **_STRICT_PROPERTIES},
        "additionalProperties": False,
        "dependencies": _STRICT_DEPENDENCIES,
    }
    resolver = Registry[Any]().resolver_with_root(DRAFT7.create_resource(schema))
    schema_formats = jsonschema.FormatChecker(())
    schema_formats.checks("regex", UsageError)(lambda text: not isinstance(text, str) or bool(to_python(text, unicode=True)))
    schema_formats.checks("known reference", Unresolvable)(
        lambda text: not isinstance(text, str) or bool(resolver.lookup(text))
    )
    try:
        error = best_match(draft_7(meta_schema, format_checker=schema_formats).iter_errors(schema))
    except RecursionError as exc:
        raise UsageError("the JSON schema is nested too deeply") from exc
    if error is not None:
        problem = str(error.cause) if isinstance(error.cause, UsageError) else error.message
        raise UsageError(f"the JSON schema is invalid at {error.json_path}: {problem[:500]}")
    own_keywords = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "type": _type,
    }
    validator_class = create(
        draft_7.META_SCHEMA,
        {**draft_7.VALIDATORS, **own_keywords},
        type_checker=draft_7.TYPE_CHECKER,  # Without `applicable_validators`, keywords beside `$ref` count.
        id_of=cast("Any", draft_7).ID_OF,
    )
    return validator_class(schema, registry=Registry(), format_checker=_formats())


def _matches(pattern: str, text: str) -> bool:
    return search(to_python(pattern, unicode=True), text, MAX_SECONDS)


def _pattern(_: Any, pattern: str, value: Any, __: Any) -> Iterator[Any]:
    from jsonschema import ValidationError  # noqa: PLC0415  # an extra

    if isinstance(value, str) and not _matches(pattern, value):
        yield ValidationError(f"no match for {pattern!r}")


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
    from jsonschema import Draft7Validator  # noqa: PLC0415  # an extra

    if value is not None or schema.get("nullable") is not True:
        yield from Draft7Validator.VALIDATORS["type"](validator, types, value, schema)


@functools.cache
def _formats() -> Any:
    """Return the formats of ajv-formats that are used in practice."""
    from jsonschema import FormatChecker  # noqa: PLC0415  # an extra

    checker = FormatChecker(("date", "ipv4", "ipv6"))

    def has_format(name: str, value: Any) -> bool:
        if not isinstance(value, str):
            return True
        is_date_valid = not name.endswith("date-time") or checker.conforms(value[:10], "date")
        return is_date_valid and re.fullmatch(_FORMATS[name], value, re.IGNORECASE | re.ASCII) is not None

    for name in _FORMATS:
        checker.checks(name)(functools.partial(has_format, name))
    checker.checks("int32")(lambda value: not _is_number(value) or (float(value).is_integer() and -(2**31) <= value < 2**31))
    checker.checks("int64")(lambda value: not _is_number(value) or float(value).is_integer())
    return checker


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
