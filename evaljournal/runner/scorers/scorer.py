"""Scorers: functions whose parameters are passed by name, and the values they may return.

`runner.engine.scoring` calls them.
"""

import inspect
import math
import numbers
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, cast

from attrs import Attribute, Factory, define, evolve, field, frozen

from evaljournal.journal.format.codec import RECORD_LIMIT
from evaljournal.replay.runs.trajectory import StepDetails
from evaljournal.runner.calls import OpenableTask, Task, is_async
from evaljournal.runner.calls.hand_over import SharedThreads
from evaljournal.runner.data.case import Case
from evaljournal.runner.data.fingerprint import definition_of, fingerprint_function
from evaljournal.runner.errors import UsageError
from evaljournal.runner.retries.retry import Retry
from evaljournal.runner.secrets.masking import mask

_INPUT_FIELDS: Final = ("output", "case", "trajectory", "declined", "truncated", "latency", "cost", "files", "diff")
"""The parameters that are not fields of the case."""
PARAMETERS: Final = ("output", "expected", "input", "metadata", *_INPUT_FIELDS[1:])
"""The parameters that a scorer may have; each is passed by its name."""

MAX_SECONDS: Final = 10.0
"""Time limit in seconds of a built-in scorer that could take long, unless it has its own timeout."""


def _unwrap(value: Any) -> Any:
    """Convert a number, including scalars of numpy and torch, to a float; bools stay bools."""
    item = None if isinstance(value, bool | int | float | str) else getattr(value, "item", None)
    value = item() if callable(item) else value
    return value if isinstance(value, bool) or not isinstance(value, numbers.Real) else float(value)


def _check_value(_: "Score", __: "Attribute[Any]", value: object) -> None:
    if not isinstance(value, bool | float | str):
        raise UsageError(f"a score is a bool, a number or a label, not {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"a score must be finite, not {value!r}; raise an exception where there is no score")


@frozen
class Score:
    """The score of one output."""

    value: bool | float | str = field(converter=_unwrap, validator=_check_value)
    """bool: passed or not; float: a number; str: a label."""
    reason: str = ""
    """Why the output has this score; shown with it."""


@define(eq=False)
class ScorerInput:
    """The input of a scorer call; its retries get the same object."""

    output: Any
    case: Case
    trajectory: list[StepDetails] = field(factory=list[StepDetails])
    """The steps of the attempt that returned the output, in the order in which they started."""
    scorer: str = ""
    """Name of the scorer; empty outside a run."""
    trial: str = ""
    """Id of the trial; empty outside a run."""
    declined: bool = False
    """Whether the model, or its provider, declined to answer."""
    truncated: bool = False
    latency: float | None = 0.0
    """Seconds that the output took; None: unknown. See `TrialState.latency`."""
    cost: float | None = None
    """Dollars that the output cost; None: unknown."""
    files: list[Any] = field(factory=list[Any])
    """The files that the attempt has changed in its workspace: `path`, `change`, `bytes` and `sha256` of each."""
    diff: str = ""
    """What it has changed, as a unified diff."""
    attempt: int = 0
    """Number of the attempt that returned the output."""
    workspace_run: str = ""
    """Id of the run that made its workspace; empty: that is not recorded."""
    unparsed_reply: str = ""
    """A judge's last reply, if no verdict could be read from it."""
    replies: dict[int, str] = field(factory=dict[int, str])
    """Number of an assertion → the reply of its judge, in an earlier call that failed later."""


Verdict = bool | float | str | Score
Verdicts = Verdict | Mapping[str, bool] | Mapping[str, float] | Mapping[str, str] | Mapping[str, Verdict]
"""The types that a scorer may return; a mapping gives several named scores."""


def _caller(scorer: "Scorer") -> Callable[[ScorerInput], Any]:
    """Return a function that passes a scorer the parameters it takes, which are determined only once."""
    function: Callable[..., Any] = scorer.function
    if (with_time_limit := getattr(function, "with_time_limit", None)) is not None:
        function = with_time_limit(min(scorer.timeout or MAX_SECONDS, MAX_SECONDS if scorer.inherits_timeout else math.inf))
    names = parameters_of(function, f"scorer {scorer.name!r}")
    inputs = tuple(name for name in names if name in _INPUT_FIELDS)
    case_fields = tuple(name for name in names if name not in _INPUT_FIELDS)

    def call(scorer_input: ScorerInput) -> Any:
        arguments = {name: getattr(scorer_input.case, name) for name in case_fields}
        for name in inputs:
            arguments[name] = getattr(scorer_input, name)
        return function(**arguments)

    return call


def parameters_of(function: Callable[..., Any], label: str, available: Sequence[str] = PARAMETERS) -> tuple[str, ...]:
    """Return the names of the parameters that a scorer or another function is passed; raise a UsageError if it needs any other.

    Parameters with a default keep it, `*args` stays empty, and `**kwargs` gets all that are not named.
    """
    try:
        parameters = inspect.signature(function).parameters
    except ValueError as exc:
        raise UsageError(f"{label}: its parameters are unknown; wrap it in a function that has some") from exc

    names: list[str] = []
    for parameter in parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            names += [key for key in available if key not in parameters]
        elif parameter.kind is parameter.VAR_POSITIONAL or parameter.default is not parameter.empty:
            continue
        elif parameter.name not in available or parameter.kind is parameter.POSITIONAL_ONLY:
            problem = "is positional-only" if parameter.name in available else "is unknown"
            hint = f"parameters are passed by name, any of: {', '.join(available)}"
            raise UsageError(f"{label}: parameter {parameter.name!r} {problem}; {hint}")
        else:
            names.append(parameter.name)
    return tuple(names)


@frozen(kw_only=True)
class Scorer:
    name: str
    function: Callable[..., Verdicts | Awaitable[Verdicts]]
    retry: Retry
    """When a failed call of the scorer is retried; the task is not called again."""
    inherits_retry: bool = False
    """Whether the retries of the run are used instead."""
    timeout: float | None = None
    """Seconds for one call; None: no limit."""
    inherits_timeout: bool = True
    """Whether the timeout of the run's attempts is used instead."""
    workers: bool = False
    """Whether it is called in a worker."""
    version: str = field(default=Factory(lambda scorer: fingerprint_function(scorer.function), takes_self=True))
    """Fingerprint of its source, taken when it was defined."""
    definition: Mapping[str, Any] = field(
        init=False, repr=False, eq=False, default=Factory(lambda scorer: definition_of(scorer.function), takes_self=True)
    )
    """The definition that a run records, taken at the same time."""
    call: Callable[[ScorerInput], Any] = field(init=False, repr=False, eq=False, default=Factory(_caller, takes_self=True))

    def with_defaults(self, retry: Retry, timeout: float | None) -> "Scorer":
        """Return the scorer with the retries and the timeout of a run, where it has none of its own."""
        return evolve(
            self, retry=retry if self.inherits_retry else self.retry, timeout=timeout if self.inherits_timeout else self.timeout
        )

    @property
    def is_local(self) -> bool:
        """Whether it is a built-in scorer that only computes: its calls are neither recorded nor limited."""
        return not self.workers and getattr(self.function, "is_local", False) is True

    @property
    def is_plain(self) -> bool:
        """Whether it is a function that is called in a thread, and not known to call an endpoint."""
        function: object = self.function
        calls_endpoint = isinstance(function, OpenableTask) or getattr(function, "rate_limit_identity", None) is not None
        return not (self.workers or self.is_local or self.is_async or calls_endpoint)

    @property
    def is_share(self) -> bool:
        """Whether it is known that its scores are passes or at most 1: it is built in and local, or annotated with `bool`."""
        return self.is_local or getattr(self.function, "__annotations__", {}).get("return") in {bool, "bool"}

    @property
    def combines(self) -> tuple[str, ...]:
        """The scorers from whose scores of a trial its own is computed, without a call; empty for all others."""
        return getattr(self.function, "combines", ())

    @property
    def takes_trajectory(self) -> bool:
        """Whether it is passed the steps of the attempt; only then are they read."""
        attribute = getattr(self.function, "takes_trajectory", None)
        return attribute if isinstance(attribute, bool) else "trajectory" in parameters_of(self.function, self.name)

    @property
    def takes_changes(self) -> bool:
        """Whether it is passed the changes of the workspace; only then are they read."""
        function: object = self.function
        if isinstance(function, OpenableTask) or self.combines:
            return False
        return not {"files", "diff"}.isdisjoint(parameters_of(self.function, self.name))

    @property
    def is_async(self) -> bool:
        return is_async(self.function)

    def scores(self, verdicts: object) -> dict[str, Score]:
        """Name the scores that the function returned: `exact`, or `judge.tone` and `judge.facts` for a mapping.

        Their reasons may quote errors, and are masked as those are.
        """
        if not isinstance(verdicts, Mapping):
            return {self.name: self._score(verdicts, self.name)}
        values = cast("Mapping[object, object]", verdicts)
        if not values or not all(isinstance(key, str) and key for key in values):
            raise UsageError(
                f"scorer {self.name!r} returned {verdicts!r}; a mapping needs at least one key, each a non-empty name"
            )
        return {f"{self.name}.{key}": self._score(value, f"{self.name}.{key}") for key, value in values.items()}

    def _score(self, verdict: Any, name: str) -> Score:
        try:
            score = verdict if isinstance(verdict, Score) else _other_library_score(verdict) or Score(verdict)
        except UsageError as exc:
            raise UsageError(f"scorer {name!r}: {exc}") from exc
        reason: object = score.reason
        if not isinstance(reason, str) or not reason or len(reason) > RECORD_LIMIT:  # The journal rejects a longer one.
            return score
        return evolve(score, reason=mask(reason))


@frozen(kw_only=True)
class OpenScorer:
    """A scorer for the duration of a session."""

    scorer: Scorer
    task: Task
    key: str
    """The rate-limit key that its calls count for."""
    threads: SharedThreads | None = None
    """Where a plain function is called together with the other ones; None: each of its calls is queued."""


def _other_library_score(verdict: Any) -> Score | None:
    """Convert a score of another library: an object with a name, a score and perhaps a rationale."""
    if not hasattr(verdict, "score") or not hasattr(verdict, "name"):
        return None
    metadata = getattr(verdict, "metadata", None)
    rationale = cast("Mapping[str, object]", metadata).get("rationale") if isinstance(metadata, Mapping) else None
    return Score(verdict.score, str(rationale or ""))
