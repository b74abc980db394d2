"""Rules of an audit that are recomputed from the records before: budgets, reused steps and the remaining timeout."""

from collections.abc import Iterator

from evaljournal.journal import events
from evaljournal.replay.state.batches import UNSENT_STATES
from evaljournal.replay.state.budget import OVER_BUDGET, amounts
from evaljournal.replay.state.run import RunState
from evaljournal.replay.state.steps import earlier_reuse_of, remaining_timeout, reuse_of


def start_problems(state: RunState, event: events.AttemptStarted) -> Iterator[str]:
    """Yield the problems with the reserve or the admission of an attempt, in the state before it.

    Before the first report the reserve may be an estimate. An estimate is not recomputed, but must fit into the budget.
    """
    budget, variant = state.budget, state.trials[event.trial].variant
    if budget is None or not budget.limits:
        if event.reserved is not None:
            yield f"{event.trial!r} has a reserve, but the run has no budget"
        return
    expected = budget.reserve(variant, amounts(event.reserved))
    if event.reserved != expected:
        yield f"the reserve of {event.trial!r} is {event.reserved!r}, but the budget reserves {expected!r}"
    elif (block := budget.block(variant, expected, amounts(event.other_runs))) is not None:
        yield f"{event.trial!r} starts, but the budget does not allow it: {block.reason} ({block.unit})"


def batch_problems(state: RunState, event: events.BatchPrepared | events.BatchCollected) -> Iterator[tuple[str, str]]:
    """Yield the rules that the start or the end of a batch breaks, each with a message."""
    if isinstance(event, events.BatchPrepared):
        budget = state.budget
        if budget is None or not budget.limits:
            if event.reserved is not None:
                yield "budget", f"batch {event.batch} has a reserve, but the run has no budget"
        elif unit := budget.exceeded_by(amounts(event.reserved)):
            yield "budget", f"batch {event.batch} is prepared, but the budget does not allow it ({unit})"
        return
    batch, lines = state.batches[event.batch], state.batches.lines.open[event.batch]
    if event.results != lines.used_lines:
        yield "batches", f"it counts {event.results:,} results of batch {event.batch}, but {lines.used_lines:,} were used"
    if event.results + event.missing > batch.lines:
        yield "batches", f"it counts {event.results + event.missing:,} lines of batch {event.batch}, which has {batch.lines:,}"
    if (event.state in UNSENT_STATES) == lines.is_submitted:
        was_submitted = "was" if lines.is_submitted else "was not"
        yield "batches", f"it ends batch {event.batch} as {event.state!r}, but the batch {was_submitted} submitted"


def end_problems(state: RunState, event: events.AttemptEnd) -> Iterator[str]:
    """Yield the problems with the end of an attempt under the budget per trial."""
    match event:
        case events.AttemptSucceeded() if state.is_over_budget(event.trial, event.usage):
            yield f"{event.trial!r} has an output, but exceeded the budget per trial"
        case events.AttemptFailed(error=error) if error == OVER_BUDGET and not state.is_over_budget(event.trial, event.usage):
            yield f"{event.trial!r} fails because of the budget per trial, but did not exceed it"
        case _:
            pass


def stop_problems(state: RunState, event: events.RunStopped) -> Iterator[str]:
    """Yield the problems with a stop because of the budget."""
    budget = state.budget
    if budget is None or not budget.limits:
        yield "it stops the run because of its budget, but the run has none"
    elif budget.has_recorded_reserves and next(budget.blocks(amounts(event.other_runs)), None) is None:
        yield "it stops the run because of its budget, but the budget allows another attempt"


class StepRules:
    """Checks the steps of each attempt in flight."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        """The state before the record that is checked."""
        self._numbers: dict[str, set[int]] = {}
        """Trial → the numbers of its attempt's steps."""
        self._reused_seqs: dict[str, set[int]] = {}
        """Trial → the records that its attempt has reused."""
        self._seconds_spent: dict[str, float] = {}
        """Trial → `spent` of its attempt, if not 0."""

    def start(self, event: events.AttemptStarted) -> Iterator[str]:
        """Check which steps an attempt may reuse, and how much of its timeout they have used."""
        state, steps = self._state, self._state.steps.open.get(event.trial)
        trial, reuse = state.trials[event.trial], state.settings.get("reuse_steps", "")
        first_attempt, seconds_spent = expected = reuse_of(steps, trial, reuse)
        if (event.reuses, event.spent) not in (expected, earlier_reuse_of(steps, trial, reuse)):
            yield (
                f"{event.trial!r} reuses steps from attempt {event.reuses} on and has spent {event.spent:g} s, "
                f"but its settings and its earlier attempts give {first_attempt} and {seconds_spent:g} s"
            )
        if event.spent:
            self._seconds_spent[event.trial] = event.spent

    def end(self, event: events.StepEvent) -> Iterator[str]:
        """Check a step that was completed, failed or reused."""
        numbers = self._numbers.setdefault(event.trial, set())
        if event.step < 1 or event.step in numbers:
            yield f"{event.trial!r} has a second step {event.step} in attempt {event.attempt}"
        if not isinstance(event, events.StepReused):
            if event.continues and event.continues not in numbers:
                yield f"step {event.step} of {event.trial!r} continues step {event.continues}, which had not ended"
        else:
            steps, reused_seqs = self._state.steps.open.get(event.trial), self._reused_seqs.setdefault(event.trial, set())
            step = None if steps is None else steps.steps.get(event.completed_seq)
            if step is None or step.attempt == event.attempt:
                yield f"{event.trial!r} reuses record {event.completed_seq}, which is not a step that it may reuse"
            elif event.completed_seq in reused_seqs:
                yield f"{event.trial!r} reuses record {event.completed_seq} twice in attempt {event.attempt}"
            reused_seqs.add(event.completed_seq)
        numbers.add(event.step)

    def clear(self, trial: str) -> None:
        """Forget the last attempt at a trial."""
        for per_attempt in (self._numbers, self._reused_seqs, self._seconds_spent):
            per_attempt.pop(trial, None)

    def timeout(self, trial: str, timeout: float | None) -> float | None:
        """Return the timeout of the attempt in flight; `timeout` is that of the settings."""
        return remaining_timeout(timeout, self._seconds_spent.get(trial, 0.0))
