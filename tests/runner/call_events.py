"""Starts and ends of attempts, for tests of policies."""

from evaljournal.journal.events import AttemptFailed, AttemptInterrupted, AttemptStarted, AttemptSucceeded, AttemptTimedOut
from evaljournal.runner.concurrency.policy import CallEnd, Outcome


def started(trial: str) -> AttemptStarted:
    return AttemptStarted(trial=trial, attempt=1, slot=0)


def ended(trial: str, outcome: Outcome, *, elapsed: float = 0.0, retry_after: float | None = None) -> CallEnd:
    match outcome:
        case "succeeded":
            return AttemptSucceeded(trial=trial, attempt=1, output=None, elapsed=elapsed)
        case "timed_out":
            return AttemptTimedOut(trial=trial, attempt=1, timeout=elapsed, elapsed=elapsed)
        case "interrupted":
            return AttemptInterrupted(trial=trial, attempt=1, reason="stopped")
        case _:
            return AttemptFailed(
                trial=trial, attempt=1, error="E", message="", category=outcome, retry_after=retry_after, elapsed=elapsed
            )
