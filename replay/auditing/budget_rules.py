"""Budget rules of an audit: every reserve and admission is recomputed from the records before it."""

from collections.abc import Iterator

from evaljournal.journal import events
from evaljournal.replay.state.budget import OVER_BUDGET, amounts
from evaljournal.replay.state.run import RunState


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
    elif (block := budget.block(variant, expected)) is not None:
        yield f"{event.trial!r} starts, but the budget does not allow it: {block.reason} ({block.unit})"


def end_problems(state: RunState, event: events.AttemptEnd) -> Iterator[str]:
    """Yield the problems with the end of an attempt under the budget per trial."""
    match event:
        case events.AttemptSucceeded() if state.is_over_budget(event.trial, event.usage):
            yield f"{event.trial!r} has an output, but exceeded the budget per trial"
        case events.AttemptFailed(error=error) if error == OVER_BUDGET and not state.is_over_budget(event.trial, event.usage):
            yield f"{event.trial!r} fails because of the budget per trial, but did not exceed it"
        case _:
            pass


def stop_problems(state: RunState) -> Iterator[str]:
    """Yield the problems with a stop because of the budget."""
    budget = state.budget
    if budget is None or not budget.limits:
        yield "it stops the run because of its budget, but the run has none"
    elif budget.has_recorded_reserves and next(budget.blocks(), None) is None:
        yield "it stops the run because of its budget, but the budget allows another attempt"
