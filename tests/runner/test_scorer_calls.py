"""Scorer calls in the journal: audit, crashes and re-scoring."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from evaljournal import Case, Fatal, Retry
from evaljournal.journal import Event, Record, read
from evaljournal.journal.events import (
    AttemptEnd,
    AttemptStarted,
    IntakePaused,
    LimitChanged,
    ScorerCallFailed,
    ScorerCallStarted,
    TrialCompleted,
    TrialScored,
)
from evaljournal.replay.auditing.auditor import audit
from evaljournal.runner.retries.rules import retry_rules
from evaljournal.runner.sessions.api import arun
from evaljournal.runner.sessions.rescore import Rescoring
from evaljournal.runner.testing import Fail, Return, Scripted, deterministic_options, events_of
from tests.journal.disk import SimulatedDisk
from tests.journal.samples import inline
from tests.runner.test_scoring import answer_immediately, evaluation_of, judge_of, run_fixed
from tests.runs import PATH, AnyEvaluation, audited, events, has_journal, run_until_power_failure

Timed = list[tuple[float, Event]]


async def judged_run() -> Timed:
    """Record a run of ten trials, whose judge fails once for one of them."""
    script = Scripted(
        lambda name, n: Fail(OSError("no"), 0.5) if (name, n) == ("case-3", 1) else Return(output=True, after=1.0)
    )
    defined = evaluation_of(answer_immediately, 10, slots=2, retry=Retry(errors=1, base_delay=4))
    defined.score(name="judge")(judge_of(script))
    disk = SimulatedDisk()
    await run_fixed(defined, disk)
    assert () == audited(disk).findings
    return [(record.t, record.event) for record in read(PATH, files=disk)]


def failed_checks(timed: Timed) -> set[str]:
    records = [Record(seq, "2026-11-15T00:00:00Z", t, event, 0, "", 1, 0) for seq, (t, event) in enumerate(timed, 1)]
    return {finding.check for finding in audit(records, rules=retry_rules).findings}


def place(timed: Timed, kind: type[Any], number: int = 0) -> int:
    return [index for index, (_, event) in enumerate(timed) if isinstance(event, kind)][number]


def evolved(timed: Timed, index: int, **fields: Any) -> Timed:
    t, event = timed[index]
    return [*timed[:index], (t, attrs.evolve(event, **fields)), *timed[index + 1 :]]  # type: ignore[misc]  # an event is an attrs class


def above_the_limit(timed: Timed) -> Timed:
    """Lower the limit of the judge before its second call."""
    index = next(index for index, (_, event) in enumerate(timed) if isinstance(event, LimitChanged) and event.key)
    return evolved(timed, index, after=1)


def in_a_pause(timed: Timed) -> Timed:
    index = place(timed, ScorerCallStarted, 4)
    pause = IntakePaused(until=timed[index][0] + 5, reason="retry_after", key="scorer:judge")
    return [*timed[:index], (timed[index - 1][0], pause), *timed[index:]]


CHANGES: dict[str, tuple[str, Callable[[Timed], Timed]]] = {
    "above the limit": ("limit", above_the_limit),
    "inside a pause": ("intake", in_a_pause),
    "before its delay": ("delay", lambda timed: evolved(timed, place(timed, ScorerCallFailed), delay=1000.0)),
    "twice at a time": (
        "calls",
        lambda timed: [*timed[: (index := place(timed, ScorerCallStarted))], timed[index], *timed[index:]],
    ),
    "out of order": ("calls", lambda timed: evolved(timed, place(timed, ScorerCallStarted), call=2)),
    "too long": ("elapsed", lambda timed: evolved(timed, place(timed, ScorerCallFailed), elapsed=100.0)),
}


@pytest.mark.parametrize("name", CHANGES)
async def test_an_audit_finds_a_call_that_breaks_a_rule(name: str) -> None:
    """A call above the limit, inside a pause, before its delay, during another or out of order is found by its rule."""
    check, change = CHANGES[name]

    assert check in failed_checks(change(await judged_run()))


async def test_every_call_has_one_end() -> None:
    """In a run that finished, every call has failed or returned a score, and every trial is completed."""
    timed = await judged_run()
    starts = sum(isinstance(event, ScorerCallStarted) for _, event in timed)
    ends = sum(isinstance(event, ScorerCallFailed | TrialScored) for _, event in timed)

    assert (11, 11, 10) == (starts, ends, sum(isinstance(event, TrialCompleted) for _, event in timed))
    assert sum(isinstance(event, AttemptEnd) for _, event in timed) == 10


def judged_twice() -> AnyEvaluation:
    """Return an evaluation of four trials with two judges, one of which fails once for each."""
    defined = evaluation_of(answer_immediately, 4, slots=2, retry=Retry(errors=2, base_delay=1))
    script = Scripted(lambda _, n: Fail(OSError("no"), 0.5) if n == 1 else Return(output=True, after=1.0))
    defined.score(name="flaky")(judge_of(script))

    @defined.score
    async def steady(output: Any, case: Case) -> bool:
        await trio.sleep(0.75)
        return bool(output == case.expected)

    return defined


@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_a_power_failure_at_any_record_loses_no_score(stride: int) -> None:
    """A run with two judges that loses power at any record and is resumed has every score once, and passes its audit."""
    complete_disk = SimulatedDisk()
    assert run_until_power_failure(judged_twice(), complete_disk, 10**9) is not None
    last = max(record.seq for record in read(PATH, files=complete_disk))

    for seq in range(3, last, stride):
        disk, defined = SimulatedDisk(), judged_twice()
        run_until_power_failure(defined, disk, seq)
        disk = disk.after_power_failure(random.Random(seq))
        outcome = run_until_power_failure(defined, disk, 10**9, resume=has_journal(disk))

        assert outcome is not None
        assert (4, "") == (outcome.state.completed, outcome.stop_reason)
        scored = [(event.trial, event.scorer) for event in events(disk, TrialScored)]
        assert (8, 8) == (len(scored), len(set(scored)))
        assert () == audited(disk).findings


async def test_rescoring_goes_through_the_executor(tmp_path: Path) -> None:
    """A re-scoring makes calls under a limit of its own and no attempts; what it scores is audited like any session."""
    defined, in_flight, max_in_flight = evaluation_of(answer_immediately, 20, slots=4), 0, 0
    await arun(defined, tmp_path / "run", **deterministic_options())

    @defined.score
    async def late(output: Any, case: Case) -> bool:
        nonlocal in_flight, max_in_flight
        in_flight += 1
        max_in_flight = max(max_in_flight, in_flight)
        await trio.sleep(1)
        in_flight -= 1
        return bool(output == case.expected)

    done = await Rescoring(defined, tmp_path / "run", slots=5, in_thread=inline).rescore()
    repeated = await Rescoring(defined, tmp_path / "run", in_thread=inline).rescore()
    result = audit(read(tmp_path / "run"), rules=retry_rules)

    assert (20, 0, "") == (done.outputs, done.unscored, done.outcome.stop_reason)
    assert (0, 20) == (repeated.outputs, repeated.already_scored)
    assert 5 == max_in_flight
    assert 20 == sum(isinstance(event, AttemptStarted) for event in events_of(tmp_path / "run"))
    assert () == result.findings


@pytest.mark.parametrize(
    ("error", "expected_calls", "expected_trials"),
    [
        (ValueError("no verdict"), 50 + 20, 20),
        (RuntimeError("no"), 50 + 4 * 20, 20),
        (Fatal("404: no such model"), 50, 2),
        (Fatal("404: page"), 50, 20),
    ],
)
async def test_a_scorer_that_always_fails_stops_the_run(
    error: Exception, expected_calls: int, expected_trials: int, disk: SimulatedDisk
) -> None:
    """If the first outputs of a scorer end with one error, the run stops; until then, only the first ones are retried."""
    defined = evaluation_of(answer_immediately, 200, slots=50, retry=Retry())
    defined.score(name="judge")(judge_of(Scripted(lambda *_: Fail(error, 1.0))))
    outcome = await run_fixed(defined, disk)

    assert ("same_error", expected_calls) == (outcome.stop_reason, len(events(disk, ScorerCallStarted)))
    assert f"scorer judge: the first {expected_trials} outputs ended with" in outcome.detail
    assert () == audited(disk).findings


async def test_a_scorer_that_succeeds_once_stops_nothing(disk: SimulatedDisk) -> None:
    """One score is enough: all other outputs are scored, however many calls fail."""
    defined = evaluation_of(answer_immediately, 60, slots=10)
    script = Scripted(lambda name, _: Return(output=True, after=3) if name == "case-9" else Fail(RuntimeError("no"), 1.0))
    defined.score(name="judge")(judge_of(script))
    outcome = await run_fixed(defined, disk, retry=Retry(errors=1))

    assert ("", 60) == (outcome.stop_reason, outcome.state.completed)


async def test_a_run_that_a_scorer_stopped_is_resumed(disk: SimulatedDisk) -> None:
    """Once the scorer is fixed, the other outputs are scored; the task is not called again for them."""
    is_broken = True
    defined = evaluation_of(answer_immediately, 60, slots=10)
    defined.score(name="judge")(
        judge_of(Scripted(lambda *_: Fail(RuntimeError("no"), 1) if is_broken else Return(output=True, after=1)))
    )
    await run_fixed(defined, disk)
    is_broken = False
    outcome = await run_fixed(defined, disk, resume=True)

    assert ("", 60) == (outcome.stop_reason, outcome.state.completed)
    assert 60 == len(events(disk, AttemptStarted))
    assert () == audited(disk).findings
