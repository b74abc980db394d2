"""The calls of a run as its journal has them: how long each attempt, model call and judge took, and how it ended.

One pass over the records fills it, in order, each before the state of the run applies it: when a call that ends has started is
in the state. It keeps about a kilobyte per trial: no inputs and no outputs. A recorded time is untrusted; a negative one counts
as 0.

Attempts that were interrupted are left out, because a run without interruptions would not make them; the steps that a later
attempt reused from one are part of that attempt. So is a failure that stopped the run (an invalid key, no credit).
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any, Final

import attrs

from evaljournal.journal import Record, events
from evaljournal.replay import RunState
from evaljournal.replay.state.answers import ANSWER
from evaljournal.replay.state.usage import JUDGE_NOTE, is_amount, noted_usage
from evaljournal.runner.calls.call_size import CallSize, max_output
from evaljournal.runner.concurrency.limits import BYTES_PER_TOKEN
from evaljournal.runner.retries.classify import Failure
from evaljournal.runner.sessions.what_if.repricing import model_of

_MAX_SECONDS: Final = 1e8
"""Three years: a longer time of a foreign record would never end on a virtual clock, either."""
_JUDGE_SECONDS: Final = 1.0
"""Seconds from which a call of a plain scorer counts; a faster one is part of the process's own time."""


_RESOLUTION: Final = 1e-6
"""Of recorded times, in seconds."""
_ROUNDING: Final = 3 * _RESOLUTION
"""By how much the start of a call may differ from the end of another at the same time: each is a sum of rounded times."""
_UNKNOWN_SIZE: Final = CallSize()


@attrs.frozen
class InnerCall:
    """A model call inside an attempt."""

    model: str
    gap: float
    """Seconds between the end of the call before it, or the start of the attempt, and its start."""
    seconds: float
    usage: Mapping[str, Any] | None
    size: CallSize
    next: tuple[int, ...]
    """Numbers of the calls that followed it; several ran at the same time."""


@attrs.frozen
class RecordedAttempt:
    """An attempt, or a call of a scorer, that ended."""

    seconds: float
    failure: Failure | None = None
    """None: it returned an output."""
    has_timed_out: bool = False
    usage: Mapping[str, Any] | None = None
    """Tokens of its own call."""
    size: CallSize = _UNKNOWN_SIZE
    first_calls: tuple[int, ...] = ()
    calls: tuple[InnerCall, ...] = ()
    tail: float = 0.0
    """Seconds after its last call."""


@attrs.define(eq=False)
class RecordedTrial:
    key: str = ""
    """Its rate-limit key."""
    calls: dict[str, list[RecordedAttempt]] = attrs.field(factory=dict[str, list[RecordedAttempt]])
    """Scorer → its calls; empty: the attempts."""


_Step = tuple[float, str, Any, int | None]
"""Seconds, model, usage and maximum output of a model call."""


@attrs.define(eq=False)
class _Running:
    """An attempt in flight."""

    max_output: int | None
    usage: Mapping[str, Any] | None = None
    steps: list[tuple[int, float, float, "_Step"]] = attrs.field(factory=list[tuple[int, float, float, "_Step"]])
    """Number, start of its waiting, start and content of each model call."""


class RecordedCalls:
    def __init__(self, state: RunState) -> None:
        self.state = state
        """That of the run, up to the record before the next one."""
        self.trials = defaultdict[str, RecordedTrial](RecordedTrial)
        self.models: dict[str, str] = {}
        """Rate-limit key → the first model that its calls name."""
        self.judge_models: dict[str, str] = {}
        """Scorer → its model; functions have none."""
        self.scorer_keys: dict[str, str] = {}
        """Scorer → the rate-limit key of its calls."""
        self.agent_keys: set[str] = set()
        """Rate-limit keys of attempts whose model calls were recorded as steps."""
        self.counts = Counter[str]()
        """Attempts that were `batched` or `rate_limited`, and `advertised` limits."""
        self._running: dict[str, _Running] = {}
        self._kept_steps: dict[str, dict[int, _Step]] = {}
        """Trial → the steps of interrupted attempts, which a later one may reuse."""

    def apply(self, record: Record) -> None:
        event = record.event
        match event:
            case events.AttemptStarted():
                self._start(event)
            case events.AttemptSucceeded() | events.AttemptFailed() | events.AttemptTimedOut():
                self._end(event, record.t)
            case events.StepCompleted() | events.StepFailed():
                self._add_step(event, record)
            case events.StepReused():
                self._reuse(event, record.t)
            case events.ScorerCallStarted():
                self.scorer_keys.setdefault(event.scorer, event.key)
            case events.ScorerCallFailed() | events.TrialScored() | events.ScoringFailed():
                self._end_scoring(event, record.t)
            case events.Noted():
                self._note(event)
            case events.RateLimitSeen(source="advertised"):
                self.counts["advertised"] += 1
            case _:
                pass

    @property
    def scorers(self) -> list[str]:
        """Scorers whose calls take time: judges, and functions that took long."""
        return sorted({scorer for trial in self.trials.values() for scorer in trial.calls if scorer})

    @property
    def ended_trials(self) -> dict[str, RecordedTrial]:
        """Trials with an attempt that ended, in the order in which they were enqueued."""
        trials = self.state.trials.items()
        return {
            name: self.trials[name] for name, trial in trials if trial.stage != "withdrawn" and self.trials[name].calls.get("")
        }

    def _start(self, event: events.AttemptStarted) -> None:
        self.counts["batched"] += event.batch > 0
        self.trials[event.trial].key = event.key
        request: Any = event.request if isinstance(event.request, dict) else {}
        if isinstance(model := request.get("model"), str):
            self.models.setdefault(event.key, model)
        self._running[event.trial] = _Running(max_output(request))

    def _end(self, event: events.AttemptSucceeded | events.AttemptFailed | events.AttemptTimedOut, t: float) -> None:
        trial, running = self.trials[event.trial], self._running.pop(event.trial)
        start = self.state.trials.running[event.trial].start
        # Without a timeout in the last settings, an attempt that has timed out ends as one without an answer.
        failure = Failure(category="unavailable") if isinstance(event, events.AttemptTimedOut) else None
        if isinstance(event, events.AttemptFailed):
            failure = Failure(category=event.category, retry_after=event.retry_after)
            self.counts["rate_limited"] += event.category == "rate_limited"

        usage = running.usage if event.usage is None else event.usage
        if running.steps:
            self.agent_keys.add(trial.key)
        first_calls, calls, tail = _calls(running, start, t)
        self._kept_steps.pop(event.trial, None)

        attempts = trial.calls.setdefault("", [])
        if attempts and (earlier := attempts[-1].failure) is not None and earlier.category == "fatal":
            attempts.pop()  # It stopped the run: a fatal failure is not retried otherwise.
        attempts.append(
            RecordedAttempt(
                seconds=_seconds(t - start),
                failure=failure,
                has_timed_out=isinstance(event, events.AttemptTimedOut),
                usage=_tokens(usage),
                size=_size(usage, running.max_output),
                first_calls=first_calls,
                calls=calls,
                tail=tail,
            )
        )

    def _add_step(self, event: events.StepCompleted | events.StepFailed, record: Record) -> None:
        if event.kind != "model" or event.phase != "task" or event.parent:
            return
        usage = event.usage if isinstance(event, events.StepCompleted) else None
        waited, elapsed = _seconds(event.waited), _seconds(event.elapsed)
        step = elapsed, model_of(event), _tokens(usage), max_output(event.input if isinstance(event.input, dict) else {})
        self._running[event.trial].steps.append((event.step, record.t - elapsed - waited, record.t - elapsed, step))
        self._kept_steps.setdefault(event.trial, {})[record.seq] = step

    def _reuse(self, event: events.StepReused, t: float) -> None:
        """Let an attempt make the calls that it reused from one that was interrupted."""
        if (step := self._kept_steps.get(event.trial, {}).get(event.completed_seq)) is not None:
            self._running[event.trial].steps.append((event.step, t, t, step))

    def _end_scoring(self, event: events.ScorerCallFailed | events.TrialScored | events.ScoringFailed, t: float) -> None:
        scorer = event.scorer.partition(".")[0]
        trial, call = self.trials[event.trial], self.state.scoring.open.get((event.trial, scorer))
        if call is None:
            if event.elapsed < _JUDGE_SECONDS:
                return
            if isinstance(event, events.TrialScored) and scorer != event.scorer and scorer in trial.calls:
                return  # Another score of the same call.

        failure = None
        if isinstance(event, events.ScorerCallFailed):
            category = "unavailable" if event.category == "timed_out" else event.category
            failure = Failure(category=category, retry_after=event.retry_after)
        elif isinstance(event, events.ScoringFailed):
            failure = Failure(category="fatal")
        seconds = _seconds(event.elapsed if call is None else t - call.start)
        trial.calls.setdefault(scorer, []).append(RecordedAttempt(seconds, failure))

    def _note(self, event: events.Noted) -> None:
        value: Any = event.value if isinstance(event.value, dict) else {}
        scorer, model = value.get("scorer"), value.get("model")
        if event.name == JUDGE_NOTE and isinstance(scorer, str) and isinstance(model, str):
            self.judge_models.setdefault(scorer, model)
        elif event.name in {ANSWER, "usage"} and event.trial in self._running:
            self._running[event.trial].usage = noted_usage(event.name, event.value)


def _tokens(usage: Any) -> Mapping[str, Any] | None:
    """Return usage if it has tokens, which rate limits count."""
    if not isinstance(usage, dict) or not is_amount(usage.get("input_tokens")):
        return None
    return {name: usage[name] for name in ("input_tokens", "output_tokens", "cached_tokens") if name in usage}


def _seconds(value: float) -> float:
    return min(max(value, 0.0), _MAX_SECONDS)


def _size(usage: Any, limit: int | None) -> CallSize:
    """Return the size of a call whose tokens are known, from which as many will be estimated."""
    tokens = usage.get("input_tokens") if isinstance(usage, dict) else None
    return CallSize(BYTES_PER_TOKEN * int(tokens) if is_amount(tokens) else 0, limit)


def _calls(running: _Running, start: float, end: float) -> tuple[tuple[int, ...], tuple[InnerCall, ...], float]:
    """Return the calls of an attempt, those that it made first, and the seconds after the last one.

    A call followed the one that had ended last when it started to wait; calls that overlap followed the same one. So a call
    that takes or waits longer delays those after it, and no others.

    Times are rounded when they are recorded. Calls that started at the same time are told apart by their numbers: they ask for
    their limits in this order.
    """
    steps = sorted(running.steps, key=lambda step: step[0])
    ends = [called_at + content[0] for _, _, called_at, content in steps]
    followers: list[list[int]] = [[] for _ in steps]

    first, gaps = list[int](), list[float]()
    asked_at = start
    for number, (_, recorded_at, _, _) in enumerate(steps):
        asked_at = max(recorded_at, asked_at + _RESOLUTION)
        ended = (other for other in range(number) if ends[other] <= asked_at + _ROUNDING)
        earlier = max(ended, key=ends.__getitem__, default=None)
        (first if earlier is None else followers[earlier]).append(number)
        gaps.append(_seconds(asked_at - (start if earlier is None else ends[earlier])))

    calls = tuple(
        InnerCall(model, gap, seconds, usage, _size(usage, limit), tuple(numbers))
        for (_, _, _, (seconds, model, usage, limit)), gap, numbers in zip(steps, gaps, followers, strict=True)
    )
    return tuple(first), calls, _seconds(end - max(ends, default=end))
