"""Fold a journal into the state it describes.

One function, `RunState.apply`, says what each record means. The live run keeps its own state by it, and so does everyone who
looks at a run later, so the two cannot differ. Only sums, and a few words about each trial, are kept here; inputs and outputs
stay on disk, and are found again by their place. Nothing here knows the time: `t` comes from the records.
"""

import itertools
import sys
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import attrs

from journal import Event, Record
from journal.events import (
    OWN_NOTE,
    SCORER_PREFIX,
    AttemptFailed,
    AttemptInterrupted,
    AttemptReturnedLate,
    AttemptStarted,
    AttemptSucceeded,
    AttemptTimedOut,
    IntakePaused,
    IntakeResumed,
    JournalRecovered,
    LimitChanged,
    Noted,
    PaceChanged,
    RetryScheduled,
    RunFinished,
    RunStarted,
    RunStopped,
    ScorerCallFailed,
    ScorerCallStarted,
    ScoringFailed,
    SegmentOpened,
    SessionStarted,
    TrialCompleted,
    TrialEnqueued,
    TrialFailed,
    TrialScored,
    TrialWithdrawn,
)
from journal.lifecycle import STAGES
from replay.intake import Pause
from replay.tally import Tally
from replay.usage import add, noted

Place = tuple[int, int]
"""Where a record stands: the number of its file, and the byte at which its line begins."""

Value = bool | int | float | str


def most_unscored(scorer_limit: int) -> int:
    """Return how many outputs may wait for their scores before no attempt starts, by how many scorer calls may be in flight."""
    return 2 * scorer_limit + 64


DONE: Final = ("completed", "failed")
"""The stages of a trial that has come to its end, and counts."""


@attrs.define
class RetryHistory:
    """What a trial that is not done yet has been through; it decides what is left of its budgets."""

    errors: int = 0
    timeouts: int = 0
    rate_limit_failures: int = 0
    rate_limit_wait: float = 0.0
    """Seconds of back-off that rate limits have cost."""
    category: str = ""
    """What kind of trouble the last one was: a category of `AttemptFailed`, or `timed_out`."""
    retry_after: float | None = None
    error: str = ""
    """What the last attempt that failed said, in short."""
    cause: str = ""
    """Why it was given up, the last time that it was."""


_NOWHERE: Final = -1
_OFFSET_BITS: Final = 48


def _packed(record: Record) -> int:
    """Put a place into one number: there are two for every trial, and a tuple of two is three times as large."""
    return record.segment << _OFFSET_BITS | record.offset


def _place(packed: int) -> Place:
    return packed >> _OFFSET_BITS, packed & (1 << _OFFSET_BITS) - 1


@attrs.define(weakref_slot=False)
class TrialState:
    """One trial, in a few hundred bytes."""

    stage: str
    """As in `journal.lifecycle.STAGES`."""
    fingerprint: str
    _asked: int
    case: str = ""
    """What is asked; the repeats of a case have it in common."""
    attempts: int = 0
    _answer: int = _NOWHERE
    scores: dict[str, tuple[str, Value]] | None = None
    """Scorer → version and value; the latest of each."""
    unscored: tuple[str, ...] = ()
    """Scorers that failed."""
    slot: int = -1
    """Where it runs."""
    since: float = 0.0
    """When its last attempt began, in the seconds of `t`; forgotten when it is completed, for every number takes its place."""
    due: float = 0.0
    """When it may be tried again."""
    retry_history: RetryHistory | None = None
    """None while nothing has gone wrong, which is true of most."""
    elapsed: float = 0.0
    """Seconds of the attempt that gave the output."""

    @property
    def asked(self) -> Place:
        """Where its input is."""
        return _place(self._asked)

    @property
    def answer(self) -> Place | None:
        """Where its output is."""
        return None if self._answer == _NOWHERE else _place(self._answer)

    @property
    def error(self) -> str:
        """What the last attempt that failed said, in short."""
        return "" if self.retry_history is None else self.retry_history.error

    @property
    def cause(self) -> str:
        """Why it was given up, the last time that it was."""
        return "" if self.retry_history is None else self.retry_history.cause

    @property
    def recovered(self) -> bool:
        """Whether it was completed after an attempt that failed."""
        return self.retry_history is not None and self.stage == "completed"


PINNED: Final = ("evaluation", "task_fingerprint", "dataset_fingerprint", "scorers")
"""What makes a run the run of one thing: the members of `RunStarted` that may only change where somebody adopts it."""


def _adopted(before: RunStarted, now: RunStarted) -> Iterator[str]:
    """Name what a session has taken over."""
    names = {"evaluation": "name", "task_fingerprint": "task", "dataset_fingerprint": "cases"}
    yield from (name for field, name in names.items() if getattr(before, field) != getattr(now, field))
    old, new = dict(before.scorers), dict(now.scorers)
    for scorer in {**old, **new}:
        if old.get(scorer) != new.get(scorer):
            how = " (new)" if scorer not in old else " (gone)" if scorer not in new else ""
            yield f"scorer {scorer}{how}"


@attrs.frozen
class LastError:
    """What went wrong last in the present session, whichever trial it was."""

    said: str
    """Its type and message, in short."""
    t: float
    """When that was, in the seconds of `t`."""
    in_a_row: int
    """Attempts that have failed or timed out since the last answer, this one among them."""
    answers: int
    """How many answers there were by then."""


@attrs.frozen
class OpenCall:
    """A call of a scorer that is in flight."""

    key: str
    """The rate-limit key that it counts for."""
    call: int
    """Its number, from 1, in the present session."""
    since: float
    """When it started, in the seconds of `t`."""


@attrs.define
class Session:
    """One process life of the run."""

    n: int
    seq: int
    at: str
    pid: int
    host: str
    ended: str = ""
    """`finished`, or why it stopped; empty while it lives, or if it died."""
    adopted: tuple[str, ...] = ()
    """What had changed since the session before, and was taken over: `task`, `cases`, `scorer exact`."""


_SHOWN: Final = 200


@attrs.define(eq=False)  # With slots: Python looks the attributes of so large an object up in a dict otherwise.
class RunState:
    """Where a run stands after some record."""

    seq: int = 0
    at: str = ""
    t: float = 0.0
    _ended_at: float = 0.0
    """The moment of the record before; at the start of a session, the last of the one before."""
    head: str = ""
    """The hash of the last record."""
    started: RunStarted | None = None
    """What it is a run of; what was adopted since stands in the place of what was begun with."""
    planned: int = 0
    """How many trials there are to be made; 0 where that was not known beforehand."""
    settings: dict[str, Any] = attrs.field(factory=dict[str, Any])
    """Those in force in the present session."""
    sessions: list[Session] = attrs.field(factory=list[Session])
    ending: str = ""
    """`finished`, or why the last session stopped; empty while it lives, or if it died."""

    trials: dict[str, TrialState] = attrs.field(factory=dict[str, TrialState])
    has_repeats: bool = False
    """Whether any case is asked more than once."""
    stages: dict[str, int] = attrs.field(factory=lambda: dict.fromkeys(STAGES, 0))
    """How many trials stand in each stage."""
    running: dict[str, TrialState] = attrs.field(factory=dict[str, TrialState])
    """The trials that hold a slot."""
    backing_off: dict[str, TrialState] = attrs.field(factory=dict[str, TrialState])
    recovered: int = 0
    """Trials that were completed after an attempt that failed."""
    attempts: int = 0
    retries: Counter[str] = attrs.field(factory=Counter[str])
    """By cause."""
    errors: Counter[str] = attrs.field(factory=Counter[str])
    """By type."""
    timeouts: int = 0
    interrupted: int = 0
    """Attempts that were cut off; a call that was paid for may be among them."""
    interrupted_trials: set[str] = attrs.field(factory=set[str])
    """Trials whose last attempt was cut off."""
    repeated_calls: int = 0
    """Attempts that were made because the one before was cut off: its call may have been paid for twice."""
    late: int = 0
    from_older_task: int = 0
    """Outputs that count, and are those of a task that was changed since."""
    _task_since: int = 0
    """The place from which on outputs are those of the present task."""
    latencies: "array[float]" = attrs.field(factory=lambda: array("d"))
    """Seconds of every attempt that gave an output."""
    scores: dict[str, Tally] = attrs.field(factory=dict[str, Tally])
    usage: Counter[str] = attrs.field(factory=Counter[str])
    """The sums of every number that was noted or came with an attempt: tokens, cost."""
    lost: Counter[str] = attrs.field(factory=Counter[str])
    """What of it was used by attempts that gave no output: failed, timed out, cut off, or late."""
    _at_length: dict[str, int] = attrs.field(factory=dict[str, int])
    """Trial → the last attempt that noted that its answer was cut short, as `finish`."""
    _under_way: dict[str, list[Any]] = attrs.field(factory=dict[str, list[Any]])
    """What the attempts that are running have noted that they use."""

    scorer_calls: dict[tuple[str, str], OpenCall] = attrs.field(factory=dict[tuple[str, str], OpenCall])
    """Trial and scorer → the call that is in flight."""
    delayed_calls: dict[tuple[str, str], float] = attrs.field(factory=dict[tuple[str, str], float])
    """Trial and scorer → when the next call may start, after one that failed."""
    calls_started: Counter[str] = attrs.field(factory=Counter[str])
    """By scorer."""
    calls_failed: Counter[str] = attrs.field(factory=Counter[str])
    """Calls of scorers, by category."""
    scorer_keys: set[str] = attrs.field(factory=set[str])
    """Rate-limit keys that scorers of the present session count for."""

    last_error: LastError | None = None
    unauthorized_error: str = ""
    """Which scorer was refused in the present session, and in which words: every other output would meet the same."""
    done_at: float = 0.0
    """When a trial last came to its end in the present session; 0 while none has."""
    limits: dict[str, int] = attrs.field(factory=dict[str, int])
    """Key → attempts that may run at once."""
    limit_changes: dict[str, LimitChanged] = attrs.field(factory=dict[str, LimitChanged])
    """Key → the last change of its limit, with its evidence."""
    paces: dict[str, float] = attrs.field(factory=dict[str, float])
    """Key → starts per second, where starts are paced."""
    pauses: dict[str, Pause] = attrs.field(factory=dict[str, Pause])
    """Key → its pause; one whose time is over may still be listed."""
    _running_keys: dict[str, str] = attrs.field(factory=dict[str, str])
    """Trial → the rate-limit key of its attempt in flight, where it has one."""
    recoveries: int = 0

    def apply(self, record: Record) -> None:
        """Take in one record."""
        self._ended_at = self.t
        self.seq, self.at, self.t, event, _, self.head, _, _ = record
        meaning = _MEANINGS.get(event.__class__)
        if meaning is not None:
            meaning(self, event, record)

    @property
    def total(self) -> int:
        """How many trials count: all that were enqueued and not withdrawn."""
        return len(self.trials) - self.stages["withdrawn"]

    @property
    def completed(self) -> int:
        """Trials that have an output, and have had every scorer's turn."""
        return self.stages["completed"]

    @property
    def failed(self) -> int:
        """Trials that were given up."""
        return self.stages["failed"]

    @property
    def limit(self) -> int | None:
        """How many attempts may run at once, over all keys; None where nobody has said."""
        if limits := self.attempt_limits:
            return sum(limits.values())
        slots = self.settings.get("slots")
        return slots if isinstance(slots, int) else None

    @property
    def attempt_limits(self) -> dict[str, int]:
        """The limits of attempts by rate-limit key; those that only scorers count for are left out."""
        return {key: limit for key, limit in self.limits.items() if not key.startswith(SCORER_PREFIX)}

    @property
    def scorer_limits(self) -> dict[str, int]:
        """The limits of scorers by rate-limit key."""
        return {key: limit for key, limit in self.limits.items() if key in self.scorer_keys}

    def in_flight(self, key: str) -> int:
        """Return how many attempts and scorer calls of a rate-limit key are in flight."""
        attempts = Counter(self._running_keys.values())[key] if key else len(self.running) - len(self._running_keys)
        return attempts + sum(call.key == key for call in self.scorer_calls.values())

    @property
    def holds_attempts(self) -> bool:
        """Whether no attempt starts because too many outputs wait for their scores."""
        return not self.ending and self.stages["answered"] > most_unscored(sum(self.scorer_limits.values()))

    @property
    def done(self) -> int:
        """Trials that have come to their end."""
        return self.completed + self.failed

    @property
    def truncated(self) -> int:
        """Outputs that count, and that the limit of tokens has cut short."""
        return sum(map(self.is_truncated, self._at_length))

    def is_truncated(self, name: str) -> bool:
        """Say whether a trial has an output that counts, and that the limit of tokens has cut short."""
        trial = self.trials[name]
        return self._at_length.get(name) == trial.attempts and trial.stage in {"answered", "completed"}

    def _move(self, name: str, trial: TrialState, stage: str) -> None:
        before, stages = trial.stage, self.stages
        stages[before] -= 1
        stages[stage] += 1
        if before == "running":
            del self.running[name]
            if self._running_keys:
                self._running_keys.pop(name, None)
        elif before == "backing_off":
            del self.backing_off[name]
        trial.stage = stage

    def _run_started(self, event: RunStarted, _: Record) -> None:
        self.started = event
        self.planned = event.trials
        self.settings = dict(event.settings)

    def _session_started(self, event: SessionStarted, record: Record) -> None:
        for trial in self.backing_off.values():  # Seconds count anew; what is left of a wait is waited for.
            trial.due = max(0.0, trial.due - self._ended_at)
        self.sessions.append(Session(n=event.n, seq=record.seq, at=record.at, pid=event.pid, host=event.host))
        if event.adopted is not None:
            self._adopt(event.adopted, record)
        self.settings.update(event.settings or {})
        self.planned = event.trials or self.planned
        self.ending = ""
        self.last_error, self.unauthorized_error, self.done_at = None, "", 0.0
        self.pauses.clear()
        self.paces.clear()
        self.limits.clear()
        self.limit_changes.clear()
        self.scorer_calls.clear()
        self.delayed_calls.clear()
        self.scorer_keys.clear()

    def _adopt(self, adopted: Any, record: Record) -> None:
        """Let what was taken over stand in the place of what it was before."""
        if self.started is None or not isinstance(adopted, dict):
            return
        before, taken = self.started, {name: adopted[name] for name in (*PINNED, "task") if name in adopted}
        now = self.started = attrs.evolve(before, **taken)  # type: ignore[misc]  # a fact is an attrs class
        self.sessions[-1].adopted = tuple(_adopted(before, now))
        for scorer, tally in self.scores.items():
            version = now.scorers.get(scorer.partition(".")[0])
            if version is not None and version != before.scorers.get(scorer.partition(".")[0]):
                tally.hear(version)  # Though it has judged nothing yet.
        if now.task_fingerprint != before.task_fingerprint:
            self._task_since = _packed(record)
            self.from_older_task = sum(trial.answer is not None for trial in self.trials.values() if trial.stage != "withdrawn")

    def _trial_enqueued(self, event: TrialEnqueued, record: Record) -> None:
        before = self.trials.get(event.trial)
        attempts = 0
        if before is not None:
            attempts = before.attempts
            self.stages[before.stage] -= 1
        if event.repeat > 1 and not self.has_repeats:
            self._know_repeats()
        case = event.trial if event.case == event.trial else sys.intern(event.case)  # The same text is kept once.
        self.trials[event.trial] = TrialState("queued", event.fingerprint, _packed(record), case, attempts)
        self.stages["queued"] += 1

    def _know_repeats(self) -> None:
        """Tell repeats apart from here on: the second time that a case is asked comes late, or never."""
        self.has_repeats = True
        for scorer, tally in self.scores.items():
            known = ((trial.case, trial.scores) for trial in self.trials.values() if trial.scores)
            tally.know_repeats((case, scores[scorer][1]) for case, scores in known if scorer in scores)

    def _attempt_started(self, event: AttemptStarted, record: Record) -> None:
        trial = self.trials[event.trial]
        self._move(event.trial, trial, "running")
        self.running[event.trial] = trial
        trial.attempts = event.attempt
        trial.slot = event.slot
        trial.since = record.t
        self.attempts += 1
        if event.key:
            self._running_keys[event.trial] = event.key
        if event.trial in self.interrupted_trials:
            self.interrupted_trials.remove(event.trial)
            self.repeated_calls += 1

    def _attempt_succeeded(self, event: AttemptSucceeded, record: Record) -> None:
        trial = self.trials[event.trial]
        self._move(event.trial, trial, "answered")
        trial._answer = _packed(record)
        trial.elapsed = event.elapsed
        self.latencies.append(event.elapsed)
        if self._under_way:
            self._under_way.pop(event.trial, None)
        if event.usage is not None:
            self._use(event.usage)

    def _attempt_failed(self, event: AttemptFailed, record: Record) -> None:
        trial = self.trials[event.trial]
        self._move(event.trial, trial, "unsettled")
        trouble = trial.retry_history = trial.retry_history or RetryHistory()
        trouble.category = event.category
        trouble.retry_after = event.retry_after
        if event.category == "rate_limited":
            trouble.rate_limit_failures += 1
        else:
            trouble.errors += 1
        trouble.error = f"{event.error}: {event.message}"[:_SHOWN]
        self.errors[event.error] += 1
        self._go_wrong(trouble.error, record)
        self._lose(event.trial, event.usage)

    def _attempt_timed_out(self, event: AttemptTimedOut, record: Record) -> None:
        trial = self.trials[event.trial]
        self._move(event.trial, trial, "unsettled")
        trouble = trial.retry_history = trial.retry_history or RetryHistory()
        trouble.category = "timed_out"
        trouble.retry_after = None
        trouble.timeouts += 1
        trouble.error = f"timed out after {event.timeout:g} s"
        self.timeouts += 1
        self._go_wrong(trouble.error, record)
        self._lose(event.trial, event.usage)

    def _go_wrong(self, said: str, record: Record) -> None:
        before, answers = self.last_error, len(self.latencies)
        others = before.in_a_row if before is not None and before.answers == answers else 0
        self.last_error = LastError(said, record.t, others + 1, answers)

    def _attempt_interrupted(self, event: AttemptInterrupted, _: Record) -> None:
        self._move(event.trial, self.trials[event.trial], "interrupted")
        self.interrupted += 1
        self.interrupted_trials.add(event.trial)
        self._lose(event.trial)

    def _attempt_returned_late(self, _: AttemptReturnedLate, __: Record) -> None:
        self.late += 1

    def _retry_scheduled(self, event: RetryScheduled, record: Record) -> None:
        trial = self.trials[event.trial]
        self._move(event.trial, trial, "backing_off")
        self.backing_off[event.trial] = trial
        trial.due = record.t + event.delay
        if trial.retry_history is not None:
            match event.cause:
                case "rate_limited":
                    trial.retry_history.rate_limit_wait += event.delay
                case "probe" | "stopped":  # Everyone's trouble, not its own: the trial gets back what it seemed to have spent.
                    if trial.retry_history.category == "timed_out":
                        trial.retry_history.timeouts -= 1
                    elif trial.retry_history.category == "rate_limited":
                        trial.retry_history.rate_limit_failures -= 1
                    else:
                        trial.retry_history.errors -= 1
                case "asked":
                    trial.retry_history = RetryHistory(error=trial.error, cause=trial.cause)
                case _:
                    pass
        self.retries[event.cause] += 1

    def _scorer_call_started(self, event: ScorerCallStarted, record: Record) -> None:
        name = event.trial, event.scorer
        self.delayed_calls.pop(name, None)
        self.scorer_calls[name] = OpenCall(event.key, event.call, record.t)
        self.calls_started[event.scorer] += 1
        self.scorer_keys.add(event.key)

    def _scorer_call_failed(self, event: ScorerCallFailed, record: Record) -> None:
        name = event.trial, event.scorer
        self.scorer_calls.pop(name, None)
        if event.delay is not None:
            self.delayed_calls[name] = record.t + event.delay
        self.calls_failed[event.category] += 1

    def _trial_scored(self, event: TrialScored, _: Record) -> None:
        trial = self.trials[event.trial]
        if self.scorer_calls:
            self.scorer_calls.pop((event.trial, event.scorer.partition(".")[0]), None)
        tally = self.scores.get(event.scorer)
        if tally is None:
            tally = self.scores[event.scorer] = Tally(by_case={} if self.has_repeats else None)
        scores = trial.scores = trial.scores or {}
        if event.scorer in scores:
            version, value = scores[event.scorer]
            tally.take_back(value, version, trial.case)
        if event.version != tally.version:
            tally.hear(event.version)
        tally.add(event.value, 1, trial.case)
        if trial.unscored:
            self._score_at_last(trial, event.scorer.partition(".")[0])
        scores[event.scorer] = (event.version, event.value)

    def _score_at_last(self, trial: TrialState, scorer: str) -> None:
        """Forget that a scorer failed, where it was asked again later and had something to say."""
        if scorer in trial.unscored:
            trial.unscored = tuple(each for each in trial.unscored if each != scorer)
            self.scores[scorer].failed -= 1

    def _scoring_failed(self, event: ScoringFailed, _: Record) -> None:
        trial = self.trials[event.trial]
        self.scorer_calls.pop((event.trial, event.scorer), None)
        if event.scorer in trial.unscored:
            return  # Asked again later, and failed again.
        trial.unscored = (*trial.unscored, event.scorer)
        tally = self.scores.setdefault(event.scorer, Tally(by_case={} if self.has_repeats else None))
        tally.failed += 1
        tally.error = f"{event.error}: {event.message}"[:_SHOWN]

    def _trial_completed(self, event: TrialCompleted, record: Record) -> None:
        trial = self.trials[event.trial]
        self._move(event.trial, trial, "completed")
        trial.since = 0.0
        self.done_at = record.t
        if trial.retry_history is not None:
            self.recovered += 1

    def _trial_failed(self, event: TrialFailed, record: Record) -> None:
        trial = self.trials[event.trial]
        self._move(event.trial, trial, "failed")
        self.done_at = record.t
        trouble = trial.retry_history = trial.retry_history or RetryHistory()
        trouble.cause = event.cause

    def _trial_withdrawn(self, event: TrialWithdrawn, __: Record) -> None:
        trial = self.trials[event.trial]
        self.recovered -= trial.recovered
        self._move(event.trial, trial, "withdrawn")
        for scorer, (version, value) in (trial.scores or {}).items():
            self.scores[scorer].take_back(value, version, trial.case)
        self.from_older_task -= trial.answer is not None and trial._answer < self._task_since
        for scorer in trial.unscored:
            self.scores[scorer].failed -= 1
        trial.scores, trial.unscored = None, ()

    def _limit_changed(self, event: LimitChanged, _: Record) -> None:
        self.limits[event.key] = event.after
        self.limit_changes[event.key] = event
        if event.key.startswith(SCORER_PREFIX):
            self.scorer_keys.add(event.key)

    def _pace_changed(self, event: PaceChanged, _: Record) -> None:
        if event.after is None:
            self.paces.pop(event.key, None)
        else:
            self.paces[event.key] = event.after

    def _intake_paused(self, event: IntakePaused, _: Record) -> None:
        self.pauses[event.key] = Pause(event.until, event.cause, event.evidence)

    def _intake_resumed(self, event: IntakeResumed, _: Record) -> None:
        self.pauses.pop(event.key, None)

    def _noted(self, event: Noted, _: Record) -> None:
        usage = noted(event)
        add(self.usage, usage)
        if event.name == f"{OWN_NOTE}unauthorized" and isinstance(event.value, str):
            self.unauthorized_error = event.value[:_SHOWN]
        trial = self.trials.get(event.trial) if event.attempt else None
        if trial is None:
            return
        is_last = trial.attempts == event.attempt
        if is_last and trial.stage == "running":
            self._under_way.setdefault(event.trial, []).append(usage)
            if event.name == f"{OWN_NOTE}finish_reason" and event.value == "length":
                self._at_length[event.trial] = event.attempt
        elif not is_last or trial.answer is None:
            add(self.lost, usage)  # It came after its attempt had ended without an output.

    def _segment_opened(self, _: SegmentOpened, __: Record) -> None:
        self._wait_for_session()

    def _journal_recovered(self, _: JournalRecovered, __: Record) -> None:
        self._wait_for_session()
        self.recoveries += 1

    def _wait_for_session(self) -> None:
        """Take no time from a record that may stand before its session begins: its clock is another one already."""
        self.t = self._ended_at

    def _run_stopped(self, event: RunStopped, _: Record) -> None:
        self._end(event.reason)

    def _run_finished(self, _: RunFinished, __: Record) -> None:
        self._end("finished")

    def _end(self, how: str) -> None:
        self.ending = how
        if self.sessions:
            self.sessions[-1].ended = how

    def _use(self, usage: Any) -> None:
        add(self.usage, usage)

    def _lose(self, trial: str, usage: Any = None) -> None:
        """Count what an attempt has used that gave no output."""
        self._use(usage)
        add(self.lost, usage)
        for used in self._under_way.pop(trial, ()):
            add(self.lost, used)


_MEANINGS: Final[dict[type[Event], Callable[[RunState, Any, Record], None]]] = {
    RunStarted: RunState._run_started,
    SessionStarted: RunState._session_started,
    TrialEnqueued: RunState._trial_enqueued,
    AttemptStarted: RunState._attempt_started,
    AttemptSucceeded: RunState._attempt_succeeded,
    AttemptFailed: RunState._attempt_failed,
    AttemptTimedOut: RunState._attempt_timed_out,
    AttemptInterrupted: RunState._attempt_interrupted,
    AttemptReturnedLate: RunState._attempt_returned_late,
    RetryScheduled: RunState._retry_scheduled,
    ScorerCallStarted: RunState._scorer_call_started,
    ScorerCallFailed: RunState._scorer_call_failed,
    TrialScored: RunState._trial_scored,
    ScoringFailed: RunState._scoring_failed,
    TrialCompleted: RunState._trial_completed,
    TrialFailed: RunState._trial_failed,
    TrialWithdrawn: RunState._trial_withdrawn,
    LimitChanged: RunState._limit_changed,
    PaceChanged: RunState._pace_changed,
    IntakePaused: RunState._intake_paused,
    IntakeResumed: RunState._intake_resumed,
    Noted: RunState._noted,
    SegmentOpened: RunState._segment_opened,
    JournalRecovered: RunState._journal_recovered,
    RunStopped: RunState._run_stopped,
    RunFinished: RunState._run_finished,
}


def fold(records: Iterable[Record], *, at: int | None = None) -> RunState:
    """Fold records into the state after the last of them, or after record `at`."""
    state = RunState()
    apply = state.apply
    for record in records if at is None else itertools.takewhile(lambda record: record.seq <= at, records):
        apply(record)
    return state
