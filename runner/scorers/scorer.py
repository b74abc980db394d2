"""What a scorer is, and what it may say.

A scorer looks at one output and its case, and returns a verdict. Whatever form the verdict has, it leaves this room as
named `Score`s. When scorers are called, and what happens when one fails, is decided elsewhere.
"""

import inspect
import math
import numbers
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

from attrs import Attribute, Factory, define, evolve, field, frozen

from runner.data.case import Case
from runner.data.fingerprint import fingerprint_function
from runner.errors import UsageError
from runner.retries.retry import Retry
from runner.tasks import Task


def _plain(value: Any) -> Any:
    """Unwrap a number that numpy or torch has wrapped."""
    unwrap = None if isinstance(value, bool | int | float | str) else getattr(value, "item", None)
    value = unwrap() if callable(unwrap) else value
    return value if isinstance(value, bool) or not isinstance(value, numbers.Real) else float(value)


def _judgement(_: "Score", __: "Attribute[Any]", value: object) -> None:
    if not isinstance(value, bool | float | str):
        raise UsageError(f"a score is a bool, a number or a label, not {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"a score of {value!r} says nothing; raise an exception if there is nothing to say")


@frozen
class Score:
    """What one scorer thinks of one output."""

    value: bool | float | str = field(converter=_plain, validator=_judgement)
    """bool: passed or not. float: how good. str: a label."""
    reason: str = ""
    """Why, for people."""


@define(eq=False)
class ScorerInput:
    """What a scorer is asked about. When it is asked again, because it failed, it is the same object."""

    output: Any
    case: Case
    unread: str = ""
    """What a model said to it last, where no verdict could be read in that."""


Verdict = bool | float | str | Score
Verdicts = Verdict | Mapping[str, bool] | Mapping[str, float] | Mapping[str, str] | Mapping[str, Verdict]
"""What a scorer may return. A mapping gives several scores at once, each with a name."""


def _version(scorer: "Scorer") -> str:
    return fingerprint_function(scorer.function)


@frozen(kw_only=True)
class Scorer:
    """A function that judges outputs."""

    name: str
    function: Callable[[Any, Any], Verdicts | Awaitable[Verdicts]]
    """Called with the output and the case."""
    retry: Retry
    """When it is asked again after it failed; the task is not."""
    inherits: bool = False
    """Whether that is the evaluation's own, and gives way to what is said for one run."""
    timeout: float | None = None
    """Seconds for one call; None: no limit."""
    inherits_timeout: bool = True
    """Whether the timeout of the run's attempts is used instead."""
    version: str = field(default=Factory(_version, takes_self=True))
    """Fingerprint of its source, taken when it was defined."""

    def under(self, retry: Retry, timeout: float | None) -> "Scorer":
        """Return the scorer with the retries and the timeout of a run, where it has none of its own."""
        return evolve(
            self,
            retry=retry if self.inherits else self.retry,
            timeout=timeout if self.inherits_timeout else self.timeout,
        )

    @property
    def is_local(self) -> bool:
        """Whether it is a built-in scorer that only computes: its calls are neither recorded nor limited."""
        return getattr(self.function, "is_local", False) is True

    @property
    def is_async(self) -> bool:
        """Whether a call has to be awaited."""
        return is_async(self.function)

    def scores(self, verdicts: object) -> dict[str, Score]:
        """Name what the function returned: `exact`, or `judge.tone` and `judge.facts` where it returned a mapping."""
        if not isinstance(verdicts, Mapping):
            return {self.name: self._score(verdicts, self.name)}
        named = cast("Mapping[object, object]", verdicts)
        if not named or not all(isinstance(key, str) and key for key in named):
            raise UsageError(f"scorer {self.name!r} returned {verdicts!r}; a mapping has names for keys, and at least one")
        return {f"{self.name}.{key}": self._score(each, f"{self.name}.{key}") for key, each in named.items()}

    def _score(self, verdict: Any, name: str) -> Score:
        try:
            return verdict if isinstance(verdict, Score) else _foreign(verdict) or Score(verdict)
        except UsageError as exc:
            raise UsageError(f"scorer {name!r}: {exc}") from exc


@frozen(kw_only=True)
class OpenScorer:
    """A scorer while a session lasts."""

    scorer: Scorer
    task: Task
    """Called with a `ScorerInput`."""
    key: str
    """The rate-limit key that its calls count for."""


def _foreign(verdict: Any) -> Score | None:
    """Understand what the scorers of others return: an object with a name, a score and, perhaps, a rationale."""
    if not hasattr(verdict, "score") or not hasattr(verdict, "name"):
        return None
    metadata = getattr(verdict, "metadata", None)
    rationale = cast("Mapping[str, object]", metadata).get("rationale") if isinstance(metadata, Mapping) else None
    return Score(verdict.score, str(rationale or ""))


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a function, or an object that is called like one, is a coroutine function."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004 - not whether, but which
