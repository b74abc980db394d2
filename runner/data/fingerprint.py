"""What makes two things the same across processes, machines and years: short digests of their content.

A fingerprint depends on nothing but what it describes: no addresses, no paths, no order of a dict, no seed of Python's
own hashes. Everything that is compared between a run and its resumption is compared by what is made here.
"""

import ast
import functools
import hashlib
import inspect
import io
import math
import tokenize
import types
from collections.abc import Callable, Mapping
from typing import Any, cast

import orjson

from runner.errors import UsageError

_LENGTH = 16
"""Hex digits kept: 64 bits, so that among a million cases two share one by chance once in ten million such datasets."""


def digest(content: bytes) -> str:
    """Shorten any content to its fingerprint."""
    return hashlib.sha256(content).hexdigest()[:_LENGTH]


def canonical(value: Any, name: str) -> bytes:
    """Write a value as JSON in one way only; `name` is what to call it in an error.

    What the journal could not give back as it was is refused here, with the place inside the value.
    """
    if value is None:
        return b"null"
    try:
        written = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError as exc:  # orjson's own errors are TypeErrors
        raise UsageError(_flaw(value, name) or f"{name} cannot be kept as JSON: {exc}") from exc
    if b"null" in written and (flaw := _flaw(value, name)):  # orjson writes NaN and infinity as null, without a word
        raise UsageError(flaw)
    return written


def fingerprint_function(function: Callable[..., Any]) -> str:
    """Fingerprint a function by its source: comments, blank lines and decorators do not count.

    Only the function's own lines are seen; what it calls or reads from its module is not. An object that knows better
    (an endpoint, a command) says so by a `fingerprint` of its own. Without source, the compiled code stands in.
    """
    own: object = getattr(function, "fingerprint", None)
    if isinstance(own, str):
        return own
    if isinstance(function, functools.partial):
        bound = cast("Any", function)
        given = canonical([bound.args, bound.keywords], "what the partial binds")
        return digest(fingerprint_function(bound.func).encode() + given)
    function = inspect.unwrap(function)
    if not (inspect.isroutine(function) or inspect.isclass(function)):
        function = type(function)
    try:
        content = _normal(inspect.getsource(function))
    except (OSError, TypeError, SyntaxError):  # no source; or a piece of it that does not stand alone, such as a lambda
        content = _compiled(function)
    return digest(content.encode())


def _normal(source: str) -> str:
    """Reduce source to what Python sees of it, but keep strings to the letter: prompts are strings."""
    if source[:1].isspace():
        source = f"if True:\n{source}"  # Not dedented: a prompt that begins at the margin would be in the way.
    definition = ast.parse(source).body[0]
    if isinstance(definition, ast.If):
        definition = definition.body[0]
    if not isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        raise SyntaxError("not a definition")  # noqa: TRY004 - as for any other piece that does not stand alone
    lines = source.splitlines(keepends=True)
    dropped = set(range(definition.lineno - 1))  # The decorators: settings have a fingerprint of their own.
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        row, column = token.start[0] - 1, token.start[1]
        if token.type == tokenize.COMMENT:
            lines[row] = lines[row][:column].rstrip() + "\n"
        elif token.type == tokenize.NL and not lines[row].strip():
            dropped.add(row)
        elif token.type == tokenize.NEWLINE:
            lines[row] = lines[row].rstrip() + "\n"
    return "".join(line for row, line in enumerate(lines) if row not in dropped)


def _compiled(function: Callable[..., Any]) -> str:
    code = getattr(function, "__code__", None)
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{name} {_code(code) if isinstance(code, types.CodeType) else ''}"


def _code(value: object) -> str:
    """Spell out compiled code and its constants; a set has no order, and a code object's own repr names files."""
    if isinstance(value, types.CodeType):
        return f"code({value.co_code.hex()} {value.co_names} {value.co_varnames} {_code(value.co_consts)})"
    if isinstance(value, tuple):
        return f"({', '.join(map(_code, cast('tuple[object, ...]', value)))})"
    if isinstance(value, frozenset):
        return f"{{{', '.join(sorted(map(_code, cast('frozenset[object]', value))))}}}"
    return repr(value)


def _flaw(value: Any, name: str) -> str | None:
    """Say what in a value cannot be kept, and where; None where nothing is wrong."""
    match value:
        case Mapping():
            for key, member in cast("Any", value).items():
                if not isinstance(key, str):
                    return f"{name} has the key {key!r}; JSON has only text for keys"
                if flaw := _flaw(key, f"a key of {name}") or _flaw(member, f"{name}.{key}"):
                    return flaw
            return None
        case list() | tuple():
            numbered = enumerate(cast("list[Any]", value))
            return next((flaw for at, member in numbered if (flaw := _flaw(member, f"{name}[{at}]"))), None)
        case _:
            return _flawed_leaf(value, name)


def _flawed_leaf(value: Any, name: str) -> str | None:
    match value:
        case float() if not math.isfinite(value):
            return f"{name} is {value!r}, which JSON does not have; give null, a number, or text"
        case int() if not -(2**63) <= value < 2**64:
            return f"{name} is an integer of more than 64 bits, which would lose digits; give it as text"
        case str() if any("\ud800" <= character <= "\udfff" for character in value):
            return f"{name} holds half a character (a lone surrogate), which UTF-8 cannot write"
        case _:
            try:
                orjson.dumps(value)
            except TypeError as exc:
                return f"{name} is of type {type(value).__name__}, which cannot be kept as JSON: {exc}"
            return None
