"""Why slots are idle: every reason, its number, and when it is not one."""

from collections.abc import Iterable

import pytest

from journal import Event
from journal.events import (
    AttemptStarted,
    AttemptSucceeded,
    IntakePaused,
    IntakeResumed,
    LimitChanged,
    PaceChanged,
    RunStopped,
    ScorerCallStarted,
    SessionStarted,
    TrialCompleted,
)
from replay import RunState
from replay.idle import Reason, in_json, one_line, reasons
from replay.intake import PROBING, Pause
from tests.replay.test_screen import begun, ok, queued, refused, state_of

NOW = 100.0
START = LimitChanged(before=0, after=8, cause="start")


def texts(events: Iterable[Event], *, total: int | None = 9, slots: int = 8) -> list[str]:
    """Return the reasons in words, in a run of `total` trials with `slots` slots."""
    return [reason.text for reason in reasons(state_of(events, slots=slots), now=NOW, total=total)]


def answered(*names: str) -> list[Event]:
    """Take trials in and answer them; their scorers have not returned."""
    outputs = (AttemptSucceeded(trial=name, attempt=1, output="Lima", elapsed=0.1) for name in names)
    return [*queued(*names), *(event for name, end in zip(names, outputs, strict=True) for event in (begun(name), end))]


@pytest.mark.parametrize(
    ("events", "text"),
    [
        ([IntakePaused(until=112.0, cause="retry_after")], "Retry-After: 12 s left"),
        ([IntakePaused(until=100.8, cause="rate_limited")], "429, short pause: 0.8 s left"),
        ([IntakePaused(until=103.0, cause="\x1b[31m")], "\\x1b[31m: 3 s left"),
        ([IntakePaused(until=103.0, cause="unavailable")], "endpoint unavailable; probing, next probe in 3 s"),
        ([IntakePaused(until=99.0, cause="unavailable")], "endpoint unavailable; probing"),
        ([IntakePaused(until=103.0, cause="no_response")], "endpoint does not respond; probing, next probe in 3 s"),
        ([IntakePaused(until=103.0, cause="all_rate_limited")], "every call is rate limited; probing, next probe in 3 s"),
        ([PaceChanged(after=4.21, cause="rate_limit")], "rate limit: 4.2 starts/s"),
        ([PaceChanged(after=1234.5, cause="rate_limit")], "rate limit: 1,234 starts/s"),
    ],
)
def test_what_a_policy_holds_up_is_named(events: list[Event], text: str) -> None:
    """A pause, an open breaker and the pace are reasons while a trial is ready, with the seconds or the rate."""
    assert [text] == texts([START, *queued("a"), *events])


def test_a_limit_below_the_slots_has_its_evidence() -> None:
    """A limit that is reached and lower than the slots is a reason, with what was observed."""
    lowered = LimitChanged(before=8, after=2, cause="in_flight", evidence="429 at 3 in flight")
    events = [START, *queued("a", "b", "c"), begun("a"), begun("b"), lowered]

    assert ["concurrency limit 2 of 8: 429 at 3 in flight"] == texts(events)
    assert [] == texts(events, slots=2)


def test_the_first_limit_is_named_as_such() -> None:
    """A limit that nothing has changed yet has no evidence; it is the first."""
    events = [LimitChanged(before=0, after=1, cause="start"), *queued("a", "b"), begun("a")]

    assert ["concurrency limit 1 of 8: first limit, rises while calls succeed"] == texts(events)


def test_a_pace_is_no_reason_where_the_limit_is_reached() -> None:
    """Where as many run as the limit allows, the limit is the reason, and the pace is not."""
    events = [LimitChanged(before=0, after=1, cause="start"), *queued("a", "b"), begun("a")]

    assert ["limit"] == [
        reason.reason for reason in reasons(state_of([*events, PaceChanged(after=2.0, cause="rate_limit")]), now=NOW, total=9)
    ]


def test_a_pace_that_was_lifted_is_no_reason() -> None:
    """A pace of null means that starts are not paced."""
    paced = [PaceChanged(after=4.2, cause="rate_limit"), PaceChanged(before=4.2, cause="no_limit")]

    assert [] == texts([START, *queued("a"), *paced])


def test_outputs_that_wait_for_scorers_are_counted() -> None:
    """Where no attempt starts because too many outputs are unscored, that is the reason, and the pace is not."""
    events = [START, PaceChanged(after=4.2, cause="rate_limit"), *answered(*map(str, range(65))), *queued("z")]

    assert ["waiting for scorers: 65 outputs"] == texts(events, total=66)


def test_backoff_is_a_reason_where_nothing_else_is_ready() -> None:
    """The number of trials in backoff and the next start are given; while another trial is ready, backoff holds nothing up."""
    events = [START, *queued("a"), begun("a"), *refused("a", delay=96.66)]

    assert ["1 trial in backoff, next in 0.16 s"] == texts(events, total=1)
    assert [] == texts([*events, *queued("b")], total=2)


def test_a_trial_whose_backoff_is_over_is_ready() -> None:
    """No record says that a delay is over; from then on the trial waits for what holds starts up, and not for its backoff."""
    events = [START, *queued("a"), begun("a"), *refused("a", delay=5.0), PaceChanged(after=4.2, cause="rate_limit")]

    assert ["rate limit: 4.2 starts/s"] == texts(events, total=1)


def test_cases_that_are_not_read_yet_are_waited_for() -> None:
    """With nothing ready, cases to come are the reason; how many is given where it is known."""
    assert ["waiting for cases: 8 to come"] == texts([START, *ok("a")])
    assert ["waiting for cases"] == texts([START, *ok("a")], total=None)


def test_the_end_of_a_run_is_a_reason() -> None:
    """When the last trials run, there is nothing left to start; when only scorers are left, they are named."""
    last = [START, *queued("a"), begun("a")]

    assert ["no trials left to start"] == texts(last, total=1)
    assert ["no trials left to start; waiting for scorers: 1 output"] == texts([START, *answered("a")], total=1)


def test_busy_slots_need_no_reason() -> None:
    """Where every slot is busy, nothing is held up, whatever the pace."""
    assert [] == texts([*queued("a", "b"), begun("a"), PaceChanged(after=1.0, cause="rate_limit")], slots=1)


@pytest.mark.parametrize("over", [RunStopped(reason="interrupted"), SessionStarted(n=2, pid=1, host="here", boot_id="b1")])
def test_what_a_policy_decided_ends_with_its_session(over: Event) -> None:
    """Neither a run that has stopped nor a new session waits for what an earlier session's policy decided."""
    decided: list[Event] = [PaceChanged(after=1.0, cause="rate_limit"), IntakePaused(until=500.0, cause="unavailable")]

    assert [] == texts([START, *queued("a"), *decided, over])


def test_each_key_is_named() -> None:
    """With several rate-limit keys, each reason names its key, and counts what is in flight of this key only."""
    events: list[Event] = [
        LimitChanged(before=0, after=1, cause="start", key="small"),
        LimitChanged(before=0, after=8, cause="start", key="la\nrge"),
        *queued("a", "b"),
        AttemptStarted(trial="a", attempt=1, slot=0, key="small"),
        PaceChanged(after=0.5, cause="rate_limit", key="la\nrge"),
    ]

    assert [
        "small: concurrency limit 1 of 8: first limit, rises while calls succeed",
        "la\\nrge: rate limit: 0.5 starts/s",
    ] == texts(events)


def test_an_attempt_that_ended_is_not_in_flight() -> None:
    """What is in flight of a key counts attempts and scorer calls from their start to their end."""
    start = AttemptStarted(trial="a", attempt=1, slot=0, key="k")
    end = AttemptSucceeded(trial="a", attempt=1, output="x", elapsed=0.1)
    call = ScorerCallStarted(trial="a", scorer="judge", call=1, key="k")

    counts = [state_of([*queued("a"), *events]).in_flight("k") for events in ([start], [start, end], [start, end, call])]
    assert [1, 0, 1] == counts


def test_a_scorers_own_key_is_named_as_the_scorer() -> None:
    """A pause of a scorer's own key is a reason while an output is unscored, and not afterwards."""
    limit = LimitChanged(before=0, after=8, cause="start", key="scorer:judge")
    paused = IntakePaused(until=112.0, cause="retry_after", key="scorer:judge")
    events = [START, limit, paused, *answered("a"), *queued("b")]

    assert ["scorer judge: Retry-After: 12 s left"] == texts(events, total=2)
    assert [] == texts([*events, TrialCompleted(trial="a", attempts=1)], total=2)


def test_a_reason_is_structured() -> None:
    """In JSON a reason has its key, its kind, the seconds, the number, the evidence and the text."""
    state = state_of([START, *queued("a"), IntakePaused(until=112.0, cause="unavailable", evidence="12 in a row")])

    expected = {"key": "", "reason": "breaker", "seconds": 12.0, "number": None, "evidence": "12 in a row"}
    assert [{**expected, "text": "endpoint unavailable; probing, next probe in 12 s"}] == in_json(reasons(state, now=NOW))


def test_a_line_has_three_reasons() -> None:
    """Further reasons are counted, so that a line stays short."""
    found = [Reason(reason="pace", text=text) for text in "abcde"]

    assert ("a · b · c · 2 more", "") == (one_line(found), one_line([]))


@pytest.mark.parametrize("cause", sorted(PROBING))
def test_an_open_breaker_lasts_until_a_record_closes_it(cause: str) -> None:
    """A pause of the breaker is in force after its next probe is due; any other ends by itself."""
    state = state_of([IntakePaused(until=5.0, cause=cause, evidence="seen")])

    assert {"": Pause(5.0, cause, "seen")} == state.pauses
    assert state.pauses[""].is_in_force(NOW)
    assert not Pause(5.0, "retry_after").is_in_force(NOW)
    assert {} == state_of([IntakePaused(until=5.0, cause=cause), IntakeResumed(cause=cause)]).pauses


def test_nothing_is_said_before_a_session() -> None:
    """A journal in which no session has started yet waits for nothing."""
    assert [] == reasons(RunState(), now=0.0)
