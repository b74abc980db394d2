"""The settings of a run, their defaults and their validation.

A `UsageError` from here carries the name and the value of the setting; the Python API and the command line render it.
"""

import math
import os
from collections.abc import Collection, Iterable, Mapping
from os import PathLike
from typing import Any, Final, Literal, cast

import orjson
from attrs import Attribute, asdict, evolve, field, frozen
from typing_extensions import TypedDict

from evaljournal.journal import Durability
from evaljournal.replay.state.steps import REUSES, Reuse
from evaljournal.runner.concurrency import POLICIES
from evaljournal.runner.data.dataset import Selection, as_strings, optional_count
from evaljournal.runner.data.fingerprint import digest, fingerprint_function
from evaljournal.runner.definition.gates import Gate
from evaljournal.runner.definition.limits import BudgetValue, LimitsValue, parse_budget, parse_limits
from evaljournal.runner.errors import UsageError, Validator, is_whole_number, rule, suggest, whole_number
from evaljournal.runner.retries.retry import NUMERIC_FIELDS, Retry
from evaljournal.runner.steps.durable_requests import MODEL_CALLS, DurableRequests
from evaljournal.runner.steps.keys import KeyRules
from evaljournal.runner.workers.pool import WorkerPool

EXPERIMENT_SETTINGS: Final = (
    *("repeats", "only", "skip", "limit", "shuffle", "seed", "only_variants"),
    *("on_declined", "on_truncated"),
    *("workspace", "workspace_dirty", "agent_home"),
    *("live_from", "live_model", "live_system"),
)
"""Settings that define the experiment; `resume` can only select variants. All others may change from session to session."""
OnOutcome = Literal["score", "error", "exclude"]
AgentHome = Literal["fresh", "own"]
Keep = Literal["failing", "all", "none"]
OMITTED_DEFAULTS: Final[Mapping[str, Any]] = {
    "on_declined": "score",
    "on_truncated": "score",
    "limits": None,
    "batch": False,
    "batch_fallback": False,
    "batch_tokens": None,
    "batch_poll": 60.0,
    "key_without": [],
    "replies": [],
    "replies_any_trial": False,
    "replay_errors": False,
    "on_miss": None,
    "offline": False,
    "workspace": None,
    "workspace_dirty": False,
    "agent_home": "fresh",
    "keep": "failing",
    "live_from": None,
    "live_model": None,
    "live_system": None,
}
"""Settings that a run records only if they have another value: older runs do not have them."""


def is_duration(value: object) -> bool:
    """Return whether a value is a number of seconds above 0."""
    return isinstance(value, float) and math.isfinite(value) and value > 0


def _is_failure_limit(value: object) -> bool:
    return value is None or is_whole_number(value, 0) or (isinstance(value, float) and 0 <= value <= 1)


def _one_of(*choices: str | None) -> Validator:
    return rule(lambda value: value in choices, f"must be one of {', '.join(repr(choice) for choice in choices if choice)}")


def _of_type(expected: type) -> Validator:
    return rule(lambda value: isinstance(value, expected), f"must be a {expected.__name__}")


def _check_gates(_: object, __: "Attribute[Any]", gates: tuple[str, ...]) -> None:
    for gate in gates:
        Gate.parse(gate)


def _check_requests(_: object, __: "Attribute[Any]", values: tuple[str, ...]) -> None:
    DurableRequests.parse(values)


def _check_patterns(_: object, __: "Attribute[Any]", values: tuple[str, ...]) -> None:
    KeyRules.parse(values)


def as_float(value: Any) -> Any:
    """Make 30 and 30.0 the same setting; anything else is left to the validator."""
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _budget(value: BudgetValue) -> Mapping[str, float] | None:
    return parse_budget("budget", value)


def _budget_per_trial(value: BudgetValue) -> Mapping[str, float] | None:
    return parse_budget("budget_per_trial", value)


def _workers(value: Any) -> Any:
    if value is None or isinstance(value, WorkerPool):
        return value
    from evaljournal.runner.workers.parse import parse_workers  # noqa: PLC0415  # few runs need it

    return parse_workers(value)


def _path(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _paths(value: Any) -> Any:
    paths = [value] if isinstance(value, str | os.PathLike) else [] if value is None else value
    return tuple(map(_path, paths)) if isinstance(paths, Iterable) else paths


def _keep(value: Any) -> Any:
    return "none" if value is None else value


def _is_path(value: object) -> bool:
    return value is None or (isinstance(value, str) and bool(value) and "\0" not in value)


_are_paths: Final = rule(
    lambda value: isinstance(value, tuple) and None not in value and all(map(_is_path, value)),
    "must be a path, or several: of runs, or of files of `evaljournal pack`",
)
_worker_pool: Final = rule(
    lambda value: value is None or isinstance(value, WorkerPool),
    "must be 'none', 'processes', 'processes:N', 'processes:NxM', 'ray', 'ray:HOST:PORT', 'command:LINE' or "
    "'command:NxM:LINE', with 'scorers:' before all but 'none' if attempts do not run there",
)
_optional_text: Final = rule(lambda value: value is None or (isinstance(value, str) and bool(value.strip())), "must be text")
DURATION_PROBLEM: Final = "must be a number of seconds above 0"
_duration: Final = rule(lambda value: value is None or is_duration(value), DURATION_PROBLEM, "None turns it off")


@frozen(kw_only=True)
class Settings(Selection):
    """The cases that an evaluation runs on, and how it runs; each setting can be changed for a single run."""

    slots: int | None = field(default=None, validator=optional_count)
    """Maximum number of concurrent attempts per rate-limit key, and of concurrent calls of each scorer. None: 100 for
    endpoints, chat models and async functions, and as many as a known rate limit can use, up to 1,000; 32 for plain functions
    (threads) and recorded outputs; the number of CPUs (at least 4) for commands. The policy uses fewer if the endpoint allows
    fewer, so a high number costs nothing but memory; lower it to protect a shared service."""
    timeout: float | None = field(default=600.0, converter=as_float, validator=_duration)
    """Seconds for one attempt. Choose several times the slowest normal call: a timeout discards an answer that may have been
    paid for, and is retried. None: no timeout; a call that hangs holds its slot until the run ends."""
    deadline: float | None = field(default=None, converter=as_float, validator=_duration)
    """Seconds for one session of the run; it then stops, and can be resumed. Choose less than the time limit of a CI job, so
    that the run ends with a summary."""
    repeats: int = field(default=1, validator=whole_number(1))
    """Number of trials per case and variant. The calls and their cost grow with it; 3 to 5 show how much outputs vary."""
    only_variants: tuple[str, ...] = field(default=(), converter=as_strings)
    """Names of the variants to run. Empty: all. A resumed run may select others; the trials of the rest stay open."""
    loop: Literal["trio", "asyncio"] | None = field(default=None, validator=_one_of("trio", "asyncio", None))
    """The event loop of an `async def` task. None: the one that its code uses, otherwise asyncio."""
    write_ahead: bool = field(default=False, validator=_of_type(bool))
    """Whether the start of each attempt is synced to disk before its call, and the result of a step before it returns. Needed
    if a call must not be repeated after a crash; costs one sync, a few milliseconds, per attempt and step. With
    `durability="os"`, they are only handed to the operating system."""
    record_requests: bool = field(default=True, validator=_of_type(bool))
    """Whether the requests to endpoints, chat models and commands are recorded. They can be most of a journal's size; without
    them, `show` and exports lack what was sent."""
    reuse_steps: Reuse = field(default="transient", validator=_one_of(*REUSES))
    """When the next attempt reuses the steps of an attempt that ended early: `transient` (interrupted, rate limited or
    unavailable), `interrupted`, `always` or `never`. `always` saves most, but repeats an answer that led to an error; `never`
    pays for every step again."""
    gateway: bool = field(default=False, validator=_of_type(bool))
    """Whether a command or a function calls models through a gateway in this process, which records each call as a step; see
    `gateway_env`."""
    durable: tuple[str, ...] = field(default=(), converter=as_strings, validator=_check_requests)
    """Requests of httpx and httpx2 clients that are steps: `http` stands for model calls, as the SDKs of OpenAI and Anthropic
    make them; the start of a URL, such as `https://tools.example/`, for other requests."""
    key_without: tuple[str, ...] = field(default=(), converter=as_strings, validator=_check_patterns)
    """Regular expressions: text in the requests of model calls that is not compared when a step is reused, such as the date in
    a prompt (`Today is \\d{4}-\\d\\d-\\d\\d`). Two requests that differ only there get the same answer. Fields that only name
    the caller are never compared."""
    workspace: str | None = field(default=None, converter=_path, validator=rule(_is_path, "must be the path of a directory"))
    """A directory of which each attempt gets a fresh copy, as the working directory of a command; a function asks for it with
    `current_workspace()`. Of a git repository, the commit that is checked out is cloned. The changes are recorded. The column
    `files` of the dataset adds files per case."""
    workspace_dirty: bool = field(default=False, validator=_of_type(bool))
    """Whether the uncommitted changes of that repository are copied, too; otherwise they are an error, because a resumed run
    could not have them."""
    agent_home: AgentHome = field(default="fresh", validator=_one_of("fresh", "own"))
    """Where agents in a workspace find their configuration and memory: `fresh` is an empty directory per attempt, so that your
    own MCP servers, memory and instructions do not change the result; `own` is yours, with your login."""
    keep: Keep = field(default="failing", converter=_keep, validator=_one_of("failing", "all", "none"))
    """Which workspaces are kept: those of trials that have an error, a failed score or none (`failing`), all, or none."""
    retry: Retry = field(factory=Retry, validator=_of_type(Retry))
    """Retries of failed attempts, such as `Retry(errors=2)`."""
    workers: WorkerPool | None = field(default=None, converter=_workers, validator=_worker_pool)
    """Where attempts run: in processes (`ProcessWorkers(8)` or "processes:8"), on a Ray cluster (`RayWorkers()`), or in workers
    that a command starts (`CommandWorkers(…)`). None: in this process, which is faster for tasks that wait for an endpoint;
    workers help tasks that compute, or that may crash."""
    policy: str = field(default="adaptive", validator=_one_of(*POLICIES))
    """The concurrency policy. `adaptive` finds the limit of the endpoint; `fixed` always uses `slots`, for a service that you
    control."""
    limits: Mapping[str, Any] | None = field(default=None, converter=parse_limits)
    """Rate limits that you know: `{"rpm": 500, "tpm": "200k"}`, for every model; `{"gpt-5.6-luna": {"rpm": 100}}` for one.
    Names: `rpm`, `tpm`, `itpm`, `otpm` (requests, tokens, input and output tokens per minute) and `rpd` (requests per day).
    Calls start no faster, also those that an agent makes inside an attempt; `--shard K/N` divides them by N. Limits that
    replies advertise are read without this; `{"headers": "ignore"}` ignores them, if a proxy sends wrong ones."""
    grace: float = field(
        default=5.0,
        converter=as_float,
        validator=rule(
            lambda value: isinstance(value, float) and 0 <= value < math.inf, "must be a number of seconds, 0 or more"
        ),
    )
    """Seconds that in-flight attempts get to finish when the run is stopped. Those that do not are repeated, and perhaps paid
    for again, when it is resumed; choose less than what your scheduler waits before it kills a process."""
    fail_fast: bool = field(default=False, validator=_of_type(bool))
    """Whether the first error stops the run; for a test of the setup."""
    max_failures: int | float | None = field(
        default=None, validator=rule(_is_failure_limit, "must be a number of trials, or a fraction of all such as 0.05")
    )
    """Number of trials (an int), or fraction of all trials (a float), that may end with an error in a session before the run is
    stopped. None: errors do not stop it."""
    stop_on_same_error: int | None = field(default=20, validator=whole_number(1, "None turns it off", optional=True))
    """Number of trials: if the first ones of a session all end with the same error at the same line, the run is stopped. The
    same applies to the first outputs that a scorer is called with. Two are enough if the error is a 404. None: never."""
    on_declined: OnOutcome = field(default="score", validator=_one_of("score", "error", "exclude"))
    """What to do with an answer that the model or its provider declined: `score` scores it like any other and counts it
    beside the mean; `error` ends the trial with an error; `exclude` keeps the output without scores. Choose `exclude` only
    if you report the number of excluded trials, too: a model that declines hard cases would look better."""
    on_truncated: OnOutcome = field(default="score", validator=_one_of("score", "error", "exclude"))
    """The same for a truncated answer. If the token limit is the cause, prefer a larger `max_tokens`."""
    budget: Mapping[str, float] | None = field(default=None, converter=_budget)
    """Limits of the run: `{"cost": 5}` in dollars, `input_tokens` and `output_tokens`, judges and steps included. An attempt
    starts only if it fits; otherwise the run stops, and can be resumed with a larger budget."""
    budget_per_trial: Mapping[str, float] | None = field(default=None, converter=_budget_per_trial)
    """Limits of the attempts of one trial, in the same units; a trial that exceeds one ends with an error (`budget`). Choose
    several times the usual cost of a trial: it is for agents that do not end."""
    limit_key: str | None = field(
        default=None,
        validator=rule(
            lambda value: value is None or (isinstance(value, str) and bool(value)),
            "must be the name of a field of the cases or of a parameter of the variants, such as 'model'",
        ),
    )
    """The field of a case, or the parameter of a variant, that holds its rate-limit key. Each key has its own slots,
    concurrency limit and pauses. Needed only if a function calls several endpoints; variants of chat models and endpoints
    have keys of their own."""
    fail_under: tuple[str, ...] = field(default=(), converter=as_strings, validator=_check_gates)
    """Gates: `exact=0.9` for a mean, or `exact>=0.9@lower` for the lower end of its 95 % confidence interval."""
    durability: Durability = field(default="sync", validator=_one_of("sync", "os"))
    """`sync` syncs the journal continuously; `os` only when a segment is sealed (at 64 MiB) and at the end. With `os`, a killed
    process loses nothing, but a power failure can lose about 30 seconds of records; use it if the disk syncs slowly."""

    batch: bool = field(default=False, validator=_of_type(bool))
    """Whether the calls of a chat model and of judges are sent in batches of the provider: at half the price, within 24 hours.
    Retries, scores, budgets and views are the same; latencies are not recorded, and rate limits do not
    apply."""
    batch_fallback: bool = field(default=False, validator=_of_type(bool))
    """Whether calls that had no result in a batch, or an error that is retried, are made live, at the full price. Choose it if
    the rest of a run should not wait for another batch."""
    batch_tokens: int | None = field(default=None, validator=whole_number(1, "None turns it off", optional=True))
    """Maximum input tokens in all open batches together, if your account has a limit of enqueued tokens. None: smaller batches
    are sent only after the provider has rejected one."""
    batch_poll: float = field(default=60.0, converter=as_float, validator=rule(is_duration, DURATION_PROBLEM))
    """Polling interval for open batches in seconds; it doubles, up to ten times this value, while nothing changes."""

    replies: tuple[str, ...] = field(default=(), converter=_paths, validator=_are_paths)
    """Runs, or files of `evaljournal pack`, with recorded replies: model calls, steps and judges are answered from them, at no
    cost. A call is recognized by what is asked, in the trial with the same case, variant and repeat."""
    replies_any_trial: bool = field(default=False, validator=_of_type(bool))
    """Whether steps of other trials are used, too, after those of the trial itself: a cache, which makes repeats less
    independent."""
    replay_errors: bool = field(default=False, validator=_of_type(bool))
    """Whether calls that failed fail again with the recorded error; to test the task's own retries. Otherwise their last reply
    counts."""
    on_miss: Literal["fail", "live"] | None = field(default=None, validator=_one_of("fail", "live", None))
    """What happens to a call without a recorded reply: `fail` ends the trial with an error that shows what has changed, `live`
    makes the call. None: `fail` if `offline`, otherwise `live`."""
    live_from: int | None = field(default=None, validator=whole_number(1, "None turns it off", optional=True))
    """Number of the step from which each attempt makes its calls, with `replies`; the steps before it must be as recorded. See
    `evaljournal what-if --from-step`."""
    live_model: str | None = field(default=None, validator=_optional_text)
    """The model that these calls are sent to, with the prefix of its dialect if that is another. None: as the task asks."""
    live_system: str | None = field(default=None, validator=_optional_text)
    """The system prompt of these calls. None: as the task has it."""
    offline: bool = field(default=False, validator=_of_type(bool))
    """Whether this process connects to this machine only. No API key is needed. Connections of commands are not prevented."""

    @property
    def goes_live(self) -> bool:
        """Whether a call without a recorded reply is made."""
        return self.on_miss == "live" or (self.on_miss is None and not self.offline)

    def with_values(self, values: Mapping[str, Any]) -> "Settings":
        """Return a copy with these values; `retry` may be a mapping with some of its numbers."""
        retry = values.get("retry")
        if isinstance(retry, Mapping):
            numbers = cast("Mapping[str, Any]", retry)
            if unknown_names := set(numbers) - set(NUMERIC_FIELDS):
                raise UsageError(f"retry has no number {min(unknown_names)!r}{suggest(min(unknown_names), NUMERIC_FIELDS)}")
            values = {**values, "retry": evolve(self.retry, **numbers)}

        return evolve(self, **values)

    def failure_limit(self, trials: int | None) -> float:
        """Return how many of the trials may fail before the run is stopped; `trials` is None if the number is unknown."""
        limit = 0 if self.fail_fast else self.max_failures
        if limit is None:
            return math.inf

        if isinstance(limit, float) and trials is None:
            raise UsageError(
                "cannot be a fraction: the number of cases is unknown; use a whole number, or cases with a length",
                setting="max_failures",
                value=limit,
            )
        return limit * (trials or 0) if isinstance(limit, float) else limit

    def to_json(self, recorded: Collection[str] = ()) -> dict[str, Any]:
        """Return the settings as JSON, as a run records and `resume` compares them; `recorded` are not omitted."""
        fields: dict[str, Any] = orjson.loads(orjson.dumps(asdict(self, value_serializer=_serialize)))
        if not self.only_variants:
            del fields["only_variants"]  # Most runs have no variants.

        return {
            name: value
            for name, value in fields.items()
            if name in recorded or name not in OMITTED_DEFAULTS or value != OMITTED_DEFAULTS[name]
        }

    @property
    def sees_model_calls(self) -> bool:
        """Whether the model calls of a function or a command are seen."""
        return self.gateway or MODEL_CALLS in self.durable

    @property
    def fingerprint(self) -> str:
        """Digest of all settings."""
        return digest(orjson.dumps(self.to_json(), option=orjson.OPT_SORT_KEYS))


def _serialize(_: object, __: object, value: Any) -> Any:
    """Convert a worker pool, a class or a function to JSON; everything else is JSON already."""
    if isinstance(value, WorkerPool):
        return value.describe()
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    return fingerprint_function(value) if callable(value) else value


class SettingOptions(TypedDict, total=False):
    """Keyword arguments of `evaluation`, for editors and type checkers; a test compares the names with `Settings`."""

    only: str | Iterable[str]
    skip: str | Iterable[str]
    limit: int | None
    shuffle: bool
    seed: int
    slots: int | None
    timeout: float | None
    deadline: float | None
    repeats: int
    only_variants: str | Iterable[str]
    loop: Literal["trio", "asyncio"] | None
    write_ahead: bool
    record_requests: bool
    reuse_steps: Reuse
    gateway: bool
    durable: str | Iterable[str]
    key_without: str | Iterable[str]
    workspace: str | PathLike[str] | None
    workspace_dirty: bool
    agent_home: AgentHome
    keep: Keep
    retry: Retry | Mapping[str, float]
    workers: WorkerPool | str | None
    policy: str
    limits: LimitsValue
    grace: float
    fail_fast: bool
    max_failures: float | None
    stop_on_same_error: int | None
    on_declined: OnOutcome
    on_truncated: OnOutcome
    budget: BudgetValue
    budget_per_trial: BudgetValue
    limit_key: str | None
    fail_under: str | Iterable[str]
    durability: Durability
    batch: bool
    batch_fallback: bool
    batch_tokens: int | None
    batch_poll: float
    replies: str | PathLike[str] | Iterable[str | PathLike[str]] | None
    replies_any_trial: bool
    replay_errors: bool
    on_miss: Literal["fail", "live"] | None
    offline: bool
    live_from: int | None
    live_model: str | None
    live_system: str | None
