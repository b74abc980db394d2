"""Runs that send batches pass their own audit: lines, retries and budgets are recomputed."""

from collections.abc import Mapping
from typing import Any

import pytest

from evaljournal.journal import read
from evaljournal.replay import fold
from evaljournal.runner.tasks.chat import Chat
from tests.batches import Answer, MemoryBatches, answer, define_batches, prompt_of
from tests.journal.disk import SimulatedDisk
from tests.runs import PATH, audited, numbered_cases, run_virtual


def respond(body: Mapping[str, Any], submissions: int) -> Answer:
    """Answer; the first line of case 1 is rate limited, and that of case 2 has no result."""
    prompt = prompt_of(body)
    if submissions == 1 and "case-1" in prompt:
        return 429, {"error": {"message": "slow down"}}
    return None if submissions == 1 and "case-2" in prompt else answer("9 yes")


@pytest.mark.parametrize("options", [{}, {"budget": ["input_tokens=100000"]}], ids=["plain", "budget"])
@pytest.mark.parametrize("judge", [False, True], ids=["task", "judge"])
async def test_the_audit_accepts_a_run(
    disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], *, judge: bool
) -> None:
    """A run whose lines are rate limited or missing is accepted without a note, and no output has a latency."""
    provider = MemoryBatches(respond=respond)
    monkeypatch.setattr(Chat, "batch_api", lambda _: provider)
    await run_virtual(define_batches(numbered_cases(5), judge=judge, **options), disk)
    result, state = audited(disk), fold(read(PATH, files=disk))

    assert ((), ()) == (result.findings, result.notes)
    assert ("finished", [], {}) == (state.outcome, list(state.latencies), state.batch_lines.open)
