"""Stopped and killed runs that are resumed: what is kept, what is repeated, and which changes are rejected or adopted."""

import itertools
import random
import re
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import trio
import trio.lowlevel

from evaljournal import Case, UsageError
from evaljournal.journal import read, verify
from evaljournal.journal.events import (
    AttemptInterrupted,
    AttemptReturnedLate,
    AttemptSucceeded,
    LimitChanged,
    RunStarted,
    RunStopped,
    SessionStarted,
    TrialCompleted,
    TrialEnqueued,
    TrialFailed,
    TrialWithdrawn,
)
from evaljournal.replay import fold
from evaljournal.replay.render.ending import final_report
from evaljournal.replay.render.phrases import score_text
from evaljournal.replay.results.summary import Adoption, summarize
from evaljournal.runner.errors import RunChanged
from evaljournal.runner.runs.changes import effective_settings
from evaljournal.runner.sessions.session import Outcome, Session
from evaljournal.runner.testing import Hang, Return, Scripted, deterministic_options, events_of
from tests.journal.disk import SimulatedDisk
from tests.runs import (
    PATH,
    AnyEvaluation,
    audited,
    define,
    events,
    flaky_evaluation,
    has_journal,
    numbered_cases,
    run_killed,
    run_until_power_failure,
    run_virtual,
    signal_after,
)


async def test_a_stop_gives_grace_then_cancels(disk: SimulatedDisk) -> None:
    """A stopped run starts no attempts, waits for the grace period and interrupts the other attempts; it can be resumed."""
    task = Scripted(lambda value, times: Hang() if value == "case-1" and times == 1 else Return(1, 2))
    defined = define(task, numbered_cases(6), slots=2, timeout=None)
    before = trio.current_time()
    outcome = await run_virtual(defined, disk, grace=5, **signal_after(1))

    assert ("interrupted", 1) == (outcome.stop_reason, outcome.state.completed)
    interrupted = events(disk, AttemptInterrupted)
    assert [("case-1", 1, "stopped")] == [(event.trial, event.attempt, event.reason) for event in interrupted]
    assert 6.0 == trio.current_time() - before
    assert RunStopped(reason="interrupted") in events_of(PATH, files=disk)

    outcome = await run_virtual(defined, disk, resume=True)
    assert ("", 6) == (outcome.stop_reason, outcome.state.completed)
    assert 1 == task.calls["case-0"]


async def test_a_second_stop_cancels_immediately(disk: SimulatedDisk) -> None:
    """A second signal does not wait for the grace period."""
    defined = define(Scripted(lambda *_: Hang()), numbered_cases(2), slots=2, timeout=None)
    before = trio.current_time()
    outcome = await run_virtual(defined, disk, grace=100, **signal_after(1, times=2))

    assert "interrupted" == outcome.stop_reason
    assert 1.5 == trio.current_time() - before


async def test_a_second_stop_does_not_wait_for_unresponsive_attempts(disk: SimulatedDisk) -> None:
    """After a second stop, an attempt that does not respond gets one second; its output is late."""

    async def stubborn(_: Any) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(50)

    defined = define(stubborn, numbered_cases(1), timeout=None)
    outcome = await run_virtual(defined, disk, grace=100, **signal_after(1, times=2))

    assert [2.5] == [record.t for record in read(PATH, files=disk) if isinstance(record.event, AttemptInterrupted)]
    assert AttemptReturnedLate(trial="case-0", attempt=1, outcome="succeeded", elapsed=50.0) in events_of(PATH, files=disk)
    assert ("interrupted", 0) == (outcome.stop_reason, outcome.state.completed)


async def test_an_observer_sees_that_a_run_is_stopping() -> None:
    """A run that is stopping reports why, and how long calls in flight have left; after a second stop, 0."""
    defined = define(Scripted(lambda *_: Return(1, 10)), numbered_cases(2), slots=2)
    reports: list[Any] = []

    async def look(live: Any) -> None:
        for stops in (False, True, False, True):
            if stops:
                signal.raise_signal(signal.SIGINT)
                await trio.lowlevel.checkpoint()
            reports.append(live.stop_status())
            await trio.sleep(1)

    await run_virtual(defined, SimulatedDisk(), signals=True, observer=look, grace=5)

    assert [None, ("interrupted", 5.0), ("interrupted", 4.0), ("interrupted", 0.0)] == reports


async def test_a_stop_while_cases_are_read_leaves_no_run(disk: SimulatedDisk) -> None:
    """A stop while the cases are read is not lost, although nothing is awaited after it: nothing is written."""

    class Cases(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            session.interrupt()
            return super().__iter__()

    session = Session(define(Scripted({}), Cases(numbered_cases(1))), PATH, **deterministic_options(), files=disk)
    with pytest.raises(KeyboardInterrupt):
        await session.run()
    assert not disk.is_directory("/runs")


async def test_a_stop_while_the_journal_is_opened(disk: SimulatedDisk) -> None:
    """A session that is stopped while it opens its journal makes no call, records the stop, and can be resumed."""
    task = Scripted(lambda *_: Return(1))
    defined = define(task, numbered_cases(1))
    session = Session(defined, PATH, **deterministic_options(), files=disk)
    interrupted_at: list[str] = []

    def interrupt_once(call: str) -> None:
        if not interrupted_at:
            interrupted_at.append(call)
            session.interrupt()

    disk.on_call = interrupt_once
    outcome = await session.run()

    assert "interrupted" == outcome.stop_reason
    kinds = [type(event) for event in events_of(PATH, files=disk)]
    assert [RunStarted, SessionStarted, LimitChanged, RunStopped] == [kind for kind in kinds if kind is not TrialEnqueued]
    assert not task.calls
    assert ("", 1) == ((await run_virtual(defined, disk, resume=True)).stop_reason, task.calls["case-0"])


def results(disk: SimulatedDisk) -> dict[str, Any]:
    """Return the output of every trial, or that it failed."""
    outcomes: dict[str, Any] = {}
    for event in events_of(PATH, files=disk):
        match event:
            case AttemptSucceeded():
                outcomes[event.trial] = event.output
            case TrialFailed():
                outcomes[event.trial] = event.reason
            case _:
                pass
    return outcomes


def crash_everywhere(count: int, crashes: int, seed: int = 0) -> int:
    """Fail the power at every record of a run, up to `crashes` times in one run, and resume it: the results are the same."""
    defined, _ = flaky_evaluation(count, seed * count)
    complete_disk = SimulatedDisk()
    assert run_until_power_failure(defined, complete_disk, 10**9) is not None
    expected = results(complete_disk)
    last = max(record.seq for record in read(PATH, files=complete_disk))
    points = 0
    for seq in range(2, last):
        defined, task = flaky_evaluation(count, seed * count)
        disk = SimulatedDisk()
        outcome = run_until_power_failure(defined, disk, seq)
        for crash in range(1, crashes + 1):
            disk = disk.after_power_failure(random.Random(f"{seed} {seq} {crash}"))
            points += 1
            is_started = has_journal(disk)
            recorded = events_of(PATH, files=disk) if is_started else []
            done = [event.trial for event in recorded if isinstance(event, TrialCompleted)]
            before = dict(task.calls)
            outcome = run_until_power_failure(
                defined, disk, 10**9 if crash == crashes else seq + crash * last // 3, resume=is_started
            )
            assert all(task.calls[trial] == before.get(trial, 0) for trial in done), "a finished trial was run again"
            if outcome is not None:
                break
        assert outcome is not None
        assert outcome.stop_reason == ""
        assert expected == results(disk)
        completed = [event.trial for event in events(disk, TrialCompleted)]
        assert len(completed) == len(set(completed)), "a completion was recorded twice"
        assert verify(PATH, files=disk).ok
        recount = fold(read(PATH, files=disk))
        assert recount.completed == outcome.state.completed == len(completed)
        assert recount.totals.attempts == outcome.state.totals.attempts
    return points


@pytest.mark.parametrize(
    ("size", "seed"),
    [
        (4, 0),
        pytest.param(8, 0, marks=pytest.mark.exhaustive),
        *(pytest.param(12, seed, marks=pytest.mark.exhaustive) for seed in range(20)),
        *(pytest.param(size, 0, marks=pytest.mark.exhaustive) for size in (25, 40)),
    ],
)
def test_power_failures_at_every_record_change_no_result(size: int, seed: int) -> None:
    """A run that loses power at a record, is resumed, loses power again and is resumed has the same outputs as any other.

    At every single record, up to three times in one run.
    """
    assert crash_everywhere(size, 3, seed) >= 8 * size


async def test_changed_cases_are_rejected_or_adopted(disk: SimulatedDisk) -> None:
    """A changed dataset is rejected; adopted, unchanged cases keep their results and changed ones run again."""
    task = Scripted(lambda value, _: Return(value, 1))
    await run_virtual(define(task, numbered_cases(6), slots=1), disk, **signal_after(2.5))
    changed = [*numbered_cases(5)[:1], Case(name="case-1", input="another"), *numbered_cases(8)[3:]]

    with pytest.raises(RunChanged, match="the cases have changed") as error:
        await run_virtual(define(task, changed, slots=1), disk, resume=True)
    assert ["1 case changed: 'case-1'", "1 case removed: 'case-2'"] == error.value.changes[1:]
    assert error.value.hint.startswith("`run(…, resume=True, adopt=True)` accepts")
    with pytest.raises(RunChanged) as error:
        await run_virtual(define(task, changed, slots=1), disk, resume=True, task="evals/numbers.py:numbers")
    assert error.value.hint.startswith(f"`evaljournal resume {PATH} --adopt` accepts")
    outcome = await run_virtual(define(task, changed, slots=1), disk, resume=True, adopt=True)

    events = events_of(PATH, files=disk)
    assert TrialWithdrawn(trial="case-1", reason="changed") in events
    assert TrialWithdrawn(trial="case-2", reason="removed") in events
    assert (7, 1) == (outcome.state.completed, task.calls["case-0"])
    assert 1 == task.calls["another"]


async def stopped_after(defined: AnyEvaluation, disk: SimulatedDisk, seconds: float, **options: Any) -> Outcome:
    """Run an evaluation for some seconds."""
    return await run_virtual(defined, disk, **{"deadline": seconds, "grace": 0.0, **options})


def judged(answer: str, verdict: bool) -> AnyEvaluation:  # noqa: FBT001  # what it says
    """Return an evaluation of six cases whose task and scorer return these values."""

    async def task(_: str) -> str:
        await trio.sleep(1)
        return answer

    def exact(*_: object) -> bool:
        return verdict

    task.fingerprint, exact.fingerprint = f"task {answer}", f"exact {verdict}"  # type: ignore[attr-defined]  # as users do
    defined = define(task, numbered_cases(6), slots=1)
    defined.score(exact)
    return defined


async def test_adopted_changes_are_recorded_and_shown(disk: SimulatedDisk) -> None:
    """An adopted task and scorer are recorded, and every view shows how many results are from the older ones."""
    await stopped_after(judged("old", verdict=False), disk, 2.5)
    await stopped_after(judged("new", verdict=True), disk, 1.5, resume=True, adopt=True)
    with pytest.raises(RunChanged, match="the task has changed"):
        await run_virtual(judged("old", verdict=True), disk, resume=True)
    outcome = await run_virtual(judged("new", verdict=True), disk, resume=True, deadline=None)

    starts = [event.adopted for event in events(disk, SessionStarted)]
    assert [None, {"task_fingerprint": "task new", "scorers": {"exact": "exact True"}}, None] == starts
    summary = summarize(outcome.state)
    assert [Adoption(2, ("task", "scorer exact"))] == summary.adopted
    assert (2, 2, 2) == (summary.from_older_task, summary.scores["exact"].versions, summary.scores["exact"].from_older_version)
    report = final_report(outcome.state, path=PATH)
    assert "\n  session 2 adopted changes: task, scorer exact\n" in report
    assert "\n  2 of 6 outputs are from an older version of the task\n" in report
    notes = audited(disk).notes
    assert "6 scores of exact from 2 versions of the scorer, 2 from an older one" in notes
    assert summary.adopted == summarize(fold(read(PATH, files=disk))).adopted


async def test_an_adopted_scorer_does_not_take_over_old_scores(disk: SimulatedDisk) -> None:
    """A changed scorer that is adopted when every output is scored leaves the old scores under the old version."""
    await run_virtual(judged("old", verdict=False), disk)
    outcome = await run_virtual(judged("old", verdict=True), disk, resume=True, adopt=True)

    exact = summarize(outcome.state).scores["exact"]
    assert (1, 6, 0) == (exact.versions, exact.from_older_version, exact.passed)
    assert score_text(exact).endswith("; all from an older version of the scorer")


async def test_withdrawn_outputs_of_an_older_task_do_not_count(disk: SimulatedDisk) -> None:
    """A case that changes together with the task is run again, and its output is not one of the older task."""
    await stopped_after(judged("old", verdict=True), disk, 3.5)
    defined = judged("new", verdict=True)
    changed = define(defined.task, [Case(name="case-0", input="another"), *numbered_cases(6)[1:]], slots=1)
    changed.score(defined.scorers["exact"].function)
    outcome = await run_virtual(changed, disk, resume=True, adopt=True, deadline=None)

    assert (2, 6) == (outcome.state.sessions.task_versions.older_outputs, outcome.state.completed)
    assert ("task", "cases") == outcome.state.sessions[-1].adopted


async def test_changes_of_cases_that_were_not_enqueued_are_rejected(disk: SimulatedDisk) -> None:
    """If only cases have changed that were not enqueued yet, the change is rejected as well, without their names."""
    task = Scripted(lambda *_: Return(1, 10))
    await stopped_after(define(task, numbered_cases(200), slots=1), disk, 5)
    others = [*numbered_cases(199), Case(name="case-199", input="another")]

    with pytest.raises(RunChanged, match="the cases run so far are unchanged"):
        await run_virtual(define(task, others, slots=1), disk, resume=True)


async def test_edited_prompts_of_a_generator_are_rejected() -> None:
    """Cases of a generator are compared one by one: the first difference stops the run."""
    task = Scripted(lambda *_: Return("yes", 1))
    disk = await run_killed(define(task, lambda: iter(numbered_cases(40)), slots=4), SimulatedDisk(), after=5.5, policy="fixed")
    calls = task.calls.total()
    edited = [Case(name=case.name, input=f"Think hard. {case.input}", expected="yes") for case in numbered_cases(40)]
    outcome = await run_virtual(define(task, lambda: iter(edited), slots=4), disk, resume=True)

    assert "dataset_failed" == outcome.stop_reason
    assert "case 'case-0' has changed since the run was started" in outcome.detail
    assert "adopt=True" in outcome.detail
    assert calls == task.calls.total()


def settings_of_sessions(disk: SimulatedDisk) -> list[dict[str, Any] | None]:
    return [event.settings for event in events(disk, SessionStarted)]


async def test_settings_that_select_other_trials_are_rejected(disk: SimulatedDisk) -> None:
    """Resuming with another selection of trials is rejected with each difference; nothing is written."""
    task = Scripted(lambda *_: Return(1, 10))
    await run_virtual(define(task, numbered_cases(3), slots=1, deadline=5), disk, grace=0)
    before = len(events_of(PATH, files=disk))

    with pytest.raises(RunChanged) as raised:
        await run_virtual(define(task, numbered_cases(3), slots=1, repeats=2), disk, resume=True, only="case-?", shuffle=True)
    assert [
        "setting repeats: 1 is now 2",
        "setting only: [] is now ['case-?']",
        "setting shuffle: False is now True",
    ] == raised.value.changes
    assert before == len(events_of(PATH, files=disk))


async def test_overridden_settings_hold_for_every_session(disk: SimulatedDisk) -> None:
    """Settings that were overridden for a run are in its journal, and a resumed run takes them from there."""
    task = Scripted(lambda *_: Return(1, 10))
    defined = define(task, numbered_cases(20), slots=7)
    overridden: dict[str, Any] = {
        "only": ["case-?"],
        "skip": "case-0",
        "limit": 3,
        "shuffle": True,
        "repeats": 2,
        "slots": 1,
        "policy": "fixed",
    }
    await run_virtual(defined, disk, **overridden, seed=5, deadline=15, grace=0)
    started = next(event for event in events(disk, RunStarted))
    for _ in range(2):
        await run_virtual(defined, disk, resume=True, seed=5)
    outcome = await run_virtual(defined, disk, resume=True, seed=5, deadline=None)

    recorded = {name: started.settings[name] for name in overridden}
    assert {**overridden, "skip": ["case-0"]} == recorded
    assert ["skip", "limit"] == [name for name in started.settings["overridden"] if name in ("skip", "limit")]
    assert ("", 6, 1) == (outcome.stop_reason, outcome.state.completed, task.max_in_flight)
    assert [None, None, None, {"deadline": None}] == settings_of_sessions(disk)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"overridden": ["slots"], "slots": "many"}, "slots='many': must be a whole number"),
        ({"overridden": ["only"], "only": 5}, "the journal has an invalid setting"),
    ],
)
def test_invalid_settings_in_a_journal_are_rejected(settings: dict[str, Any], message: str) -> None:
    """Settings of a journal are validated; they can be overridden."""
    own = define(Scripted({}), numbered_cases(1)).settings

    with pytest.raises(UsageError, match=re.escape(message)):
        effective_settings(own, {}, settings)
    name = settings["overridden"][0]
    assert (own, [name]) == effective_settings(own, {name: getattr(own, name)}, settings)


@pytest.mark.parametrize(
    "settings",
    [{}, {"overridden": None}, {"overridden": ["no such", "slots", 7, ["x"]]}, {"overridden": {"slots": 1}}, {"overridden": 5}],
)
def test_missing_settings_in_a_journal_are_ignored(settings: dict[str, Any]) -> None:
    """If a journal lacks settings, or has them in an unknown form, the evaluation's own apply."""
    own = define(Scripted({}), numbered_cases(1)).settings

    assert (own, []) == effective_settings(own, {}, settings)


@pytest.mark.parametrize(("choice", "failed", "calls"), [("retry", 0, 2), ("fail", 1, 1)])
def test_an_ambiguous_attempt_is_retried_or_failed(choice: str, failed: int, calls: int) -> None:
    """An attempt in flight when the process died is recorded as such, then retried or failed as chosen."""
    task = Scripted(lambda *_: Return(1, 1))
    defined = define(task, numbered_cases(1), write_ahead=True)
    disk = SimulatedDisk()
    seqs = itertools.count(1)
    while task.calls["case-0"] == 0:
        disk = SimulatedDisk()
        run_until_power_failure(defined, disk, next(seqs))
    disk = disk.after_kill()
    outcome = run_until_power_failure(defined, disk, 10**9, resume=True, on_ambiguous=choice)

    assert outcome is not None
    assert AttemptInterrupted(trial="case-0", attempt=1, reason="process_died") in events_of(PATH, files=disk)
    assert (failed, calls) == (outcome.state.failed, task.calls["case-0"])
