"""Fingerprints: short digests of content, equal in all processes and on all machines; and the content they are taken from.

They depend on nothing else: no addresses, paths, dict order or hash seed. `resume` compares them with those in the journal.
"""

import ast
import functools
import hashlib
import inspect
import math
import re
import textwrap
import threading
import types
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import orjson

from evaljournal.runner.errors import UsageError

_LENGTH = 16
"""Hex digits: 64 bits, so that two of a million cases have the same fingerprint with a probability of 1 in 37 million."""

_STRING_OR_END: Final = re.compile(
    r"""(?P<string>('''|\"\"\")(?:\\.|[^\\])*?\2|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')"""
    r"""|(?:[ \t\f]*(?:\#[^\n]*)?(?:\n|\Z))+""",
    re.DOTALL,
)
"""A string, or blanks, comments and blank lines from the end of a line on. It is much faster than the tokenizer."""
_NESTED_QUOTES: Final = re.compile(r"""[^\n]*[fFtT][rR]?["'][^\n]*#[^\n]*["']""")
"""A line on which a `#` may be inside nested quotes of an f-string."""

_parse_lock = threading.RLock()
"""`ast.parse`, which `inspect.getsource` calls for classes, fails in Python 3.11 if several threads call it concurrently."""


def parse(source: str) -> ast.Module:
    """Parse source, in one thread at a time."""
    with _parse_lock:
        return ast.parse(source)


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:_LENGTH]


def canonical(value: Any, name: str) -> bytes:
    """Serialize a value as canonical JSON; `name` is its name in errors.

    Values that the journal cannot store exactly are rejected; the error names their position.
    """
    if value is None:
        return b"null"
    try:
        text = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError as exc:
        raise UsageError(_problem(value, name) or f"{name} cannot be stored as JSON: {exc}") from exc
    if b"null" in text and (problem := _problem(value, name)):  # orjson writes NaN and infinity as null
        raise UsageError(problem)
    return text


def fingerprint_function(function: Callable[..., Any]) -> str:
    """Fingerprint a function by its source without comments, blank lines and decorators.

    The functions that it calls and the globals that it reads do not count. Objects such as endpoints have a `fingerprint` of
    their own. Without source, the compiled code is used, which differs between versions of Python.
    """
    fingerprint: object = getattr(function, "fingerprint", None)
    if isinstance(fingerprint, str):
        return fingerprint

    if isinstance(function, functools.partial):
        partial = cast("Any", function)
        label = f"partial of {getattr(partial.func, '__name__', type(partial.func).__name__)!r}:"
        arguments = canonical(partial.args, f"{label} args"), canonical(partial.keywords, f"{label} keywords")
        return digest(fingerprint_function(partial.func).encode() + b"[%b,%b]" % arguments)

    function = _object_with_source(function)
    try:
        with _parse_lock:
            content = _normalize(inspect.getsource(function))
    except (OSError, TypeError, SyntaxError):  # No source, or a fragment, such as a lambda.
        content = _describe_compiled(function)
    return digest(content.encode())


def unwrap_partial(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = cast("Any", function).func
    return function


def definition_of(function: Any) -> dict[str, Any]:
    """Return the definition of a task or a scorer for the run's record: a function's name and source, or an object's fields.

    It contains everything that the user wrote, secrets included.
    """
    if isinstance(function, functools.partial):
        partial = cast("Any", function)
        return {**definition_of(partial.func), "arguments": [*partial.args], "keyword_arguments": dict(partial.keywords)}

    name: str = getattr(function, "__name__", type(function).__name__)
    definition = getattr(function, "definition", None)
    if isinstance(definition, Mapping):
        return {"name": name, "address": getattr(function, "address", None), **definition}
    try:
        with _parse_lock:
            return {"name": name, "source": textwrap.dedent(inspect.getsource(_object_with_source(function)))}
    except (OSError, TypeError):
        return {"name": name}


def _object_with_source(function: Callable[..., Any]) -> Callable[..., Any]:
    function = inspect.unwrap(function)
    return function if inspect.isroutine(function) or inspect.isclass(function) else type(function)


def _normalize(source: str) -> str:
    """Remove comments, blank lines and decorators from source; strings, such as prompts, stay unchanged."""
    if source[:1].isspace():
        source = f"if True:\n{source}"  # It is not dedented, because a multi-line prompt may start at the margin.
    definition = parse(source).body[0]
    if isinstance(definition, ast.If):
        definition = definition.body[0]
    if not isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        raise SyntaxError("not a definition")  # noqa: TRY004  # as for any other fragment
    return strip_comments(source.split("\n", definition.lineno - 1)[-1]) + "\n"


def strip_comments(source: str) -> str:
    """Remove comments, blank lines and blanks at line ends; strings, such as prompts, stay unchanged."""
    return _STRING_OR_END.sub(lambda match: match[0] if match["string"] or _is_ambiguous(match) else "\n", source).strip("\n")


def _is_ambiguous(match: re.Match[str]) -> bool:
    start = match.string.rfind("\n", 0, match.start()) + 1
    return "#" in match[0] and _NESTED_QUOTES.match(match.string, start, match.end()) is not None


def _describe_compiled(function: Callable[..., Any]) -> str:
    code = getattr(function, "__code__", None)
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{name} {_code(code) if isinstance(code, types.CodeType) else ''}"


def _code(value: object) -> str:
    """Describe compiled code and its constants without file names and in a stable order."""
    if isinstance(value, types.CodeType):
        return f"code({value.co_code.hex()} {value.co_names} {value.co_varnames} {_code(value.co_consts)})"
    if isinstance(value, tuple):
        return f"({', '.join(map(_code, cast('tuple[object, ...]', value)))})"
    if isinstance(value, frozenset):
        return f"{{{', '.join(sorted(map(_code, cast('frozenset[object]', value))))}}}"
    return repr(value)


def _problem(value: Any, name: str) -> str | None:
    """Describe the first part of a value that cannot be stored, with its position; None if there is none."""
    match value:
        case Mapping():
            for key, item in cast("Any", value).items():
                if not isinstance(key, str):
                    return f"{name} has the key {key!r}; JSON keys must be strings"
                if problem := _problem(key, f"a key of {name}") or _problem(item, f"{name}.{key}"):
                    return problem
            return None
        case list() | tuple():
            items = enumerate(cast("list[Any]", value))
            return next((problem for index, item in items if (problem := _problem(item, f"{name}[{index}]"))), None)
        case _:
            return _leaf_problem(value, name)


def _leaf_problem(value: Any, name: str) -> str | None:
    match value:
        case float() if not math.isfinite(value):
            return f"{name} is {value!r}, which JSON does not support; use null, a finite number or a string"
        case int() if not -(2**63) <= value < 2**64:
            return f"{name} is an integer of more than 64 bits, which would lose digits; use a string"
        case str() if any("\ud800" <= character <= "\udfff" for character in value):
            return f"{name} contains a lone surrogate, which UTF-8 cannot encode; remove or replace it"
        case _:
            try:
                orjson.dumps(value)
            except TypeError as exc:
                problem = f"{name} is of type {type(value).__name__}, which cannot be stored as JSON: {exc}"
                return f"{problem}; convert it to a string, number, list or dict"
            return None
