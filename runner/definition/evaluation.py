"""How a user says what is to be evaluated: a function, its cases, its scorers, its settings.

Everything that can be wrong with a definition is found here, where it is written. Nothing here runs anything.
"""

import enum
import functools
import inspect
import math
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from types import FunctionType
from typing import Any, Final, Generic, Literal, Protocol, cast, overload, runtime_checkable

import orjson
from attrs import Attribute, asdict, evolve, field, frozen
from typing_extensions import TypeVar

from journal import Durability
from runner.concurrency import POLICIES
from runner.data.case import Case
from runner.data.dataset import Dataset, Selection, Source, texts
from runner.data.fingerprint import digest, of_function
from runner.definition.gates import Gate
from runner.errors import UsageError
from runner.retries.retry import NUMBERS, Retry
from runner.scorers.scorer import Scorer, Verdicts, is_async
from runner.suggest import nearest
from runner.tasks import Opens

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


def _whole(_: "Settings", attribute: "Attribute[Any]", given: object) -> None:
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise UsageError(f"{attribute.name}={given!r}: give a whole number from 1 up")


def _slots(settings: "Settings", attribute: "Attribute[Any]", given: object) -> None:
    if given is not None:
        _whole(settings, attribute, given)


def _duration(_: "Settings", attribute: "Attribute[Any]", given: object) -> None:
    if given is not None and (not isinstance(given, float) or not math.isfinite(given) or given <= 0):
        raise UsageError(f"{attribute.name}={given!r}: give seconds, more than 0; None turns it off")


def _as_float(given: Any) -> Any:
    """Make 30 and 30.0 the same setting, and leave what is wrong to the validator."""
    return float(given) if isinstance(given, int) and not isinstance(given, bool) else given


def _loop(_: "Settings", __: "Attribute[Any]", given: object) -> None:
    if given not in (None, "trio", "asyncio"):
        raise UsageError(f"loop={given!r}: give 'trio' or 'asyncio', or leave it out")


def _one_of(*choices: str) -> Callable[[Any, "Attribute[Any]", object], None]:
    def validate(_: object, attribute: "Attribute[Any]", given: object) -> None:
        if given not in choices:
            raise UsageError(f"{attribute.name}={given!r}: give one of {', '.join(map(repr, choices))}")

    return validate


def _grace(_: "Settings", attribute: "Attribute[Any]", given: object) -> None:
    if not isinstance(given, float) or not math.isfinite(given) or given < 0:
        raise UsageError(f"{attribute.name}={given!r}: give seconds, 0 or more")


def _part(_: "Settings", attribute: "Attribute[Any]", given: object) -> None:
    if given is None or (isinstance(given, int) and not isinstance(given, bool) and given >= 0):
        return
    if not isinstance(given, float) or not 0 <= given <= 1:
        raise UsageError(f"{attribute.name}={given!r}: give a whole number of trials, or a part of them, such as 0.05")


def _field(_: "Settings", attribute: "Attribute[Any]", given: object) -> None:
    if given is not None and (not isinstance(given, str) or not given):
        raise UsageError(f"{attribute.name}={given!r}: give the name of a field of the cases, such as 'model'")


def _gates(_: "Settings", __: "Attribute[Any]", given: tuple[str, ...]) -> None:
    for gate in given:
        Gate.parse(gate)


def _of_type(expected: type) -> Callable[[Any, "Attribute[Any]", object], None]:
    def validate(_: object, attribute: "Attribute[Any]", given: object) -> None:
        if not isinstance(given, expected):
            raise UsageError(f"{attribute.name}={given!r}: give {expected.__name__}")

    return validate


WHAT_IS_ASKED: Final = ("repeats", "only", "skip", "limit", "shuffle", "seed")
"""Settings that make it another experiment. All others say how it is carried out, and may change from session to session."""


@frozen(kw_only=True)
class Settings(Selection):
    """On which of its cases an evaluation is run, and how; every one of these can be changed for a single run."""

    slots: int | None = field(default=None, validator=_slots)
    """The most attempts at one time. None: 100 for endpoints, chat models and async functions, 32 for plain functions (threads)
    and recorded outputs, the number of CPUs (at least 4) for commands. It also limits the calls of each scorer at one time."""
    timeout: float | None = field(default=600.0, converter=_as_float, validator=_duration)
    """Seconds for one attempt. None is really off."""
    deadline: float | None = field(default=None, converter=_as_float, validator=_duration)
    """Seconds for the whole run; what is then not done is left for a resumption."""
    repeats: int = field(default=1, validator=_whole)
    """How many times each case is asked."""
    loop: Literal["trio", "asyncio"] | None = field(default=None, validator=_loop)
    """Which event loop an `async def` task is written for."""
    write_ahead: bool = field(default=False, validator=_of_type(bool))
    """Whether the start of an attempt must be on disk before the call leaves."""
    retry: Retry = field(factory=Retry, validator=_of_type(Retry))
    """When a trial is tried again."""
    policy: str = field(default="adaptive", validator=_one_of(*POLICIES))
    """How the number of attempts at one time is found."""
    grace: float = field(default=5.0, converter=_as_float, validator=_grace)
    """Seconds that attempts in the air get when the run is stopped."""
    fail_fast: bool = field(default=False, validator=_of_type(bool))
    """Whether the first trial that fails stops the run."""
    max_failures: int | float | None = field(default=None, validator=_part)
    """How many trials may fail in a session (a whole number), or which part of all (a fraction), before the run is stopped."""
    limit_key: str | None = field(default=None, validator=_field)
    """The field of a case that names the back end it is put to; each has slots, limits and pauses of its own."""
    fail_under: tuple[str, ...] = field(default=(), converter=texts, validator=_gates)
    """Scores that must be reached for the run to count as a success: `exact=0.9`, or `exact>=0.9@lower` for its range's end."""
    durability: Durability = field(default="sync", validator=_one_of("sync", "os"))
    """What is promised about a power cut: `sync` syncs all the time, `os` at the end."""

    def changed(self, given: Mapping[str, Any]) -> "Settings":
        """Give the same settings but for those that are given; of `retry`, that may be some of its numbers."""
        retry = given.get("retry")
        if isinstance(retry, Mapping):
            numbers = cast("Mapping[str, Any]", retry)
            if unknown := set(numbers) - set(NUMBERS):
                raise UsageError(f"retry has no number {min(unknown)!r}{nearest(min(unknown), NUMBERS)}")
            given = {**given, "retry": evolve(self.retry, **numbers)}
        return evolve(self, **given)

    def most_failures(self, trials: int | None) -> float:
        """Say how many of so many trials may fail before the run is stopped; None where nobody knows how many there are."""
        most = 0 if self.fail_fast else self.max_failures
        if most is None:
            return math.inf
        if isinstance(most, float) and trials is None:
            raise UsageError(
                f"max_failures={most!r} (--max-failures {100 * most:g}%) is a part of all trials, and how many there are is "
                "not known before the last case is read; give a whole number, or cases that have a length"
            )
        return most * (trials or 0) if isinstance(most, float) else most

    def facts(self) -> dict[str, Any]:
        """Put the settings into JSON: what a run records, and what is compared, field by field, when it is resumed."""
        facts: dict[str, Any] = orjson.loads(orjson.dumps(asdict(self, value_serializer=_fact)))
        return facts

    @property
    def fingerprint(self) -> str:
        """Digest of all settings."""
        return digest(orjson.dumps(self.facts(), option=orjson.OPT_SORT_KEYS))


def _fact(_: object, __: object, value: Any) -> Any:
    """Name a class, and fingerprint a function; everything else is JSON already."""
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    return of_function(value) if callable(value) else value


@runtime_checkable
class Picky(Protocol):
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
        self.fingerprint = of_function(task)
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
    timeout: float | Inherited | None = getattr(scorer, "timeout", INHERITED) if isinstance(scorer, Opens) else INHERITED
    return timeout


def _seconds(timeout: float | None) -> float | None:
    """Return the timeout of a scorer; a wrong one is rejected."""
    seconds = _as_float(timeout)
    if seconds is not None and (not isinstance(seconds, float) or not math.isfinite(seconds) or seconds <= 0):
        raise UsageError(f"timeout={timeout!r}: give seconds, more than 0; None turns it off")
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
    return cases.checked(asked.check) if isinstance(asked, Picky) else cases


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
