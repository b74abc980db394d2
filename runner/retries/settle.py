"""Decide what follows a failed attempt: a retry, or the failure of its trial.

The engine, a resumed run and the audit all decide here, from the state that the journal describes.
"""

from typing import Final

from journal.events import RetryScheduled, TrialFailed
from replay.trial_state import TrialState
from runner.retries.retry import Retry, RetryIn, jitter

UNSERIALIZABLE: Final = "Unserializable"
"""The error type of an attempt whose output could not be recorded."""


def settle(
    trial: str,
    state: TrialState,
    retry: Retry,
    seed: int,
    *,
    probe: bool = False,
    stop_run: bool = False,
    over_budget: bool = False,
    ambiguous: bool = False,
) -> RetryScheduled | TrialFailed:
    """Decide what follows the last attempt of a trial, which failed, timed out or was interrupted.

    A trial that has already failed is retried: the user asked for it. An interrupted one is settled only if its worker ended,
    or if it is `ambiguous` and must not be repeated. `over_budget`: its attempts have exceeded the budget per trial.
    """
    if state.stage == "failed":
        return RetryScheduled(trial=trial, attempt=state.attempts + 1, delay=0.0, reason="requested")
    if over_budget:
        return TrialFailed(trial=trial, attempts=state.attempts, reason="budget")
    if state.stage == "interrupted" and (ambiguous or not state.ended_with_worker):
        return TrialFailed(trial=trial, attempts=state.attempts, reason="ambiguous")
    history = state.retry_history
    assert history is not None
    if history.category == "fatal" and history.error_type == UNSERIALIZABLE:
        return TrialFailed(trial=trial, attempts=state.attempts, reason="unserializable")
    decision = retry.decide(history, jitter(seed, trial, state.attempts), probe=probe, stop_run=stop_run)
    if isinstance(decision, RetryIn):
        return RetryScheduled(trial=trial, attempt=state.attempts + 1, delay=decision.delay, reason=decision.reason)
    return TrialFailed(trial=trial, attempts=state.attempts, reason=decision.reason)
