"""The settings of a run: their defaults and what is valid."""

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, cast

import orjson
from attrs import Attribute, asdict, evolve, field, frozen

from journal import Durability
from runner.concurrency import POLICIES
from runner.data.dataset import Selection, texts
from runner.data.fingerprint import digest, fingerprint_function
from runner.definition.gates import Gate
from runner.errors import UsageError
from runner.retries.retry import NUMBERS, Retry
from runner.suggest import nearest


def _whole(_: "Settings", attribute: "Attribute[Any]", given: object) -> None:
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise UsageError(f"{attribute.name}={given!r}: give a whole number from 1 up")


def _slots(settings: "Settings", attribute: "Attribute[Any]", given: object) -> None:
    if given is not None:
        _whole(settings, attribute, given)


def _duration(_: "Settings", attribute: "Attribute[Any]", given: object) -> None:
    if given is not None and (not isinstance(given, float) or not math.isfinite(given) or given <= 0):
        raise UsageError(f"{attribute.name}={given!r}: give seconds, more than 0; None turns it off")


def as_float(given: Any) -> Any:
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
    timeout: float | None = field(default=600.0, converter=as_float, validator=_duration)
    """Seconds for one attempt. None is really off."""
    deadline: float | None = field(default=None, converter=as_float, validator=_duration)
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
    grace: float = field(default=5.0, converter=as_float, validator=_grace)
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
    return fingerprint_function(value) if callable(value) else value
