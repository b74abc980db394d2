"""Everything recorded about one trial and its attempts, for `show` and the exports; read from the index of the run."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs

from evaljournal.journal.errors import BlobDamaged
from evaljournal.replay.index import TRIAL_INDEXES, AttemptRow, Index, TrialRow
from evaljournal.replay.provider.reports import text_field
from evaljournal.replay.runs.timeline import Span, Times, times_of
from evaljournal.replay.runs.trajectory import StepDetails, Trajectory
from evaljournal.replay.runs.waits import Wait
from evaljournal.replay.state.answers import ANSWER
from evaljournal.replay.state.run import RunState
from evaljournal.replay.state.trial import DONE_STAGES
from evaljournal.replay.state.usage import noted_usage, summed
from evaljournal.replay.text import as_words, reason_text

_NO_TIMES: Final = Times(queue_time=0.0, backoff_time=0.0, run_time=0.0, scoring_time=0.0, attempts=0)


@attrs.define
class AttemptDetails:
    span: Span
    """Slot, session, times and outcome."""
    waits: Sequence[Wait] = ()
    """Waits before its start, longest first; set only for `show`."""
    category: str = ""
    """Category of its failure, `timed_out` or `interrupted`; empty without a failure."""
    error: str = ""
    message: str = ""
    traceback: str = ""
    reason: str = ""
    """Why it was interrupted: `cancelled`, `forked`, `process_died`, `stopped`, `worker_died` or `worker_lost`."""
    detail: str = ""
    """Details of the reason, such as `signal 11`."""
    worker: str = ""
    """Name of the worker that ran it; empty: the process of the run, or unknown."""
    retry_after: float | None = None
    timeout: float | None = None
    """The timeout that it exceeded, in seconds."""
    request: Any = None
    output: Any = None
    usage: Any = None
    notes: list[tuple[str, Any]] = attrs.field(factory=list)
    late_outcome: str = ""
    """How it ended after it had timed out or been abandoned."""
    retry_delay: float | None = None
    """Seconds of backoff before its retry."""
    retry_reason: str = ""
    reuses: int = 0
    """The first attempt whose steps it may reuse; 0: none."""
    spent: float = 0.0
    """Seconds of the attempts whose steps it may reuse."""
    need: Any = None
    """What it took from the known rate limits of its key: unit → amount; None: none was known."""
    unused_steps: int = 0
    """Completed steps of earlier attempts that it may reuse and has not reused."""
    recorded_step: StepDetails | None = None
    """The completed step of an earlier attempt that the diverged one would have reused; None if it has not diverged."""
    steps: list[StepDetails] = attrs.field(factory=list)
    """In the order in which they ended."""
    ended_at: str = ""
    """Wall time; empty while in flight."""

    @property
    def has_output(self) -> bool:
        return self.span.outcome == "succeeded"

    @property
    def served_model(self) -> str:
        """The model that answered, as its notes name it; empty if they do not."""
        return self._answer_fact("model")

    @property
    def response_id(self) -> str:
        """The provider's id of the answer, as its notes have it; empty if they do not."""
        return self._answer_fact("id")

    def _answer_fact(self, name: str) -> str:
        answers = [value for note, value in self.notes if note == ANSWER and isinstance(value, dict)]
        return text_field(answers[-1], name) if answers else ""

    @property
    def own_usage(self) -> dict[str, float]:
        """Sums of the numbers in its usage and its notes."""
        return summed([*(noted_usage(name, value) for name, value in self.notes), self.usage])

    @property
    def step_usage(self) -> dict[str, float]:
        """Sums of the numbers in the usage of the steps that it executed."""
        return summed(step.usage for step in self.steps if not step.is_reused)

    @property
    def total_usage(self) -> dict[str, float]:
        """Sums of the numbers in its usage, its notes and the steps that it executed."""
        return summed([self.own_usage, self.step_usage])

    @property
    def reused_steps(self) -> int:
        return sum(step.is_reused for step in self.steps)

    @property
    def first_executed_step(self) -> int:
        """Number of its first step that was executed and may be reused later; 0 if there is none."""
        return min((step.number for step in self.steps if not step.is_reused and step.reusable), default=0)

    @property
    def diverged_at(self) -> int:
        """Number of the first step that differs from earlier attempts; 0 if it reused all of their steps."""
        return self.first_executed_step if self.unused_steps else 0

    @property
    def diverged_step(self) -> StepDetails | None:
        """The first step that differs from earlier attempts; None if it reused all of their steps."""
        number = self.diverged_at
        return next((step for step in self.steps if step.number == number), None) if number else None


@attrs.frozen
class ScoreDetails:
    """The value of one scorer, or its failure."""

    scorer: str
    version: str
    seq: int
    t: float
    """When it was recorded, in seconds of its session."""
    elapsed: float
    value: bool | int | float | str | None = None
    reason: str = ""
    error: str = ""
    message: str = ""
    traceback: str = ""

    @property
    def has_failed(self) -> bool:
        return self.value is None


@attrs.define
class ScorerCallDetails:
    """One call of a scorer; built-in scorers that only compute make none."""

    scorer: str
    call: int
    """From 1, per scorer and session."""
    session: int
    seq: int
    """The record of its start."""
    waits: Sequence[Wait] = ()
    """Waits before its start, longest first."""
    outcome: str = ""
    """`succeeded`, or the category of its failure; empty while in flight or if its process ended first."""
    elapsed: float | None = None
    error: str = ""
    message: str = ""
    retry_after: float | None = None
    retry_delay: float | None = None
    """Seconds of backoff before the next call; None if there is none."""


@attrs.define
class TrialDetails:
    trial: str
    row: TrialRow
    case: str = ""
    variant: str = ""
    repeat: int = 1
    fingerprint: str = ""
    enqueued_at: str = ""
    ended_at: str = ""
    """Wall time; empty until it is completed or has failed."""
    seq: int = 0
    """Its last record."""
    stage: str = "queued"
    """One of `journal.format.lifecycle.STAGES`."""
    reason: str = ""
    """Why it failed or was withdrawn."""
    input: Any = None
    expected: Any = None
    metadata: Any = None
    request: Any = None
    """The request of its last attempt."""
    output: Any = None
    truncated: bool = False
    declined: bool = False
    """Whether the model, or its provider, declined to answer."""
    excluded: bool = False
    """Whether the output is not scored, because the settings exclude declined or truncated answers."""
    served_model: str = ""
    """The model that answered, as far as the attempt noted it."""
    attempts: list[AttemptDetails] = attrs.field(factory=list)
    scorer_calls: list[ScorerCallDetails] = attrs.field(factory=list)
    scores: dict[str, ScoreDetails] = attrs.field(factory=dict)
    """Scorer → its latest value or failure."""
    superseded_scores: list[ScoreDetails] = attrs.field(factory=list)
    """Earlier values and failures, in order."""
    notes: list[tuple[str, Any]] = attrs.field(factory=list)
    """Notes that belong to no attempt."""
    times: Times = _NO_TIMES
    latency: float | None = None
    """Seconds of the attempt that returned the output, and of the steps that it reused; None without an output."""
    time_to_completion: float | None = None
    """Seconds from enqueueing until it was completed or failed: waits, backoff, all attempts and scoring, without the time
    between sessions; None while it is open."""
    problem: BlobDamaged | None = None
    """A damaged blob; its value is left as a `Blob`."""

    @property
    def failures(self) -> list[AttemptDetails]:
        """The attempts that ended without an output."""
        return [attempt for attempt in self.attempts if attempt.category]

    @property
    def failure(self) -> str:
        """Why the trial has an error, and its last error, in one line."""
        last_error = self.last_error
        reason = reason_text(self.reason)
        return f"{reason}: {last_error.error}: {last_error.message}" if last_error else reason

    @property
    def last_error(self) -> AttemptDetails | None:
        """The last attempt without an output; None for a completed trial."""
        return self.failures[-1] if self.failures and self.stage != "completed" else None

    @property
    def usage(self) -> dict[str, float]:
        """Sums over all attempts, including failed attempts, and all notes."""
        attempts = (attempt.total_usage for attempt in self.attempts)
        return summed([*attempts, *(noted_usage(name, value) for name, value in self.notes)])

    @property
    def values(self) -> dict[str, ScoreDetails]:
        return {scorer: score for scorer, score in self.scores.items() if not score.has_failed}

    @property
    def scorer_failures(self) -> dict[str, ScoreDetails]:
        return {scorer: score for scorer, score in self.scores.items() if score.has_failed}


Load = Callable[[Any], Any]
"""Returns a value; that of a `Blob` is loaded."""
_ERROR: Final = "SELECT category, error, message, traceback FROM errors WHERE id = ?"


def read_trial(
    index: Index, state: RunState, name: str, load: Load, waits: Mapping[int, Sequence[Wait]] | None = None
) -> TrialDetails:
    """Read a trial; `waits` are those before the starts of its attempts and scorer calls, by record.

    Raises:
        KeyError: There is no such trial.
    """
    trial, trial_state, waits = index.trial(name), state.trials[name], waits or {}
    index.create_indexes(TRIAL_INDEXES)
    scores, superseded_scores = _scores(index, trial)
    notes = [(number, note, load(index.value(value))) for number, note, value in index.rows(_NOTES, trial.id)]

    rows = index.attempts(trial)
    attempts = [read_attempt(index, name, row, load) for row in rows]
    requests = {row.id: load(index.value(row.request)) for row in rows if row.request is not None}
    for row, attempt in zip(rows, attempts, strict=True):
        attempt.waits, attempt.request = waits.get(row.seq, ()), requests.get(row.request_id)
        attempt.notes = [(note, value) for number, note, value in notes if number == row.attempt]
    if state.steps:
        _add_steps(index, trial, rows, attempts, load)

    times = times_of(trial, index.now)
    return TrialDetails(
        name,
        trial,
        case=trial.case,
        variant=trial.variant,
        repeat=trial.repeat,
        fingerprint=trial.fingerprint,
        enqueued_at=trial.enqueued_at,
        ended_at=trial.ended_at,
        seq=trial.seq,
        stage=trial_state.stage,
        reason=trial.reason,
        input=load(index.value(trial.input)),
        expected=load(index.value(trial.expected)),
        metadata=load(index.value(trial.metadata)),
        request=attempts[-1].request if attempts else None,
        output=next((attempt.output for row, attempt in zip(rows, attempts, strict=True) if row.id == trial.output), None),
        truncated=trial_state.answer_outcome == "truncated",
        declined=trial_state.answer_outcome == "declined",
        excluded=trial_state.is_excluded,
        served_model=next((attempt.served_model for attempt in reversed(attempts) if attempt.has_output), ""),
        attempts=attempts,
        scorer_calls=[
            ScorerCallDetails(scorer, call, session, seq, waits.get(seq, ()), *end)
            for scorer, call, session, seq, *end in index.rows(_CALLS, trial.id)
        ],
        scores=scores,
        superseded_scores=superseded_scores,
        notes=[(note, value) for number, note, value in notes if number == 0],
        times=times,
        latency=trial_state.latency,
        time_to_completion=times.total if trial_state.stage in DONE_STAGES else None,
    )


_NOTES: Final = "SELECT attempt, name, value FROM notes WHERE trial = ? ORDER BY seq"
_CALLS: Final = """
    SELECT scorer, call, session, seq, outcome, elapsed, error, message, retry_after, retry_delay
    FROM calls WHERE trial = ? ORDER BY seq
"""
_SCORES: Final = """
    SELECT scorer, version, seq, t, elapsed, value, reason, error, message, traceback
    FROM scores WHERE trial = ? AND seq > ? ORDER BY seq
"""
_STEPS: Final = """
    SELECT seq, t, at, attempt, number, parent, completed_seq, name, kind, elapsed, continues, reusable, input, output, usage,
        error, message, need, waited
    FROM steps WHERE trial = ? ORDER BY seq
"""


def read_attempt(index: Index, trial: str, row: AttemptRow, load: Load) -> AttemptDetails:
    """Return an attempt without its request, notes and steps."""
    end = row.end if row.outcome else index.now
    position = (trial, row.attempt, row.slot, row.session, row.start, end, row.outcome, row.seq, row.end_seq)

    category, error, message, traceback = "", "", "", ""
    if row.error is not None:
        category, error, message, traceback = index.row(_ERROR, row.error)
    elif row.reason:
        message = f"interrupted: {as_words(row.reason)}{f' ({row.detail})' if row.detail else ''}"
        category = error = "interrupted"

    return AttemptDetails(
        Span(*position, row.queue_time, row.backoff_time, row.batch, row.line),
        category=category,
        error=error,
        message=message,
        traceback=traceback,
        reason=row.reason,
        detail=row.detail,
        worker=row.worker,
        retry_after=row.retry_after,
        timeout=row.timeout,
        output=load(index.value(row.output)),
        usage=load(index.value(row.usage)),
        late_outcome=row.late_outcome,
        retry_delay=row.retry_delay,
        retry_reason=row.retry_reason,
        reuses=row.reuses,
        spent=row.spent,
        need=load(index.value(row.need)),
        ended_at=row.ended_at,
    )


def _add_steps(
    index: Index, trial: TrialRow, rows: Sequence[AttemptRow], attempts: Sequence[AttemptDetails], load: Load
) -> None:
    steps: dict[int, list[Any]] = {}
    for step in index.rows(_STEPS, trial.id):
        steps.setdefault(step[3], []).append(step)
    trajectory = Trajectory()
    for row, attempt in zip(rows, attempts, strict=True):
        trajectory.start(row.reuses)
        for fields in steps.get(row.id, ()):
            if (details := trajectory.add(row.attempt, *_recorded_step(index, fields, load))) is not None:
                attempt.steps.append(details)
        attempt.unused_steps = trajectory.unused_steps
        if (diverged_step := attempt.diverged_step) is not None:
            attempt.recorded_step = trajectory.unused_step(diverged_step.name)


def _recorded_step(index: Index, fields: Sequence[Any], load: Load) -> tuple[StepDetails, int | None]:
    """Return a step as it is recorded, and the record of the completed step that it reuses."""
    seq, t, at, _, number, parent, completed_seq, name, kind, elapsed, continues, reusable, *values = fields
    *json_values, error, message, need, waited = values
    step_input, output, usage, need = (load(index.value(value)) for value in (*json_values, need))
    step = StepDetails(
        number=number,
        name=name,
        kind=kind,
        parent=parent,
        seq=seq,
        t=t,
        elapsed=elapsed,
        input=step_input,
        output=output,
        usage=usage,
        error=error or "",
        message=message,
        reusable=error is not None or bool(reusable),
        continues=continues,
        at=at,
        need=need,
        waited=waited,
        is_replayed=bool(kind and completed_seq),
    )
    return step, None if kind else completed_seq


def _scores(index: Index, trial: TrialRow) -> tuple[dict[str, ScoreDetails], list[ScoreDetails]]:
    """Return the latest value or failure of each scorer, and the earlier ones, since the trial was enqueued."""
    scores, superseded_scores = dict[str, ScoreDetails](), list[ScoreDetails]()
    for scorer, version, seq, t, elapsed, value, *texts in index.rows(_SCORES, trial.id, trial.enqueue_seq):
        base = scorer.partition(".")[0]
        if base != scorer and base in scores and scores[base].has_failed:
            superseded_scores.append(scores.pop(base))
        if (old_score := scores.pop(scorer, None)) is not None:
            superseded_scores.append(old_score)
        scores[scorer] = ScoreDetails(scorer, version, seq, t, elapsed, index.score(value), *texts)
    return scores, superseded_scores
