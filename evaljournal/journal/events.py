"""The events of a journal, one class per type.

An event contains only what happened. Its number, time and position in the files belong to the record.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, NamedTuple

from evaljournal.journal.fact import Json, fact

FailureCategory = Literal["error", "parse_error", "rate_limited", "unavailable", "fatal"]

SCORER_PREFIX: Final = "scorer:"
"""Prefix of the rate-limit key of a scorer that does not share the key of the task."""

ScorerFailureCategory = Literal["error", "parse_error", "rate_limited", "unavailable", "fatal", "timed_out"]

StopReason = Literal[
    "interrupted",
    "failed_fast",
    "same_error",
    "unauthorized",
    "quota",
    "deadline",
    "disk_full",
    "dataset_failed",
    "budget",
    "batches",
]

StepKind = Literal["model", "tool", "other"]
StepPhase = Literal["task", "setup", "teardown"]
"""The part of an attempt that a step belongs to."""

LimitUnit = Literal["requests", "tokens", "input_tokens", "output_tokens"]
"""What a rate limit counts; `tokens` are those of input and output together."""


@fact
class SegmentOpened:
    """The first record of a segment."""

    format: str
    """`evaljournal`."""
    version: str
    """Version of the format, `major.minor`; a reader rejects an unknown major version."""
    run: str
    """Random id of the run; part of every hash."""
    segment: int
    """Number of the segment, from 1."""
    previous_seq: int = 0
    """Last record of the previous segment."""
    previous_h: str = ""
    """Hash of that record."""
    previous_bytes: int = 0
    """Length of the previous segment."""
    previous_sha256: str = ""
    """SHA-256 of the previous segment, as `sha256sum` prints it."""


@fact
class SegmentSealed:
    """The last record of a segment; the file is read-only from now on."""

    run: str
    segment: int
    records: int
    """Number of records before this one in the file."""
    bytes: int
    """Number of bytes before this record in the file."""
    sha256: str
    """SHA-256 of those bytes."""


@fact
class JournalRecovered:
    """A crash left an incomplete tail; it was moved to `torn/`, and the journal continues after the last complete record."""

    last_seq: int
    """Number of the last complete record."""
    bytes: int
    """Number of bytes that were set aside."""
    file: str
    """File with these bytes, relative to the run's directory."""


@fact
class JournalSalvaged:
    """The records before this one were copied from a damaged journal."""

    run: str
    """Id of the damaged run."""
    kept: int
    """Number of intact records that were copied."""
    lost: int
    """Number of records that could not be read."""
    excluded: int
    """Number of intact records that were not copied, because records that they depend on are lost; see `excluded.jsonl`."""


@fact
class RunStarted:
    """A run started; its definition is recorded here."""

    evaluation: str
    task: str
    """Location of the task, such as `evals/capitals.py:capitals`. Of an evaluation without code its definition, as JSON: the
    keys of a configuration file in `options` (of the command line), `file` and `variants`, and the `path` of the file."""
    task_fingerprint: str
    scorers: Mapping[str, str]
    """Name → version of each scorer."""
    definition: Json = None
    """The evaluated `task` and `scorers`, with secrets masked, each with its prompts, parameters, address or source; and
    `variants`, if there are any: name → `parameters` and `fingerprint`. `code` has the `files` that the results depend on (path
    relative to the evaluation's file → digest), and whether it `includes_opened` files: those opened while it was loaded."""
    dataset: str
    """Description of the source of the cases."""
    dataset_fingerprint: str
    trials: int = 0
    """Number of trials to run; 0 if not known in advance."""
    settings: Json
    """Slots, timeouts, retries and all other settings in force."""
    settings_fingerprint: str
    durability: Literal["sync", "os"]
    environment: Mapping[str, str]
    """Versions of Python, packages and platform; git revision."""
    forked_from: Json = None
    """Origin of a fork: `run`, `seq`, its `h`, the `session` that had not ended, and the origin's own `forked_from`."""
    shard: str = ""
    """The part of the cases that this run contains, such as `3/8`; empty: all."""
    merged_from: Json = None
    """The shards that were merged into this run, in order: a list of `run`, `shard`, `head`, `trials` (null: unknown), the
    number of `sessions`, and `forked_from`, if the shard has it."""

    @property
    def is_replacement(self) -> bool:
        """Whether salvage wrote it in place of a lost record; what defined the run is then unknown."""
        return not self.task_fingerprint


@fact
class SessionStarted:
    """A process started or resumed the run; `t` counts from the start of each session."""

    session: int
    """Number of the session, from 1."""
    pid: int
    host: str
    boot_id: str
    """Id of the machine's boot; a process of another boot no longer exists."""
    settings: Json = None
    """Settings that differ from those of the previous session."""
    trials: int = 0
    """Number of trials to run, if it changed; 0 if unchanged or not known in advance. In a merged run, a session of a shard has
    the number of trials of its shard."""
    adopted: Json = None
    """New values of fields of `run_started` that changed (`evaluation`, `task`, `scorers`, fingerprints), and
    `variants` (name → fingerprint) and `files` (path → `changed`, `added` or `removed`), if these have changed."""
    definition: Json = None
    """The definition that was adopted with them."""
    git: str = ""
    """Git revision, if it differs from that of the previous session."""


@fact
class TrialEnqueued:
    """A trial was added to the queue."""

    trial: str
    """Its id: `name`, `name#3` for the third repeat, `name@variant` and `name@variant#3` with a variant; never parsed."""
    case: str
    variant: str = ""
    """Name of the variant, if the run has variants."""
    repeat: int
    """From 1."""
    input: Json
    expected: Json = None
    metadata: Json = None
    fingerprint: str
    """Fingerprint of the case's content; trials are matched by name and content, never by position."""


@fact
class AttemptStarted:
    """An attempt at a trial started."""

    trial: str
    attempt: int
    """From 1; unique within the trial."""
    slot: int
    """The slot that it occupies until it ends, from 0; 0 and without meaning if it uses a line of a batch."""
    key: str = ""
    """Its rate-limit key; empty if all attempts have the same; `evaljournal.replayed` if a recorded reply answers its call."""
    request: Json = None
    """The request that was sent, with secrets masked. Null: unknown, or the same as in the previous attempt at the trial."""
    reuses: int = 0
    """The first attempt whose completed steps it may reuse; 0: none."""
    spent: float = 0.0
    """Seconds that the attempts whose steps it may reuse were in flight, since the last interruption or timeout; they count
    against its timeout."""
    reserved: Json = None
    """The part of the budget that is reserved for it: unit → amount, such as `cost` in dollars; null: there is no budget."""
    need: Json = None
    """What it takes from the known rate limits of its key: unit → amount; null: none is known."""
    probe: bool = False
    """Whether it probes an endpoint whose circuit breaker is open; it may exceed the limit."""
    other_runs: Json = None
    """What the other runs of its suite had spent and reserved, if they share the budget: unit → amount."""
    batch: int = 0
    """The batch whose result it uses; 0: none. It calls nothing, occupies no slot, and its end has `elapsed` 0."""
    line: int = 0
    """The line of the batch, from 1."""


@fact
class AttemptSucceeded:
    """The task returned an output."""

    trial: str
    attempt: int
    output: Json
    elapsed: float
    """Seconds, measured by the monotonic clock."""
    usage: Json = None
    """Tokens and cost, if known."""
    worker: str = ""
    """Name of the worker that ran it; empty: the process of the run."""


@fact
class AttemptFailed:
    """The task raised an exception."""

    trial: str
    attempt: int
    error: str
    """Type of the exception."""
    message: str
    traceback: str = ""
    location: str = ""
    """The innermost line of the user's own code in the traceback, as `file:line`."""
    category: FailureCategory
    """Kind of failure; retries depend on it."""
    retry_after: float | None = None
    """Delay in seconds that the endpoint requested."""
    elapsed: float
    usage: Json = None
    worker: str = ""


@fact
class AttemptTimedOut:
    """The attempt exceeded its timeout and was cancelled."""

    trial: str
    attempt: int
    timeout: float
    """The timeout in seconds."""
    elapsed: float
    usage: Json = None
    worker: str = ""


@fact
class AttemptInterrupted:
    """The attempt was interrupted; it is unknown whether its call had an effect."""

    trial: str
    attempt: int
    reason: Literal["cancelled", "forked", "process_died", "stopped", "worker_died", "worker_lost"]
    """`stopped`: the run was stopped. `cancelled`: the session was cancelled. `process_died`: the process ended without a final
    record. `forked`: it was in flight where this run was forked; it may have ended differently in the original run.
    `worker_died`: the worker's process ended, probably because of this attempt. `worker_lost`: the connection was lost, or the
    process ended and another attempt in it may be the cause."""
    detail: str = ""
    """The known cause, such as `signal 11`."""
    elapsed: float | None = None
    """Seconds; null if the process died, the run was forked, or the attempt did not respond to its cancellation."""
    worker: str = ""


@fact
class AttemptReturnedLate:
    """An abandoned attempt ended later; its result was discarded."""

    trial: str
    attempt: int
    outcome: Literal["succeeded", "failed"]
    elapsed: float


@fact
class RetryScheduled:
    """A failed or interrupted attempt will be retried."""

    trial: str
    attempt: int
    """Number of the next attempt; the first retry is attempt 2."""
    delay: float
    """Seconds until it may start, counted from this record, jitter included."""
    reason: str


@fact
class ScorerCallStarted:
    """A scorer was called with the trial's output. Built-in scorers record none, plain functions no start of the first."""

    trial: str
    scorer: str
    call: int
    """Number of the call, from 1, per trial and scorer within a session."""
    key: str = ""
    """Its rate-limit key: `scorer:NAME`, the key of the task if they share one, or `evaljournal.replayed`."""
    need: Json = None
    """What it takes from the known rate limits of its key: unit → amount; null: none is known."""
    probe: bool = False
    """Whether it probes an endpoint whose circuit breaker is open."""
    batch: int = 0
    """The batch whose result it uses; 0: none. It calls nothing, and its end has `elapsed` 0."""
    line: int = 0
    """The line of the batch, from 1."""


@fact
class ScorerCallFailed:
    """A scorer call raised or exceeded its timeout. A call that succeeds ends with its first `trial_scored`."""

    trial: str
    scorer: str
    call: int
    error: str
    """Type of the exception."""
    message: str
    category: ScorerFailureCategory
    """Kind of failure; retries depend on it."""
    retry_after: float | None = None
    """Delay in seconds that the endpoint requested."""
    elapsed: float
    """Seconds, measured by the monotonic clock."""
    delay: float | None = None
    """Seconds from this record to the next call, jitter included; null: no further call, `scoring_failed` follows."""


@fact
class TrialScored:
    """A scorer returned a score for the trial's output; it replaces the scorer's earlier score of this trial."""

    trial: str
    scorer: str
    version: str
    """Fingerprint of the scorer's source."""
    value: bool | int | float | str
    """Pass or fail, a number, or a label."""
    reason: str = ""
    elapsed: float
    """Duration in seconds of the call that returned it."""


@fact
class ScoringFailed:
    """A scorer failed; the output is kept without this score."""

    trial: str
    scorer: str
    version: str
    error: str
    message: str
    traceback: str = ""
    elapsed: float
    """Duration in seconds of the last call."""


@fact
class TrialCompleted:
    """The trial has an output, and every scorer has returned or failed."""

    trial: str
    attempts: int


@fact
class TrialFailed:
    """The trial failed and has no output; only the user can have it retried, in a later session."""

    trial: str
    attempts: int
    reason: Literal["exhausted", "fatal", "timed_out", "ambiguous", "unserializable", "budget"]
    """`exhausted`, `timed_out`: a retry budget was used up. `fatal`: the failure is not retried. `ambiguous`: an attempt was
    interrupted, and `on_ambiguous` is `fail`. `unserializable`: the output could not be recorded as JSON. `budget`: its
    attempts exceeded the budget per trial."""


@fact
class TrialWithdrawn:
    """The trial no longer counts, because its case or its variant was removed or changed."""

    trial: str
    reason: Literal["removed", "changed"]


@fact
class StepCompleted:
    """A step of the attempt in flight, such as a model call or a tool call, returned a result."""

    trial: str
    attempt: int
    step: int
    """Number of the step, from 1, in the order in which the attempt's steps started."""
    name: str
    kind: StepKind = "other"
    fingerprint: str
    """Fingerprint of the input: steps of a trial with the same name and fingerprint can replace one another."""
    input: Json = None
    """Arguments or request, with secrets masked. If `continues` is not 0, a field that is a list in this input and in that of
    the earlier step contains only the elements after those of the earlier step."""
    output: Json
    elapsed: float
    """Seconds, measured by the monotonic clock."""
    usage: Json = None
    parent: int = 0
    """Number of the step that called it; 0: the task itself."""
    continues: int = 0
    """Number of the earlier step of this attempt whose lists precede those in `input`; 0: none."""
    reusable: bool = True
    """Whether a later attempt may use the result instead of executing the step again."""
    phase: StepPhase = "task"
    """`setup` or `teardown`: it is not part of the attempt's latency and timeout."""
    key: str = ""
    """The rate-limit key of a model call."""
    need: Json = None
    """What it took from the known rate limits of its key: unit → amount; null: none was known."""
    waited: float = 0.0
    """Seconds that it waited for these limits before it started; they are not part of `elapsed`."""


@fact
class StepFailed:
    """A step of the attempt in flight raised an exception; it is never reused."""

    trial: str
    attempt: int
    step: int
    name: str
    kind: StepKind = "other"
    fingerprint: str
    input: Json = None
    error: str
    """Type of the exception."""
    message: str
    elapsed: float
    parent: int = 0
    continues: int = 0
    phase: StepPhase = "task"
    key: str = ""
    need: Json = None
    waited: float = 0.0


@fact
class StepReused:
    """The result of a step that an earlier attempt had completed was used again; nothing was called."""

    trial: str
    attempt: int
    step: int
    completed_seq: int
    """The record of the step that was completed."""
    parent: int = 0


@fact
class StepReplayed(StepCompleted):
    """A step that got the reply which another run has recorded; nothing was called. See `run --replies`.

    It has all that the reply contains, because that run may no longer be there; its own `usage` is null and `elapsed` 0.
    """

    reusable: bool = False
    source_run: str
    """Id of the run that has recorded the reply."""
    source_seq: int
    """The record of the step there."""
    source_head: str
    """Hash of that record."""
    unpaid: Json = None
    """What the call and those inside it used there, which was not paid again."""


StepEvent = StepCompleted | StepFailed | StepReused | StepReplayed


@fact
class LimitChanged:
    """The concurrency limit changed: how many attempts and scorer calls may be in flight."""

    before: int
    after: int
    reason: str
    """`start`, `climbing` (no limit of the endpoint is known yet), `trying` (another limit is tested), `in_flight` (429s
    depend on the number in flight), `latency`, `timeouts`, `no_response`, `rate_limit`, `random_429s` (429s do not depend on
    the load), `known_limit` (it follows from a known rate limit), `window` (AIMD) or `policy_failed` (a fixed limit takes
    over)."""
    evidence: str = ""
    """Observations behind the decision, such as `3 × 429 in 2.1 s at 41 in flight`."""
    key: str = ""
    """The rate-limit key it applies to, if there are several."""


@fact
class PaceChanged:
    """The pace changed: how many attempts and scorer calls may start per second."""

    before: float | None = None
    """Starts per second; null: starts were not paced."""
    after: float | None = None
    """Starts per second; null: starts are not paced."""
    reason: str
    """`start` (the first starts of a run are spread), `rate_limit`, `test` (whether 429s are random), `no_limit` or
    `policy_failed`."""
    evidence: str = ""
    key: str = ""
    """The rate-limit key it applies to, if there are several."""


@fact
class IntakePaused:
    """Attempts and scorer calls may not start before `until`."""

    until: float
    """Time at which the next one may start, on the same clock as `t`; with an open circuit breaker, only as a probe."""
    reason: str
    """`retry_after` or `rate_limited`; with an open circuit breaker `unavailable`, `no_response` or `all_rate_limited`."""
    evidence: str = ""
    """Observations behind the decision."""
    key: str = ""


@fact
class IntakeResumed:
    """Attempts and scorer calls may start again."""

    reason: str
    """Reason of the pause that ended."""
    evidence: str = ""
    key: str = ""


PolicyEvent = LimitChanged | PaceChanged | IntakePaused | IntakeResumed


@fact
class RateLimitSeen:
    """A rate limit was declared, was first seen in a reply, or has changed by 5 % or more."""

    unit: LimitUnit
    size: float
    """Units per window."""
    window: float
    """Seconds."""
    source: Literal["declared", "advertised"]
    """`declared`: by the user. `advertised`: in the headers of a reply."""
    header: str
    """The header of the reply, or the option."""
    is_believed: bool = True
    """False: it is ignored, because headers of this kind are often wrong, until a call is rate limited; or because calls
    succeeded that it rules out, until a reply has room again."""
    key: str = ""
    """The rate-limit key it applies to, if there are several."""


MAX_BATCH_TRIALS: Final = 1_000_000
"""Maximum bytes of `trials` in a `batch_prepared` as JSON, so that it fits into a record."""


@fact
class BatchPrepared:
    """The requests of some trials, or of a judge for them, will be sent as one batch; it is on disk before anything is sent."""

    batch: int
    """Number of the batch in the run, from 1."""
    trials: list[str]
    """The trial of each line; line 1 is the first. Until its line is used or the batch ends, a trial may not be called
    otherwise. An empty text: `salvage` could not keep the trial, so the result of its line is not used."""
    scorer: str = ""
    """Name of the judge; empty: the requests are those of the task."""
    version: str = ""
    """Version of the judge; empty: the requests are those of the task."""
    model: str
    api: str
    """The shape of the provider's API: `openai` or `anthropic`."""
    address: str
    """The base URL of the provider, with secrets masked."""
    prefix: str
    """Prefix of the id of every request; the line number follows it."""
    digest: str
    """SHA-256 of the lines as they are sent."""
    bytes: int
    """Their length."""
    reserved: Json = None
    """The part of the budget that is reserved for its lines: unit → amount; null: there is no budget."""
    tokens: int
    """Estimated input tokens of all lines."""
    account: str = ""
    """Digest of endpoint and API key, salted with the run's id; another key may not see the batch."""


@fact
class BatchSubmitted:
    """The provider accepted the batch."""

    batch: int
    id: str
    """The provider's id of the batch."""
    file: str = ""
    """The provider's id of the input file, if there is one."""
    expires: str = ""
    """When unfinished lines expire, as an ISO time; empty: unknown."""


@fact
class BatchChanged:
    """The provider reported another state or other counts."""

    batch: int
    state: str
    """The provider's own word; `deleted`, `archived` or `incomplete`: it has no results, or not all."""
    completed: int
    """Lines with a result."""
    failed: int
    """Lines with an error."""
    total: int
    """Lines that the provider counts; 0: unknown."""
    expires: str = ""
    message: str = ""
    """The provider's error, with secrets masked."""


@fact
class BatchCollected:
    """The batch has ended and its results were used; lines that are not used are free for another batch or a call."""

    batch: int
    state: str
    """The provider's last state; `not_sent`: the provider does not have the batch; `deleted`; `archived`: the provider no
    longer keeps the results; `forked`: it was not submitted yet where this run was forked."""
    results: int
    """Lines whose result was used."""
    missing: int
    """Lines without a result."""
    unused: int = 0
    """Results that were not used: their trial was withdrawn, or the line is not in the batch."""
    message: str = ""


BatchEvent = BatchPrepared | BatchSubmitted | BatchChanged | BatchCollected

NOTE_PREFIX: Final = "evaljournal."
"""Prefix of the names of notes that evaljournal itself records; `note` rejects it."""


@fact
class Noted:
    """The task, a scorer or the runner recorded a named value."""

    name: str
    """Names that start with `evaljournal.` are reserved for the runner."""
    value: Json
    trial: str = ""
    """Empty if the value belongs to the run."""
    attempt: int = 0
    """0 if the value does not belong to an attempt."""


@fact
class RunStopped:
    """The run stopped before it was finished; it can be resumed."""

    reason: StopReason
    """`failed_fast`: too many trials failed. `same_error`: the first trials, or the first calls of a
    scorer, all failed with the same error.
    `quota`: a quota of a day or month is used up. `dataset_failed`: the cases could not be read. `budget`: another attempt
    could exceed the budget. `batches`: the other trials wait for batches, which the provider is processing."""
    other_runs: Json = None
    """For `budget`: what the other runs of its suite had spent and reserved, if they share it: unit → amount."""


@fact
class RunFinished:
    """Every trial has completed, failed or been withdrawn."""

    completed: int
    failed: int
    withdrawn: int
    head: str
    """Hash of the previous record. Audits compare it and the counts; readers of the format need not."""
    elapsed: float | None = None
    """Seconds of all sessions, up to the previous record."""


@fact
class ReviewStarted:
    """A review of a run started: this journal, in the directory `review` of the run, has samples and labels, but no trials."""

    run: str
    """Id of the run."""
    head: str
    """Hash of its last record when the review started."""
    evaluation: str
    """Name of its evaluation; labels are carried over between runs of the same evaluation."""


@fact
class ReviewSampled:
    """Trials were drawn at random, to be labeled from now on."""

    sample: int
    """Number of the sample, from 1."""
    name: str
    """Name of the labels to give: that of the scorer that they check, or another question."""
    method: Literal["uniform", "stratified", "disagreements"]
    """`uniform`: every output is equally likely. `stratified`: the same number of each score. `disagreements`: half
    of the sample from outputs whose scores or labels contradict each other or those of other repeats."""
    n: int
    """Number of outputs to draw; all if there are fewer."""
    seed: int
    """Seed of the random numbers; the sample can be computed again from it and the records."""
    head: str
    """Hash of the last record of the run that was read."""
    population: int
    """Number of outputs that it was drawn from."""
    trials: Json
    """Trial → probability that it was drawn, in the order in which they are labeled."""


@fact
class Annotated:
    """A reviewer gave an output a label. It belongs to the content of the case and of the output, also in other runs."""

    trial: str
    case: str
    """Name of the case."""
    fingerprint: str
    """Fingerprint of the case's content."""
    output: str
    """SHA-256 of the output as JSON with sorted keys; of a large one, the name of its blob."""
    name: str
    """Name of the label: that of the scorer that it checks, or another question."""
    value: bool | int | float | str
    """Pass or fail, a number, or a label."""
    note: str = ""
    reviewer: str
    is_blind: bool = False
    """Whether the scores were hidden from the reviewer."""
    sample: int = 0
    """The sample that the trial was labeled for; 0: it was not drawn, but chosen."""
    replaces: int = 0
    """The record with the reviewer's earlier label of this name for the same output, which no longer counts; 0: none."""
    carried_from: str = ""
    """Id of the run for whose output the label was given; empty: this one."""


@fact
class ReviewSaved:
    """A writer of the review has synced its records, which `d` confirms: later changes to them are damage, not a torn tail."""

    labels: int
    """Number of labels that count so far."""
    imports: str = ""
    """`begun`: the labels that follow are those of an import, and count once a `review_saved` has `completed`. Any other one
    discards them: the import was interrupted."""


@fact
class Extension:
    """An event of another program, whose type starts with `x-`, or of a later minor version. It is kept and not interpreted."""

    type: str
    data: Mapping[str, Any]
    """Fields of the line that do not belong to the record."""


AttemptEnd = AttemptSucceeded | AttemptFailed | AttemptTimedOut | AttemptInterrupted

TrialEvent = (
    TrialEnqueued
    | AttemptStarted
    | AttemptEnd
    | AttemptReturnedLate
    | StepEvent
    | RetryScheduled
    | ScorerCallStarted
    | ScorerCallFailed
    | TrialScored
    | ScoringFailed
    | TrialCompleted
    | TrialFailed
    | TrialWithdrawn
)

ReviewEvent = ReviewStarted | ReviewSampled | Annotated | ReviewSaved
"""Events of a review; they are never in the same journal as those of a run."""

FileEvent = SegmentOpened | SegmentSealed

KnownEvent = (
    FileEvent
    | JournalRecovered
    | JournalSalvaged
    | RunStarted
    | SessionStarted
    | TrialEvent
    | PolicyEvent
    | RateLimitSeen
    | BatchEvent
    | Noted
    | RunStopped
    | RunFinished
    | ReviewEvent
)
"""Every event that this version of the format defines."""

Event = KnownEvent | Extension


class Record(NamedTuple):
    """An event with its number, times, hash and position."""

    seq: int
    """Number of the record: from 1, without gaps, across all segments."""
    at: str
    """Wall time in UTC, for people; it may jump."""
    t: float
    """Monotonic seconds since the session started; used for all measurements."""
    event: Event
    d: int
    """The highest seq that was known to be on disk when this record was written."""
    h: str
    """Hash of the run's id, the previous hash and this line."""
    segment: int
    offset: int
    """Offset of its line in the segment, in bytes."""


new_record: Callable[[type[Record], tuple[Any, ...]], Record] = tuple.__new__
"""Builds a record in half the time of calling its class; used in the two hot loops."""
