"""Runs with batches that lose power, or are killed, at every record and every submission, and are resumed.

A ledger at the provider shows that no line was sent twice, and the journal that every result was used once.
"""

import random
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import attrs
import pytest

from evaljournal.journal import read, verify
from evaljournal.journal.events import (
    AttemptFailed,
    AttemptInterrupted,
    AttemptStarted,
    AttemptSucceeded,
    ScorerCallStarted,
    TrialScored,
)
from evaljournal.replay import fold
from evaljournal.runner.calls.chat import Chat
from tests.batches import Answer, MemoryBatches, answer, define_batches, prompt_of
from tests.journal.disk import PowerFailure, SimulatedDisk
from tests.runs import PATH, AnyEvaluation, audited, events, has_journal, numbered_cases, run_until_power_failure

CASES: Final = 5
BUSY: Final = (500, {"error": {"message": "busy"}})


def respond(body: Mapping[str, Any], times: int) -> Answer:
    """Fail for one case, and have no result for another, the first time; the judge fails for a third."""
    prompt = prompt_of(body)
    if body["model"] == "large":
        return BUSY if "case-2" in prompt and times == 1 else answer("fine\nverdict: correct")
    if times == 1 and prompt == "case-3":
        return None
    return BUSY if times == 1 and prompt == "case-1" else answer(f"answer to {prompt}")


def new_run(monkeypatch: pytest.MonkeyPatch) -> tuple[AnyEvaluation, MemoryBatches]:
    provider = MemoryBatches(respond=respond, max_lines=3, seconds=100.0)
    monkeypatch.setattr(Chat, "batch_api", lambda _: provider)
    return define_batches(numbered_cases(CASES), judge=True), provider


def resume(defined: AnyEvaluation, provider: MemoryBatches, disk: SimulatedDisk, seq: int = 10**9) -> Any:
    """Resume a run in a new process, some time later, or start it if nothing was recorded.

    No attempt that uses a line is ambiguous: nothing was called.
    """
    provider.started += 20.0
    return run_until_power_failure(defined, disk, seq, resume=has_journal(disk), on_ambiguous="fail")


@attrs.frozen
class Ledger:
    """What a finished run has sent and used."""

    submitted: Counter[str]
    outputs: dict[str, Any]
    scores: Counter[tuple[str, Any]]
    failures: Counter[str]

    @classmethod
    def of(cls, provider: MemoryBatches, disk: SimulatedDisk) -> "Ledger":
        return cls(
            provider.submitted,
            {event.trial: event.output for event in events(disk, AttemptSucceeded)},
            Counter((event.trial, event.value) for event in events(disk, TrialScored)),
            Counter(event.trial for event in events(disk, AttemptFailed)),
        )


def check(provider: MemoryBatches, disk: SimulatedDisk, outcome: Any, expected: Ledger) -> None:
    """Check that a finished run has the results of one that was never interrupted, and used each of them once."""
    assert ("", CASES) == (outcome.stop_reason, outcome.state.completed)
    assert expected == Ledger.of(provider, disk)
    interrupted = {(event.trial, event.attempt) for event in events(disk, AttemptInterrupted)}
    lines = Counter(
        (event.batch, event.line) for event in events(disk, AttemptStarted) if (event.trial, event.attempt) not in interrupted
    )
    assert {1} == set(lines.values())
    assert 0 not in {batch for batch, _ in lines}
    assert all(event.batch for event in events(disk, ScorerCallStarted))
    assert verify(PATH, files=disk, expect_head=outcome.head).ok
    assert () == audited(disk).findings
    replayed, live = fold(read(PATH, files=disk)), outcome.state
    assert (replayed.completed, replayed.totals.attempts, replayed.usage, replayed.trials.attempts.repeated_calls) == (
        live.completed,
        live.totals.attempts,
        live.usage,
        live.trials.attempts.repeated_calls,
    )
    assert [attrs.asdict(batch) for batch in replayed.batches.values()] == [
        attrs.asdict(batch) for batch in live.batches.values()
    ]
    assert not replayed.batches.lines.open


def complete_run(monkeypatch: pytest.MonkeyPatch) -> tuple[Ledger, int, int]:
    """Return the ledger of a run that is never interrupted, the number of its last record, and of its submissions."""
    defined, provider = new_run(monkeypatch)
    disk = SimulatedDisk()
    outcome = resume(defined, provider, disk)
    expected = Ledger.of(provider, disk)
    check(provider, disk, outcome, expected)
    return expected, outcome.state.seq, provider.submissions


def crash(monkeypatch: pytest.MonkeyPatch, expected: Ledger, seq: int, *, crashes: int, kill: bool) -> None:
    """Run until a record, then lose power or be killed, up to `crashes` times, and resume the run to its end."""
    defined, provider = new_run(monkeypatch)
    disk, outcome = SimulatedDisk(), None
    for number in range(crashes + 1):
        last = number == crashes
        outcome = resume(defined, provider, disk, 10**9 if last else seq + number * (7 + seq % 5))
        if outcome is not None:
            break
        disk = disk.after_kill() if kill else disk.after_power_failure(random.Random(f"{seq} {number}"))
    check(provider, disk, outcome, expected)


SLICE: Final = 5
"""Records at which the ordinary tests interrupt a run."""


@pytest.mark.parametrize("kill", [False, True], ids=["power-failure", "kill"])
def test_a_run_is_interrupted_at_some_records(monkeypatch: pytest.MonkeyPatch, kill: bool) -> None:  # noqa: FBT001  # parametrized
    """A run that is interrupted at a record sends no line twice and uses every result once, at a sample of its records."""
    expected, last, _ = complete_run(monkeypatch)
    for seq in sorted(random.Random(kill).sample(range(2, last), SLICE)):
        crash(monkeypatch, expected, seq, crashes=2, kill=kill)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kill", [False, True], ids=["power-failure", "kill"])
@pytest.mark.parametrize("crashes", [1, 2, 3])
def test_a_run_is_interrupted_at_every_record(monkeypatch: pytest.MonkeyPatch, crashes: int, kill: bool) -> None:  # noqa: FBT001
    """The same at every record, up to three times in one run."""
    expected, last, _ = complete_run(monkeypatch)
    for seq in range(2, last):
        crash(monkeypatch, expected, seq, crashes=crashes, kill=kill)


@pytest.mark.parametrize("is_accepted", [False, True], ids=["not-sent", "sent-and-not-answered"])
def test_a_run_is_killed_during_each_submission(monkeypatch: pytest.MonkeyPatch, is_accepted: bool) -> None:  # noqa: FBT001
    """A process that dies while a batch is being submitted leaves it unclear; two listings show whether it exists."""
    expected, _, submissions = complete_run(monkeypatch)
    for number in range(1, submissions + 1):
        defined, provider = new_run(monkeypatch)
        disk = SimulatedDisk()

        def die(current: int, _: Any, number: int = number, disk: SimulatedDisk = disk) -> None:
            def fail(_: str) -> None:
                raise PowerFailure

            if current == number:
                disk.on_call = fail
                raise PowerFailure

        setattr(provider, "on_submit" if is_accepted else "on_receive", die)
        assert resume(defined, provider, disk) is None
        disk = disk.after_power_failure(random.Random(number))
        outcome = resume(defined, provider, disk)

        check(provider, disk, outcome, expected)
        assert (1 if is_accepted else 2) == len(provider.listings)
        assert is_accepted or round(provider.listings[1] - provider.listings[0], 3) >= 30
