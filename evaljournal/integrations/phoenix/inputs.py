"""The inputs of an executor as a dataset.

An input may be any object. With a journal, it must be recognizable in another process: by its JSON, or by its pickle.

The values that a function reads besides its input are recorded, too, so that a resumed run detects when one has changed. For
example, an input may be the index of a row in a table that is a variable of the function.
"""

import dataclasses
import functools
import inspect
import itertools
import json
import pickle
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sized
from collections.abc import Set as AbstractSet
from contextlib import suppress
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import Any, Final, cast
from uuid import UUID

import attrs

from evaljournal.runner.data.case import Case, ContentNames, Trial
from evaljournal.runner.data.dataset import Dataset, Selection, Trials
from evaljournal.runner.data.fingerprint import digest, fingerprint_function, unwrap_partial
from evaljournal.runner.data.to_json import to_json
from evaljournal.runner.errors import UsageError
from evaljournal.runner.secrets.shapes import is_secret_name

_MAX_REPR = 1_000
"""Maximum characters that are recorded of the repr of an input that is not JSON."""

_ARGUMENTS: Final = "arguments of the partial"
_DEPTH: Final = 2
"""Levels of nested objects whose fields count: an evaluator, and its prompt. Deeper ones are clients, pools and clocks."""


class Inputs(Dataset):
    """A dataset of inputs, read lazily, with generated names."""

    def __init__(self, inputs: Iterable[Any], *, journaled: bool) -> None:
        super().__init__(())
        if not isinstance(inputs, Iterable):
            raise UsageError("expected a list or another iterable", setting="inputs", value=inputs)
        self.source = inputs
        self._is_journaled = journaled
        self._content_names = ContentNames()
        self._cases = self._read(inputs)
        self.names: list[str] = []
        """Names of the inputs read so far, in order."""
        self.by_name: dict[str, Any] = {}
        """Name → input, until its trial is done."""
        self.count = len(inputs) if isinstance(inputs, Sized) else None
        self.failure: Exception | None = None

    def read_ahead(self) -> bool:
        """Read the first input, or all of a journaled list, to find errors early; return whether there are any inputs."""
        cases = deque(self._cases if self._is_journaled and self.count is not None else itertools.islice(self._cases, 1))
        first_cases = (cases.popleft() for _ in range(len(cases)))  # Frees each case when it is taken.
        self._cases = itertools.chain(first_cases, self._cases)
        return bool(cases)

    def select(self, *_: Any, **__: Any) -> Trials:
        """Return all inputs, once each: an executor has no options that select some."""
        return _InputTrials(self)

    def cases(self) -> Iterator[Case]:
        return self._cases

    def _read(self, inputs: Iterable[Any]) -> Iterator[Case]:
        try:
            for position, value in enumerate(inputs):
                case = self._named_case(position, value) if self._is_journaled else _numbered_case(position)
                self.names.append(case.name)
                self.by_name[case.name] = value
                yield case
        except Exception as exc:
            self.failure = exc
            raise

    def _named_case(self, position: int, value: Any) -> Case:
        """Name an input after its content, so that the order of inputs does not matter; duplicates get a number."""
        try:
            case: Case = Case(input=to_json(value))
        except UsageError as exc:
            case = Case(input=_placeholder(position, value, exc))
        return self._content_names.rename(case)


class _InputTrials(Trials):
    def __init__(self, inputs: Inputs) -> None:
        super().__init__(inputs, Selection(), 1, ("",), None)
        self._inputs = inputs
        self.cases = inputs.count

    def _check(self) -> None:
        """Nothing to check: names are unique."""

    def __iter__(self) -> Iterator[Trial]:
        return (Trial(case=case, repeat=1) for case in self._inputs.cases())


def _numbered_case(position: int) -> Case:
    case: Case = Case(input=None, name=str(position))
    case.__dict__["fingerprint"] = ""  # It is not needed, and slow to compute.
    return case


def _placeholder(position: int, value: Any, exc: UsageError) -> dict[str, str]:
    """Describe an input that is not JSON by its repr and a digest of its pickle."""
    try:
        content = pickle.dumps(value, protocol=4)  # Fixed, because the default may change between Python versions.
    except Exception as error:
        raise UsageError(
            f"input {position} cannot be journaled: it is neither JSON ({exc}) nor can it be pickled ({error}); "
            "use plain values or dataclasses, or remove journal="
        ) from error
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001  # the user's class may raise anything
        text = f"(repr raised {type(error).__name__})"
    return {"type": type(value).__qualname__, "repr": text[:_MAX_REPR], "content": digest(content)}


def variable_digests(function: Any) -> dict[str, str]:
    """Return the digests of the strings, containers, tables and records that a function reads, by name.

    Arguments of a partial, fields of an object, enclosing and global variables count. Excluded are variables with the name of
    a secret, and plain numbers and empty containers, which are often counters, times or caches. A function with a
    `fingerprint` has no variables: its fingerprint covers them.
    """
    values: dict[str, Any] = {_ARGUMENTS: _arguments(function)}

    function = inspect.unwrap(unwrap_partial(function))
    if isinstance(getattr(function, "fingerprint", None), str):
        return {}

    instance = getattr(function, "__self__", None) if inspect.isroutine(function) else function
    if not isinstance(instance, type | types.ModuleType):
        values |= {f"self.{name}": value for name, value in getattr(instance, "__dict__", {}).items()}
    method: Any = function if inspect.isroutine(function) else getattr(type(function), "__call__", None)  # noqa: B004  # its code
    with suppress(TypeError, ValueError):  # It is not written in Python, or a variable is not assigned yet.
        variables = inspect.getclosurevars(getattr(method, "__func__", method))
        values |= {**variables.globals, **variables.nonlocals}

    digests = {name: _digest(value) for name, value in values.items() if _is_data(value) and not is_secret_name(name)}
    return {name: value for name, value in digests.items() if value is not None}


def _arguments(function: Any) -> list[Any]:
    """Return the arguments of a partial, and of the partial that it is made of."""
    if not isinstance(function, functools.partial):
        return []
    partial = cast("Any", function)
    return [partial.args, partial.keywords, *_arguments(partial.func)]


def _is_data(value: Any) -> bool:
    """Return whether a value is a string, a container with content, a table or a record."""
    if isinstance(value, str | bytes | Mapping | list | tuple | AbstractSet):
        return len(cast("Any", value)) > 0
    return not isinstance(value, type) and (_is_record(value) or _table(value) is not None)


def _is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) or attrs.has(type(value)) or callable(getattr(type(value), "model_dump", None))


def _table(value: Any) -> Any:
    """Return the content of a DataFrame, a Series or an array; None if it is none of these."""
    kind = type(value)
    if hasattr(kind, "itertuples"):  # pandas
        return [list(value.columns), list(value.index), *value.itertuples(index=False, name=None)]
    if hasattr(kind, "iter_rows"):  # polars
        return [list(value.columns), *value.iter_rows()]
    if hasattr(kind, "to_pydict"):  # pyarrow
        return value.to_pydict()
    return value.tolist() if hasattr(kind, "tolist") else None  # numpy, and a Series


def _digest(value: Any) -> str | None:
    """Return a digest that depends on the content only, not on addresses, the order of sets or the hash seed.

    None if the value contains itself, or its class raises an exception.
    """
    try:
        return digest(_json(value).encode())
    except Exception:  # noqa: BLE001  # see above
        return None


def _json(value: Any) -> str:
    try:
        return json.dumps(value, default=_describe, sort_keys=True)
    except TypeError:
        return json.dumps(_replace_dicts(value), default=_describe)


def _replace_dicts(value: Any) -> Any:
    """Replace dicts, whose keys may not be strings, by lists of their items."""
    if isinstance(value, dict):
        return sorted((_json([key]), _replace_dicts(item)) for key, item in value.items())
    return [_replace_dicts(item) for item in cast("list[Any]", value)] if isinstance(value, list | tuple) else value


def _describe(value: Any) -> Any:  # noqa: PLR0911  # one return for each kind of value
    if isinstance(value, Mapping):
        return {**value}
    if isinstance(value, AbstractSet):
        return sorted(_json(item) for item in value)
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    if inspect.isroutine(value) or isinstance(value, functools.partial):
        return fingerprint_function(unwrap_partial(value))
    if isinstance(value, bytes | date | time | timedelta | Decimal | Fraction | UUID | Enum):
        return [type(value).__name__, str(value)]
    if _is_record(value):
        return [type(value).__qualname__, to_json(value)]
    table = _table(value)
    return _object(value, _DEPTH) if table is None else table


def _object(value: Any, depth: int) -> dict[str, Any]:
    """Describe an object by its class and those of its fields that are data, functions or, to a depth, objects."""
    content: dict[str, Any] = {"": f"{type(value).__module__}.{type(value).__qualname__}"}
    for name, field in getattr(value, "__dict__", {}).items():
        is_content = _is_data(field) or inspect.isroutine(field) or isinstance(field, type)
        if not is_secret_name(name) and (is_content or (depth > 1 and hasattr(field, "__dict__"))):
            content[name] = field if is_content else _object(field, depth - 1)
    return content
