"""Random interleavings of batch events: what the writer accepts can be folded, replayed, indexed and verified."""

import contextlib
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from evaljournal.journal import Event, read, verify
from evaljournal.journal.errors import IllegalEvent
from evaljournal.journal.events import (
    AttemptFailed,
    AttemptInterrupted,
    AttemptStarted,
    AttemptSucceeded,
    BatchChanged,
    BatchCollected,
    BatchPrepared,
    BatchSubmitted,
    RetryScheduled,
    RunStopped,
    ScorerCallFailed,
    ScorerCallStarted,
    SessionStarted,
    TrialCompleted,
    TrialScored,
    TrialWithdrawn,
)
from evaljournal.journal.format.lifecycle import Lifecycle
from evaljournal.replay import RunState, fold
from evaljournal.replay.auditing.auditor import audit
from evaljournal.replay.index import Index
from evaljournal.replay.results.summary import summarize
from tests.journal.samples import enqueued, examples, prepared, session, started, write_sync
from tests.replay.batch_run import records

TRIALS = "abc"
KINDS = 16
CHOICES = st.lists(st.tuples(st.integers(0, KINDS - 1), st.integers(0, 2), st.integers(0, 3), st.integers(0, 3)), max_size=60)
"""Kind of event, trial, batch and line; 0 is none."""


def candidate(lifecycle: Lifecycle, kind: int, name: str, batch: int, line: int) -> Event:
    """Return an event of one kind; its numbers of attempts and its counts are correct, everything else is random."""
    attempts, lines = lifecycle.attempts_of(name), lifecycle.batch_lines
    current: dict[str, Any] = {"trial": name, "attempt": attempts}
    call: dict[str, Any] = {"trial": name, "scorer": "judge", "call": 1}
    new_batch, names = lines.last_batch + 1, [other for number, other in enumerate(TRIALS) if (line + 1) >> number & 1]
    batch = max(lines.open, default=0) if batch > 1 else batch
    if (
        line > 1
        and (place := lines.line_of(name, "judge" if lifecycle.stage_of(name) in {"scoring", "completed"} else "")) is not None
    ):
        batch, line = place  # Otherwise lines would seldom be used.
    open_batch = lines.open.get(batch)
    used_lines = open_batch.used_lines if open_batch else 0
    missing = len(open_batch.trials) - used_lines if open_batch else 0
    state = "completed" if open_batch and open_batch.is_submitted else "not_sent"
    candidates: list[Event] = [
        enqueued(name),
        prepared(*names, batch=new_batch),
        prepared(name, batch=new_batch, scorer="judge"),
        BatchSubmitted(batch=batch, id=f"batch_{batch}"),
        BatchChanged(batch=batch, state="in_progress", completed=line, failed=0, total=3),
        BatchCollected(batch=batch if line else 0, state=state, results=used_lines, missing=missing),
        AttemptStarted(trial=name, attempt=attempts + 1, slot=0, batch=batch, line=line if batch else 0),
        AttemptSucceeded(**current, output=name, elapsed=0.0),
        AttemptFailed(**current, error="E", message="429", category="rate_limited", elapsed=0.0),
        AttemptInterrupted(**current, reason="process_died"),
        RetryScheduled(trial=name, attempt=attempts + 1, delay=0.0, reason="rate_limited"),
        ScorerCallStarted(**call, batch=batch, line=line if batch else 0),
        ScorerCallFailed(**call, error="E", message="m", category="error", elapsed=0.0, delay=0.0),
        TrialScored(trial=name, scorer="judge", version="v1", value=True, elapsed=0.0),
        TrialWithdrawn(trial=name, reason="changed") if batch == line == 0 else TrialCompleted(trial=name, attempts=attempts),
        RunStopped(reason="interrupted") if batch == line == 0 else session(lifecycle.sessions + 1),
    ]
    return candidates[kind]


def accepted_events(choices: list[tuple[int, int, int, int]]) -> list[Event]:
    """Return the events that the writer accepts: for each choice the first legal one of four."""
    lifecycle, accepted = Lifecycle(), list[Event]()
    events: list[Any] = [started(), session(), *map(enqueued, TRIALS), *choices]
    for event_or_choice in events:
        candidates = [event_or_choice]
        if isinstance(event_or_choice, tuple):
            kind, trial, batch, line = event_or_choice
            candidates = [candidate(lifecycle, (kind + 5 * n) % KINDS, TRIALS[trial], batch, line) for n in range(4)]
        for event in candidates:
            with contextlib.suppress(IllegalEvent):
                lifecycle.advance(event)
                accepted.append(event)
                if isinstance(event, SessionStarted):  # As the engine does: attempts in flight ended with their process.
                    for name in [name for name in TRIALS if lifecycle.stage_of(name) == "running"]:
                        attempt = lifecycle.attempts_of(name)
                        accepted.append(AttemptInterrupted(trial=name, attempt=attempt, reason="process_died"))
                        lifecycle.advance(accepted[-1])
                break
    return accepted


def view_of(state: RunState) -> tuple[Any, ...]:
    """Return what a state says about batches, trials and totals."""
    lines = state.batches.lines
    open_lines = {number: lines.open_lines(number) for number in lines.open}
    return (
        summarize(state),
        open_lines,
        state.batches.uncalled_trials,
        {name: trial.stage for name, trial in state.trials.items()},
    )


@examples(300)
@given(choices=CHOICES)
def test_every_prefix_folds(choices: list[tuple[int, int, int, int]]) -> None:
    """The live state after each event is the state replayed from the records up to it, and the index accepts it."""
    live, index = RunState(), Index()
    all_records = records(accepted_events(choices))
    for number, record in enumerate(all_records, 1):
        live.apply(record)
        index.apply(record)
        if number % 8 == 0 or number == len(all_records):
            assert view_of(live) == view_of(fold(all_records[:number]))
    for number, batch in live.batches.lines.open.items():
        assert len(live.batches.lines.open_lines(number)) == batch.open_lines
    assert live.totals.total + live.totals.stages["withdrawn"] == index.trial_count


@examples(300)
@given(choices=CHOICES)
def test_a_line_is_used_once_by_its_trial(choices: list[tuple[int, int, int, int]]) -> None:
    """In everything that the writer accepts, a result ends at most one attempt or call, of the trial that its line names."""
    trials: dict[tuple[int, int], tuple[str, str]] = {}
    in_flight: dict[tuple[str, str], tuple[int, int]] = {}
    used: Counter[tuple[int, int]] = Counter()
    for event in accepted_events(choices):
        scorer = getattr(event, "scorer", "")
        name = getattr(event, "trial", ""), scorer
        if isinstance(event, BatchPrepared):
            trials |= {(event.batch, line): (trial, scorer) for line, trial in enumerate(event.trials, 1)}
        elif isinstance(event, AttemptStarted | ScorerCallStarted):
            in_flight.pop(name, None)
            if event.batch:
                assert name == trials[event.batch, event.line]
                in_flight[name] = event.batch, event.line
        elif isinstance(event, AttemptSucceeded | AttemptFailed | ScorerCallFailed | TrialScored) and name in in_flight:
            used[in_flight.pop(name)] += 1
        elif isinstance(event, AttemptInterrupted):
            in_flight.pop(name, None)
        elif isinstance(event, SessionStarted):
            in_flight = {key: line for key, line in in_flight.items() if not key[1]}

    assert set(used.values()) <= {1}


@examples(60)
@given(choices=CHOICES)
def test_verify_accepts_what_the_writer_accepts(choices: list[tuple[int, int, int, int]]) -> None:
    """A journal of accepted events verifies, and its audit has no finding about batches or their order."""
    with TemporaryDirectory() as directory:
        path = Path(directory) / "run"
        write_sync(path, accepted_events(choices), confirm=False)

        assert verify(path).ok
        assert [] == [finding.message for finding in audit(read(path)).findings if finding.check in {"lifecycle", "batches"}]
