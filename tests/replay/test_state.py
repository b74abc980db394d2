"""The state of a run: defined after every record, and equal to a recount."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from evaljournal.journal import Clock, Event, read
from evaljournal.journal.events import (
    AttemptFailed,
    AttemptStarted,
    RetryScheduled,
    TrialCompleted,
    TrialEnqueued,
    TrialFailed,
    TrialWithdrawn,
)
from evaljournal.replay import fold
from tests.journal.samples import enqueued, overwrite, segment, session, started, write_sync
from tests.journal.test_format import GOLDEN
from tests.replay.trial_events import attempt_started, rate_limited, state_of

RECORDS = list(read(GOLDEN))


@pytest.mark.parametrize("at", range(len(RECORDS) + 1))
def test_any_prefix_folds(at: int) -> None:
    """After every record of the golden journal, the state is defined and its counts equal a recount."""
    state = fold(RECORDS, at=at)

    events = [record.event for record in RECORDS[:at]]
    withdrawn = sum(isinstance(event, TrialWithdrawn) for event in events)
    assert (at, at < 2) == (state.seq, state.started is None)
    assert sum(isinstance(event, TrialEnqueued) for event in events) - withdrawn == state.totals.total
    assert sum(isinstance(event, TrialCompleted) for event in events) == state.completed
    assert sum(isinstance(event, TrialFailed) for event in events) == state.failed
    assert sum(isinstance(event, AttemptStarted) for event in events) == state.totals.attempts
    assert sum(state.totals.stages.values()) == len(state.trials)


def test_golden_journal() -> None:
    """The state at the end of the golden journal, number by number."""
    state = fold(RECORDS)

    assert ("finished", 1, 1, 1) == (state.outcome, state.completed, state.failed, state.totals.recovered)
    assert {"lima": "completed", "quito": "failed", "sucre": "withdrawn"} == {
        name: trial.stage for name, trial in state.trials.items()
    }
    assert (5, 1, 1, 1) == (
        state.totals.attempts,
        state.trials.attempts.timeouts,
        state.trials.attempts.interrupted,
        state.trials.attempts.late_returns,
    )
    assert [(1, "interrupted"), (2, "finished")] == [(session.number, session.outcome) for session in state.sessions]
    assert 19 == state.usage["tokens"]
    assert 1.0 == state.scores["exact"].mean
    assert 1 == state.scores["judge"].failed


def at_times(times: Iterator[float]) -> Clock:
    return lambda: ("2026-11-15T00:00:00.000000Z", next(times))


@pytest.mark.parametrize("end", ["sealed", "torn"])
def test_remaining_delay_after_a_restart(tmp_path: Path, end: str) -> None:
    """A delay of 60 s in a run that stops 20 s later has 40 s left in the next session."""
    failed_attempt: list[Event] = [
        AttemptStarted(trial="a", attempt=1, slot=0),
        AttemptFailed(trial="a", attempt=1, error="OSError", message="no", category="unavailable", elapsed=1.0),
        RetryScheduled(trial="a", attempt=2, delay=60.0, reason="unavailable"),
        enqueued("b"),
    ]
    times = [0.0, 0.0, 0.0, 499.0, 499.0, 500.0, 500.0, 520.0, 520.0]
    write_sync(tmp_path / "run", [started(), session(), enqueued("a"), *failed_attempt], clock=at_times(iter(times)))
    if end == "torn":
        file = segment(tmp_path / "run")
        overwrite(file, file.read_bytes()[:-20])  # The seal is torn: recovery comes first.
    write_sync(tmp_path / "run", [session(2)], new=False, clock=at_times(iter([0.25] * 4)))

    assert 40.0 == fold(read(tmp_path / "run")).trials.backing_off["a"]


def test_failed_probe_does_not_count() -> None:
    """A failed probe of the breaker does not count against the retries of its trial, rate limited or not."""
    failure, _ = rate_limited("a")
    retry = RetryScheduled(trial="a", attempt=2, delay=1.0, reason="probe")
    retries = state_of([enqueued("a"), attempt_started("a"), failure, retry]).trials["a"].retry_history

    assert retries is not None
    assert (0, 0) == (retries.rate_limit_failures, retries.errors)
