"""Why slots are idle: every reason, its number, and when it is not one."""

from collections.abc import Iterable

import attrs
import pytest

from evaljournal.journal import Event
from evaljournal.journal.events import (
    AttemptFailed,
    AttemptStarted,
    AttemptSucceeded,
    IntakePaused,
    IntakeResumed,
    LimitChanged,
    PaceChanged,
    RetryScheduled,
    RunStopped,
    ScorerCallStarted,
    SessionStarted,
    TrialCompleted,
)
from evaljournal.journal.fact import evolve_fact
from evaljournal.replay import RunState
from evaljournal.replay.runs.idle import Reason, one_line, reasons
from evaljournal.replay.state.pauses import BREAKER_REASONS, Pause
from tests.replay.trial_events import answered, attempt_started, queued, rate_limited, run_state

NOW = 100.0
START = LimitChanged(before=0, after=8, reason="start")


def texts(events: Iterable[Event], *, total: int | None = 9, slots: int = 8) -> list[str]:
    """Return the texts of the reasons, in a run of `total` trials with `slots` slots."""
    return [reason.text for reason in reasons(run_state(events, slots=slots), now=NOW, total=total)]


def outputs_of(*names: str) -> list[Event]:
    """Enqueue trials and record their outputs; their scorers have not returned."""
    ends = (AttemptSucceeded(trial=name, attempt=1, output="Lima", elapsed=0.1) for name in names)
    return [*queued(*names), *(event for end in ends for event in (attempt_started(end.trial), end))]


FIRST_LIMIT = LimitChanged(before=0, after=1, reason="start")
LOWERED = LimitChanged(before=8, after=2, reason="in_flight", evidence="429 at 3 in flight")
PACED = PaceChanged(after=4.21, reason="rate_limit")
FULL = [*queued("a", "b", "c"), attempt_started("a"), attempt_started("b"), LOWERED]
"""A limit of two that is reached, while a trial is ready."""


@pytest.mark.parametrize(
    ("events", "text"),
    [
        ([IntakePaused(until=112.0, reason="retry_after")], "Retry-After: 12 s left"),
        ([IntakePaused(until=100.8, reason="rate_limited")], "429, short pause: 0.8 s left"),
        ([IntakePaused(until=103.0, reason="\x1b[31m")], "\\x1b[31m: 3 s left"),
        ([IntakePaused(until=103.0, reason="unavailable")], "endpoint unavailable; probing, next probe in 3 s"),
        ([IntakePaused(until=99.0, reason="unavailable")], "endpoint unavailable; probing"),
        ([IntakePaused(until=103.0, reason="no_response")], "endpoint does not respond; probing, next probe in 3 s"),
        ([IntakePaused(until=103.0, reason="all_rate_limited")], "every call is rate limited; probing, next probe in 3 s"),
        ([PACED], "pace: 4.2 starts/s"),
        ([evolve_fact(PACED, evidence="429 after\n38 calls")], "pace: 4.2 starts/s; 429 after 38 calls"),
        ([PaceChanged(after=1234.5, reason="rate_limit")], "pace: 1,234 starts/s"),
        ([PACED, PaceChanged(before=4.21, reason="no_limit")], ""),
        (FULL, "concurrency limit 2 of 8: 429 at 3 in flight"),
        ([*FULL, PACED], "concurrency limit 2 of 8: 429 at 3 in flight"),
        ([FIRST_LIMIT, attempt_started("z")], "concurrency limit 1 of 8: first limit, rises while calls succeed"),
        ([PACED, *outputs_of(*map(str, range(65)))], "scorers: 65 outputs to score"),
        ([*queued("a"), attempt_started("a"), *rate_limited("a", delay=90.0)], ""),
    ],
)
def test_reasons_while_a_trial_is_ready(events: list[Event], text: str) -> None:
    """A pause, an open breaker, the pace, a limit below the slots or unscored outputs is the reason; others' backoff is not."""
    assert [text] * bool(text) == texts([START, *queued("z", "y"), *events])


@pytest.mark.parametrize("events", [FULL, [*queued("a", "b"), attempt_started("a"), attempt_started("b"), PACED]])
def test_busy_slots(events: list[Event]) -> None:
    """When every slot is busy there is no reason, whatever the limit and the pace."""
    assert [] == texts([START, *events], slots=2)


@pytest.mark.parametrize(
    ("events", "total", "text"),
    [
        ([*queued("a"), attempt_started("a"), *rate_limited("a", delay=96.66)], 1, "1 trial in backoff, next in 0.16 s"),
        ([*queued("a"), attempt_started("a"), *rate_limited("a", delay=5.0), PACED], 1, "pace: 4.2 starts/s"),
        (answered("a"), 9, "dataset: 8 trials to come"),
        (answered("a"), None, "dataset: cases to come"),
        ([*queued("a"), attempt_started("a")], 1, "no trials left to start"),
        (outputs_of("a"), 1, "no trials left to start; scorers: 1 output to score"),
    ],
)
def test_reasons_while_no_trial_is_ready(events: list[Event], total: int | None, text: str) -> None:
    """Backoff until it is over, which no record marks, cases to come, and at the end of the run scorers are reasons."""
    assert [text] == texts([START, *events], total=total)


@pytest.mark.parametrize(
    "last_event", [RunStopped(reason="interrupted"), SessionStarted(session=2, pid=1, host="here", boot_id="b1")]
)
def test_decisions_end_with_their_session(last_event: Event) -> None:
    """Decisions of a policy do not apply after the run has stopped or in the next session."""
    decided: list[Event] = [PaceChanged(after=1.0, reason="rate_limit"), IntakePaused(until=500.0, reason="unavailable")]

    assert [] == texts([START, *queued("a"), *decided, last_event])


def test_several_keys() -> None:
    """With several rate-limit keys, each reason names its key and counts only its attempts."""
    events: list[Event] = [
        LimitChanged(before=0, after=1, reason="start", key="small"),
        LimitChanged(before=0, after=8, reason="start", key="la\nrge"),
        *queued("a", "b"),
        AttemptStarted(trial="a", attempt=1, slot=0, key="small"),
        PaceChanged(after=0.5, reason="rate_limit", key="la\nrge"),
    ]

    assert [
        "small: concurrency limit 1 of 8: first limit, rises while calls succeed",
        "la\\nrge: pace: 0.5 starts/s",
    ] == texts(events)


def test_in_flight_per_key() -> None:
    """Attempts and scorer calls of a key are in flight from their start to their end."""
    start = AttemptStarted(trial="a", attempt=1, slot=0, key="k")
    end = AttemptSucceeded(trial="a", attempt=1, output="x", elapsed=0.1)
    call = ScorerCallStarted(trial="a", scorer="judge", call=1, key="k")

    counts = [run_state([*queued("a"), *events]).in_flight("k") for events in ([start], [start, end], [start, end, call])]
    assert [1, 0, 1] == counts


def test_key_of_a_scorer() -> None:
    """A pause of a scorer's own key is a reason only while an output is unscored."""
    limit = LimitChanged(before=0, after=8, reason="start", key="scorer:judge")
    paused = IntakePaused(until=112.0, reason="retry_after", key="scorer:judge")
    events = [START, limit, paused, *outputs_of("a"), *queued("b")]

    assert ["scorer judge: Retry-After: 12 s left"] == texts(events, total=2)
    assert [] == texts([*events, TrialCompleted(trial="a", attempts=1)], total=2)


def test_json() -> None:
    """In JSON a reason has its key, reason, seconds, number, evidence and text."""
    state = run_state([START, *queued("a"), IntakePaused(until=112.0, reason="unavailable", evidence="12 in a row")])

    expected = {"key": "", "reason": "breaker", "seconds": 12.0, "number": None, "evidence": "12 in a row"}
    text = "endpoint unavailable; probing, next probe in 12 s"
    assert [{**expected, "text": text}] == [attrs.asdict(reason) for reason in reasons(state, now=NOW)]


def test_trials_wait_for_the_first_ones_that_failed() -> None:
    """While nothing has succeeded, and the first trials have failed with the same error, the others wait for their outcome."""
    names = [f"case-{number}" for number in range(21)]
    failures = (
        AttemptFailed(trial=name, attempt=1, error="E", message="no", category="error", elapsed=1) for name in names[:20]
    )
    attempts = [event for failure in failures for event in (attempt_started(failure.trial), failure)]
    state = run_state([*queued(*names), *attempts], stop_on_same_error=20)

    assert [("same_error", 20)] == [(reason.reason, reason.number) for reason in reasons(state, now=NOW, total=21)]
    assert (False, True) == (state.is_held("case-19"), state.is_held("case-20"))


def test_line_has_three_reasons() -> None:
    """Further reasons are counted, so that a line stays short."""
    idle = [Reason(reason="pace", text=text) for text in "abcde"]

    assert ("a · b · c · 2 more", "") == (one_line(idle), one_line([]))


@pytest.mark.parametrize("reason", sorted(BREAKER_REASONS))
def test_open_breaker(reason: str) -> None:
    """An open breaker is in force after its next probe is due; any other pause ends by itself."""
    state = run_state([IntakePaused(until=5.0, reason=reason, evidence="seen")])

    assert {"": Pause(5.0, reason, "seen")} == state.policy.pauses
    assert state.policy.pauses[""].is_in_force(NOW)
    assert not Pause(5.0, "retry_after").is_in_force(NOW)
    assert {} == run_state([IntakePaused(until=5.0, reason=reason), IntakeResumed(reason=reason)]).policy.pauses


@pytest.mark.parametrize(
    ("others", "text"),
    [
        (answered("b"), "only trials that have failed are left; probing, next probe in 3 s"),
        (queued("b"), "endpoint unavailable; probing, next probe in 3 s"),
        ([], "endpoint unavailable; probing, next probe in 3 s"),
    ],
)
def test_failing_inputs(others: list[Event], text: str) -> None:
    """If there are outputs, and only trials that have failed are left, the endpoint is not said to be unavailable."""
    failure = AttemptFailed(trial="a", attempt=1, error="E", message="503", category="unavailable", elapsed=0.1)
    retry = RetryScheduled(trial="a", attempt=2, delay=1.0, reason="unavailable")
    pause = IntakePaused(until=103.0, reason="unavailable")
    state = run_state([START, *queued("a"), *others, attempt_started("a"), failure, retry, pause])
    state.sessions.planned = state.totals.total

    assert [text] == [reason.text for reason in reasons(state, now=NOW, total=state.totals.total)]


def test_before_the_first_session() -> None:
    """Before the first session there are no reasons."""
    assert [] == reasons(RunState(), now=0.0)


def test_a_free_place_in_a_worker() -> None:
    """Slots are not reduced to the places in workers; a run without workers never waits for one."""
    state = run_state([START, *queued("a", "b"), attempt_started("a")], slots=8)
    assert [] == reasons(state, now=NOW, total=2)

    state.settings["workers"] = {"kind": "processes", "workers": 1, "concurrency": 1}

    assert [Reason(reason="workers", text="all workers are busy")] == reasons(state, now=NOW, total=2)
    state.trials.running.clear()
    assert [Reason(reason="workers", text="no worker is ready")] == reasons(state, now=NOW, total=2)
    state.settings["workers"]["tasks"] = False
    assert [] == reasons(state, now=NOW, total=2)
