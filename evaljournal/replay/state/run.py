"""The state of a run, folded from its records.

`RunState.apply` defines what each record means. The live run and every later reader use it, so their states cannot differ.
Inputs and outputs stay on disk; only sums and about 300 bytes per trial are kept.

The state is a table of events and the projections that apply them, each in a module of its own, with the question that it
answers at its head. `RunState` itself keeps only the position in the journal, switches capabilities on, and answers the few
questions that need several projections. What a run does not use costs it nothing: `RunSteps`, `Batches`, `SlotUses` and
`BudgetEvents` are not in the table before their first event, or the setting that asks for them.
"""

import itertools
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

import attrs

from evaljournal.journal import Record, events
from evaljournal.replay.state.answers import ANSWER
from evaljournal.replay.state.attempt_warnings import BLOCKING_CALLS, SHORT_PROMPT, TEARDOWN_FAILED
from evaljournal.replay.state.batches import Batches
from evaljournal.replay.state.budget import Budget, BudgetEvents
from evaljournal.replay.state.handlers import EventTable
from evaljournal.replay.state.policy import PolicyState
from evaljournal.replay.state.scorer_calls import PAIRWISE, ScorerCalls
from evaljournal.replay.state.scores import Scores
from evaljournal.replay.state.session_errors import QUOTA, UNAUTHORIZED, SessionErrors
from evaljournal.replay.state.sessions import Sessions
from evaljournal.replay.state.set_ups import TORN_DOWN, SetUps
from evaljournal.replay.state.slot_use import SlotUses
from evaljournal.replay.state.steps import RunSteps, records_model_calls
from evaljournal.replay.state.totals import REPLAYED, Totals, UsageParts, Variants
from evaljournal.replay.state.trials import RunTrials
from evaljournal.replay.state.versions import TaskVersions
from evaljournal.replay.state.workers import WORKER_ENDED, RunWorkers
from evaljournal.replay.state.workspaces import WorkspaceChanges


def max_unscored_outputs(scorer_limit: int) -> int:
    """Return how many outputs may wait for scores before attempts are held, given how many scorer calls may be in flight."""
    return 2 * scorer_limit + 64


@attrs.define(eq=False)  # With slots, attribute access is faster.
class RunState:
    seq: int = 0
    at: str = ""
    t: float = 0.0
    head: str = ""
    """The hash of the last record."""
    trials: RunTrials = attrs.field(factory=RunTrials)
    sessions: Sessions = attrs.field(init=False)
    scoring: ScorerCalls = attrs.field(init=False)
    policy: PolicyState = attrs.field(init=False)
    usage_parts: UsageParts = attrs.field(init=False)
    steps: RunSteps = attrs.field(init=False)
    set_ups: SetUps = attrs.field(factory=SetUps)
    workspaces: WorkspaceChanges = attrs.field(factory=WorkspaceChanges)
    batches: Batches = attrs.field(init=False)
    budget: Budget | None = None
    """Amounts spent and reserved; None if no session had a budget."""
    _table: EventTable = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        table = self._table = EventTable(_ORDER)
        trials = self.trials
        self.sessions = Sessions(TaskVersions(trials))
        errors = self.sessions.errors
        self.scoring = ScorerCalls(trials, errors)
        self.policy = PolicyState(self.sessions, self.scoring.open, SlotUses(table))
        self.usage_parts = UsageParts(trials, trials.running, trials.totals, trials.variants)
        self.steps = RunSteps(trials, self.usage_parts, self.sessions, self.policy.known_limits)
        self.batches = Batches(trials)
        trials.connect(self.sessions, self.policy, self.usage_parts)

        always = (
            self.sessions,
            errors,
            self.sessions.task_versions,
            trials,
            self.scoring,
            self.policy,
            self.usage_parts,
            self.set_ups,
        )
        for projection in (self, *always, self.workers):
            table.attach(projection)
        table.attach_at(self.steps, events.StepCompleted, events.StepFailed, events.StepReused, events.StepReplayed)
        table.attach_at(self.batches, events.BatchPrepared)
        table.notes = {
            ANSWER: trials.note_answer,
            BLOCKING_CALLS: trials.warnings.note_blocking_calls,
            SHORT_PROMPT: trials.warnings.note_short_prompt,
            TEARDOWN_FAILED: trials.warnings.note_failed_teardown,
            TORN_DOWN: self.set_ups.note,
            PAIRWISE: self.scoring.note_pairwise,
            UNAUTHORIZED: errors.note_stop,
            QUOTA: errors.note_stop,
            REPLAYED: self.usage_parts.note_replayed,
            WORKER_ENDED: self.workers.note_end,
        }

    def apply(self, record: Record) -> None:
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

    @property
    def totals(self) -> Totals:
        return self.trials.totals

    @property
    def workers(self) -> RunWorkers:
        return self.trials.workers

    @property
    def variants(self) -> Variants:
        return self.trials.variants

    @property
    def scores(self) -> Scores:
        return self.totals.scores

    @property
    def usage(self) -> Counter[str]:
        return self.totals.usage

    @property
    def completed(self) -> int:
        return self.totals.completed

    @property
    def failed(self) -> int:
        return self.totals.failed

    def in_flight(self, key: str) -> int:
        """Return how many attempts and scorer calls of a rate-limit key are in flight."""
        attempts = sum(attempt.key == key for attempt in self.trials.running.values())
        return attempts + sum(call.key == key for call in self.scoring.open.values())

    def slots_of(self, key: str) -> int | None:
        """Return the slots of a rate-limit key: those of the settings, or more if a known limit needs more; None if unknown."""
        slots, scorer_slots = self.settings.get("slots"), self.settings.get("scorer_slots")
        if key.startswith(events.SCORER_PREFIX) and isinstance(scorer_slots, dict):
            slots = scorer_slots.get(key.removeprefix(events.SCORER_PREFIX), slots)
        return max(slots, self.policy.raised_slots.get(key, 0)) if isinstance(slots, int) else None

    @property
    def holds_attempts(self) -> bool:
        """Whether no attempt starts because too many outputs wait for scores."""
        unscored_outputs = self.totals.stages["scoring"]
        return not self.outcome and unscored_outputs > max_unscored_outputs(sum(self.policy.scorer_limits.values()))

    def is_held(self, trial: str, scorer: str = "") -> bool:
        """Return whether an attempt at a trial, or a call of a scorer, must wait: the first ones failed with the same error."""
        error = self.sessions.errors.repeated_errors.get(scorer)
        if error is None or not error.failed_trials:
            return False
        is_in_flight = any(name == scorer for _, name in self.scoring.open) if scorer else bool(self.trials.running)
        return error.holds(trial, self.settings, is_in_flight=is_in_flight)

    def is_over_budget(self, name: str, usage: Any = None) -> bool:
        """Return whether a trial exceeds the budget per trial; `usage` is not recorded yet and counts, too."""
        return self.budget is not None and bool(self.budget.over_trial_limit(name, usage))

    def _on_run_started(self, _: events.RunStarted, __: Record) -> None:
        if records_model_calls(self.settings):
            self._table.attach(self.steps)

    def _on_session_started(self, event: events.SessionStarted, _: Record) -> None:
        """Switch on what the settings ask for. Scorer calls of the session before are still in flight here."""
        if self.settings.get("workspace"):
            self._table.attach(self.workspaces)
        if records_model_calls(self.settings):
            self._table.attach(self.steps)

        if self.sessions.is_independent(event.session):  # With a budget of its own.
            self._table.detach(BudgetEvents)
            self.budget = None
        if self.budget is None and (self.settings.get("budget") or self.settings.get("budget_per_trial")):
            self.budget = Budget()
            self._table.attach(BudgetEvents(self.budget, self.trials, self.batches.lines))
            if not self.sessions[-1].shard:
                self.budget.spend(self.totals.usage)  # Earlier spending counts.
        if self.budget is not None:
            called_trials = (trial for (trial, _), call in self.scoring.open.items() if call.key is not None)
            self.budget.begin_session(self.settings, dict.fromkeys(called_trials))

    def _on_noted(self, event: events.Noted, _: Record) -> None:
        note = self._table.notes.get(event.name)
        if note is not None:
            note(event)

    def _on_segment_opened(self, _: events.SegmentOpened | events.JournalRecovered, __: Record) -> None:
        """Ignore `t`: the record may precede `session_started`, and its `t` is then that of the next session."""
        self.t = self.sessions.previous_t

    _on_journal_recovered = _on_segment_opened


_ORDER: Final = (
    Sessions,  # The settings and the definition that the others read when a session starts.
    SessionErrors,
    TaskVersions,
    RunState,  # A budget counts the scorer calls that a session finds in flight, before they are forgotten.
    RunSteps,  # Before the trials: the attempt that ends is still in flight, and its failure is not counted yet.
    RunTrials,
    UsageParts,
    ScorerCalls,
    PolicyState,
    SlotUses,
    RunWorkers,
    SetUps,
    WorkspaceChanges,
    Batches,  # After everything that uses a line which is in flight.
    BudgetEvents,  # After the batches, whose lines it reserves amounts for.
)
"""The order in which the projections apply an event; a comment says where it matters."""


def fold(records: Iterable[Record], *, at: int | None = None, state: RunState | None = None) -> RunState:
    """Fold records into the state after the last of them, or after record `at`; `state` is the state before the first."""
    state = RunState() if state is None else state
    apply = state.apply
    for record in records if at is None else itertools.takewhile(lambda record: record.seq <= at, records):
        apply(record)
    return state
