"""Errors that the user can fix, and what their hints are made of: suggestions for mistyped words, commands to copy.

A `UsageError` is a mistake in a definition, its settings or its data. An exception that a task raises while it runs is
recorded as the failure of an attempt, and classified by `runner.retries.classify`.
"""

import difflib
import shlex
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from attrs import Attribute

Validator = Callable[[Any, "Attribute[Any]", Any], None]
MAX_WHOLE_NUMBER: Final = 2**63 - 1
"""Largest whole number of a setting."""
_MAX_FAILING: Final = 10
"""Failing trials that a message names."""


class UsageError(Exception):
    """The evaluation, its settings or its data cannot be used.

    `str()` renders the fields as in Python code (`slots=0: …`); the command line renders them as flags.
    """

    def __init__(
        self,
        message: str,
        *,
        setting: str | None = None,
        value: object = None,
        path: Path | str | None = None,
        line: int | None = None,
        hint: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.setting = setting
        self.value = value
        self.path = path
        self.line = line
        """The line in the file, counted from 1."""
        self.hint = hint

    def __str__(self) -> str:
        place = "" if self.path is None else f"{self.path}: " if self.line is None else f"{self.path}, line {self.line:,}: "
        setting = "" if self.setting is None else f"{self.setting}={self.value!r}: "
        return f"{place}{setting}{self.message}{f'; {self.hint}' if self.hint else ''}"


def rule(is_valid: Callable[[Any], bool], problem: str, hint: str = "", *, prefix: str = "") -> Validator:
    """Return an attrs validator that rejects a value with this message; `prefix` precedes the field in the setting's name."""

    def validate(_: object, attribute: "Attribute[Any]", value: object) -> None:
        if not is_valid(value):
            raise UsageError(problem, setting=f"{prefix}{attribute.name}", value=value, hint=hint)

    return validate


def whole_number(minimum: int, hint: str = "", *, prefix: str = "", optional: bool = False) -> Validator:
    """Return an attrs validator of whole numbers from `minimum` that a journal can record; with `optional`, None is valid."""

    def validate(_: object, attribute: "Attribute[Any]", value: object) -> None:
        if is_whole_number(value, minimum) or (optional and value is None):
            return
        is_too_large = isinstance(value, int) and value > MAX_WHOLE_NUMBER
        problem = f"must be at most {MAX_WHOLE_NUMBER:,}" if is_too_large else f"must be a whole number, {minimum:,} or more"
        raise UsageError(problem, setting=f"{prefix}{attribute.name}", value=value, hint=hint)

    return validate


def is_whole_number(value: object, minimum: int) -> bool:
    """Return whether a value is a whole number, `minimum` or more, that a journal can record."""
    return isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= MAX_WHOLE_NUMBER


class MissingVariable(UsageError):
    """An environment variable that is needed is not set."""


class InvalidSetting(UsageError):
    """A journal has a setting that no run can have; the command line treats it as damage."""

    def __init__(self, reason: object) -> None:
        super().__init__(f"the journal has an invalid setting ({reason!s:.300})", hint="resume with a valid value for it")


class RunFailed(Exception):
    """A run did not pass: it is not finished, trials have an error, outputs are unscored, or a gate did not pass."""

    def __init__(self, path: Path, problems: Sequence[str], failing: Sequence[str] = ()) -> None:
        super().__init__(path, problems, failing)
        self.path = path
        """Directory of the run."""
        self.problems = list(problems)
        """One line per problem."""
        self.failing = list(failing)
        """The trials with an error or a failing score."""

    def __str__(self) -> str:
        names = ", ".join(self.failing[:_MAX_FAILING]) + (", …" if len(self.failing) > _MAX_FAILING else "")
        return f"{self.path}: {'; '.join(self.problems)}{f'; failing: {names}' if names else ''}"


class RunChanged(UsageError):
    """The evaluation or its settings differ from those that the run was started with."""

    def __init__(self, message: str, *, changes: Sequence[str] = (), hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.changes = list(changes)
        """One line per difference."""

    def __str__(self) -> str:
        return "\n  ".join([f"{self.message}:", *self.changes]) + f"\n{self.hint}" if self.changes else super().__str__()


@contextmanager
def unwrap_exception_groups() -> Generator[None]:
    """Unwrap an exception from the groups that nurseries put around it; of several usage errors, raise the first."""
    try:
        yield
    except BaseExceptionGroup as group:
        exc: BaseException = group
        while isinstance(exc, BaseExceptionGroup) and (len(exc.exceptions) == 1 or exc.split(UsageError)[1] is None):
            exc = exc.exceptions[0]
        raise exc from exc.__cause__


def suggest(word: str, words: Iterable[str], *, limit: int = 3, render: Callable[[str], str] = repr) -> str:
    """Return `; did you mean …?` with the most similar words, or an empty string."""
    matches = difflib.get_close_matches(word, list(words), n=limit)
    return f"; did you mean {' or '.join(map(render, matches))}?" if matches else ""


def command(verb: str, path: Path, options: str = "") -> str:
    """Return a command for a run, in backquotes and ready to be copied."""
    return f"`evaljournal {verb} {shlex.quote(str(path))}{options}`"


def print_error(text: str) -> None:
    """Print lines on standard error, unless it is closed."""
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            sys.stderr.write(f"{text}\n")
