"""Shared parts of the built-in scorers that make no calls."""

from collections.abc import Mapping
from typing import Any, ClassVar, Final, cast

import attrs

from evaljournal.replay.text import as_text
from evaljournal.runner.data.fingerprint import canonical, digest
from evaljournal.runner.retries.classify import Fatal
from evaljournal.runner.scorers.scorer import Score

_MAX_QUOTED_LENGTH: Final = 80
"""Maximum characters of a value that a reason quotes."""
_MAX_PATH: Final = 500
"""Maximum characters of a path that a reason names: its end."""


class MissingExpected(Fatal):
    """The case has no expected output that this scorer could compare with."""


def require_expected(expected: Any) -> Any:
    """Return the expected output; raise `MissingExpected` if there is none."""
    if expected is None:
        raise MissingExpected("the case has no expected output, which this scorer needs")
    return expected


def quote(value: Any) -> str:
    """Return a value as it is quoted in a reason, shortened."""
    text = as_text(value)
    return repr(text if len(text) <= _MAX_QUOTED_LENGTH else f"{text[:_MAX_QUOTED_LENGTH]}…")


def bool_score(is_passed: bool, reason: str) -> Score:  # noqa: FBT001
    """Return a bool as a score; only False has a reason."""
    return Score(is_passed, "" if is_passed else reason)


def difference_of(value: Any, expected: Any, path: str = "") -> str | None:  # noqa: PLR0911  # one return for each kind of value
    """Describe where two JSON values first differ (true is not 1, and 1 is 1.0); None if they are equal."""
    match value, expected:
        case dict(), dict():
            for key in dict.fromkeys([*expected, *value]):
                key_path = (f"{path}.{key}" if path else str(key))[-_MAX_PATH:]  # Each level keeps its own.
                if key not in value or key not in expected:
                    return f"missing key {key_path}" if key not in value else f"unexpected key {key_path}"
                if difference := difference_of(value[key], expected[key], key_path):
                    return difference
            return None
        case ((list() | tuple()), (list() | tuple())):
            for index, (item, expected_item) in enumerate(zip(value, expected, strict=False)):
                if difference := difference_of(item, expected_item, f"{path}[{index}]"):
                    return difference
            if len(value) == len(expected):
                return None
            return f"{path or 'output'} has {len(value)} items, expected {len(expected)}"
        case _:
            if isinstance(value, bool) == isinstance(expected, bool) and value == expected:
                return None
            return f"{path or 'output'} is {quote(value)}, expected {quote(expected)}"


class LocalScorerWithParameters:
    """A scorer that makes no calls and is an attrs class; its fields identify it."""

    __name__: ClassVar[str]
    is_local: ClassVar[bool] = True

    @property
    def definition(self) -> Mapping[str, Any]:
        return attrs.asdict(cast("Any", self), filter=lambda field, _: not field.name.startswith("_"))

    @property
    def fingerprint(self) -> str:
        return digest(canonical([self.__name__, 1, *self.definition.values()], self.__name__))
