"""The state that a journal describes: defined after every record, and equal to a recount."""

import pytest

from journal import read
from journal.events import AttemptStarted, TrialCompleted, TrialEnqueued, TrialFailed, TrialWithdrawn
from replay import fold
from tests.journal.test_format import GOLDEN

RECORDS = list(read(GOLDEN))


@pytest.mark.parametrize("at", range(len(RECORDS) + 1))
def test_any_prefix_folds(at: int) -> None:
    """After every record of a run in which everything happens, the state is defined and its counts equal a recount."""
    state = fold(RECORDS, at=at)

    events = [record.event for record in RECORDS[:at]]
    withdrawn = sum(isinstance(event, TrialWithdrawn) for event in events)
    assert at == state.seq
    assert sum(isinstance(event, TrialEnqueued) for event in events) - withdrawn == state.total
    assert sum(isinstance(event, TrialCompleted) for event in events) == state.completed
    assert sum(isinstance(event, TrialFailed) for event in events) == state.failed
    assert sum(isinstance(event, AttemptStarted) for event in events) == state.attempts
    assert sum(state.stages.values()) == len(state.trials)


def test_fold_at_zero_is_nothing() -> None:
    """Before the first record there is no run."""
    assert fold(RECORDS, at=0).started is None


def test_the_golden_run_is_what_it_says() -> None:
    """The state at the end of the golden journal, number by number."""
    state = fold(RECORDS)

    assert ("finished", 1, 1, 1) == (state.ending, state.completed, state.failed, state.recovered)
    assert {"lima": "completed", "quito": "failed", "sucre": "withdrawn"} == {
        name: trial.stage for name, trial in state.trials.items()
    }
    assert (5, 1, 1, 1) == (state.attempts, state.timeouts, state.interrupted, state.late)
    assert [(1, "interrupted"), (2, "finished")] == [(session.n, session.ended) for session in state.sessions]
    assert 12 == state.usage["tokens"]
    assert 1.0 == state.scores["exact"].mean
    assert 1 == state.scores["judge"].failed
