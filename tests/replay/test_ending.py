"""The final report of a run: counts, scores, failures and the next command."""

import itertools
from typing import Any

import attrs
import pytest

from evaljournal.journal.events import (
    AttemptFailed,
    AttemptInterrupted,
    AttemptReturnedLate,
    AttemptTimedOut,
    JournalRecovered,
    RetryScheduled,
    RunFinished,
    RunStopped,
    ScoringFailed,
    TrialFailed,
    TrialWithdrawn,
)
from evaljournal.replay import RunState
from evaljournal.replay.page.page import headline
from evaljournal.replay.render.ending import final_report, next_command
from evaljournal.replay.render.phrases import score_text
from evaljournal.replay.results.summary import score_of, summarize
from evaljournal.replay.state.tally import Tally
from tests.replay.screens import ok, row, screen_lines
from tests.replay.trial_events import attempt_started, failed, queued, rate_limited, run_state

PASS, FAIL = True, False


def test_final_report_of_a_successful_run() -> None:
    """Success is short, and shows the next command."""
    state = run_state([*ok("a", PASS), RunFinished(completed=1, failed=0, withdrawn=0, head="")])

    assert (
        "capitals finished: 1 of 1 trial done, in runs/my run\n"
        "  took 4 s\n"
        "  1 output · 0 errors\n"
        "  exact  100.0 %  1 of 1 passed (95 % CI 20.7–100.0 %)\n"
        "  p50 0.25 s · p95 0.25 s · p99 0.25 s · max 0.25 s of 1 output\n"
        "next: evaljournal verify 'runs/my run'"
    ) == final_report(state, path="runs/my run")


def test_failed_trials() -> None:
    """A few failures are listed, different errors first, then the number of others and the next command."""
    same = itertools.chain.from_iterable(failed(f"t{number}") for number in range(9))
    events = [
        *same,
        *failed("other", error="TimeoutError", message="too\n  slow"),
        RunFinished(completed=0, failed=10, withdrawn=0, head=""),
    ]

    assert [
        "10 errors:",
        "  t0: ValueError: no (not retried, 1 attempt)",
        "  other: TimeoutError: too slow (not retried, 1 attempt)",
        "  t1: ValueError: no (not retried, 1 attempt)",
        "  t2: ValueError: no (not retried, 1 attempt)",
        "  t3: ValueError: no (not retried, 1 attempt)",
        "  and 5 more",
        "details: evaljournal log r t0",
        "next: evaljournal resume r --retry-failed",
    ] == final_report(run_state(events), path="r").splitlines()[-9:]


def test_causes_of_failures() -> None:
    """Each failed trial has its error, cause and number of attempts."""
    events = [
        *queued("a", "b"),
        attempt_started("a"),
        AttemptTimedOut(trial="a", attempt=1, timeout=5.0, elapsed=5.0),
        RetryScheduled(trial="a", attempt=2, delay=1.0, reason="timed_out"),
        attempt_started("a", 2),
        AttemptTimedOut(trial="a", attempt=2, timeout=5.0, elapsed=5.0),
        TrialFailed(trial="a", attempts=2, reason="timed_out"),
        attempt_started("b"),
        *rate_limited("b"),
        attempt_started("b", 2),
        AttemptInterrupted(trial="b", attempt=2, reason="process_died"),
        TrialFailed(trial="b", attempts=2, reason="ambiguous"),
    ]

    assert [
        "  a: timed out after 5 s (timed out, 2 attempts)",
        "  b: interrupted, not repeated (2 attempts)",
    ] == final_report(run_state(events), path="r").splitlines()[-4:-2]
    assert {"timed_out": 1, "ambiguous": 1} == summarize(run_state(events)).failed_by_reason


def test_interrupted_and_late_attempts() -> None:
    """Interrupted, open and late attempts and a recovered journal are in the final report."""
    state = run_state(
        [
            *queued("a", "b", "c"),
            attempt_started("a"),
            AttemptInterrupted(trial="a", attempt=1, reason="process_died"),
            attempt_started("b"),
            AttemptTimedOut(trial="b", attempt=1, timeout=5.0, elapsed=5.0),
            AttemptReturnedLate(trial="b", attempt=1, outcome="succeeded", elapsed=7.0),
            RetryScheduled(trial="b", attempt=2, delay=1.0, reason="timed_out"),
            attempt_started("c"),
            JournalRecovered(last_seq=9, bytes=12, file="torn/1"),
        ]
    )
    report = final_report(state, path="r")

    assert "capitals ended without a final record (killed, power loss or disk full): 0 trials done, in r" in report
    assert "1 retry: 1 × timed out" in report
    assert "1 attempt was interrupted; if repeated, it may be paid for twice" in report
    assert "1 attempt in flight at the end, to be repeated on resume" in report
    assert "1 attempt returned late; results discarded" in report
    assert "the journal was repaired 1 time after a crash" in report
    assert report.endswith("next: evaljournal resume r")


def test_reason_of_a_stop() -> None:
    """The reason of a stop is shown with its details, and with the total number of trials."""
    state = run_state([*ok("a"), RunStopped(reason="failed_fast")])

    assert final_report(state, path="r", total=9, detail="401: the\nkey was rejected").startswith(
        "capitals stopped (too many errors): 1 of 9 trials done, in r\n  401: the key was rejected\n"
    )


def test_full_disk() -> None:
    """A full disk is the reason even if there was no space to record it."""
    assert final_report(run_state([]), path="r", stop_reason="disk_full").startswith("capitals stopped (disk full)")


def test_withdrawn_trials_do_not_count() -> None:
    """A withdrawn trial is in no denominator; it is counted separately."""
    state = run_state([*ok("a", PASS), *ok("b", FAIL), TrialWithdrawn(trial="b", reason="removed")])

    assert "1 output · 0 errors · 1 withdrawn" == row(screen_lines(state), "trials")
    assert "100.0 %  1 of 1 passed" in row(screen_lines(state), "scores")


def test_failed_scorer() -> None:
    """Outputs that a scorer failed on are counted next to its scores."""
    failed = ScoringFailed(trial="b", scorer="exact", version="v1", error="KeyError", message="x", elapsed=0.0)
    state = run_state([*ok("a", PASS), *ok("b"), failed])

    text = "exact  100.0 %  1 of 1 passed (95 % CI 20.7–100.0 %); excluded: 1 scorer error (KeyError: x)"
    assert text == row(screen_lines(state), "scores")
    assert "details: evaljournal log r --type scoring_failed" in final_report(state, path="r").splitlines()


def test_many_labels() -> None:
    """The six most frequent labels are shown, with the number of others; removed ones are not counted."""
    tally = Tally()
    for label in "aaabcdefgh":
        tally.add(label)
    tally.add("h", -1)

    assert "a 33 %, b 11 %, c 11 %, d 11 %, e 11 %, f 11 % and 1 more label  of 9 scored" == score_text(score_of(tally))


def test_unknown_total_of_a_stopped_run() -> None:
    """A stopped run with an unknown total shows only the trials done."""
    events = [*ok("a"), *queued("b", "c"), RunStopped(reason="interrupted")]
    finished = [*ok("a"), RunFinished(completed=1, failed=0, withdrawn=0, head="")]

    assert final_report(run_state(events), path="r").startswith("capitals interrupted: 1 trial done, in r\n")
    assert final_report(run_state(finished), path="r").startswith("capitals finished: 1 of 1 trial done, in r\n")
    assert final_report(run_state(events), path="r", total=9).startswith("capitals interrupted: 1 of 9 trials done, in r\n")
    assert headline(summarize(run_state(events)), "interrupted").startswith("capitals: interrupted. 1 trial done, ")


def test_next_command_is_quoted() -> None:
    """The path in the next command is quoted for a shell."""
    assert "evaljournal resume 'a b'" == next_command(run_state([]), "a b")


NOT_FOUND = "404 Not Found from http://h/v1/chat/completions: no such model"


@pytest.mark.parametrize(
    ("task", "completed", "error", "step"),
    [
        ("--data qa.jsonl --chat m", 0, {"message": NOT_FOUND}, "{edit}, then evaljournal run --data qa.jsonl --chat m"),
        ("--data x; rm y", 0, {"message": NOT_FOUND}, "{edit}, then evaljournal run --data 'x;' rm y"),
        ("--data 'x", 0, {"message": NOT_FOUND}, "{edit}, then evaljournal run …"),
        ("--data a\x1b[31m", 0, {"message": NOT_FOUND}, "{edit}, then evaljournal run …"),
        (
            "--data qa.jsonl --chat m",
            1,
            {"message": NOT_FOUND},
            "{edit}, then {resume} --adopt --retry-failed --task '--data qa.jsonl --chat m'",
        ),
        ("chat.py", 0, {"message": NOT_FOUND}, "{edit} in chat.py, then {resume} --adopt --retry-failed"),
        (
            "sdk.py",
            0,
            {"message": NOT_FOUND, "location": "sdk.py:9"},
            "{edit} in sdk.py:9, then {resume} --adopt --retry-failed",
        ),
        ("task.py", 0, {"location": "task.py:3"}, "fix task.py:3, then {resume} --adopt --retry-failed"),
        ("task.py", 1, {"message": "the command is missing"}, "{resume} --retry-failed"),
    ],
)
def test_the_edit_before_the_next_command(task: str, completed: int, error: dict[str, Any], step: str) -> None:
    """After failures that a retry repeats, the next step is an edit, and a command that accepts it."""
    events = [event for number in range(completed) for event in ok(f"ok{number}")]
    for event in failed("a"):
        is_failure = isinstance(event, AttemptFailed)
        events.append(attrs.evolve(event, **error) if is_failure else event)  # type: ignore[misc]  # an event is an attrs class
    state = run_state([*events, RunFinished(completed=completed, failed=1, withdrawn=0, head="")])
    assert state.started is not None
    state.started = attrs.evolve(state.started, task=task)  # type: ignore[misc]  # an event is an attrs class

    expected = step.format(edit="correct the model name or the URL", resume="evaljournal resume r")
    assert f"next: {expected}" == final_report(state, path="r").splitlines()[-1]
    assert expected.rpartition(", then ")[2] == next_command(state, "r")


def test_the_next_command_after_timeouts() -> None:
    """A retry with the same timeout would time out again: the next command doubles it."""
    timeout = AttemptTimedOut(trial="a", attempt=1, timeout=30.0, elapsed=30.0)
    events = [*queued("a"), attempt_started("a"), timeout, TrialFailed(trial="a", attempts=1, reason="timed_out")]
    state = run_state([*events, RunFinished(completed=0, failed=1, withdrawn=0, head="")])

    assert "next: evaljournal resume r --retry-failed --timeout 60" == final_report(state, path="r").splitlines()[-1]


def test_next_command_without_a_task() -> None:
    """If the run does not record its task, the next command has a placeholder for it."""
    failed = RunState()
    failed.outcome, failed.stages["failed"] = "finished", 1

    assert "evaljournal resume a --task FILE.py:NAME" == next_command(RunState(), "a")
    assert "evaljournal resume a --retry-failed --task FILE.py:NAME" == next_command(failed, "a")
