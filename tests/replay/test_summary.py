"""The summary of a run: every denominator is shown, and failures are excluded from means."""

import itertools
import math
from typing import Any

import attrs
import orjson
import pytest

from evaljournal.journal import Event, read
from evaljournal.journal.events import (
    AttemptInterrupted,
    AttemptReturnedLate,
    AttemptStarted,
    AttemptSucceeded,
    AttemptTimedOut,
    Noted,
    RetryScheduled,
    RunFinished,
    RunStopped,
    TrialCompleted,
    TrialFailed,
    TrialWithdrawn,
)
from evaljournal.journal.format.lifecycle import STAGES
from evaljournal.replay import RunState, fold
from evaljournal.replay.render.ending import final_report
from evaljournal.replay.render.phrases import score_text
from evaljournal.replay.results.summary import AttemptCounts, TrialCounts, summarize
from evaljournal.replay.statistics import pass_all, pass_at, wilson
from tests.journal.samples import session
from tests.journal.test_format import GOLDEN
from tests.replay.summaries import chain, summary_of
from tests.replay.trial_events import answered, enqueued, failed, state_of

PASS, FAIL = True, False


def zeros(counts: type) -> dict[str, Any]:
    """Return the fields of a class of counts, each 0."""
    return dict.fromkeys(attrs.fields_dict(counts), 0)


def test_json() -> None:
    """The summary as JSON has every count, score and sum."""
    events = chain(
        answered("a", {"exact": PASS, "near": 0.5, "tone": "rude"}, usage={"tokens": 5}),
        answered("b", {"exact": FAIL, "near": 1.0, "tone": KeyError("x")}, failures=1, usage={"tokens": 5, "cost": 0.5}),
        failed("c", usage={"tokens": 2}),
        [enqueued("d"), AttemptStarted(trial="d", attempt=1, slot=0)],
    )
    state = state_of(events)
    summary_json = attrs.asdict(summarize(state))
    low, high = wilson(0.5, 2)
    score = {"scored": 2, "failed": 0, "error": "", "numbers": 2, "passed": None, "out_of_range": 0, "cases": 2, "labels": {}}
    score |= {"versions": 1, "from_older_version": 0, "pass_at_k": []}
    no_mean = dict.fromkeys(("mean", "standard_error", "low", "high"))
    near = {"kind": "number", "mean": 0.75, "standard_error": 0.25, "low": 0.0, "high": 1.0}
    exact = {"kind": "pass", "passed": 1, "mean": 0.5, "standard_error": 0.5}
    tone = {"kind": "label", "scored": 1, "failed": 1, "error": "KeyError: ", "numbers": 0, "cases": 0, "labels": {"rude": 1}}

    assert {
        "evaluation": "capitals",
        "task": "evals/capitals.py:capitals",
        "dataset": "3 cases",
        "started_at": "2026-11-15T00:00:00.000000Z",
        "updated_at": "2026-11-15T00:00:00.000000Z",
        "seq": state.seq,
        "sessions": 1,
        "elapsed": 12.5,
        **dict.fromkeys(("crashes", "planned_trials", "from_older_task"), 0),
        **dict.fromkeys(
            ("outcome", "steps", "replayed", "what_if", "unauthorized_scorer", "budget", "workers", "variants", "groups")
        ),
        **{name: [] for name in ("missing_shards", "adopted", "warnings", "batches")},
        **{name: {} for name in ("models", "unscored", "pairwise", "unpriced_models")},
        "paused_seconds": {"backoff": 1.0},
        "trials": {**zeros(TrialCounts), "enqueued": 4, "with_output": 2, "completed": 2, "failed": 1, "recovered": 1}
        | {"excluded": {}, "open": 1, "running": 1},
        "attempts": {**zeros(AttemptCounts), "started": 5, "succeeded": 2, "failed": 2},
        "scoring": {
            "unscored_outputs": 0,
            "calls_in_backoff": 0,
            "holds_attempts": False,
            **{name: {} for name in ("calls_in_flight", "calls_started", "calls_failed", "errors", "limits")},
        },
        "retries": {"error": 1},
        "errors": {"OSError": 1, "ValueError": 1},
        "last_error": {"message": "ValueError: no", "t": pytest.approx(11.0), "consecutive": 1, "outputs": 2},
        "failed_by_reason": {"fatal": 1},
        "scores": {
            "exact": {**score, **exact, "low": pytest.approx(low), "high": pytest.approx(high)},
            "near": {**score, **near},
            "tone": {**score, **no_mean, **tone},
        },
        "latency": {"count": 2, "p50": 0.25, "p95": 0.25, "p99": 0.25, "max": 0.25},
        "usage": {"tokens": 17, "cost": 1.0},
        "usage_without_output": {"tokens": 7, "cost": 0.5},
        "limit": 2,
    } == summary_json
    assert summary_json == orjson.loads(orjson.dumps(summary_json))


def test_truncated_outputs() -> None:
    """Truncated outputs are counted, but not those of failed attempts or withdrawn trials."""

    def truncated(events: list[Event], attempt: int) -> list[Event]:
        start = next(
            index for index, event in enumerate(events) if isinstance(event, AttemptStarted) and event.attempt == attempt
        )
        trial = events[start].trial  # type: ignore[union-attr]  # it was found by its type
        return [
            *events[: start + 1],
            Noted(name="evaljournal.answer", value={"outcome": "truncated"}, trial=trial, attempt=attempt),
            *events[start + 1 :],
        ]

    trials = [
        truncated(answered("short"), 1),
        truncated(answered("short at last", failures=1), 2),
        truncated(answered("complete at last", failures=1), 1),
        truncated(failed("never"), 1),
        [*truncated(answered("gone"), 1), TrialWithdrawn(trial="gone", reason="removed")],
        [*answered("judged"), Noted(name="evaljournal.answer", value={"outcome": "truncated"}, trial="judged", attempt=1)],
        answered("complete"),
    ]

    assert 2 == summary_of(*trials).trials.truncated
    assert "2 of 5 outputs truncated by the token limit" in final_report(state_of(chain(*trials)), path="run")


def test_failures_are_excluded_from_the_mean() -> None:
    """With 81 of 90 trials answered, the mean is of 81, and 9 failures are shown."""
    trials = [answered(f"a{index}", {"exact": index < 72}) for index in range(81)] + [failed(f"b{index}") for index in range(9)]
    summary = summary_of(*trials)

    assert (90, 81, 9) == (summary.trials.enqueued, summary.trials.with_output, summary.trials.failed)
    assert "88.9 %  72 of 81 passed (95 % CI 80.2–94.0 %); excluded: 9 errors" == score_text(
        summary.scores["exact"], trials=summary.trials
    )


def test_repeats_show_the_number_of_cases() -> None:
    """With repeats, the number of trials and the number of cases are shown."""
    trials = [answered(case, {"exact": case == "a", "near": 0.5}, repeat=repeat) for case in "ab" for repeat in (1, 2)]
    scores = summary_of(*trials).scores

    assert score_text(scores["exact"]).startswith("50.0 %  2 of 4 in 2 cases passed")
    assert score_text(scores["near"]).startswith("0.5  mean of 4 scored in 2 cases")


def test_no_trial_done() -> None:
    """Without a finished trial there is no mean, no quantile, and no error."""
    summary = summary_of([enqueued("a")])

    assert (1, 1, 0) == (summary.trials.enqueued, summary.trials.open, summary.trials.with_output)
    assert ({}, None, 0) == (summary.scores, summary.latency.p50, summary.latency.count)
    assert attrs.asdict(summarize(RunState()))["evaluation"] is None


def test_mixed_scores() -> None:
    """Numbers and labels of one scorer have their own denominators; a number that is not finite is excluded."""
    values = [0.5, 1.0, "refused", PASS, math.nan]
    judge = summary_of(*(answered(f"t{index}", {"judge": value}) for index, value in enumerate(values))).scores["judge"]

    assert ("mixed", 5, 3, {"refused": 1}) == (judge.kind, judge.scored, judge.numbers, judge.labels)
    mean, label = "0.833  mean of 3 scored (95 % CI 0.116 to 1)", "refused 20 %  of 5 scored"
    assert f"{mean} {label}; excluded: 1 not finite or too large" == score_text(judge)


def test_pass_at_k() -> None:
    """pass@k and pass^k are means over the cases with at least k trials, with the number of those cases."""
    verdicts = {"a": [PASS, PASS, FAIL], "b": [FAIL, FAIL, FAIL], "c": [PASS, PASS, PASS], "d": [PASS]}
    trials = [
        answered(case, {"exact": verdict}, repeat=repeat)
        for case, all_ in verdicts.items()
        for repeat, verdict in enumerate(all_, 1)
    ]
    exact = summary_of(*trials).scores["exact"]
    counts = [(3, 2), (3, 0), (3, 3)]

    assert [(1, 4), (2, 3), (3, 3)] == [(estimate.k, estimate.cases) for estimate in exact.pass_at_k]
    for estimate in exact.pass_at_k[1:]:
        assert math.isclose(sum(pass_at(estimate.k, n=n, passes=passed) for n, passed in counts) / 3, estimate.at_least_one)
        assert math.isclose(sum(pass_all(estimate.k, n=n, passes=passed) for n, passed in counts) / 3, estimate.all)
    assert (10, 4, 6) == (exact.numbers, exact.cases, exact.passed)


def test_pass_at_1_is_the_mean() -> None:
    """If all cases have the same number of repeats, pass@1 and pass^1 equal the mean, with its interval."""
    verdicts = itertools.product(range(12), range(1, 5))
    trials = [answered(f"c{case}", {"exact": (case * repeat) % 5 < 2}, repeat=repeat) for case, repeat in verdicts]
    exact = summary_of(*trials).scores["exact"]
    first = exact.pass_at_k[0]

    assert pytest.approx((1, 12, *(exact.mean, exact.low, exact.high) * 2)) == attrs.astuple(first)


def test_repeats_added_on_resume() -> None:
    """Repeats added on resume give the same summary as repeats from the start."""
    first = [answered(f"c{case}", {"near": case / 7, "exact": case > 2}) for case in range(5)]
    second = [answered(f"c{case}", {"near": case / 5, "exact": case > 3}, repeat=2) for case in range(5)]
    late = summary_of(*first, *second)
    early = summary_of(*itertools.chain.from_iterable(zip(second, first, strict=True)))

    for scorer in ("near", "exact"):
        assert late.scores[scorer].cases == 5
        assert math.isclose(late.scores[scorer].standard_error or 0.0, early.scores[scorer].standard_error or 1.0)


def noted(trial: str, attempt: int, tokens: int) -> Event:
    """Return a note of tokens."""
    return Noted(name="tokens", value=tokens, trial=trial, attempt=attempt)


def test_usage_without_output() -> None:
    """Tokens of failed, timed-out, interrupted and late attempts are in the sum, and shown separately."""
    events: list[Event] = [
        enqueued("a"),
        AttemptStarted(trial="a", attempt=1, slot=0),
        noted("a", 1, 1),
        AttemptTimedOut(trial="a", attempt=1, timeout=5.0, elapsed=5.0, usage={"tokens": 10}),
        RetryScheduled(trial="a", attempt=2, delay=1.0, reason="timed_out"),
        noted("a", 1, 100),
        AttemptStarted(trial="a", attempt=2, slot=0),
        noted("a", 2, 1_000),
        AttemptInterrupted(trial="a", attempt=2, reason="process_died"),
        AttemptStarted(trial="a", attempt=3, slot=0),
        AttemptReturnedLate(trial="a", attempt=1, outcome="succeeded", elapsed=9.0),
        noted("a", 1, 10_000),
        noted("a", 3, 100_000),
        AttemptSucceeded(trial="a", attempt=3, output=1, elapsed=1.0, usage={"tokens": 1_000_000}),
        noted("a", 3, 10_000_000),
        TrialCompleted(trial="a", attempts=3),
        Noted(name="tokens", value=100_000_000),
    ]
    summary = summary_of(events)

    assert (111_111_111, 11_111) == (summary.usage["tokens"], summary.usage_without_output["tokens"])
    report = final_report(state_of(events), path="r", verbose=True)
    assert "tokens 111,111,111; of this tokens 11,111 by attempts without an output" in report


def test_repeated_calls() -> None:
    """An interrupted attempt counts as repeated once its trial is attempted again, also after the trial has failed."""

    def interrupted(trial: str, attempt: int) -> list[Event]:
        return [
            AttemptStarted(trial=trial, attempt=attempt, slot=0),
            AttemptInterrupted(trial=trial, attempt=attempt, reason="process_died"),
        ]

    events = chain(
        [enqueued("at-once"), *interrupted("at-once", 1), *interrupted("at-once", 2)],
        [
            enqueued("retried-later"),
            *interrupted("retried-later", 1),
            TrialFailed(trial="retried-later", attempts=1, reason="ambiguous"),
        ],
        [RetryScheduled(trial="retried-later", attempt=2, delay=0.0, reason="requested")],
        [AttemptStarted(trial="retried-later", attempt=2, slot=0)],
        [enqueued("never-again"), *interrupted("never-again", 1)],
    )
    attempts = summary_of(events).attempts

    assert (4, 2) == (attempts.interrupted, attempts.repeated_calls)
    assert "4 attempts were interrupted and 2 repeated; up to 2 attempts may have been paid for twice" in final_report(
        state_of(events), path="r"
    )


def test_sessions_and_crashes() -> None:
    """A session followed by another one without having ended is a crash; the last session is not counted."""
    trials: list[Event] = [session(2), RunStopped(reason="interrupted"), session(3), session(4)]
    summary = summary_of(trials)

    assert (4, 2, None) == (summary.sessions, summary.crashes, summary.outcome)
    assert "2 of 4 sessions ended without a final record (killed, power loss or disk full)" in final_report(
        state_of(trials), path="r"
    )
    done = summary_of([*trials, RunFinished(completed=0, failed=0, withdrawn=0, head="")])
    assert (2, "finished") == (done.crashes, done.outcome)


def test_latency_quantiles() -> None:
    """p50, p95, p99 and the maximum are latencies that occurred."""
    summary = summary_of(*(answered(f"t{index}", elapsed=index / 10) for index in range(200, 0, -1)))

    assert (200, 10.0, 19.0, 19.8, 20.0) == attrs.astuple(summary.latency)


@pytest.mark.parametrize("at", range(0, 40, 3))
def test_summary_after_any_record(at: int) -> None:
    """After any record of the golden journal there is a summary, and its counts add up."""
    trials = summarize(fold(read(GOLDEN), at=at)).trials

    stages = ("queued", "running", "scoring", "unsettled", "interrupted", "backing_off", "completed", "failed")
    assert trials.enqueued == sum(getattr(trials, stage) for stage in stages)
    assert len(stages) + 2 == len(STAGES)
