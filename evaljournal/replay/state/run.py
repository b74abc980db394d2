"""The state of a run, folded from its records.

`RunState.apply` defines what each record means. The live run and every later reader use it, so their states cannot differ.
Inputs and outputs stay on disk; only sums and about 300 bytes per trial are kept.
"""

import copy
import itertools
import math
import sys
from array import array
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

import attrs

from evaljournal.journal import Record, events
from evaljournal.replay.state.answers import Answers
from evaljournal.replay.state.batches import Batches
from evaljournal.replay.state.budget import Budget, BudgetEvents
from evaljournal.replay.state.handlers import EventTable
from evaljournal.replay.state.output_sample import OutputSample
from evaljournal.replay.state.policy import Policy
from evaljournal.replay.state.scorer_calls import PAIRWISE, ScorerCalls
from evaljournal.replay.state.session_errors import ERROR_CHARS, SessionErrors
from evaljournal.replay.state.sessions import Sessions, covered_seconds
from evaljournal.replay.state.slot_use import SlotUses
from evaljournal.replay.state.steps import RunSteps, keeps_steps
from evaljournal.replay.state.totals import Totals, Variants
from evaljournal.replay.state.trial import (
    NO_SLOT,
    WORKER_ENDS,
    RetryHistory,
    RunningAttempt,
    TrialState,
    pack_input,
)
from evaljournal.replay.state.usage import add, cost_of, noted_usage, subtract, unpriced_models
from evaljournal.replay.state.versions import TaskVersions
from evaljournal.replay.state.workers import WORKER_ENDED, Workers
from evaljournal.replay.text import as_words


def max_unscored_outputs(scorer_limit: int) -> int:
    """Return how many outputs may wait for scores before attempts are held, given how many scorer calls may be in flight."""
    return 2 * scorer_limit + 64


_MAX_UNPRICED_MODELS: Final = 20
_STOP_NOTES: Final = frozenset({f"{events.NOTE_PREFIX}unauthorized", f"{events.NOTE_PREFIX}quota"})
"""Notes with the scorer that stops the run."""
BLOCKING_CALLS: Final = f"{events.NOTE_PREFIX}blocking_calls"
"""The note that this number of consecutive `calls` of an async task blocked its event loop from their start to their end."""
SHORT_PROMPT: Final = f"{events.NOTE_PREFIX}short_prompt"
"""The note that a server has counted fewer `input_tokens` than the prompt has `words`."""
TEARDOWN_FAILED: Final = f"{events.NOTE_PREFIX}teardown_failed"
"""The note that the teardown of an attempt failed: `error` and `message`."""


@attrs.define(eq=False)  # With slots, attribute access is faster.
class RunState(Totals):
    """The state of a run after some record; the totals are those of all its trials."""

    seq: int = 0
    at: str = ""
    t: float = 0.0
    head: str = ""
    """The hash of the last record."""
    done_before: int = 0
    """Trials that were done when the current session started."""

    trials: dict[str, TrialState] = attrs.field(factory=dict[str, TrialState])
    sessions: Sessions = attrs.field(init=False)
    _table: EventTable = attrs.field(init=False)
    workers: Workers = attrs.field(factory=Workers)
    variants: Variants = attrs.field(factory=Variants)
    running: dict[str, RunningAttempt] = attrs.field(factory=dict[str, RunningAttempt])
    """Trial → its attempt in flight."""
    backing_off: dict[str, float] = attrs.field(factory=dict[str, float])
    """Trial → end of its backoff, in seconds of `t`."""
    retries: Counter[str] = attrs.field(factory=Counter[str])
    """By cause."""
    errors: Counter[str] = attrs.field(factory=Counter[str])
    """By type."""
    timeouts: int = 0
    interrupted: int = 0
    """Number of interrupted attempts; their calls may have been paid for."""
    interrupted_trials: set[str] = attrs.field(factory=set[str])
    """Trials whose last attempt was interrupted."""
    repeated_calls: int = 0
    """Calls of interrupted attempts that were repeated, and may have been paid for: completed steps that were not reused, and
    one for each attempt, which may have made more."""
    late_returns: int = 0
    """Attempts that returned after they had timed out or been abandoned."""
    outputs: int = 0
    """Attempts that returned an output."""
    latencies: "array[float]" = attrs.field(factory=lambda: array("d"))
    """The latency of each output that is not from a batch: seconds of the attempt that returned it, and of the steps that it
    reused, without set-up, teardown and the seconds that its steps waited for rate limits."""
    blocking_calls: int = 0
    """Consecutive calls of an async task that blocked its event loop, although there were slots for several; 0 if not noted."""
    short_prompts: int = 0
    """Calls, also of judges, whose server has counted fewer input tokens than the prompt has words."""
    failed_teardowns: int = 0
    last_failed_teardown: str = ""
    """Trial of the last one."""
    output_sample: OutputSample = attrs.field(factory=OutputSample)
    """The outputs of a few trials of each variant."""
    unpriced_models: dict[str, list[str]] = attrs.field(factory=dict[str, list[str]])
    """Name of the sum in `usage` that counts calls without a price → their models, the first few."""
    usage_without_output: Counter[str] = attrs.field(factory=Counter[str])
    """The part of `usage` that attempts without an output used: failed, timed out, interrupted or late."""
    _noted_answers: Answers = attrs.field(factory=Answers)
    _usage_in_flight: dict[str, list[Any]] = attrs.field(factory=dict[str, list[Any]])
    """Trial → usage noted by its attempt in flight."""
    _waits_in_flight: dict[str, list[tuple[float, float]]] = attrs.field(factory=dict[str, list[tuple[float, float]]])
    """Trial → start and end of set-up, teardown and the waits for rate limits inside its attempt in flight."""
    budget: Budget | None = None
    """Amounts spent and reserved; None if no session had a budget."""
    _budget_events: BudgetEvents | None = None
    batches: Batches = attrs.field(init=False)

    steps: RunSteps = attrs.field(factory=RunSteps)
    scoring: ScorerCalls = attrs.field(init=False)
    done_at: float = 0.0
    """When a trial last ended in the current session, in seconds of `t`; 0 if none has."""
    policy: Policy = attrs.field(init=False)
    _idle_since: float = 0.0
    """When the last attempt ended while no other was in flight."""
    _running_keys: dict[str, str | None] = attrs.field(factory=dict[str, str | None])
    """Trial → the rate-limit key of its attempt in flight, if not empty; None if it uses a line of a batch."""

    def __attrs_post_init__(self) -> None:
        self.sessions = Sessions(TaskVersions(self.trials))
        self._table = EventTable(_ORDER)
        self.policy = Policy(self.sessions, SlotUses(self._table))
        self.scoring = ScorerCalls(self.trials, self.scores, self.sessions.errors)
        self.batches = Batches(self.trials)
        sessions = self.sessions
        for projection in (self, sessions, sessions.errors, sessions.task_versions, self.policy, self.scoring, self.workers):
            self._table.attach(projection)
        self._table.attach_at(self.batches, events.BatchPrepared)

    def apply(self, record: Record) -> None:
        """Update the state with the next record."""
        self.sessions.previous_t = self.t
        self.seq, self.at, self.t, event, _, self.head, _, _ = record
        for handle in self._table[event.__class__]:
            handle(event, record)

    @property
    def elapsed(self) -> float:
        """Seconds of all sessions up to the last record; the time between sessions does not count."""
        return self.sessions.elapsed(self.t)

    @property
    def started(self) -> events.RunStarted | None:
        """The definition of the run, with adopted changes applied."""
        return self.sessions.started

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the last session."""
        return self.sessions.settings

    @property
    def outcome(self) -> str:
        """`finished`, or the reason the last session stopped; empty while it runs or if it crashed."""
        return self.sessions.outcome

    def in_flight(self, key: str) -> int:
        """Return how many attempts and scorer calls of a rate-limit key are in flight."""
        attempts = Counter(self._running_keys.values())[key] if key else len(self.running) - len(self._running_keys)
        return attempts + sum(call.key == key for call in self.scoring.open.values())

    @property
    def holds_attempts(self) -> bool:
        """Whether no attempt starts because too many outputs wait for scores."""
        return not self.outcome and self.stages["scoring"] > max_unscored_outputs(sum(self.policy.scorer_limits.values()))

    def is_held(self, trial: str, scorer: str = "") -> bool:
        """Return whether an attempt at a trial, or a call of a scorer, must wait: the first ones failed with the same error."""
        error = self.sessions.errors.repeated_errors.get(scorer)
        if error is None or not error.failed_trials:
            return False
        is_in_flight = any(name == scorer for _, name in self.scoring.open) if scorer else bool(self.running)
        return error.holds(trial, self.settings, is_in_flight=is_in_flight)

    @property
    def repeated_attempts(self) -> int:
        """Interrupted attempts whose trials were attempted again."""
        return self.interrupted - len(self.interrupted_trials)

    def has_noted_tokens(self, name: str) -> bool:
        """Return whether the attempt in flight at a trial has noted tokens or a cost."""
        usages = self._usage_in_flight.get(name, ())
        return any(isinstance(usage, dict) and any("token" in key or "cost" in key for key in usage) for usage in usages)

    def is_over_budget(self, name: str, usage: Any = None) -> bool:
        """Return whether a trial exceeds the budget per trial; `usage` is not recorded yet and counts, too."""
        return self.budget is not None and bool(self.budget.over_trial_limit(name, usage))

    def _move(self, name: str, trial: TrialState, stage: str) -> None:
        old_stage, stages = trial.stage, self.stages
        stages[old_stage] -= 1
        stages[stage] += 1
        if self.variants:
            by_variant = self.variants[trial.variant].stages
            by_variant[old_stage] -= 1
            by_variant[stage] += 1
        if old_stage == "running":
            del self.running[name]
            if self._running_keys:
                self._running_keys.pop(name, None)
            if not self.running:
                self._idle_since = self.t
        elif old_stage == "backing_off":
            del self.backing_off[name]
        trial.stage = stage

    def _on_run_started(self, event: events.RunStarted, _: Record) -> None:
        self._noted_answers.use_settings(self.settings)
        self.scores.set_versions(event.scorers)

    def _on_session_started(self, event: events.SessionStarted, record: Record) -> None:
        for trial, end_t in self.backing_off.items():  # `t` restarts; the rest of a backoff still applies.
            self.backing_off[trial] = max(0.0, end_t - self.sessions.previous_end)
        self.steps.before_session, self.done_before = self.steps.executed, self.done
        if self.sessions.adoption is not None:
            self._adopt(*self.sessions.adoption, record)
        self._noted_answers.use_settings(self.settings)
        self._begin_budget(event.session)
        self.done_at = 0.0
        self._idle_since = 0.0

    def _begin_budget(self, session: int) -> None:
        """Use the budget of a new session, against which earlier spending counts; each shard has its own budget."""
        if self.sessions.is_first_of_shard:
            self._set_budget(None)
        if self.budget is None and (self.settings.get("budget") or self.settings.get("budget_per_trial")):
            self._set_budget(budget := Budget())
            if self.sessions.merged.of_session(session) is None:
                budget.spend(self.usage)
        if self.budget is not None:
            called_trials = (trial for (trial, _), call in self.scoring.open.items() if call.key is not None)
            self.budget.begin_session(self.settings, dict.fromkeys(called_trials))

    def _set_budget(self, budget: Budget | None) -> None:
        if self._budget_events is not None:
            self._table.detach(self._budget_events)
        self.budget, self._budget_events = budget, None
        if budget is not None:
            self._budget_events = BudgetEvents(budget, self.trials, self.batches.lines)
            self._table.attach(self._budget_events)

    def _adopt(self, old_start: events.RunStarted, new_start: events.RunStarted, record: Record) -> None:
        self.scores.set_versions(new_start.scorers)
        if not old_start.is_replacement:
            self.variants.adopt(old_start.definition, new_start.definition, (record.segment, record.offset))
        if self.sessions.has_new_task:
            self.steps.open.clear()

    def _on_trial_enqueued(self, event: events.TrialEnqueued, record: Record) -> None:
        old_trial = self.trials.get(event.trial)
        if old_trial is not None:
            self.stages[old_trial.stage] -= 1
            if self.variants:
                self.variants[old_trial.variant].stages[old_trial.stage] -= 1
        variant = event.variant
        if variant or self.variants:
            variant = sys.intern(variant)
            self.variants.enqueue(variant, event.repeat, self.trials, self.scores, self._totals)
        if (variant or event.repeat > 1) and not self.scores.is_grouped_by_case:
            self.scores.group_by_case(self.trials.values())
        case = event.trial if event.case == event.trial else sys.intern(event.case)  # Repeats share one string.
        attempts = old_trial.attempts if old_trial else 0
        packed_trial = pack_input(record, event.fingerprint, event.repeat)
        self.trials[event.trial] = TrialState("queued", packed_trial, case, variant, attempts)
        self.stages["queued"] += 1

    def _totals(self) -> Totals:
        counts = self.answers.copy(), self.models.copy(), self.excluded.copy()
        return Totals(dict(self.stages), self.attempts, self.recovered, self.usage.copy(), copy.deepcopy(self.scores), *counts)

    def _on_attempt_started(self, event: events.AttemptStarted, record: Record) -> None:
        trial = self.trials[event.trial]
        if not self.running and event.trial in self.backing_off:
            self._count_backoff(event.trial, trial, record.t)
        self._move(event.trial, trial, "running")
        slot = NO_SLOT if event.batch else event.slot
        self.running[event.trial] = RunningAttempt(event.attempt, slot, record.t)
        trial.attempts = event.attempt
        self.attempts += 1
        if self.variants:
            self.variants[trial.variant].attempts += 1
        repeated_calls = self.steps.start(event) if self.steps.records else 0
        if event.key or event.batch:
            self._running_keys[event.trial] = None if event.batch else event.key
        if event.need is not None:
            self.policy.start_attempt(event.trial, event.key, event.need, record.t, has_queue=self.stages["queued"] > 0)
        if event.trial in self.interrupted_trials:
            self.interrupted_trials.remove(event.trial)
            self.repeated_calls += 1 + repeated_calls

    def _count_backoff(self, name: str, trial: TrialState, t: float) -> None:
        """Count the time in which nothing was in flight until the backoff of a trial ended, as after a single Retry-After."""
        is_idle = not (self.stages["queued"] or self.stages["interrupted"] or self.scoring.open)
        history = trial.retry_history
        reason = "rate_limited" if history is not None and history.category == "rate_limited" else "backoff"
        if is_idle:
            self.policy.count_wait(reason, self._idle_since, min(t, self.backing_off[name]), t)

    def _on_attempt_succeeded(self, event: events.AttemptSucceeded, record: Record) -> None:
        trial = self.trials[event.trial]
        if event.worker:
            self.workers.count(event, record.t)
        if self._records_model_calls and not self.running[event.trial].ended_steps:
            self.steps.attempts_without_steps += 1
        latency = self._latency(event)
        self._move(event.trial, trial, "scoring")
        if not (repeated_error := self.sessions.errors.repeated_errors[""]).is_over:
            repeated_error.end()
        self.outputs += 1
        if not math.isnan(latency):
            self.latencies.append(latency)
        trial.set_output(record, latency, cost_of([*self._usage_in_flight.pop(event.trial, ()), event.usage]))
        if self.variants:
            self.output_sample.add(trial, event.output)
        if event.output == "":
            trial.answer = self._noted_answers.empty(trial.answer)
        if trial.answer is not None:
            self._count_answer(trial, 1)
        if event.usage is not None:
            self._add_usage(event.usage, event.trial)

    def _latency(self, event: events.AttemptSucceeded) -> float:
        """Return the latency of an output; NaN if it is from a batch."""
        if self.running[event.trial].slot == NO_SLOT:
            return math.nan
        latency, steps = event.elapsed, self.steps.open.get(event.trial)
        if self._waits_in_flight:
            latency = self._without_waits(event.trial, latency)
        if steps is not None and steps.reused_seqs:
            latency = round(latency + steps.reused_seconds(event.attempt), 6)
        return latency

    def _count_answer(self, trial: TrialState, change: int) -> None:
        self.count_answer(trial.answer, change)
        if self.variants:
            self.variants[trial.variant].count_answer(trial.answer, change)

    @property
    def _records_model_calls(self) -> bool:
        """Whether the model calls of the task's HTTP clients should be steps: `durable="http"`."""
        durable = self.settings.get("durable")
        return isinstance(durable, list) and "http" in durable

    def _without_waits(self, trial: str, seconds: float) -> float:
        """Return the seconds of an attempt that ends without set-up, teardown and its waits for rate limits."""
        if not self._waits_in_flight:
            return seconds
        return max(0.0, round(seconds - covered_seconds(self._waits_in_flight.pop(trial, ())), 6))

    def _on_attempt_failed(self, event: events.AttemptFailed | events.AttemptTimedOut, record: Record) -> None:
        trial = self.trials[event.trial]
        if event.worker:
            self.workers.count(event, record.t)
        self._move(event.trial, trial, "unsettled")
        trial.answer = None
        history = trial.retry_history = trial.retry_history or RetryHistory()
        if (steps := self.steps.open.get(event.trial)) is not None:
            category = event.category if isinstance(event, events.AttemptFailed) else "timed_out"
            steps.spend(self._without_waits(event.trial, event.elapsed), resets_timeout=category == "timed_out")
            if steps.is_productive and keeps_steps(self.settings.get("reuse_steps", ""), category):
                history.reset()
        if isinstance(event, events.AttemptFailed):
            history.count_failure(event.category, event.retry_after)
            history.error, history.error_type = f"{event.error}: {event.message}"[:ERROR_CHARS], event.error
            history.location = event.location
            self.errors[event.error] += 1
            self.sessions.errors.repeated_errors[""].count_attempt(
                event.trial, event.category, event.error, event.location, event.message
            )
        else:
            history.count_failure("timed_out")
            history.error, history.error_type, history.location = f"timed out after {event.timeout:g} s", "", ""
            self.timeouts += 1
        self.sessions.errors.count_attempt(history.error, record.t, self.outputs)
        self._add_unproductive_usage(event.trial, event.usage)

    _on_attempt_timed_out = _on_attempt_failed

    def _on_attempt_interrupted(self, event: events.AttemptInterrupted, record: Record) -> None:
        attempt = self.running[event.trial]
        trial = self.trials[event.trial]
        if event.worker:
            self.workers.count(event, record.t)
        self._move(event.trial, trial, "interrupted")
        trial.answer = None
        if event.reason in WORKER_ENDS:
            history = trial.retry_history = trial.retry_history or RetryHistory()
            history.count_failure(event.reason)
            history.error = f"{as_words(event.reason)}: {event.detail}"[:ERROR_CHARS]
            history.error_type = history.location = ""
        elif trial.retry_history is not None:
            trial.retry_history.category = "interrupted"
        if attempt.slot != NO_SLOT:
            self.interrupted += 1
            self.interrupted_trials.add(event.trial)
        if (steps := self.steps.open.get(event.trial)) is not None:
            elapsed = max(0.0, self.sessions.previous_end - attempt.start) if event.elapsed is None else event.elapsed
            steps.spend(self._without_waits(event.trial, elapsed), resets_timeout=True)
        self._add_unproductive_usage(event.trial)

    def _on_attempt_returned_late(self, _: events.AttemptReturnedLate, __: Record) -> None:
        self.late_returns += 1

    def _on_step_completed(self, event: events.StepCompleted, record: Record) -> None:
        if event.phase != "task":
            self._end_phase(event, record)
            return
        attempt = self.running[event.trial]
        self.steps.complete(event, record, attempt.start)
        self._add_step_need(event, record)
        attempt.end_step(event.name, record.t)
        if event.usage is not None:
            self._add_usage(event.usage, event.trial)
            self._usage_in_flight.setdefault(event.trial, []).append(event.usage)

    def _add_step_need(self, event: events.StepCompleted | events.StepFailed, record: Record) -> None:
        if event.need is not None:
            known_limits = self.policy.known_limits
            known_limits.inner_waits[event.key] = event.waited
            start = record.t - event.elapsed
            known_limits.add(event.key, event.need, start)
            if event.waited > 0:
                self.steps.seconds_waited += event.waited
                self._waits_in_flight.setdefault(event.trial, []).append((start - event.waited, start))

    def _end_phase(self, event: events.StepCompleted | events.StepFailed, record: Record) -> None:
        """Count a set-up or a teardown; its time is not part of the attempt's."""
        self.steps.locate(event, record)
        self.steps.completed += isinstance(event, events.StepCompleted)
        self.steps.failed += isinstance(event, events.StepFailed)
        self._waits_in_flight.setdefault(event.trial, []).append((record.t - event.elapsed, record.t))

    def _on_step_failed(self, event: events.StepFailed, record: Record) -> None:
        if event.phase != "task":
            self._end_phase(event, record)
            return
        self.steps.fail(event, record)
        self._add_step_need(event, record)
        self.running[event.trial].end_step(event.name, record.t)

    def _on_step_reused(self, event: events.StepReused, record: Record) -> None:
        self.steps.locate(event, record)
        step = self.steps.reuse(event)
        self.running[event.trial].end_step(step.name if step else "", record.t)
        if step is not None and step.usage is not None:  # Its usage belongs to this attempt now.
            subtract(self.usage_without_output, step.usage)
            self._usage_in_flight.setdefault(event.trial, []).append(step.usage)

    def _on_retry_scheduled(self, event: events.RetryScheduled, record: Record) -> None:
        trial = self.trials[event.trial]
        self._move(event.trial, trial, "backing_off")
        self.backing_off[event.trial] = record.t + event.delay
        if trial.retry_history is not None:
            if event.reason == "requested":
                trial.retry_history = RetryHistory(error=trial.error, reason=trial.reason)
            else:
                trial.retry_history.count_retry(event.reason, event.delay)
        self.retries[event.reason] += 1

    def _on_scorer_call_failed(self, event: events.ScorerCallFailed, record: Record) -> None:
        self.sessions.errors.count_call(event, record.t, self.outputs)

    def _on_trial_completed(self, event: events.TrialCompleted, record: Record) -> None:
        trial = self.trials[event.trial]
        self._move(event.trial, trial, "completed")
        if self.steps.records:
            self.steps.end(event.trial, completed=True)
        self.done_at = record.t
        if trial.retry_history is not None:
            self._count_recovered(trial, 1)

    def _count_recovered(self, trial: TrialState, change: int) -> None:
        self.recovered += change
        if self.variants:
            self.variants[trial.variant].recovered += change

    def _on_trial_failed(self, event: events.TrialFailed, record: Record) -> None:
        trial = self.trials[event.trial]
        self._move(event.trial, trial, "failed")
        self.steps.end(event.trial)
        self.done_at = record.t
        history = trial.retry_history = trial.retry_history or RetryHistory()
        self.sessions.errors.repeated_errors[""].count(
            "" if event.reason == "ambiguous" else history.error_type, history.location
        )
        history.reason = event.reason

    def _on_trial_withdrawn(self, event: events.TrialWithdrawn, __: Record) -> None:
        trial = self.trials[event.trial]
        self._count_recovered(trial, -trial.recovered)
        self._count_answer(trial, -1)
        self._move(event.trial, trial, "withdrawn")
        self.steps.end(event.trial)
        self.scores.remove(event.trial, trial)

    def _on_noted(self, event: events.Noted, _: Record) -> None:
        usage = noted_usage(event.name, event.value)
        self._add_usage(usage, event.trial)
        if event.name in _STOP_NOTES:
            self.sessions.errors.note_stop(event)
        elif event.name == WORKER_ENDED:
            self.workers.note_end(event)
        elif event.name == BLOCKING_CALLS and isinstance(event.value, dict) and isinstance(event.value.get("calls"), int):
            self.blocking_calls = event.value["calls"]
        elif event.name == SHORT_PROMPT:
            self.short_prompts += 1
        elif event.name == PAIRWISE:
            self.scoring.note_pairwise(event)
        elif event.name == TEARDOWN_FAILED:
            self.failed_teardowns += 1
            self.last_failed_teardown = event.trial
        if event.attempt and (trial := self.trials.get(event.trial)) is not None:
            self._apply_trial_note(event, trial, usage)

    def _apply_trial_note(self, event: events.Noted, trial: TrialState, usage: dict[str, Any]) -> None:
        is_latest = trial.attempts == event.attempt
        if is_latest and trial.stage == "running":
            self._usage_in_flight.setdefault(event.trial, []).append(usage)
            if (answer := self._noted_answers.read(event.name, event.value)) is not None:
                trial.answer = answer
        elif not is_latest or trial.output_location is None:
            add(self.usage_without_output, usage)  # Noted after the attempt had ended without an output.

    def _on_segment_opened(self, _: events.SegmentOpened | events.JournalRecovered, __: Record) -> None:
        """Ignore `t`: the record may precede `session_started`, and its `t` is then that of the next session."""
        self.t = self.sessions.previous_t

    _on_journal_recovered = _on_segment_opened

    def _add_usage(self, usage: Any, name: str) -> None:
        add(self.usage, usage)
        if self.variants and (trial := self.trials.get(name)) is not None:
            add(self.variants[trial.variant].usage, usage)
        for sum_name, model in unpriced_models(usage):
            models = self.unpriced_models.setdefault(sum_name, [])
            if model not in models and len(models) < _MAX_UNPRICED_MODELS:
                models.append(model[:ERROR_CHARS])

    def _add_unproductive_usage(self, trial: str, usage: Any = None) -> None:
        self._add_usage(usage, trial)
        add(self.usage_without_output, usage)
        self._waits_in_flight.pop(trial, None)
        for part in self._usage_in_flight.pop(trial, ()):
            add(self.usage_without_output, part)


_ORDER: Final = (
    Sessions,
    SessionErrors,
    TaskVersions,
    RunState,
    ScorerCalls,
    Policy,
    SlotUses,
    Workers,
    Batches,
    BudgetEvents,
)
"""The projections in the order in which they apply an event."""


def fold(records: Iterable[Record], *, at: int | None = None, state: RunState | None = None) -> RunState:
    """Fold records into the state after the last of them, or after record `at`; `state` is the state before the first."""
    state = RunState() if state is None else state
    apply = state.apply
    for record in records if at is None else itertools.takewhile(lambda record: record.seq <= at, records):
        apply(record)
    return state
