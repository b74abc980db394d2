"""How a user says what is to be evaluated: a function, its cases, its scorers, its settings.

Everything that can be wrong with a definition is found here, where it is written. Nothing here runs anything.
"""

import enum
import functools
import inspect
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from types import FunctionType
from typing import Any, Final, Generic, Literal, Protocol, cast, overload, runtime_checkable

from typing_extensions import TypeVar

from journal import Durability
from runner.data.case import Case
from runner.data.dataset import Dataset, Source
from runner.data.fingerprint import fingerprint_function
from runner.definition.settings import DURATION, Settings, as_float, is_duration
from runner.errors import UsageError
from runner.retries.retry import Retry
from runner.scorers.scorer import Scorer, Verdicts, is_async
from runner.tasks import OpenableTask

InputT = TypeVar("InputT")
OutputT = TypeVar("OutputT")
ReturnT = TypeVar("ReturnT", default=Any)
VerdictT = TypeVar("VerdictT", bound=Verdicts | Awaitable[Verdicts])


class Inherited(enum.Enum):
    """The type of `INHERITED`."""

    INHERITED = enum.auto()


INHERITED: Final = Inherited.INHERITED
"""Stands for a timeout that was not given."""

_NAME = re.compile(r"\w[\w.-]*")
_SCORER_NAME = re.compile(r"\w[\w-]*")


@runtime_checkable
class CaseChecker(Protocol):
    """A task or a scorer that cannot be put to every case: a prompt may name a field that a case does not have."""

    def check(self, case: Case, /) -> None:
        """Raise a `UsageError` if the case lacks something."""
        ...


class Evaluation(Generic[InputT, OutputT, ReturnT]):
    """A task with its cases, scorers and settings. It can still be called as the function that it was made from."""

    def __init__(self, task: Callable[[InputT], ReturnT], *, cases: Dataset, settings: Settings, name: str | None) -> None:
        self.name = _named(task, name, _NAME)
        """What runs of it are filed under."""
        _check_task(task, self.name, settings)
        self.task = task
        self.fingerprint = fingerprint_function(task)
        """Digest of the task's own source, taken now: the file may change while a run goes on."""
        self.cases = _fit(cases, task)
        self.settings = settings
        self.scorers: dict[str, Scorer] = {}
        """By name, in the order in which they were added."""
        functools.update_wrapper(self, task, updated=())

    def __call__(self, value: InputT, /) -> ReturnT:
        """Call the task itself: no slot, no retry, no record."""
        return self.task(value)

    def __repr__(self) -> str:
        return f"<evaluation {self.name!r}: scored by {', '.join(self.scorers) or 'nobody'}, {self.settings}>"

    @property
    def is_async(self) -> bool:
        """Whether the task is a coroutine function."""
        return is_async(self.task)

    @overload
    def score(
        self, scorer: Callable[[OutputT, Case[InputT, Any]], VerdictT], /
    ) -> Callable[[OutputT, Case[InputT, Any]], VerdictT]: ...

    @overload
    def score(
        self, *, name: str | None = None, retry: Retry | None = None, timeout: float | Inherited | None = INHERITED
    ) -> Callable[[Callable[[OutputT, Case[InputT, Any]], VerdictT]], Callable[[OutputT, Case[InputT, Any]], VerdictT]]: ...

    def score(
        self,
        scorer: Callable[..., Any] | None = None,
        *,
        name: str | None = None,
        retry: Retry | None = None,
        timeout: float | Inherited | None = INHERITED,
    ) -> Callable[..., Any]:
        """Add a scorer, and return the function as it was: `@capitals.score`, or `@capitals.score(name="judge", timeout=60)`.

        `timeout` is in seconds for one call (default: a judge's own, otherwise that of the run's attempts; None: no limit).
        """
        if scorer is None:
            return functools.partial(self._add_scorer, name=name, retry=retry, timeout=timeout)
        return self._add_scorer(scorer, name=name, retry=retry, timeout=timeout)

    def _add_scorer(
        self,
        scorer: Callable[..., Any],
        *,
        name: str | None,
        retry: Retry | None,
        timeout: float | Inherited | None = INHERITED,
    ) -> Callable[..., Any]:
        name = _named(scorer, name, _SCORER_NAME)
        _check_call(scorer, name, "scorer", "the output and the case", 2)
        if name in self.scorers and not _is_redefined(self.scorers[name].function, scorer):
            raise UsageError(f"{self.name!r} has a scorer {name!r} already; give this one a name of its own: score(name=…)")
        self.cases = _fit(self.cases, scorer)
        again = self.settings.retry if retry is None else retry
        if timeout is INHERITED:
            timeout = _own_timeout(scorer)
        self.scorers[name] = Scorer(
            name=name,
            function=scorer,
            retry=again,
            inherits=retry is None,
            timeout=None if timeout is INHERITED else _seconds(timeout),
            inherits_timeout=timeout is INHERITED,
        )
        return scorer


def _own_timeout(scorer: object) -> float | Inherited | None:
    """Return the timeout that a judge has of its own; a function has none."""
    timeout: float | Inherited | None = getattr(scorer, "timeout", INHERITED) if isinstance(scorer, OpenableTask) else INHERITED
    return timeout


def _seconds(timeout: float | None) -> float | None:
    """Return the timeout of a scorer; a wrong one is rejected."""
    seconds: float | None = as_float(timeout)
    if seconds is not None and not is_duration(seconds):
        raise UsageError(DURATION, setting="timeout", value=timeout, hint="None turns it off")
    return seconds


def _is_redefined(before: object, now: object) -> bool:
    """Say whether a function was written anew in its place, as by a notebook's cell that is run again.

    Two of one name on different lines of a file, or two that one function has made, are a slip.
    """
    if not (isinstance(before, FunctionType) and isinstance(now, FunctionType)):
        return False
    was, code = before.__code__, now.__code__
    is_same = (before.__module__, before.__qualname__) == (now.__module__, now.__qualname__)
    is_in_place = was.co_filename != code.co_filename or was.co_firstlineno == code.co_firstlineno
    return is_same and is_in_place and was is not code


class Define(Protocol):
    """What `@evaluation(…)` returns: it makes an evaluation of the function below it."""

    @overload
    def __call__(
        self, task: Callable[[InputT], Coroutine[Any, Any, OutputT]], /
    ) -> Evaluation[InputT, OutputT, Coroutine[Any, Any, OutputT]]: ...

    @overload
    def __call__(self, task: Callable[[InputT], OutputT], /) -> Evaluation[InputT, OutputT, OutputT]: ...


def evaluation(
    *,
    cases: Source | Dataset,
    slots: int | None = None,
    timeout: float | None = 600,
    retry: Retry | None = None,
    repeats: int = 1,
    loop: Literal["trio", "asyncio"] | None = None,
    deadline: float | None = None,
    write_ahead: bool = False,
    policy: str = "adaptive",
    limit_key: str | None = None,
    grace: float = 5,
    fail_fast: bool = False,
    max_failures: float | None = None,
    fail_under: str | Iterable[str] = (),
    durability: Durability = "sync",
    name: str | None = None,
) -> Define:
    """Make an evaluation of a function that takes a case's input and returns an output; see `Settings` for the rest.

    `cases` is a file's path, an iterable, a function that returns one, or a `Dataset` that says which column is which.
    """
    settings = Settings(
        slots=slots,
        timeout=timeout,
        deadline=deadline,
        repeats=repeats,
        loop=loop,
        write_ahead=write_ahead,
        policy=policy,
        limit_key=limit_key,
        grace=grace,
        fail_fast=fail_fast,
        max_failures=max_failures,
        fail_under=fail_under,
        durability=durability,
        retry=Retry() if retry is None else retry,
    )
    dataset = cases if isinstance(cases, Dataset) else Dataset(cases)

    def define(task: Callable[[Any], Any]) -> Evaluation[Any, Any, Any]:
        return Evaluation(task, cases=dataset, settings=settings, name=name)

    return cast("Define", define)


def _fit(cases: Dataset, asked: object) -> Dataset:
    """Have cases checked by what is to be put to them."""
    return cases.checked(asked.check) if isinstance(asked, CaseChecker) else cases


def _named(function: object, given: str | None, allowed: re.Pattern[str]) -> str:
    name = getattr(function, "__name__", type(function).__name__) if given is None else given
    if not isinstance(name, str) or not allowed.fullmatch(name):
        raise UsageError(f"{name!r} cannot be a name here; give one of letters, digits, '_' and '-': name=…")
    return name


def _check_task(task: Callable[..., Any], name: str, settings: Settings) -> None:
    if isinstance(task, Evaluation):
        raise UsageError(f"{name!r} is an evaluation already; decorate the function once")
    _check_call(task, name, "task", "the case's input", 1)
    if settings.loop and not is_async(task):
        raise UsageError(f"loop={settings.loop!r} is for `async def`, and {name!r} is a plain function; leave it out")


def _check_call(function: Callable[..., Any], name: str, role: str, what: str, arguments: int) -> None:
    """Refuse a function that could not be called, or whose call would return no result."""
    if not callable(function):
        raise UsageError(f"a {role} is a function, not {function!r}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError(f"{role} {name!r} yields; it must return its result as a whole")
    try:
        signature = inspect.signature(function)
    except ValueError:
        return  # Some builtins do not say what they take.
    try:
        signature.bind(*[None] * arguments)
    except TypeError as exc:
        raise UsageError(f"{role} {name!r} is called with {what}, but it takes {signature}: {exc}") from exc
