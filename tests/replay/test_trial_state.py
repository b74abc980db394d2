"""What is kept about a trial: its memory, and scores that trials share."""

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest

from evaljournal.journal import Event, Record
from evaljournal.journal.events import (
    AttemptStarted,
    AttemptSucceeded,
    LimitChanged,
    TrialCompleted,
    TrialEnqueued,
    TrialScored,
)
from evaljournal.replay import RunState, fold
from evaljournal.replay.auditing.auditor import Auditor
from evaljournal.replay.state.trial import SharedScores
from evaljournal.runner.retries.retry import NUMERIC_FIELDS, Retry
from evaljournal.runner.retries.rules import retry_rules
from tests.journal.samples import session, started
from tests.replay.trial_events import answered, state_of
from tests.security.growth import FACTOR, LINEAR, growth

SETTINGS = {"slots": 1, "policy": "fixed", "seed": 1, "retry": {name: getattr(Retry(), name) for name in NUMERIC_FIELDS}}
RUN = attrs.evolve(started(), settings=SETTINGS)  # type: ignore[misc]  # an event is an attrs class
TRIALS = 1_200  # Enough that the state of the run itself takes few bytes per trial.


def events(trials: int) -> Iterator[Event]:
    """Yield the events of a run whose trials are completed; each is built when it is needed, as when it is read."""
    yield from (RUN, session(), LimitChanged(before=0, after=1, reason="start"))
    for number in range(trials):
        name = f"sum-{number}"
        yield TrialEnqueued(trial=name, case=name, repeat=1, input="", fingerprint=f"{number:016x}")
        yield AttemptStarted(trial=name, attempt=1, slot=0)
        yield AttemptSucceeded(trial=name, attempt=1, output="", elapsed=0.1)
        yield TrialScored(trial=name, scorer="exact", version="v1", value=number % 3 > 0, elapsed=0.0)
        yield TrialCompleted(trial=name, attempts=1)


def completed_trials(trials: int) -> Iterator[Record]:
    """Yield the records of these events, a tenth of a second apart."""
    for seq, event in enumerate(events(trials), start=1):
        yield Record(seq, "2026-11-15T00:00:00Z", seq / 10, event, 0, "", 1, seq * 300)


def fold_run(trials: int) -> RunState:
    """Fold a run of this many completed trials."""
    return fold(completed_trials(trials))


def audit_run(trials: int) -> Auditor:
    """Audit the same run."""
    auditor = Auditor(retry_rules)
    for record in completed_trials(trials):
        auditor.apply(record)
    assert auditor.result().ok
    assert trials == auditor.result().totals.completed
    return auditor


@pytest.mark.parametrize(("read", "max_bytes"), [(fold_run, 300), (audit_run, 340)])
def test_memory_of_a_completed_trial(read: Callable[[int], Any], max_bytes: int) -> None:
    """A completed trial takes at most 300 bytes, its name and its place in a dict included, and 340 in an audit."""
    read(1)  # Imports and caches.
    gc.collect()
    tracemalloc.start()
    try:
        result = read(TRIALS)
        gc.collect()
        size = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    del result
    assert size / TRIALS < max_bytes


def test_equal_scores_are_kept_once() -> None:
    """Trials with the same booleans and labels share them, also after one is re-scored."""
    scores = {"exact": True, "tone": "polite"}
    new_score = TrialScored(trial="b", scorer="exact", version="v1", value=True, elapsed=0.0)
    state = state_of([*answered("a", dict(reversed(scores.items()))), *answered("b", scores), new_score])

    assert state.trials["a"]._scores is state.trials["b"]._scores


@pytest.mark.parametrize(("first", "second"), [(True, 1), (1, True), (True, 1.0), (0.0, False), (0.0, -0.0)])
def test_equal_values_of_different_types_are_kept_apart(first: Any, second: Any) -> None:
    """True equals 1, but each trial keeps the value that was recorded, in this and in later scores."""
    state = state_of([event for value in (first, second) for event in answered(repr(value), {"a": value, "b": True})])

    values = [state.trials[repr(value)].scores["a"][1] for value in (first, second)]
    assert [repr(first), repr(second)] == list(map(repr, values))


def test_only_some_scores_are_shared() -> None:
    """Labels that are all different are not kept forever."""
    shared = SharedScores()
    for number in range(10_000):
        assert ("tone", "v1", f"label {number}") == shared.add((), "tone", "v1", f"label {number}")
    assert len(shared) < 5_000


def many_scores(count: int) -> list[Event]:
    """Return the events of a trial with this many scores; some values replace earlier ones."""
    scores: dict[str, Any] = {f"judge.{number}": number % 3 > 0 for number in range(count)}
    later_score = TrialScored(trial="a", scorer="judge.1", version="v2", value=False, elapsed=0.0)
    return [*answered("a", scores), later_score]


def test_many_scores_of_a_trial_take_linear_memory() -> None:
    """No beginning of the scores is kept, and no score is copied."""

    def memory(count: int) -> int:
        recorded_events = many_scores(count)
        gc.collect()
        tracemalloc.start()
        state = state_of(recorded_events)
        size, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert count == len(state.trials["a"].scores)
        return size

    # The smaller of two: a thread that another test has left behind may allocate meanwhile.
    assert min(memory(2_000), memory(2_000)) < 8 * memory(500)


def test_many_scores_of_a_trial_take_linear_time() -> None:
    """A score is added without going through the others."""
    assert growth(state_of, many_scores(200), many_scores(200 * FACTOR)) <= LINEAR


@pytest.mark.parametrize("count", [2, 50, 51, 60])
def test_scores_of_a_trial(count: int) -> None:
    """Few and many scores are the same: a replaced score is the last one."""
    trial = state_of(many_scores(count)).trials["a"]

    names = [f"judge.{number}" for number in range(count) if number != 1] + ["judge.1"]
    assert names == list(trial.scores)
    assert (("v2", False), None) == (trial.score("judge.1"), trial.score("judge"))
    assert [name for name in names if name == "judge.1" or int(name[6:]) % 3 == 0] == trial.failing_scorers
