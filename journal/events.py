"""What can happen, one class each, in the past tense.

An event states a fact and its meaning; it decides nothing, and it knows neither the file it stands in nor the time at
which it happened: those belong to the record around it.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar, dataclass_transform

import attrs

T = TypeVar("T")

PAYLOAD = object()
Json = Annotated[Any, PAYLOAD]
"""The user's own data: anything that JSON can say. Where it is large, it is kept in a blob beside the journal."""

FailureCategory = Literal["error", "rate_limited", "unavailable", "fatal"]
"""What it means that an attempt failed."""

SCORER_PREFIX: Final = "scorer:"
"""What the rate-limit key of a scorer begins with, before its name, where it does not share that of the task."""

ScorerFailureCategory = Literal["error", "rate_limited", "unavailable", "fatal", "timed_out"]
"""Why a call of a scorer failed: a `FailureCategory`, or it exceeded its timeout."""

StopReason = Literal["interrupted", "failed_fast", "unauthorized", "deadline", "disk_full", "dataset_failed"]
"""Why a run was stopped before its end."""


@dataclass_transform(kw_only_default=True, frozen_default=True)
def fact(cls: type[T]) -> type[T]:
    """Make a class whose instances are keyword-only and, to every type checker, read-only.

    Nothing guards them at run time: each guard that attrs has makes an instance cost half as much again to build, and an
    event is built several times per trial and once per line read. What is on disk does not change with them.
    """
    return attrs.define(cls, kw_only=True)


def fields_of(kind: Any) -> tuple["attrs.Attribute[Any]", ...]:
    """List the fields of a kind of fact."""
    fields: tuple[attrs.Attribute[Any], ...] = attrs.fields(kind)
    return fields


@fact
class SegmentOpened:
    """A file of the journal begins. Its first record, always."""

    format: str
    """`evaljournal`."""
    version: str
    """Version of the format, `major.minor`; a reader refuses a major that it does not know."""
    run: str
    """Identity of the run, drawn once; it is part of every hash."""
    segment: int
    """Number of this file, from 1."""
    previous_seq: int = 0
    """The last record of the file before."""
    previous_h: str = ""
    """The hash of that record."""
    previous_bytes: int = 0
    """The length of the file before."""
    previous_sha256: str = ""
    """The SHA-256 of the whole file before, as `sha256sum` prints it."""


@fact
class SegmentSealed:
    """A file of the journal ends. Its last record; the file is read-only from here on."""

    run: str
    segment: int
    records: int
    """How many records stand before this one in the file."""
    bytes: int
    """How many bytes stand before this record in the file."""
    sha256: str
    """The SHA-256 of those bytes."""


@fact
class JournalRecovered:
    """A crash had left an unfinished end; it was set aside, and the journal goes on before it."""

    after: int
    """The last whole record."""
    bytes: int
    """How many bytes were set aside."""
    file: str
    """Where they are kept, relative to the run's directory."""


@fact
class JournalSalvaged:
    """The records before this one were copied out of a damaged journal."""

    run: str
    """Identity of the damaged run."""
    kept: int
    """Records that were intact and could be taken over."""
    lost: int
    """Records that could not be read."""
    excluded: int
    """Records that were intact, but whose trial's earlier records are lost; kept in `excluded.jsonl`."""


@fact
class RunStarted:
    """A run began; what it is a run of is pinned here, once."""

    evaluation: str
    task: str
    """Where the task can be found again, such as `evals/capitals.py:capitals`."""
    task_fingerprint: str
    scorers: Mapping[str, str]
    """Name → version of every scorer."""
    dataset: str
    """Where the cases came from, in words."""
    dataset_fingerprint: str
    trials: int = 0
    """How many trials there are to be made; 0 where that was not known beforehand."""
    settings: Json
    """Slots, timeouts, retries and so on, as they were in force."""
    settings_fingerprint: str
    durability: Literal["sync", "os"]
    environment: Mapping[str, str]
    """Versions of Python, of packages and of the platform; the git revision."""
    forked_from: Json = None
    """What this run goes on from: `run`, `seq`, its `h`, the `session` that had not ended, and what that was `forked_from`."""


@fact
class SessionStarted:
    """A process took up the run; `t` counts from here."""

    n: int
    """Number of the session, from 1."""
    pid: int
    host: str
    boot_id: str
    """Identity of the machine's boot; a process of another boot is certainly gone."""
    settings: Json = None
    """Those settings that differ from the session before."""
    trials: int = 0
    """How many trials there are to be made now; 0 where that is not known beforehand, or as it was."""
    adopted: Json = None
    """Members of `run_started` that had changed (`evaluation`, `scorers`, fingerprints, where `task` is), as they are now."""


@fact
class TrialEnqueued:
    """A trial was taken in and waits for a slot."""

    trial: str
    """`name`, or `name#3` for a repeat."""
    case: str
    repeat: int
    """From 1."""
    input: Json
    expected: Json = None
    metadata: Json = None
    fingerprint: str
    """Of the case's content: a trial is matched by name and content, never by its place."""


@fact
class AttemptStarted:
    """One try at a trial began."""

    trial: str
    attempt: int
    """From 1, and never the same twice for one trial."""
    slot: int
    """The slot that it holds until it ends, from 0."""
    key: str = ""
    """Which back end it is put to, where there are several."""


@fact
class AttemptSucceeded:
    """The task gave an output."""

    trial: str
    attempt: int
    output: Json
    elapsed: float
    """Seconds, by the monotonic clock."""
    usage: Json = None
    """Tokens and cost, where they are known."""


@fact
class AttemptFailed:
    """The task raised."""

    trial: str
    attempt: int
    error: str
    """The exception's type."""
    message: str
    traceback: str = ""
    category: FailureCategory
    """What it means for a retry."""
    retry_after: float | None = None
    """Seconds for which the other side asked to be left alone."""
    elapsed: float
    usage: Json = None


@fact
class AttemptTimedOut:
    """The attempt outlived its limit and was cancelled."""

    trial: str
    attempt: int
    timeout: float
    """Seconds that it was allowed."""
    elapsed: float
    usage: Json = None


@fact
class AttemptInterrupted:
    """The attempt was cut off from outside; whether its call took effect is not known."""

    trial: str
    attempt: int
    why: Literal["cancelled", "forked", "process_died", "stopped"]
    """`forked`: it was in the air where this run was forked from another, in which it may have come to another end."""
    elapsed: float | None = None
    """Seconds; unknown where the process died or the run was forked."""


@fact
class AttemptReturnedLate:
    """An abandoned attempt came to an end after all; its result is not used."""

    trial: str
    attempt: int
    ending: Literal["succeeded", "failed"]
    elapsed: float


@fact
class RetryScheduled:
    """The attempt before did not work out, and another will be made."""

    trial: str
    attempt: int
    """The attempt to come; the first retry is attempt 2."""
    delay: float
    """Seconds until it may start, counted from this record; jitter included."""
    cause: str


@fact
class ScorerCallStarted:
    """A scorer was called with the trial's output. Built-in scorers that compute their score locally record no calls."""

    trial: str
    scorer: str
    call: int
    """From 1, per trial and scorer within a session."""
    key: str = ""
    """The rate-limit key whose policy the call counts for: `scorer:NAME`, or that of the task where they share one."""


@fact
class ScorerCallFailed:
    """A call of a scorer raised or exceeded its timeout. A call that succeeds ends with its first `trial_scored`."""

    trial: str
    scorer: str
    call: int
    error: str
    """The exception's type."""
    message: str
    category: ScorerFailureCategory
    """What it means for a retry."""
    retry_after: float | None = None
    """Seconds that the endpoint asked to wait."""
    elapsed: float
    """Seconds, by the monotonic clock."""
    delay: float | None = None
    """Seconds from this record to the next call, jitter included; null: no further call, `scoring_failed` follows."""


@fact
class TrialScored:
    """A scorer judged the trial's output."""

    trial: str
    scorer: str
    version: str
    """Fingerprint of the scorer's source: a later score of another version supersedes this one."""
    value: bool | int | float | str
    """Pass or fail, a number, or a label."""
    reason: str = ""
    elapsed: float
    """Seconds of the call that returned it."""


@fact
class ScoringFailed:
    """A scorer raised; the output stays, without this score."""

    trial: str
    scorer: str
    version: str
    error: str
    message: str
    traceback: str = ""
    elapsed: float
    """Seconds of the last call."""


@fact
class TrialCompleted:
    """The trial has its output, and every scorer has had its turn."""

    trial: str
    attempts: int


@fact
class TrialFailed:
    """The trial was given up; it has no output."""

    trial: str
    attempts: int
    cause: Literal["exhausted", "fatal", "timed_out", "ambiguous", "unserialisable"]


@fact
class TrialWithdrawn:
    """The trial no longer counts: its case was removed from the dataset, or changed."""

    trial: str
    why: Literal["removed", "changed"]


@fact
class LimitChanged:
    """The number of attempts that may run at once was changed."""

    before: int
    after: int
    cause: str
    evidence: str = ""
    """What was seen, in words: `3 × 429 in 2.1 s at 41 in flight`."""
    key: str = ""
    """Which back end it is about, where there are several."""


@fact
class PaceChanged:
    """The rate at which attempts may start was changed."""

    before: float | None = None
    """Starts per second; null: starts were not paced."""
    after: float | None = None
    """Starts per second; null: starts are not paced."""
    cause: str
    evidence: str = ""
    key: str = ""
    """The rate-limit key it applies to, where there are several."""


@fact
class IntakePaused:
    """No attempt may start for a while."""

    until: float
    """When the next attempt or probe may start, in the seconds of `t`."""
    cause: str
    """`retry_after` or `rate_limited`; with the circuit breaker open `unavailable`, `no_response` or `all_rate_limited`."""
    evidence: str = ""
    """What was seen, in words."""
    key: str = ""


@fact
class IntakeResumed:
    """Attempts may start again."""

    cause: str
    """That of the pause which is over."""
    evidence: str = ""
    key: str = ""


@fact
class PolicyShared:
    """From this record on, the policy of a rate-limit key is shared with another run of the same process.

    Its decisions may then follow from what happened in the other run, so they cannot be recomputed from this journal alone.
    """

    key: str
    run: str
    """Identity of the other run."""


OWN_NOTE: Final = "evaljournal."
"""Prefix of the names under which evaljournal itself writes notes; `note` rejects it."""


@fact
class Noted:
    """The task, a scorer or the runner wrote something down."""

    name: str
    value: Json
    trial: str = ""
    """Empty where it is about the run."""
    attempt: int = 0
    """0 where it is about no attempt."""


@fact
class RunStopped:
    """The run was stopped before its end; it can be resumed."""

    reason: StopReason


@fact
class RunFinished:
    """Every trial has come to its end."""

    completed: int
    failed: int
    withdrawn: int
    head: str
    """The hash of the last record before this one; like the counts, for an audit to compare, not for a reader of the format."""


@fact
class Extension:
    """An event of somebody else's, whose type begins with `x-`; we keep it and do not interpret it."""

    type: str
    data: Mapping[str, Any]
    """Every member of the line that is not the record's own."""


AttemptEnding = AttemptSucceeded | AttemptFailed | AttemptTimedOut | AttemptInterrupted

TrialEvent = (
    TrialEnqueued
    | AttemptStarted
    | AttemptEnding
    | AttemptReturnedLate
    | RetryScheduled
    | ScorerCallStarted
    | ScorerCallFailed
    | TrialScored
    | ScoringFailed
    | TrialCompleted
    | TrialFailed
    | TrialWithdrawn
)

FileEvent = SegmentOpened | SegmentSealed

PolicyEvent = LimitChanged | PaceChanged | IntakePaused | IntakeResumed
"""What a policy decides."""

KnownEvent = (
    FileEvent
    | JournalRecovered
    | JournalSalvaged
    | RunStarted
    | SessionStarted
    | TrialEvent
    | PolicyEvent
    | PolicyShared
    | Noted
    | RunStopped
    | RunFinished
)
"""Every event that this version of the format defines."""

Event = KnownEvent | Extension


class Record(NamedTuple):
    """An event with its place in the journal."""

    seq: int
    """From 1, without a gap, across all files: the only clock that never lies."""
    at: str
    """Wall time in UTC, for people."""
    t: float
    """Monotonic seconds since this session began; durations and concurrency are measured by it."""
    event: Event
    d: int
    """The highest seq that was confirmed durable when this record was built."""
    h: str
    """Hash of the run, of the record before, and of this line."""
    segment: int
    """The file it stands in."""
    offset: int
    """The byte at which its line begins there."""


new_record: Callable[[type[Record], tuple[Any, ...]], Record] = tuple.__new__
"""Makes a record for half the price of calling its class; for the two places that make one for every line."""

Stamp = Callable[[], tuple[str, float]]
"""What gives a record its `at` and its `t`. The journal reads no clock of its own."""
