"""Runs that send batches, on a virtual clock: what is sent, collected, retried and recorded."""

import pytest

from evaljournal.journal import verify
from evaljournal.journal.events import AttemptStarted, AttemptSucceeded, BatchCollected
from evaljournal.runner.tasks.chat import Chat
from tests.batches import MemoryBatches, define_batches
from tests.journal.disk import SimulatedDisk
from tests.runs import PATH, events, numbered_cases, run_virtual


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> MemoryBatches:
    provider = MemoryBatches()
    monkeypatch.setattr(Chat, "batch_api", lambda _: provider)
    return provider


async def test_a_run_waits_for_its_batch(disk: SimulatedDisk, provider: MemoryBatches) -> None:
    """All calls are lines of one batch; when it has ended, each attempt is recorded with its line, without latency."""
    outcome = await run_virtual(define_batches(numbered_cases(3)), disk)

    assert ("", 3) == (outcome.stop_reason, outcome.state.completed)
    assert [("case-0", 1, 1), ("case-1", 1, 2), ("case-2", 1, 3)] == sorted(
        (event.trial, event.batch, event.line) for event in events(disk, AttemptStarted)
    )
    assert {f"answer to case-{number}" for number in range(3)} == {event.output for event in events(disk, AttemptSucceeded)}
    assert {0.0} == {event.elapsed for event in events(disk, AttemptSucceeded)}
    assert [(1, "completed", 3, 0, 0)] == [
        (event.batch, event.state, event.results, event.missing, event.unused) for event in events(disk, BatchCollected)
    ]
    assert verify(PATH, files=disk, expect_head=outcome.head).ok
