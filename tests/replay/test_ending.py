"""The final report of a run: scores, failing cases, errors and their fixes, figures and the next command."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from evaljournal.journal import Event, Record
from evaljournal.journal.events import (
    AttemptFailed,
    AttemptInterrupted,
    AttemptReturnedLate,
    AttemptSucceeded,
    AttemptTimedOut,
    IntakePaused,
    IntakeResumed,
    JournalRecovered,
    Noted,
    RetryScheduled,
    RunFinished,
    RunStopped,
    ScoringFailed,
    SegmentSealed,
    TrialFailed,
    TrialScored,
    TrialWithdrawn,
)
from evaljournal.journal.fact import evolve_fact
from evaljournal.replay import RunState, fold, load
from evaljournal.replay.page.page import headline
from evaljournal.replay.render import ending
from evaljournal.replay.render.ending import final_report, next_action, next_command
from evaljournal.replay.render.failing import failing_lines
from evaljournal.replay.render.phrases import score_text
from evaljournal.replay.render.summary import cost_text, waits_text
from evaljournal.replay.results.summary import score_of, summarize
from evaljournal.replay.state.tally import Tally
from tests.journal.samples import session, started, write_sync
from tests.replay.screens import ok, row, screen_lines
from tests.replay.trial_events import answered, attempt_started, enqueued, failed, queued, rate_limited, run_state

PASS, FAIL = True, False


def test_final_report_of_a_successful_run() -> None:
    """Success is short, and shows the next command."""
    state = run_state([*ok("a", PASS), RunFinished(completed=1, failed=0, withdrawn=0, head="")])

    assert (
        "capitals finished: 1 of 1 trial done, in runs/my run\n"
        "  exact  100.0 %  1 of 1 passed (95 % CI 20.7–100.0 %)\n"
        "  1 output · 0 errors · took 4 s\n"
        "  p50 0.25 s · p95 0.25 s of 1 output\n"
        "next: evaljournal report 'runs/my run' --open"
    ) == final_report(state, path="runs/my run", head="5291dfb9")


def test_verbose() -> None:
    """With `verbose`, the report also has all quantiles, tokens, seq, head and the command that verifies the run."""
    noted = Noted(name="tokens", value=7, trial="a", attempt=1)
    events = [*ok("a", PASS), noted, *queued("b"), attempt_started("b"), *rate_limited("b"), RunStopped(reason="interrupted")]
    lines = final_report(run_state(events), path="r", head="5291dfb9", verbose=True).splitlines()

    assert [
        "  1 retry: 1 rate limited",
        "  p50 0.25 s · p95 0.25 s · p99 0.25 s · max 0.25 s of 1 output",
        "  tokens 7",
        "  no output since the last error: RateLimited: slow down",
        f"journal: seq {2 + len(events)} · head 5291dfb9",
        "verify: evaljournal verify r",
        "next: evaljournal resume r",
    ] == lines[-7:]


def test_waits_and_retries() -> None:
    """The report says how long starts were paused and why, over all sessions, and the retries by cause."""
    timed_out = AttemptTimedOut(trial="b", attempt=1, timeout=1.0, elapsed=1.0)
    events: list[tuple[float, Event]] = [
        (1.0, IntakePaused(until=61.0, reason="retry_after")),
        (31.0, IntakePaused(until=91.0, reason="retry_after", key="b")),  # Overlaps the first one.
        *(
            (31.0, event)
            for event in (*queued("a", "b"), attempt_started("a"), *rate_limited("a"), attempt_started("b", slot=1))
        ),
        (100.0, IntakePaused(until=101.0, reason="unavailable")),
        (110.0, IntakeResumed(reason="unavailable")),
        (120.0, timed_out),
        (120.0, RetryScheduled(trial="b", attempt=2, delay=1.0, reason="timed_out")),
        (120.0, IntakePaused(until=150.0, reason="rate_limited")),
        (122.0, IntakePaused(until=150.0, reason="unavailable", key="c")),  # The time of both counts once.
        (125.0, RunStopped(reason="interrupted")),
        (125.5, SegmentSealed(run="", segment=1, records=12, bytes=1, sha256="")),
    ]
    at = "2026-11-15T00:00:00.000000Z"
    before: list[tuple[float, Event]] = [(0.0, started()), (0.0, session())]
    state = fold(Record(seq, at, t, event, 0, "", 1, seq) for seq, (t, event) in enumerate([*before, *events], start=1))

    assert {"retry_after": 90.0, "unavailable": 10.0, "rate_limited": 5.0} == state.policy.paused_seconds(state.t)
    assert "waited 1 min 45 s: 429s 1 min 35 s, outages 10 s; 2 retries: 1 rate limited, 1 timeout" == waits_text(state)
    assert f"  {waits_text(state)}" in final_report(state, path="r").splitlines()


@pytest.mark.parametrize(
    ("category", "in_flight", "text"),
    [
        ("rate_limited", False, "waited 12 s: 429s; 1 retry: 1 rate limited"),
        ("unavailable", False, "waited 12 s: backoff; 1 retry: 1 server or connection error"),
        ("rate_limited", True, "1 retry: 1 rate limited"),
    ],
)
def test_a_single_backoff(category: Any, text: str, *, in_flight: bool) -> None:
    """The time in which nothing is in flight until a backoff ends is counted, as after a single Retry-After."""
    failure = AttemptFailed(trial="a", attempt=1, error="E", message="", category=category, elapsed=1.0)
    events: list[tuple[float, Event]] = [
        *((1.0, event) for event in (*queued("a", "b"), attempt_started("a"), attempt_started("b", slot=1))),
        *((1.5, event) for event in ([] if in_flight else [AttemptSucceeded(trial="b", attempt=1, output=1, elapsed=0.5)])),
        (2.0, failure),
        (2.0, RetryScheduled(trial="a", attempt=2, delay=12.0, reason=category)),
        (16.0, attempt_started("a", 2)),
    ]
    at = "2026-11-15T00:00:00.000000Z"
    before: list[tuple[float, Event]] = [(0.0, started()), (0.0, session())]
    state = fold(Record(seq, at, t, event, 0, "", 1, seq) for seq, (t, event) in enumerate([*before, *events], start=1))

    assert text == waits_text(state)


def test_no_waits() -> None:
    """Without a pause of a second and without retries, nothing is said about waits."""
    assert "" == waits_text(run_state([*ok("a", PASS), IntakePaused(until=3.0, reason="retry_after")]))


def test_the_cost_includes_judges() -> None:
    """The cost is one number for task and judges; calls without a price are named, and tokens only if there is no cost."""
    usage = {"cost": 0.03, "input_tokens": 900, "judge.cost": 0.004, "judge.unpriced_calls": 2}

    assert "cost $0.0340 · 2 judge calls without a price (big)" == cost_text(usage, {"judge.unpriced_calls": ["big"]})
    assert "input_tokens 900" == cost_text({"input_tokens": 900, "temperature": 3}, {})
    assert not cost_text({"temperature": 3}, {})


LONG = "The capital is " + 100 * "very " + "far away"


def write_failing(path: Path, *trials: Sequence[Event]) -> list[str]:
    """Write a finished run of these trials; return the lines about failing cases."""
    events = [started(), session(), *itertools.chain(*trials)]
    write_sync(path, [*events, RunFinished(completed=len(trials), failed=0, withdrawn=0, head="")])
    return list(failing_lines(load(path).state, path, 80))


def test_failing_cases(tmp_path: Path) -> None:
    """The first five failing cases have output → expected in one line, without control characters; the others are counted."""
    outputs = ["Lina", "a\nb\x1b[31m", LONG, " Lima", 42, "", "x", "y"]
    trials = [answered(f"c{number}", {"exact": False}, output=output) for number, output in enumerate(outputs)]
    trials[0][0] = evolve_fact(enqueued("c0"), expected="Lima")
    trials[2][0] = evolve_fact(enqueued("c2"), expected=LONG[:60])
    trials[4][0] = evolve_fact(enqueued("c4"), expected="42")
    path = tmp_path / "run"
    lines = write_failing(path, answered("right", {"exact": True}), *trials)

    assert [
        "8 of 9 outputs fail:",
        "  c0  Lina → Lima",
        "  c1  a\\nb\\x1b[31m",
        '  c2  The capital is very ver…ery far away → "The capital is very ve…very very "',
        '  c3  " Lima"',
        '  c4  42 → "42"',
        f"  and 3 more: evaljournal show {path} --failing",
    ] == lines
    assert 80 >= max(map(len, lines[:-1]))


def test_reasons_of_failing_scores(tmp_path: Path) -> None:
    """The reasons of failing scores follow the output; scorers are named if there are several."""
    trial = answered("a", {"exact": False, "judge": False, "tone": True}, output="Lina")
    trial = [evolve_fact(event, reason="wrong\ncity") if getattr(event, "scorer", "") == "judge" else event for event in trial]

    assert ["1 of 1 output fails:", "  a  Lina  (exact, judge)", "     judge: wrong city"] == write_failing(
        tmp_path / "r", trial
    )


def test_failing_cases_with_many_scorers(tmp_path: Path) -> None:
    """If the names of the scorers leave no room, the output has 23 characters nevertheless."""
    scorers = [letter * 24 for letter in "abcd"]
    lines = write_failing(tmp_path / "r", answered("c", dict.fromkeys(scorers, False), output=LONG))

    assert f"  c  The capital is …ar away  ({', '.join(scorers)})" == lines[1]


def test_a_failing_case_with_several_trials_is_listed_once(tmp_path: Path) -> None:
    """Of a case with variants or repeats, the first failing trial is listed; those that are not listed are counted as cases."""
    trials = [answered(case, {"exact": case == "b"}, variant=name) for case in ("a", "b", "c") for name in ("mini", "large")]

    assert ["4 of 6 outputs fail, in 2 cases:", "  a@mini  Lima", "  c@mini  Lima"] == write_failing(tmp_path / "r", *trials)
    more = [answered(f"d{number}", {"exact": False}, variant="mini") for number in range(5)]
    path = tmp_path / "more"
    assert f"  and 2 more cases: evaljournal show {path} --failing" == write_failing(path, *trials, *more)[-1]


def test_lowest_numbers(tmp_path: Path) -> None:
    """If no score passes or fails, the cases with the lowest numbers of the first score are listed, unless all are equal."""
    values = [0.9, 0.2, 0.8, 0.7, 1.0, 0.1, 0.6]
    trials = [answered(f"c{number}", {"tone": "kind", "near": value}) for number, value in enumerate(values)]

    assert [
        "lowest near:",
        "  c5  Lima  (0.1)",
        "  c1  Lima  (0.2)",
        "  c6  Lima  (0.6)",
        "  c3  Lima  (0.7)",
        "  c2  Lima  (0.8)",
    ] == write_failing(tmp_path / "different", *trials)
    assert [] == write_failing(tmp_path / "equal", *(answered(name, {"near": 0.5}) for name in "ab"))
    assert [] == write_failing(tmp_path / "passing", answered("a", {"exact": True, "near": 0.1}), trials[0])


def test_failing_cases_of_a_journal_that_cannot_be_read() -> None:
    """If outputs cannot be read any more, the failing cases are named."""
    state = run_state([*ok("a", FAIL), *ok("b", PASS)])

    assert ["1 of 2 outputs fails:", "  a"] == list(failing_lines(state, "missing"))


def test_a_score_that_passes_later_is_not_failing(tmp_path: Path) -> None:
    """After re-scoring, the latest value and its reason count."""
    first, second = (
        TrialScored(trial="a", scorer="exact", version=version, value=value, reason=reason, elapsed=0.0)
        for version, value, reason in (("1", False, "old"), ("2", True, ""))
    )
    state = run_state([*ok("a", FAIL), first])

    assert {("a", "exact"): "old"} == state.scores.reasons
    assert ({}, []) == ((after := run_state([*ok("a", FAIL), first, second])).scores.reasons, list(failing_lines(after, "r")))


def test_errors_are_grouped_by_cause() -> None:
    """Errors with one message, or raised at one line, are one cause; the most frequent causes come first."""
    same = itertools.chain.from_iterable(failed(f"t{number}") for number in range(9))
    events = [
        *same,
        *failed("other", error="TimeoutError", message="too\n  slow"),
        RunFinished(completed=0, failed=10, withdrawn=0, head=""),
    ]

    assert [
        "10 errors:",
        "  9 × ValueError: no (not retried): t0, t1, t2, …",
        "  other: TimeoutError: too slow (not retried, 1 attempt)",
        "  0 outputs · 10 errors · took 22 s",
        "next: evaljournal resume r --retry-failed",
    ] == final_report(run_state(events), path="r").splitlines()[-5:]


def test_errors_with_ids_have_one_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that differ in numbers and ids are one cause, but not those with another fix; errors are grouped once."""
    ids = ["req_011CSHoE", "req_9fQ", "0x7f3a", "0xb2", "5d1f0a3c-9c1e-4b7a-8f00-0123456789ab", "17", "2.5"]
    more = [failed(f"m{status}", message=f"{status} from h") for status in (404, 500, 503)]
    events = [*itertools.chain(*(failed(f"t{number}", message=f"no: {id_}") for number, id_ in enumerate(ids)), *more)]
    state = run_state([*events, RunFinished(completed=0, failed=10, withdrawn=0, head="")])
    grouping = Mock(wraps=ending._causes)
    monkeypatch.setattr(ending, "_causes", grouping)

    assert [
        "10 errors:",
        "  7 × ValueError: no: req_011CSHoE (not retried): t0, t1, t2, …",
        "  2 × ValueError: 500 from h (not retried): m500, m503",
        "  m404: ValueError: 404 from h (not retried, 1 attempt)",
    ] == final_report(state, path="r").splitlines()[1:5]
    assert 1 == grouping.call_count


def test_the_fix_of_each_cause() -> None:
    """Each cause has the edit that fixes it; one command retries all errors, and the next command opens the report."""
    timeout = AttemptTimedOut(trial="slow", attempt=1, timeout=30.0, elapsed=30.0)
    slow = [*queued("slow"), attempt_started("slow"), timeout, TrialFailed(trial="slow", attempts=1, reason="timed_out")]
    fixable = [with_error(name, message=f"no {name}", location="task.py:3") for name in ("a", "b")]
    more = [failed(f"t{number}", message=letter) for number, letter in enumerate("abcdefghi")]
    events = [*ok("good"), *itertools.chain(slow, *fixable, *more)]
    report = final_report(run_state([*events, RunFinished(completed=1, failed=12, withdrawn=0, head="")]), path="r")

    assert [
        "12 errors:",
        "  2 × ValueError: no a (not retried): a, b",
        "    fix task.py:3",
        "  slow: timed out after 30 s (timed out, 1 attempt)",
        "  t0: ValueError: a (not retried, 1 attempt)",
        "  t1: ValueError: b (not retried, 1 attempt)",
        "  t2: ValueError: c (not retried, 1 attempt)",
        "  and 6 more: evaljournal show r --errors",
        "  retry: evaljournal resume r --adopt --retry-failed --timeout 60",
    ] == report.splitlines()[1:10]
    assert report.endswith("next: evaljournal report r --open")


def test_causes_of_failures() -> None:
    """Each error has its reason and number of attempts; after timeouts, the next command has twice the timeout."""
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
        RunFinished(completed=0, failed=2, withdrawn=0, head=""),
    ]
    lines = final_report(run_state(events), path="r").splitlines()

    assert [
        "  a: timed out after 5 s (timed out, 2 attempts)",
        "  b: interrupted, not repeated (2 attempts)",
        "next: evaljournal resume r --retry-failed --timeout 60",
    ] == [*lines[2:4], lines[-1]]
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
    assert "1 attempt was interrupted; if repeated, it may be paid for twice" in report
    assert "1 attempt in flight at the end, to be repeated on resume" in report
    assert "1 attempt returned late; results discarded" in report
    assert "the journal was repaired 1 time after a crash" in report
    assert report.endswith("next: evaljournal resume r")


def test_reason_of_a_stop() -> None:
    """The reason of a stop is shown with its details, and with the total number of trials; a full disk is not recorded."""
    state = run_state([*ok("a"), RunStopped(reason="failed_fast")])
    state.sessions.planned = 9

    assert final_report(state, path="r", detail="401: the\nkey was rejected").startswith(
        "capitals stopped (too many errors): 1 of 9 trials done, in r\n  401: the key was rejected\n"
    )
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
    assert headline(summarize(run_state(events)), "interrupted").startswith("capitals: interrupted. 1 trial done, ")


def with_error(trial: str, **error: Any) -> list[Event]:
    """Return the events of a trial that ends with an error."""
    return [evolve_fact(event, **error) if isinstance(event, AttemptFailed) else event for event in failed(trial)]


TRUNCATED = {"error": "Truncated", "message": "the answer was truncated by the token limit: Li"}
NOT_FOUND = "404 Not Found from http://h/v1/chat/completions: no such model"


@pytest.mark.parametrize(
    ("task", "completed", "error", "step"),
    [
        ('{"options":{"chat":["m"]}}', 0, {"message": NOT_FOUND}, "{edit}, then {resume} --adopt --retry-failed -s chat=m"),
        (
            '{"options":{"chat":["m;y"]}}',
            1,
            {"message": NOT_FOUND},
            "{edit}, then {resume} --adopt --retry-failed -s 'chat=m;y'",
        ),
        ('{"file":{"chat":"m\\u001b"}}', 1, {"message": NOT_FOUND}, "{edit}, then {resume} --adopt --retry-failed -s chat=…"),
        ('{"options":{"chat":["a","b"]}}', 0, {"message": NOT_FOUND}, "{edit}, then {resume} --adopt --retry-failed -s chat=…"),
        ('{"options":{"command":"x"}}', 0, {"message": NOT_FOUND}, "{edit}, then {resume} --adopt --retry-failed"),
        ("chat.py", 0, {"message": NOT_FOUND}, "{edit} in chat.py, then {resume} --adopt --retry-failed"),
        (
            "sdk.py",
            0,
            {"message": NOT_FOUND, "location": "sdk.py:9"},
            "{edit} in sdk.py:9, then {resume} --adopt --retry-failed",
        ),
        (
            '{"options":{"chat":["m"]}}',
            0,
            TRUNCATED,
            "raise --max-tokens, then {resume} --adopt --retry-failed -s max-tokens=…",
        ),
        ("task.py", 0, {"location": "task.py:3"}, "fix task.py:3, then {resume} --adopt --retry-failed"),
        ("task.py", 1, {"message": "the command is missing"}, "{resume} --retry-failed"),
        (
            "task.py",
            0,
            {"error": "evaljournal.ReplyMissing", "location": "task.py:3"},
            "restore the recorded requests, or add --no-offline --on-miss live, then {resume} --adopt --retry-failed",
        ),
    ],
)
def test_the_edit_before_the_next_command(task: str, completed: int, error: dict[str, Any], step: str) -> None:
    """After failures that a retry repeats, the next step is an edit, and a command that accepts it."""
    events = [*(event for number in range(completed) for event in ok(f"ok{number}")), *with_error("a", **error)]
    state = run_state([*events, RunFinished(completed=completed, failed=1, withdrawn=0, head="")])
    assert state.started is not None
    state.sessions.started = evolve_fact(state.started, task=task)

    expected = step.format(edit="correct the model name or the URL", resume="evaljournal resume r")
    assert expected == next_action(state, "r")
    assert expected.rpartition(", then ")[2] == next_command(state, "r")
    assert f"next: {'evaljournal report r --open' if completed else expected}" == final_report(state, path="r").splitlines()[-1]


def test_an_output_that_is_not_json_names_what_to_return() -> None:
    """The next step names the values that a task may return."""
    state = run_state(
        [
            *queued("a"),
            attempt_started("a"),
            AttemptFailed(
                trial="a", attempt=1, error="Unserializable", message="output is a set", category="fatal", elapsed=0.1
            ),
            TrialFailed(trial="a", attempts=1, reason="unserializable"),
            RunFinished(completed=0, failed=1, withdrawn=0, head=""),
        ]
    )

    values = "return a text, number, boolean, None, list, dict, dataclass, attrs or pydantic object"
    assert f"{values}, then evaljournal resume r --adopt --retry-failed" == next_action(state, "r")


def test_next_command_without_a_task() -> None:
    """If nothing records the task, the next command has a placeholder for it; a run started from Python is resumed there.

    The path is quoted.
    """
    failed = RunState()
    failed.sessions.outcome, failed.totals.stages["failed"] = "finished", 1

    assert "evaljournal resume 'a b' --task FILE.py:NAME" == next_command(RunState(), "a b")
    assert "evaljournal resume a --retry-failed --task FILE.py:NAME" == next_command(failed, "a")

    python = run_state([])
    assert python.started is not None
    python.sessions.started = evolve_fact(python.started, task="")
    assert 'run(capitals, "it\'s", resume=True)' == next_command(python, "it's")
    python.sessions.started = evolve_fact(python.started, evaluation="x); print(")
    python.sessions.outcome, python.totals.stages["failed"] = "finished", 1
    assert "run(…, 'a', resume=True, retry_failed=True)" == next_command(python, "a")
