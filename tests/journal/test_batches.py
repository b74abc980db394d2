"""Which batch events are legal, and which trial may use which line."""

from pathlib import Path
from typing import Any

import pytest

from evaljournal.journal import read
from evaljournal.journal.events import (
    MAX_BATCH_TRIALS,
    AttemptFailed,
    AttemptInterrupted,
    AttemptStarted,
    BatchChanged,
    BatchCollected,
    BatchPrepared,
    BatchSubmitted,
    Event,
    RunStopped,
    ScorerCallFailed,
    ScorerCallStarted,
    TrialFailed,
    TrialScored,
    TrialWithdrawn,
)
from evaljournal.journal.format.batches import BatchLines
from evaljournal.journal.format.lifecycle import Lifecycle
from tests.journal.samples import collected, enqueued, from_line, prepared, session, started, submitted, write
from tests.journal.test_lifecycle import in_session, rejection

QUEUE = [enqueued("a"), enqueued("b"), enqueued("c")]
SCORING = [event for name in "abc" for event in (AttemptStarted(trial=name, attempt=1, slot=0), from_line(name, 0)[1])]
CALL: dict[str, Any] = {"trial": "a", "scorer": "judge", "call": 1}
SCORE: dict[str, Any] = {"trial": "a", "version": "v1", "value": True, "elapsed": 0.0}


def after(*events: Event) -> Lifecycle:
    """Return the lifecycle after these events, with the trials a, b and c in the queue."""
    return in_session(*QUEUE, *events)


START = AttemptStarted(trial="a", attempt=1, slot=0)
USE = AttemptStarted(trial="a", attempt=1, slot=0, batch=1, line=1)
OTHER_LINE = "it does not wait for line 1 of batch 1"
WAITS = "it waits for line 1 of batch 1"
CHANGE = BatchChanged(batch=1, state="in_progress", completed=0, failed=0, total=1)


@pytest.mark.parametrize(
    ("events", "event", "reason"),
    [
        ([], prepared("a", batch=2), "expected batch 1, got batch 2"),
        ([prepared("a")], prepared("b"), "expected batch 2, got batch 1"),
        ([], prepared(), "batch 1 has no lines, or two lines for one trial"),
        ([], prepared("a", "a"), "batch 1 has no lines, or two lines for one trial"),
        ([], prepared("d"), "the trial is absent"),
        ([START], prepared("a"), "the trial is running"),
        ([], prepared("a", scorer="judge"), "the trial is queued"),
        ([prepared("b", "a")], prepared("a", batch=2), "it is in line 2 of batch 1"),
        ([], BatchSubmitted(batch=1, id="x"), "batch 1 is not open"),
        (submitted("a"), BatchSubmitted(batch=1, id="x"), "batch 1 was submitted before"),
        ([prepared("a")], CHANGE, "batch 1 was not submitted"),
        ([prepared("a"), collected(0, 1)], CHANGE, "batch 1 is not open"),
        ([prepared("a"), collected(0, 1)], collected(0, 1), "batch 1 is not open"),
        ([*submitted("a"), USE], collected(1), "a result of batch 1 is in use"),
        ([*submitted("a"), USE], prepared("b", "a", batch=2), "the trial is running"),
        ([prepared("a")], START, WAITS),
        (submitted("a"), START, WAITS),
        ([], USE, OTHER_LINE),
        ([prepared("a")], USE, OTHER_LINE),
        (submitted("b", "a"), USE, OTHER_LINE),
        (submitted("b"), USE, OTHER_LINE),
        ([*submitted("a"), collected(0, 1)], USE, OTHER_LINE),
        (
            [*submitted("a"), USE, AttemptInterrupted(trial="a", attempt=1, reason="process_died")],
            TrialFailed(trial="a", attempts=1, reason="ambiguous"),
            WAITS,
        ),
        ([*submitted("a"), TrialWithdrawn(trial="a", reason="changed"), enqueued("a")], USE, OTHER_LINE),
        ([*SCORING, *submitted("a", scorer="judge")], ScorerCallStarted(**CALL), WAITS),
        ([*SCORING, *submitted("b", scorer="judge")], ScorerCallStarted(**CALL, batch=1, line=1), OTHER_LINE),
        ([*SCORING, *submitted("a", scorer="other")], ScorerCallStarted(**CALL, batch=1, line=1), OTHER_LINE),
        (
            [*SCORING, *submitted("a", scorer="judge"), ScorerCallStarted(**CALL, batch=1, line=1)],
            prepared("a", batch=2, scorer="judge"),
            "it is in line 1 of batch 1",
        ),
    ],
)
def test_illegal_events(events: list[Event], event: Event, reason: str) -> None:
    """Batches are numbered, their events are in order, and a line is used only by its trial, while the batch is open."""
    assert reason == rejection(after(*events), event).reason


def test_a_line_is_used_once() -> None:
    """An attempt that failed has used its line: the trial may be in the next batch, but not use the line again."""
    failure = AttemptFailed(trial="a", attempt=1, error="E", message="429", category="rate_limited", elapsed=0.0)
    lifecycle = after(*submitted("a", "b"), USE, failure)
    lines = lifecycle.batch_lines

    assert ({2: "b"}, 1, 1) == (lines.open_lines(1), lines.open[1].open_lines, lines.open[1].used_lines)


def test_an_interrupted_attempt_uses_its_line_again() -> None:
    """The line of an interrupted attempt is open again, and its trial may start only from this line."""
    lifecycle = after(*submitted("a"), USE, AttemptInterrupted(trial="a", attempt=1, reason="process_died"))

    assert WAITS == rejection(lifecycle, AttemptStarted(trial="a", attempt=2, slot=0)).reason
    for event in [*from_line("a", 1, attempt=2), collected(1)]:
        lifecycle.advance(event)
    assert {} == lifecycle.batch_lines.open


def test_an_interrupted_call_uses_its_line_again() -> None:
    """A scorer call has no end if its process died: the line is open again in the next session; its first score uses it."""
    lifecycle = after(*SCORING, *submitted("a", scorer="judge"), ScorerCallStarted(**CALL, batch=1, line=1))
    for event in (session(2), ScorerCallStarted(**CALL, batch=1, line=1), TrialScored(scorer="judge.tone", **SCORE)):
        lifecycle.advance(event)

    assert (1, {}) == (lifecycle.batch_lines.open[1].used_lines, lifecycle.batch_lines.open_lines(1))
    lifecycle.advance(collected(1))


def test_a_trial_may_wait_for_two_judges() -> None:
    """Batches of different judges may have lines for one trial; a failed call uses only the line of its judge."""
    failure = ScorerCallFailed(**CALL, error="E", message="m", category="error", elapsed=0.0, delay=1.0)
    lifecycle = after(*SCORING, *submitted("a", scorer="judge"), *submitted("a", batch=2, scorer="other"))
    for event in (ScorerCallStarted(**CALL, batch=1, line=1), failure):
        lifecycle.advance(event)

    assert (None, (2, 1)) == (lifecycle.batch_lines.line_of("a", "judge"), lifecycle.batch_lines.line_of("a", "other"))


def test_lines_of_an_ended_batch_are_free() -> None:
    """After the end of a batch, trials without a result may be in the next one or be called."""
    lifecycle = after(*submitted("a", "b"), *from_line("a", 1), collected(1, 1), prepared("b", batch=2))

    assert (2, 1) == lifecycle.batch_lines.line_of("b")


@pytest.mark.parametrize(("state", "expected"), [("completed", 1), ("expired", 1), ("canceled", 0), ("not_sent", 0)])
def test_batches_without_a_result_are_counted(state: str, expected: int) -> None:
    """A batch that was processed and had no result for a line counts until the next attempt."""
    lines = BatchLines()
    for event in (prepared("a"), BatchCollected(batch=1, state=state, results=0, missing=1)):
        lines.advance(event)
    assert expected == lines.missed_batches("a")
    lines.advance(START)
    assert 0 == lines.missed_batches("a")


async def test_a_large_batch_fits_into_a_record(tmp_path: Path) -> None:
    """The trials of a large batch are in the record itself, so readers that load no blobs see them."""
    names = [f"{number:096}" for number in range(MAX_BATCH_TRIALS // 99 - 1)]
    head: list[Event] = [started(), session(), *map(enqueued, names), prepared(*names)]
    await write(tmp_path / "run", [*head, RunStopped(reason="batches")], confirm=False)
    records = read(tmp_path / "run", load_blobs=False)
    (batch,) = (record.event for record in records if isinstance(record.event, BatchPrepared))

    assert (10_100, names) == (len(names), batch.trials)
    assert not (tmp_path / "run" / "blobs").exists()
