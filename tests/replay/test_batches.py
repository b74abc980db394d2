"""Batches in the views of a run: state, audit, index, latency, budget and exports."""

from datetime import UTC, datetime

import pytest

from evaljournal.journal import Event
from evaljournal.journal.events import (
    AttemptInterrupted,
    AttemptStarted,
    AttemptSucceeded,
    BatchCollected,
    BatchPrepared,
    BatchSubmitted,
    RunFinished,
    RunStopped,
    ScorerCallStarted,
    SessionStarted,
    TrialFailed,
    TrialScored,
)
from evaljournal.journal.fact import evolve_fact
from evaljournal.replay import RunState, fold
from evaljournal.replay.auditing.auditor import audit
from evaljournal.replay.render.batches import batch_lines
from evaljournal.replay.render.ending import final_report, next_command
from evaljournal.replay.results.summary import summarize
from evaljournal.replay.runs.idle import reasons
from evaljournal.replay.runs.timeline import Timeline
from tests.journal.samples import collected, enqueued, from_line, prepared, session, started, submitted
from tests.replay.batch_run import EXPIRES, batch_run, records
from tests.replay.recorded_run import Change, changing, removing
from tests.replay.screens import screen_lines


def findings(events: list[Event], change: Change = list) -> list[str]:
    """Return the rules that these events break, after a change."""
    return [finding.check for finding in audit(change(records(events))).findings]


def test_a_run_with_batches_follows_the_rules() -> None:
    """Batch attempts need no slot, and neither limit nor backoff applies to them."""
    assert [] == [finding.message for finding in audit(records(batch_run())).findings]


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("lifecycle", changing(AttemptStarted, line=2)),
        ("lifecycle", changing(AttemptStarted, batch=2)),
        ("lifecycle", changing(AttemptStarted, 2, batch=1, line=3)),
        ("lifecycle", changing(BatchPrepared, batch=2)),
        ("lifecycle", changing(BatchPrepared, trials=["b", "a", "c"])),
        ("lifecycle", changing(BatchPrepared, 1, trials=["a"])),
        ("lifecycle", changing(BatchPrepared, 2, scorer="other")),
        ("lifecycle", changing(ScorerCallStarted, batch=0, line=0)),
        ("lifecycle", changing(ScorerCallStarted, line=2)),
        ("lifecycle", removing(BatchCollected)),
        ("batches", changing(BatchCollected, results=3)),
        ("batches", changing(BatchCollected, missing=2)),
        ("batches", changing(BatchCollected, state="not_sent")),
        ("batches", changing(AttemptStarted, need={"requests": 1})),
        ("batches", changing(AttemptStarted, probe=True)),
        ("batches", changing(AttemptStarted, reserved={"cost": 1.0})),
        ("batches", changing(ScorerCallStarted, need={"requests": 1})),
        ("batches", removing(BatchCollected, -1)),
        ("elapsed", changing(AttemptSucceeded, elapsed=0.5)),
        ("elapsed", changing(TrialScored, elapsed=0.5)),
        ("budget", changing(BatchPrepared, reserved={"cost": 1.0})),
        ("stop", lambda run: [*run[:-1], run[-1]._replace(event=RunStopped(reason="batches"))]),
    ],
)
def test_the_audit_finds_violations(rule: str, change: Change) -> None:
    """A line that another trial uses or that is used twice, wrong counts and missing ends are findings."""
    assert rule in findings(batch_run(), change)


def test_an_unsubmitted_batch_ends_as_not_sent() -> None:
    """A batch that was never submitted has no state of the provider."""
    head: list[Event] = [started(), session(), enqueued("a"), prepared("a")]

    assert [] == findings([*head, collected(0, 1, state="not_sent")])
    assert ["batches"] == findings([*head, collected(0, 1)])


def interrupted_run() -> list[Event]:
    """Return a run whose process died while it used a line, and whose batch is gone when it is resumed."""
    interruption = AttemptInterrupted(trial="a", attempt=1, reason="process_died")
    return [started(), session(), enqueued("a"), *submitted("a"), from_line("a", 1)[0], session(2), interruption]


def test_an_interrupted_batch_attempt_is_not_ambiguous() -> None:
    """Nothing was called, so nothing is repeated; such a trial may not fail as ambiguous."""
    state = fold(records(interrupted_run()))
    failure: list[Event] = [collected(0, 1, state="deleted"), TrialFailed(trial="a", attempts=1, reason="ambiguous")]

    assert ({"a"}, set(), 0) == (
        state.batches.uncalled_trials,
        state.trials.attempts.interrupted_trials,
        state.trials.attempts.interrupted,
    )
    assert {1: "a"} == state.batches.lines.open_lines(1)
    assert ["retry"] == findings([*interrupted_run(), *failure])
    state = fold(records([*interrupted_run(), *from_line("a", 1, attempt=2)]))
    assert (set(), 0, 0) == (
        state.batches.uncalled_trials,
        state.trials.attempts.repeated_calls,
        state.trials.attempts.repeated,
    )


def test_batches_have_no_latency() -> None:
    """Outputs of a batch are left out of the quantiles, and their trials have no latency."""
    state = fold(records(batch_run()))

    assert [0.001] == list(state.trials.attempts.latencies)
    assert [None, None, 0.001] == [trial.latency for trial in state.trials.values()]
    assert (1, 0.001) == (summarize(state).latency.count, summarize(state).latency.p95)
    assert (4, 3) == (summarize(state).attempts.started, summarize(state).attempts.succeeded)


def test_batches_are_not_in_flight() -> None:
    """The timeline shows no concurrency for batch attempts: their trials are queued until the result is used."""
    timeline = Timeline()
    for record in records(batch_run()):
        timeline.apply(record)

    assert [0, 1, 0] == [count for _, count, _ in timeline.points("in_flight", 2)]
    assert [(-1, 1, 1), (-1, 1, 2), (0, 0, 0), (-1, 2, 1)] == [(span.slot, span.batch, span.line) for span in timeline.spans]
    assert 0.0 == timeline.times["a"].run_time


def test_the_state_of_batches() -> None:
    """The state has what was submitted, reported and used, and which lines are open."""
    events = batch_run()
    stop = next(number for number, event in enumerate(events, 1) if isinstance(event, RunStopped))
    batch = fold(records(events[:stop])).batches[1]
    ended = fold(records(events)).batches[1]

    assert ("in_progress", 1, 0, 3, EXPIRES, True) == (
        batch.state, batch.completed, batch.failed, batch.lines, batch.expires, batch.is_open
    )  # fmt: skip
    assert ("expired", 2, 1, False, []) == (ended.state, ended.results, ended.missing, ended.is_open, ended.prepared.trials)


def budget_run(limit: float) -> list[Event]:
    """Return a run with a budget in which a batch of two lines reserves two dollars."""
    run = evolve_fact(started(), settings={"slots": 2, "budget": {"cost": limit}})
    return [run, session(), enqueued("a"), enqueued("b"), enqueued("c"), prepared("a", "b", reserved={"cost": 2.0})]


def test_an_open_batch_counts_in_the_budget() -> None:
    """The reserve of a batch counts for each open line until it is collected; what its lines used is spent."""
    succeeded = evolve_fact(from_line("a", 1)[1], usage={"cost": 0.5})
    events = [*budget_run(10.0), submitted("a", "b")[1]]
    uses = []
    for more in ([], [from_line("a", 1)[0], succeeded], [collected(1, 1)]):
        events += more
        budget = fold(records(events)).budget
        assert budget is not None
        uses.append((budget.use()["cost"].spent, budget.use()["cost"].reserved))

    assert [(0.0, 2.0), (0.5, 1.0), (0.5, 0.0)] == uses
    stopped = fold(records([*events[:-1], RunStopped(reason="batches")])).budget
    assert stopped is not None
    assert 1.0 == stopped.use()["cost"].reserved


def test_a_batch_must_fit_into_the_budget() -> None:
    """A batch whose reserve exceeds the rest of the budget is a finding; one that fits is not."""
    assert [] == findings(budget_run(2.0))
    assert ["budget"] == findings(budget_run(1.9))


def test_an_interrupted_batch_attempt_spends_nothing() -> None:
    """The reserve of an interrupted attempt is not counted as spent if it used a line of a batch."""
    interruption = AttemptInterrupted(trial="a", attempt=1, reason="process_died")
    budget = fold(records([*budget_run(10.0), submitted("a", "b")[1], from_line("a", 1)[0], session(2), interruption])).budget

    assert budget is not None
    assert (0.0, 2.0) == (budget.use()["cost"].spent, budget.use()["cost"].reserved)


def test_other_sessions_do_not_change_the_lines() -> None:
    """A session that only re-scores leaves the open batches as they are."""
    events = batch_run()
    start = [number for number, event in enumerate(events) if isinstance(event, SessionStarted)][1]
    state = fold(records([*events[: start + 1], RunStopped(reason="batches")]))

    assert {1: "a", 2: "b", 3: "c"} == state.batches.lines.open_lines(1)
    assert not isinstance(events[start], RunFinished)


def waiting_state() -> RunState:
    """Return the state of a run that was stopped while its batch is open."""
    events = batch_run()
    return fold(records(events[: [type(event) for event in events].index(RunStopped) + 1]))


def test_a_run_that_waits_says_for_what() -> None:
    """The report of a run that waits for a batch has its counts and expiry, and the command that continues."""
    lines = final_report(waiting_state(), path="runs/a/1", wall=datetime(2026, 11, 15, 2, tzinfo=UTC)).splitlines()

    heading = "capitals waiting for a batch (1 of 3 lines done, expires at 2026-11-16 00:00 UTC): 0 trials done, in runs/a/1"
    assert heading == lines[0]
    assert "  batch 1: in progress, 1 of 3 done, 2 h old, expires in 22 h" in lines
    assert "next: evaljournal resume runs/a/1 --wait" == lines[-1]


def test_the_next_call_in_python() -> None:
    """A run from Python that waits for a batch is resumed by a call, which waits; a lost batch is cancelled by a command."""
    waiting = waiting_state()
    assert waiting.started is not None
    waiting.sessions.started = evolve_fact(waiting.started, task="", evaluation="chat")

    assert "run(chat, 'runs/a/1', resume=True)" == next_command(waiting, "runs/a/1")
    waiting.batches[1].state = "incomplete"
    assert "evaljournal cancel runs/a/1 --task FILE.py:NAME" == next_command(waiting, "runs/a/1")


def test_collected_batches_are_summed() -> None:
    """Ended batches are one line, with the results that were used and their cost."""
    expected = "  3 batches collected: 6 results used, 1 without a result, 1 result not used, $0.250"

    assert expected in final_report(fold(records(batch_run())), path="runs/a/1").splitlines()


def test_the_screen_shows_batches() -> None:
    """The live screen has a row for each open batch, and idle slots wait for it."""
    state = fold(records(batch_run()[:8]))
    rows = screen_lines(state, now=3600.0, total=3)

    assert "batches  batch 1: in progress, 1 of 3 done, 1 h old, expires in 23 h" in rows
    assert "waiting  1 batch with 3 open lines" in rows
    assert [("batches", 3)] == [(reason.reason, reason.number) for reason in reasons(state, now=1.0, total=3)]


def test_the_summary_has_batches() -> None:
    """`status --json` has a list of batches; of an open one the lines that are not used yet."""
    batch = summarize(waiting_state()).batches[0]

    assert (1, "batch_1", True, "in_progress", 3, 3, EXPIRES, None) == (
        *(batch.batch, batch.id, batch.is_open, batch.state, batch.lines, batch.open_lines, batch.expires, batch.cost),
    )
    assert [0.25, None, None] == [batch.cost for batch in summarize(fold(records(batch_run()))).batches]


@pytest.mark.parametrize("expires", ["", "never", "2026-11-16", "9999-12-31T23:59:59-14:00", "\x1b[31m"])
def test_a_foreign_expiry_is_harmless(expires: str) -> None:
    """A time that is none is not shown."""
    events = [evolve_fact(event, expires=expires) if isinstance(event, BatchSubmitted) else event for event in batch_run()[:8]]

    assert "\x1b" not in final_report(fold(records(events)), path="runs/a/1")


def test_batches_that_were_not_accepted_are_counted_apart() -> None:
    """A batch that was never created is not among the collected ones; results that were not used are counted."""
    rejected = BatchCollected(batch=1, state="not_sent", results=0, missing=1, message="no quota")
    ended = BatchCollected(batch=2, state="canceled", results=0, missing=1, unused=2)
    sent: list[Event] = [prepared("a", batch=2), BatchSubmitted(batch=2, id="x"), ended]
    state = fold(records([started(), session(), enqueued("a"), prepared("a"), rejected, *sent, prepared("a", batch=3)]))

    assert [
        "batch 3: prepared (the provider may already have it), 0 of 1 done",
        "1 batch collected: 0 results used, 1 without a result, 2 results not used, 1 cancelled",
        "1 batch not accepted: no quota",
    ] == [row.partition(", 0 s old")[0] for row in batch_lines(state)]
