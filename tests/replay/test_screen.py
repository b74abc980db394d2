"""What people see of a run, and that nothing in it can do anything to their terminal."""

import io
import itertools
from collections.abc import Iterable
from pathlib import Path

import pytest
from rich.console import Console

from journal import Blob, Event, Record
from journal.events import (
    AttemptFailed,
    AttemptInterrupted,
    AttemptReturnedLate,
    AttemptStarted,
    AttemptSucceeded,
    AttemptTimedOut,
    IntakePaused,
    IntakeResumed,
    JournalRecovered,
    LimitChanged,
    Noted,
    RetryScheduled,
    RunFinished,
    RunStarted,
    RunStopped,
    ScoringFailed,
    SessionStarted,
    TrialCompleted,
    TrialEnqueued,
    TrialFailed,
    TrialScored,
    TrialWithdrawn,
)
from replay import RunState
from replay.ending import final_report, next_command
from replay.export.page import headline
from replay.screen import line, panel, stopping_in_words
from replay.state import LastError
from replay.summary import score_of, summarise
from replay.summary_text import score_in_words
from replay.tally import Tally
from replay.text import digits, duration, number, printable

PASS, FAIL = True, False
EVIL = "\x1b]0;owned\x07\x1b[31m[bold]red[/bold]\r\n\u202eevil"


def state_of(events: Iterable[Event], *, tick: float = 0.5, slots: int = 8, timeout: float | None = 30.0) -> RunState:
    """Fold events that happen one after the other, so many seconds apart, in a run that has begun."""
    started = RunStarted(
        evaluation="capitals",
        task="evals/capitals.py:capitals",
        task_fingerprint="t1",
        scorers={},
        dataset="cases.jsonl",
        dataset_fingerprint="d1",
        settings={"slots": slots, "timeout": timeout},
        settings_fingerprint="s1",
        durability="sync",
        environment={},
    )
    state = RunState()
    facts = [started, SessionStarted(n=1, pid=4711, host="here", boot_id="b1"), *events]
    for seq, event in enumerate(facts, start=1):
        state.apply(Record(seq, "2026-11-15T00:00:00.000000Z", seq * tick, event, seq - 1, "", 1, 0))
    return state


def queued(*names: str) -> list[Event]:
    """Take trials in."""
    return [TrialEnqueued(trial=name, case=name, repeat=1, input=None, fingerprint="f") for name in names]


def begun(name: str, attempt: int = 1, slot: int = 0) -> Event:
    """Begin an attempt."""
    return AttemptStarted(trial=name, attempt=attempt, slot=slot)


def refused(name: str, attempt: int = 1, *, delay: float = 12.0) -> list[Event]:
    """Let an attempt meet a rate limit, and wait."""
    failed = AttemptFailed(
        trial=name, attempt=attempt, error="RateLimited", message="slow down", category="rate_limited", elapsed=0.1
    )
    return [failed, RetryScheduled(trial=name, attempt=attempt + 1, delay=delay, cause="rate_limited")]


def completed(name: str, *scores: bool | float | str, attempt: int = 1, elapsed: float = 0.25) -> list[Event]:
    """Let a trial that is running work out."""
    names = ("exact", "closeness", "tone")
    return [
        AttemptSucceeded(trial=name, attempt=attempt, output="Lima", elapsed=elapsed),
        *(
            TrialScored(trial=name, scorer=scorer, version="v1", value=value, elapsed=0.0)
            for scorer, value in zip(names, scores, strict=False)
        ),
        TrialCompleted(trial=name, attempts=attempt),
    ]


def given_up(name: str, error: str = "ValueError", message: str = "no such country") -> list[Event]:
    """Let a trial that is running fail for good."""
    failed = AttemptFailed(trial=name, attempt=1, error=error, message=message, category="fatal", elapsed=0.1)
    return [failed, TrialFailed(trial=name, attempts=1, cause="fatal")]


def ok(name: str, *scores: bool | float | str) -> list[Event]:
    """Tell the whole life of a trial that works out at once."""
    return [*queued(name), begun(name), *completed(name, *scores)]


def failing(name: str, error: str = "ValueError", message: str = "no such country") -> list[Event]:
    """Tell the whole life of a trial that fails."""
    return [*queued(name), begun(name), *given_up(name, error, message)]


def drawn(state: RunState, *, now: float = 0.0, total: int | None = None, width: int = 110, before: int = 0) -> list[str]:
    """Draw the panel as a terminal would show it, without its colours."""
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False)
    console.print(panel(state, now=now, durable=state.seq - 1, total=total, width=width, done_before=before, title="runs/1"))
    return out.getvalue().splitlines()


def row(lines: list[str], label: str) -> str:
    """Find what the panel says under a label."""
    return next(each[9:] for each in lines if each.startswith(f"{label:<9}"))


def test_the_panel_of_a_run_that_goes_on() -> None:
    """Every thing that there is something to say about has its line, with its denominator."""
    state = state_of(
        [
            LimitChanged(before=0, after=4, cause="start"),
            *queued("peru", "chile", "cuba", "france", "japan", "kenya"),
            begun("peru"),
            *refused("peru", delay=1.0),
            begun("peru", 2),
            *completed("peru", PASS, 0.5, "polite", attempt=2),
            begun("chile", slot=1),
            *completed("chile", FAIL, 1.0, "rude"),
            begun("cuba", slot=2),
            *given_up("cuba"),
            begun("france", slot=3),
            *refused("france"),
            begun("japan", slot=1),
            Noted(name="tokens", value=1200, trial="japan", attempt=1),
            Noted(name="cost", value=0.25, trial="japan", attempt=1),
            Noted(name="temperature", value=0.7, trial="japan", attempt=1),
            IntakePaused(until=30.0, cause="retry_after"),
        ],
    )

    assert [
        "capitals  runs/1",
        f"{12 * '━'}{28 * '─'}  3 of 10 · 30 % · paused for 12 s",
        "slots    1 of 4 busy · 1 queued · 1 in backoff · 4 to come",
        "waiting  Retry-After: 12 s left",
        "error    2 in a row, the last 3.5 s ago: RateLimited: slow down",
        "trials   2 ok of 3 done · 1 of 2 ok recovered after a failure",
        "failed   1 of 3 done",
        "scores   exact      50.0 %  1 of 2 passed (95 % CI 9.5–90.5 %); excluded: 1 failed",
        "         closeness  0.75  mean of 2 scored (95 % CI 0 to 1); excluded: 1 failed",
        "         tone       polite 50 %, rude 50 %  of 2 scored; excluded: 1 failed",
        "answers  p50 0.25 s · p95 0.25 s of 2 answers",
        "usage    tokens 1,200 · cost 0.25",
        "longest  slot   1  japan                 attempt 1  2.5 s of 30 s",
        f"journal  seq {state.seq} · on disk to {state.seq - 1}",
    ] == drawn(state, now=18.0, total=10)


def test_a_run_of_unknown_length_claims_no_end() -> None:
    """Where nobody knows how many trials there are, no share and no remaining time is made up."""
    lines = drawn(state_of([*ok("a"), *ok("b"), *ok("c"), *ok("d"), *queued("e")]), now=10.0)

    assert "4 done of 5 so far; total unknown" == lines[1]
    assert "%" not in "".join(lines)


def test_the_pace_is_that_of_this_session() -> None:
    """What an earlier session did does not make this one look faster."""
    state = state_of(itertools.chain.from_iterable(ok(f"t{number}") for number in range(8)))

    assert "8 of 10 · 80 % · 0.8/s · about 2 s left" in drawn(state, now=10.0, total=10)[1]
    assert "8 of 10 · 80 % · 0.3/s · about 7 s left" in drawn(state, now=10.0, total=10, before=5)[1]
    assert drawn(state, now=10.0, total=10, before=6)[1].endswith("8 of 10 · 80 %")


def timed_out(name: str, attempt: int = 1) -> Event:
    """Let an attempt run out of time."""
    return AttemptTimedOut(trial=name, attempt=attempt, timeout=5.0, elapsed=5.0)


def test_a_note_that_is_called_refused_is_no_reason() -> None:
    """Only a run that was stopped because something was refused has one; what is noted is not trusted."""
    noted = [
        Noted(name="evaljournal.unauthorized", value={"scorer": "judge", "message": "\x1b[31m401"}, trial="z", attempt=1),
        Noted(name="evaljournal.unauthorized", value=[1]),
    ]
    over, cut = state_of([*ok("z"), *noted, RunStopped(reason="unauthorized")]), state_of([*ok("z"), *noted])

    assert "\n  scorer judge: unauthorized: \\x1b[31m401\n" in final_report(over, path="r")
    assert "judge" not in final_report(cut, path="r")


def test_what_went_wrong_last_is_told() -> None:
    """The last error stands on the screen as long as no answer has followed it, and for a minute in any case."""
    ill = [*ok("z"), *queued("a", "b"), begun("a"), *refused("a"), begun("b"), timed_out("b")]
    state = state_of(ill)
    well = state_of([*ill, *ok("c")])

    assert "2 in a row, the last 1 min 59 s ago: timed out after 5 s" == row(drawn(state, now=125.5), "error")
    assert "2 in a row, the last 3 s ago: timed out after 5 s" == row(drawn(well, now=9.5), "error")
    assert not [each for each in drawn(well, now=125.5) if each.startswith("error")]
    assert "\n  no answer since the last error, 2 in a row: timed out after 5 s\n" in final_report(state, path="r")
    assert "the last error" not in final_report(well, path="r")
    assert None is state_of([*ill, SessionStarted(n=2, pid=1, host="here", boot_id="b1")]).last_error


def test_a_row_of_errors_ends_with_an_answer() -> None:
    """Only what failed since the last answer is counted as a row."""
    state = state_of([*queued("a", "b"), begun("a"), *refused("a"), *ok("c"), begun("b"), *refused("b")])

    assert LastError("RateLimited: slow down", 6.5, consecutive=1, outputs=1) == state.last_error


DONE = list(itertools.chain.from_iterable(ok(f"t{number}") for number in range(8)))


@pytest.mark.parametrize(
    ("events", "now", "said"),
    [
        ([], 25.0, "· 0.32/s · about 6 s left"),
        ([], 60.0, "· no trial done for 42 s"),
        (refused("x"), 60.0, "· no trial done for 42 s"),
        ([IntakePaused(until=29.0, cause="retry_after")], 25.0, "· 0.32/s · about 6 s left"),
        ([IntakePaused(until=85.0, cause="retry_after")], 25.0, "· paused for 1 min"),
        ([IntakePaused(until=20.0, cause="unavailable")], 25.0, "· endpoint unavailable; probing"),
        ([IntakePaused(until=20.0, cause="unavailable"), IntakeResumed(cause="unavailable")], 25.0, "· about 6 s left"),
        (
            [LimitChanged(before=0, after=4, cause="start", key="b"), IntakePaused(until=85.0, cause="retry_after", key="a")],
            25.0,
            "about 6 s left",
        ),
        ([RunStopped(reason="interrupted")], 25.0, "about 6 s left"),
    ],
)
def test_no_end_is_foretold_by_a_pace_that_is_over(events: list[Event], now: float, said: str) -> None:
    """While nothing may start, or nothing has been done for long, that is said instead of how long the rest will take."""
    state = state_of([*queued("x"), begun("x"), *DONE, *events])

    assert drawn(state, now=now, total=10)[1].endswith(said)
    assert ("about" in said) == ("about" in line(state, now=now, durable=9, total=10))


def test_an_open_breaker_is_shown_until_it_closes() -> None:
    """While the endpoint is unavailable the screen and the log show it, also while a probe is due or in flight."""
    state = state_of([*DONE, *queued("x", "y"), begun("x"), *refused("x"), IntakePaused(until=25.0, cause="unavailable")])

    assert "endpoint unavailable; probing, next probe in 2 s" == row(drawn(state, now=23.0, total=10), "waiting")
    assert "endpoint unavailable; probing" == row(drawn(state, now=99.0, total=10), "waiting")
    shown = "waiting: endpoint unavailable; probing · no trial done for 1 min 22 s · 1 min 20 s ago: RateLimited: slow down"
    assert shown in line(state, now=99.0, durable=1, total=10)


def test_an_attempt_that_cannot_be_stopped_is_named() -> None:
    """An attempt that outlives its limit, because it does not let itself be stopped, is named as such."""
    state = state_of([*queued("peru"), begun("peru", slot=3)], timeout=5.0)

    assert row(drawn(state, now=60.0), "longest").endswith("58 s, over its timeout; not responding to cancellation")


def test_answers_that_were_cut_short_are_told_while_it_goes_on() -> None:
    """That the limit of tokens cuts answers short is on the screen before all are spent."""
    short = Noted(name="evaljournal.finish_reason", value="length", trial="peru", attempt=1)
    state = state_of([*queued("peru"), begun("peru"), short, *completed("peru"), *ok("cuba")])

    said = "         1 of 2 answers truncated by the token limit; raise --max-tokens"
    assert said in drawn(state, now=18.0)


def test_an_attempt_without_a_limit_claims_none() -> None:
    """Where there is no limit, only the time so far is shown."""
    state = state_of([*queued("peru"), begun("peru", slot=3)], timeout=None)

    assert row(drawn(state, now=60.0), "longest").endswith("attempt 1  58 s")


def test_only_the_longest_attempts_are_shown() -> None:
    """Of many attempts, the four that have run longest are shown, the longest first."""
    names = [f"t{number}" for number in range(9)]
    state = state_of([*queued(*names), *(begun(name, slot=at) for at, name in enumerate(names))])
    shown = [each.partition("attempt")[0].split()[-1] for each in drawn(state, now=30.0) if " attempt 1 " in each]

    assert ["t0", "t1", "t2", "t3"] == shown


def test_a_pause_that_is_over_is_not_shown() -> None:
    """Neither a pause whose time has come nor one that was lifted is shown."""
    over = state_of([IntakePaused(until=5.0, cause="retry_after")])
    lifted = state_of([IntakePaused(until=50.0, cause="retry_after"), IntakeResumed(cause="retry_after")])

    assert "paused" not in drawn(over, now=6.0, total=9)[1]
    assert "waiting for cases: 9 to come" == row(drawn(over, now=6.0, total=9), "waiting")
    assert "waiting for cases: 9 to come" == row(drawn(lifted, now=6.0, total=9), "waiting")


def test_the_limit_is_the_settings_until_somebody_changes_it() -> None:
    """Before the first decision of a policy, the setting is the limit."""
    assert row(drawn(state_of([], slots=6)), "slots").startswith("0 of 6 busy")


def test_a_run_that_has_not_begun_can_be_drawn() -> None:
    """A journal in which nothing has happened yet is drawn, and ends, without an error."""
    state = RunState()

    assert "a run that has not started  runs/1" == drawn(state)[0]
    assert "the run ended without a final record (killed, power loss or disk full): 0 trials done" in final_report(
        state, path="r"
    )


@pytest.mark.parametrize("width", [20, 40, 80])
def test_the_panel_is_never_wider_than_asked(width: int) -> None:
    """Every thing is cut to the width, so that no line wraps."""
    events = [*ok("a" * 300, PASS, 0.5, "label " * 50), *queued("b" * 300), begun("b" * 300)]

    assert width >= max(map(len, drawn(state_of(events), now=9.0, total=3, width=width)))


def evil_state() -> RunState:
    """Make a run in which everything that comes from elsewhere is evil."""
    return state_of(
        [
            *queued(EVIL, f"{EVIL}2", f"{EVIL}3"),
            begun(EVIL),
            *given_up(EVIL, EVIL, EVIL),
            begun(f"{EVIL}2"),
            AttemptSucceeded(trial=f"{EVIL}2", attempt=1, output=EVIL, elapsed=0.1),
            TrialScored(trial=f"{EVIL}2", scorer=EVIL, version="v1", value=EVIL, elapsed=0.0),
            TrialCompleted(trial=f"{EVIL}2", attempts=1),
            begun(f"{EVIL}3"),
            IntakePaused(until=99.0, cause=EVIL),
            Noted(name=f"tokens{EVIL}", value=1),
        ]
    )


def test_what_comes_from_elsewhere_cannot_control_the_terminal() -> None:
    """Escape sequences and rich's markup in names, errors, scorers, labels and causes are shown, not obeyed."""
    state = evil_state()
    console = Console(file=(out := io.StringIO()), width=300, force_terminal=True, color_system=None)
    console.print(panel(state, now=1.0, durable=1, total=None, width=300, title=EVIL))
    everything = [out.getvalue(), line(state, now=1.0, durable=1, total=9), final_report(state, path=EVIL, reason=EVIL)]

    assert "[bold]red" in everything[0]
    assert all(char == "\n" or char.isprintable() for text in everything for char in text)


def test_the_line_of_a_log() -> None:
    """One plain line says how far it is, what came of it, the scores, and what is on disk."""
    events = [*ok("a", PASS, 0.5), *ok("b", FAIL, 1.0, "rude"), *failing("c"), *queued("d"), begun("d"), *refused("d")]
    state = state_of(events)

    assert (
        "3 of 6 (50 %) · 2 ok, 1 failed, 0 recovered · exact 50.0 % · closeness 0.75"
        " · about 20 s left · waiting: 1 trial in backoff, next in 3.5 s · waiting for cases: 2 to come"
        f" · seq {state.seq}, on disk to 9"
    ) == line(state, now=20.0, durable=9, total=6)
    assert line(state, now=30.0, durable=9, total=None).startswith("3 done · 2 ok, 1 failed")


def test_the_ending_of_a_run_in_which_all_went_well() -> None:
    """Success is short, and names the next command."""
    state = state_of([*ok("a", PASS), RunFinished(completed=1, failed=0, withdrawn=0, head="")])

    assert (
        "capitals finished: 1 of 1 trial done, in runs/my run\n"
        "  1 ok of 1 done\n"
        "  exact  100.0 %  1 of 1 passed (95 % CI 20.7–100.0 %)\n"
        "  p50 0.25 s · p95 0.25 s · p99 0.25 s · max 0.25 s of 1 answer\n"
        "next: evaljournal verify 'runs/my run'"
    ) == final_report(state, path="runs/my run")


def test_what_failed_is_told_last() -> None:
    """A few failures are told one by one, different ones first, then how many more there are, then the next command."""
    same = itertools.chain.from_iterable(failing(f"t{number}") for number in range(9))
    events = [
        *same,
        *failing("other", "TimeoutError", "too\n  slow"),
        RunFinished(completed=0, failed=10, withdrawn=0, head=""),
    ]

    assert [
        "10 trials failed:",
        "  t0: ValueError: no such country (fatal, 1 attempt)",
        "  other: TimeoutError: too slow (fatal, 1 attempt)",
        "  t1: ValueError: no such country (fatal, 1 attempt)",
        "  t2: ValueError: no such country (fatal, 1 attempt)",
        "  t3: ValueError: no such country (fatal, 1 attempt)",
        "  and 5 more",
        "details: evaljournal log r t0",
        "next: evaljournal resume r --retry-failed",
    ] == final_report(state_of(events), path="r").splitlines()[-9:]


def test_why_a_trial_was_given_up() -> None:
    """Each failure has its cause: the same error is another matter after five attempts, and so is one that was cut off."""
    events = [
        *queued("a", "b"),
        begun("a"),
        AttemptTimedOut(trial="a", attempt=1, timeout=5.0, elapsed=5.0),
        RetryScheduled(trial="a", attempt=2, delay=1.0, cause="timed_out"),
        begun("a", 2),
        AttemptTimedOut(trial="a", attempt=2, timeout=5.0, elapsed=5.0),
        TrialFailed(trial="a", attempts=2, cause="timed_out"),
        begun("b"),
        *refused("b"),
        begun("b", 2),
        AttemptInterrupted(trial="b", attempt=2, why="process_died"),
        TrialFailed(trial="b", attempts=2, cause="ambiguous"),
    ]

    assert [
        "  a: timed out after 5 s (timed_out, 2 attempts)",
        "  b: interrupted, and not repeated (ambiguous, 2 attempts)",
    ] == final_report(state_of(events), path="r").splitlines()[-4:-2]
    assert {"timed_out": 1, "ambiguous": 1} == summarise(state_of(events)).failures


def test_the_ending_says_what_may_have_been_paid_twice() -> None:
    """Attempts that were cut off, that came late or have no ending, and a journal that was recovered, are told."""
    state = state_of(
        [
            *queued("a", "b", "c"),
            begun("a"),
            AttemptInterrupted(trial="a", attempt=1, why="process_died"),
            begun("b"),
            AttemptTimedOut(trial="b", attempt=1, timeout=5.0, elapsed=5.0),
            AttemptReturnedLate(trial="b", attempt=1, ending="succeeded", elapsed=7.0),
            RetryScheduled(trial="b", attempt=2, delay=1.0, cause="timed_out"),
            begun("c"),
            JournalRecovered(after=9, bytes=12, file="torn/1"),
        ]
    )
    told = final_report(state, path="r")

    assert "capitals ended without a final record (killed, power loss or disk full): 0 trials done, in r" in told
    assert "1 retry: 1 × timed_out" in told
    assert "1 attempt was interrupted; if repeated, its call may be paid for twice" in told
    assert "1 attempt in flight at the end, to be repeated on resume" in told
    assert "1 attempt returned late; results discarded" in told
    assert "the journal was recovered 1 time after a crash" in told
    assert told.endswith("next: evaljournal resume r")


def test_the_ending_says_why_a_run_was_stopped() -> None:
    """The reason is told in words, with more where there is more, and with all the trials that there will be."""
    state = state_of([*ok("a"), RunStopped(reason="failed_fast")])

    assert final_report(state, path="r", total=9, reason="401: the\nkey was refused").startswith(
        "capitals stopped (too many trials failed): 1 of 9 trials done, in r\n  401: the key was refused\n"
    )


def test_a_full_disk_is_told_although_no_record_could_say_so() -> None:
    """Where the disk was too full for a last word, the reason that the run itself knows is told."""
    assert final_report(state_of([]), path="r", stopped="disk_full").startswith("capitals stopped (disk full)")


def test_withdrawn_trials_do_not_count() -> None:
    """A trial whose case was removed is in no denominator; it is told apart."""
    state = state_of([*ok("a", PASS), *ok("b", FAIL), TrialWithdrawn(trial="b", why="removed")])

    assert "1 ok of 1 done · 1 withdrawn" == row(drawn(state), "trials")
    assert "100.0 %  1 of 1 passed" in row(drawn(state), "scores")


def test_a_scorer_that_fails_is_told() -> None:
    """How many outputs a scorer could not judge stands beside what it said of the others."""
    failed = ScoringFailed(trial="b", scorer="exact", version="v1", error="KeyError", message="x", elapsed=0.0)
    state = state_of([*ok("a", PASS), *ok("b"), failed])

    said = "exact  100.0 %  1 of 1 passed (95 % CI 20.7–100.0 %); excluded: 1 scorer failed (KeyError: x)"
    assert said == row(drawn(state), "scores")
    assert "details: evaljournal log r --type scoring_failed" in final_report(state, path="r").splitlines()


def test_many_labels_are_counted() -> None:
    """The six most frequent labels are told, and how many others there are; one that was taken back is none of them."""
    tally = Tally()
    for label in "aaabcdefgh":
        tally.add(label)
    tally.add("h", -1)

    assert "a 33 %, b 11 %, c 11 %, d 11 %, e 11 %, f 11 % and 1 more label  of 9 scored" == score_in_words(score_of(tally))


def test_durations_as_people_say_them() -> None:
    """Small times have parts of a second, large ones minutes or hours."""
    said = [duration(seconds) for seconds in (-1, 0.0123, 0.0996, 0.5, 9.96, 12.4, 59.6, 200, 7500, 9_000_000)]

    assert ["0 s", "12 ms", "100 ms", "0.5 s", "10 s", "12 s", "1 min", "3 min 20 s", "2 h 5 min", "2,500 h"] == said


def test_numbers_as_people_read_them() -> None:
    """Counts are shown in full, and cost in four digits, or more where there are more before the point."""
    assert ["1,234,567", "0.01235", "2", "12,346"] == [number(value) for value in (1_234_567, 0.0123456, 2.0, 12345.67)]


def test_a_large_mean_is_no_power_of_ten() -> None:
    """The mean of large scores, such as lengths, is told in full; beyond what can be read, by its power of ten."""
    tally = Tally()
    for length in (12_000, 13_000.5):
        tally.add(length)

    assert score_in_words(score_of(tally)).startswith("12,500  mean of 2 scored")
    assert ["999", "1,000", "-1,235", "0.00123", "1.2e+15"] == [
        digits(n, 3) for n in (999.1, 999.9, -1234.5678, 0.00123, 1.2e15)
    ]


def test_printable_text() -> None:
    """Values are short, blobs are counted, and no character does anything to a terminal."""
    blob = Blob(sha256="ab", bytes=300_000, path=Path("x"))

    assert "(300,000 bytes in a blob)" == printable(blob)
    assert '{"a":[1,2]}' == printable({"a": [1, 2]})
    assert "\\x1b[31m\\u202ex" == printable("\x1b[31m\u202ex")
    assert "aaaa…" == printable("a" * 9, 5)


def test_of_how_many_is_not_said_where_nobody_knows() -> None:
    """A run that takes its cases as they come, and was stopped, tells what is done, and not how many it had looked at."""
    events = [*ok("a"), *queued("b", "c"), RunStopped(reason="interrupted")]
    finished = [*ok("a"), RunFinished(completed=1, failed=0, withdrawn=0, head="")]

    assert final_report(state_of(events), path="r").startswith("capitals interrupted: 1 trial done, in r\n")
    assert final_report(state_of(finished), path="r").startswith("capitals finished: 1 of 1 trial done, in r\n")
    assert final_report(state_of(events), path="r", total=9).startswith("capitals interrupted: 1 of 9 trials done, in r\n")
    assert headline(summarise(state_of(events)), "interrupted").startswith("capitals: interrupted. 1 trial done, ")


def test_the_next_command_can_be_copied() -> None:
    """What is named as the next command is quoted for a shell."""
    assert "evaljournal resume 'a b'" == next_command(state_of([]), "a b")


def test_the_next_command_works() -> None:
    """Where a run does not say where its evaluation is, the next command has a place for that."""
    failed = RunState()
    failed.ending, failed.stages["failed"] = "finished", 1

    assert "evaljournal resume a --task FILE.py:NAME" == next_command(RunState(), "a")
    assert "evaljournal resume a --retry-failed --task FILE.py:NAME" == next_command(failed, "a")


@pytest.mark.parametrize(
    ("flying", "why", "left", "said"),
    [
        (3, "interrupted", 4.2, "3 attempts in flight, 4.2 s left; press Ctrl-C again to interrupt them"),
        (1, "interrupted", 4.2, "1 attempt in flight, 4.2 s left; press Ctrl-C again to interrupt it"),
        (2, "interrupted", -0.1, "interrupting 2 attempts in flight"),
        (0, "interrupted", 4.2, "no attempt in flight"),
        (1, "deadline", 5.0, "deadline reached; 1 attempt in flight, 5 s left; press Ctrl-C to interrupt it"),
        (1, EVIL, 0.0, "\\x1b]0;owned\\x07\\x1b[31m[bold]red[/bold]\\r\\n\\u202eevil; interrupting 1 attempt in flight"),
    ],
)
def test_a_run_that_is_being_stopped(flying: int, why: str, left: float, said: str) -> None:
    """While a run is being stopped, the screen tells what is in the air, for how long, and what a further Ctrl-C does."""
    names = [str(number) for number in range(flying)]
    state = state_of([*queued(*names), *(begun(name) for name in names)])

    assert said == stopping_in_words(state, why, left)
    drawn = panel(state, now=1.0, durable=0, total=9, width=200, stopping=(why, left))
    out = io.StringIO()
    Console(file=out, width=200, highlight=False).print(drawn)
    assert f"stopping {said}" == out.getvalue().splitlines()[2].rstrip()
