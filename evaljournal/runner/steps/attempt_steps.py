"""The steps of one attempt: results of earlier attempts are reused, and new ones are recorded.

A task may run in the loop of the run, on an asyncio loop or in a thread. Records are appended in the loop of the run, in the
order in which the steps ended.

**Model calls.** Each waits for the known rate limits of its key before it is sent. A call that gets a rate limit, or whose
provider is overloaded, waits in the same place and is sent again, because an agent that has changed files would repeat every
change in the next attempt. Only when the retry settings of the task are used up does the attempt end.
"""

import itertools
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar, Token
from typing import Any, Final, NamedTuple, Protocol

import attrs
import trio

from evaljournal.journal.events import StepCompleted, StepEvent, StepFailed, StepKind, StepPhase, StepReused
from evaljournal.runner.calls import ReportedStep
from evaljournal.runner.calls.call_size import CallSize, max_output, text_bytes
from evaljournal.runner.calls.http.identity import base_of, key_digest
from evaljournal.runner.calls.notes import attached
from evaljournal.runner.retries.classify import Failure, Fatal, classify, describe
from evaljournal.runner.secrets.masking import mask_output
from evaljournal.runner.steps.inputs import RecordedInputs, StepInput, step_input
from evaljournal.runner.steps.keys import NO_RULES, KeyRules

Key = tuple[str, str]
"""Name and fingerprint of a step."""


class NotSent(Fatal):
    """A call that will not be made; nothing was sent."""


class ReplayedFailure(Exception):
    """A call that fails as it did when it was recorded; nothing was sent."""

    def __init__(self, error: str, message: str, *, is_repeated: bool) -> None:
        """`is_repeated`: the provider rejected the call, and the same call was sent again."""
        super().__init__(message)
        self.error = error
        status = message.partition(" ")[0]
        self.status_code = int(status) if error.startswith("evaljournal.") and status.isdecimal() else None
        """The status of the reply; None: there was none."""
        self.is_repeated = is_repeated and self.status_code in REJECTED_STATUSES


class OverLimit(NotSent):
    """A request needs more than a rate limit allows in a whole window; nothing was sent."""


class AttemptEnded(Exception):
    """The attempt of a call that waited for a rate limit has ended; nothing was sent."""


class LimitedCall(NamedTuple):
    base_url: str
    """The URL without the part that names the endpoint of the API; empty: the task itself calls its model."""
    key_digests: tuple[str, ...]
    """Digests of the API keys, which are never recorded."""
    model: str
    size: CallSize


class CallAdmission(NamedTuple):
    """What is recorded of a call that was admitted."""

    key: str = ""
    """Name of its rate-limit key."""
    need: dict[Any, float] | None = None
    """What it takes from the limits of this key; None: none is known."""
    waited: float = 0.0
    """Seconds that it waited for them."""


NO_ADMISSION: Final = CallAdmission()
REJECTED_STATUSES: Final = frozenset({429, 498, 503, 529})
"""Statuses with which a provider says that it has not processed a call, because of a rate limit or its load."""


class CallGate(Protocol):
    """Where the model calls of an attempt wait. A call is identified by the number of its step."""

    def admit_now(self, step: int, call: LimitedCall, /, *, can_wait: bool) -> CallAdmission | None:
        """Admit a call if no limit of its key is known, or if it cannot wait; None: it may have to wait. From any thread."""
        ...

    async def admit(self, step: int, call: LimitedCall, /) -> CallAdmission:
        """Wait, in the loop that runs the attempt, until a call may start; raise `OverLimit` if it never can."""
        ...

    def read(self, step: int, status: int, headers: Mapping[str, str], /) -> None:
        """Read the limits in the head of the reply to a call; names of headers are in lower case. From any thread."""
        ...

    def end(self, step: int, usage: Any, /) -> None:
        """Count a call that was answered. From any thread."""
        ...

    async def wait_again(self, step: int, failure: Failure, /) -> float | None:
        """Wait, in the loop that runs the attempt, until a call that was rejected may be sent again.

        Returns the seconds that it waited; None if it may not: its retry settings are used up, or the attempt has ended.
        """
        ...

    @property
    def failure(self) -> Fatal | None:
        """The error of a call that can never start, which fails the trial."""
        ...

    def close(self) -> None:
        """End the calls that still wait: the attempt has ended."""
        ...


def limited_call(url: str, keys: Iterable[str], content: Any, body: bytes) -> LimitedCall:
    """Return the model call of a request: its URL, API keys, body as a JSON value, and body."""
    parameters = content if isinstance(content, dict) else {}
    model = parameters.get("model")
    size = CallSize(text_bytes(body), max_output(parameters))
    digests = tuple(sorted({key_digest(key.encode()) for key in keys}))
    return LimitedCall(base_of(url.partition("?")[0]), digests, model if isinstance(model, str) else "", size)


def rejection_of(exc: Exception) -> Failure | None:
    """Return what an error means if the call may be sent again: it was rate limited, or the provider was overloaded."""
    failure = classify(exc, now=time.time())
    is_overloaded = failure.category == "unavailable" and getattr(exc, "status_code", None) in REJECTED_STATUSES
    return failure if failure.stop_reason is None and (is_overloaded or failure.category == "rate_limited") else None


@attrs.frozen
class RecordedResult:
    """The result of a completed step, read from the journal."""

    seq: int
    output: Any
    usage: Any = None
    number: tuple[int, int] = attrs.field(default=(0, 0), kw_only=True)
    """The attempt that executed it, and its number there."""
    parent: tuple[int, int] = attrs.field(default=(0, 0), kw_only=True)
    """The attempt that used it last, and the number of the step that called it there; 0: the task itself."""

    def record_use(self, steps: "AttemptSteps", step: "Step") -> None:
        steps.record(
            StepReused(trial=steps.trial, attempt=steps.attempt, step=step.number, completed_seq=self.seq, parent=step.parent)
        )
        steps.inputs.add(step.number, step.input)


@attrs.define(eq=False)  # Faster to create than a frozen class.
class Step:
    """A step: its name, kind and input; `AttemptSteps.begin` sets the other attributes."""

    name: str
    kind: StepKind
    input: StepInput
    reusable: bool
    number: int = 0
    """Its number in the attempt; 0: it gets one when it begins."""
    parent: int = 0
    """Number of the step that started it; 0: the task itself."""
    started_at: float = 0.0
    call: LimitedCall | None = None
    """The model call that it makes, if it waits for rate limits."""
    admission: CallAdmission = NO_ADMISSION
    phase: StepPhase = "task"
    waited: float = 0.0
    """Seconds that its call has waited since it was rejected the last time."""

    def again(self, waited: float) -> "Step":
        """Return the step that sends the same call again."""
        return Step(self.name, self.kind, self.input, self.reusable, call=self.call, waited=waited)


@attrs.define(eq=False)
class AttemptSteps:
    trial: str
    attempt: int
    record: Callable[[StepEvent], None] = attrs.field(kw_only=True)
    """Records an event, from any thread."""
    _clock: Callable[[], float] = attrs.field(kw_only=True)
    """Returns seconds; only differences are used."""
    token: trio.lowlevel.TrioToken = attrs.field(kw_only=True)
    """Identifies the loop of the run."""
    wait_durable: Callable[[], Awaitable[None]] | None = attrs.field(default=None, kw_only=True)
    """Waits, in the loop of the run, until the recorded steps are on disk; None: steps do not wait."""
    sync: Callable[[], Awaitable[None]] | None = attrs.field(default=None, kw_only=True)
    """Does the same for a set-up: the start of its attempt must be on disk before it is called, and its handle before the task;
    None: there is no disk."""
    is_step: Callable[[str, str], bool] | None = attrs.field(default=None, kw_only=True)
    """Returns whether an HTTP request with this method and URL is a step; None: no request is."""
    gate: CallGate | None = attrs.field(default=None, kw_only=True)
    """Where model calls wait for rate limits; None: they do not wait."""
    key_rules: KeyRules = attrs.field(default=NO_RULES, kw_only=True)
    on_miss: "Callable[[AttemptSteps, Step], RecordedResult | None] | None" = attrs.field(init=False, default=None)
    """Called with a step that has no recorded result; it may have one from elsewhere, or raise. None: the step is executed."""
    rewrite: Callable[[int, str, str, bytes], tuple[str, bytes]] | None = attrs.field(init=False, default=None)
    """Called with the number, the method, the URL and the body of an HTTP request that is a step; returns URL and body as they
    are sent. None: as the task has made them."""
    inputs: RecordedInputs = attrs.field(init=False, factory=RecordedInputs)
    _results: dict[Key, deque[RecordedResult]] = attrs.field(init=False, factory=dict[Key, deque[RecordedResult]])
    _inner_usage_parents: set[int] = attrs.field(init=False, factory=set[int])
    """Numbers of the steps inside which other steps have recorded usage."""
    _numbers: Iterator[int] = attrs.field(init=False, factory=lambda: itertools.count(1))

    def offer(self, results: Iterable[tuple[Key, RecordedResult]]) -> None:
        """Make results of earlier attempts available, each for one step; those of steps inside a completed step are omitted."""
        results = list(results)
        completed_numbers = {result.number for _, result in results}
        for key, result in results:
            if result.parent not in completed_numbers:
                self._results.setdefault(key, deque()).append(result)

    def offer_first(self, results: Iterable[tuple[Key, RecordedResult]]) -> None:
        """Make results available before those of the same key that are available already."""
        later_results, self._results = self._results, {}
        for key, result in results:
            self._results.setdefault(key, deque()).append(result)
        for key, queue in later_results.items():
            self._results.setdefault(key, deque()).extend(queue)

    def has_result(self, step: Step) -> bool:
        return bool(self._results.get((step.name, step.input.fingerprint)))

    def next_number(self) -> int:
        return next(self._numbers)

    @property
    def available_results(self) -> list[tuple[Key, RecordedResult]]:
        return [(key, result) for key, results in self._results.items() for result in results]

    def begin(self, step: Step) -> RecordedResult | None:
        """Start a step; if an earlier attempt has its result, record that it is reused, and return the result."""
        step.number = step.number or next(self._numbers)
        step.parent, step.started_at = _parent.get(), self._clock()
        result = self._take(step) if self._results and step.reusable else None
        if result is None and self.on_miss is not None:
            result = self.on_miss(self, step)
        if result is not None:
            result.record_use(self, step)
            self._add_usage(step, result.usage)
        return result

    def _take(self, step: Step) -> RecordedResult | None:
        results = self._results.get((step.name, step.input.fingerprint))
        try:
            return results.popleft() if results else None
        except IndexError:  # Another thread took it.
            return None

    def admit_now(self, step: Step, *, can_wait: bool = True) -> bool:
        """Return whether the model call of a step need not, or cannot, wait; it has started then."""
        if step.call is None or self.gate is None:
            return True
        if (admission := self.gate.admit_now(step.number, step.call, can_wait=can_wait)) is None:
            return False
        step.admission = admission
        return True

    async def admit(self, step: Step) -> None:
        """Wait, in the loop that runs the attempt, until the model call of a step may start."""
        assert step.call is not None
        assert self.gate is not None
        try:
            step.admission = await self.gate.admit(step.number, step.call)
        except (OverLimit, AttemptEnded) as exc:
            self.fail(step, exc)
            raise
        step.started_at = self._clock()

    async def wait_again(self, step: Step, exc: Exception) -> float | None:
        """Wait, in the loop that runs the attempt, until the call of a step that has failed may be sent again.

        Returns the seconds that it waited; None if it may not be sent again.
        """
        if step.call is None or self.gate is None or (failure := rejection_of(exc)) is None:
            return None
        try:
            return await self.gate.wait_again(step.number, failure)
        except AttemptEnded:
            return None

    def read_reply(self, step: Step, status: int, headers: Mapping[str, str]) -> None:
        """Read the rate limits in the head of the reply to a model call; names of headers are in lower case."""
        if step.call is not None and self.gate is not None:
            self.gate.read(step.number, status, headers)

    def complete(self, step: Step, output: Any, usage: Any) -> None:
        if step.call is not None and self.gate is not None:
            self.gate.end(step.number, usage)
        if usage or self._inner_usage_parents:
            self._add_usage(step, usage)

        input_to_record, continues = self.inputs.new_part(step.input)
        event = StepCompleted(  # A mapping of the fields shared with `StepFailed` would be slower, and every step ends here.
            trial=self.trial,
            attempt=self.attempt,
            step=step.number,
            name=step.name,
            kind=step.kind,
            fingerprint=step.input.fingerprint,
            input=input_to_record,
            output=output,
            elapsed=self._elapsed(step),
            usage=usage,
            parent=step.parent,
            continues=continues,
            reusable=step.reusable,
            phase=step.phase,
            key=step.admission.key,
            need=step.admission.need,
            waited=step.admission.waited + step.waited,
        )
        self.record(event)
        self.inputs.add(step.number, step.input)

    def add_reported(self, descriptions: Sequence[ReportedStep], duration: float) -> None:
        """Record steps that were executed elsewhere during a call that took `duration` seconds; none took longer."""
        open_steps: dict[str, Step] = {}
        for description in sorted(descriptions, key=lambda description: description.start):
            step = Step(description.name, description.kind, step_input(description.input, description.name), reusable=False)
            self.begin(step)
            if (caller := open_steps.get(description.parent)) is not None:
                step.parent = caller.number
            step.started_at -= min(description.elapsed, duration)
            open_steps[description.id] = step

        for description in descriptions:
            if description.id in open_steps:  # An id may occur twice.
                self.complete(open_steps.pop(description.id), mask_output(description.output), description.usage)

    def fail(self, step: Step, exc: BaseException) -> None:
        error = describe(exc)
        input_to_record, continues = self.inputs.new_part(step.input)
        event = StepFailed(
            trial=self.trial,
            attempt=self.attempt,
            step=step.number,
            name=step.name,
            kind=step.kind,
            fingerprint=step.input.fingerprint,
            input=input_to_record,
            error=error.type,
            message=error.message,
            elapsed=self._elapsed(step),
            parent=step.parent,
            continues=continues,
            phase=step.phase,
            key=step.admission.key,
            need=step.admission.need,
            waited=step.admission.waited + step.waited,
        )
        self.record(event)
        self.inputs.add(step.number, step.input)

    def has_inner_usage(self, step: Step) -> bool:
        """Return whether steps inside a step have recorded usage, which its own result may repeat."""
        return step.number in self._inner_usage_parents

    def _add_usage(self, step: Step, usage: Any) -> None:
        if usage or self.has_inner_usage(step):
            self._inner_usage_parents.add(step.parent)

    def _elapsed(self, step: Step) -> float:
        return int((self._clock() - step.started_at) * 1e6 + 0.5) / 1e6  # Microseconds, twice as fast as `round`.


_SHARED_FIELDS: Final = StepFailed.__annotations__.keys() & StepCompleted.__annotations__.keys() - {"input", "continues"}
"""Fields of completed and failed steps, without those that may be the reason why a step cannot be recorded."""


def failed_step(event: StepEvent, exc: BaseException) -> StepFailed:
    """Return the event to record in place of one that cannot be recorded."""
    assert not isinstance(event, StepReused)  # It contains only numbers and the name of a trial.
    error = describe(exc)
    fields = {name: getattr(event, name) for name in _SHARED_FIELDS}
    return StepFailed(**fields, error=error.type, message=error.message)


_parent: Final[ContextVar[int]] = ContextVar("evaljournal_step", default=0)


def current_steps() -> AttemptSteps | None:
    """Return the steps of the attempt in this context, created if they were not needed so far; None outside an attempt."""
    return attached(AttemptSteps)


enter_step: Final[Callable[[int], Token[int]]] = _parent.set
"""Make steps that start in this context part of the step with this number, until `leave_step` is called with the result."""
leave_step: Final[Callable[[Token[int]], None]] = _parent.reset
"""Make steps that start in this context part of the outer one again."""
