"""Which event may follow which: every cell of the table, and random walks."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaljournal.journal.errors import IllegalEvent
from evaljournal.journal.events import (
    AttemptInterrupted,
    AttemptReturnedLate,
    AttemptStarted,
    AttemptSucceeded,
    AttemptTimedOut,
    BatchChanged,
    BatchCollected,
    BatchPrepared,
    BatchSubmitted,
    Event,
    JournalRecovered,
    RetryScheduled,
    ReviewStarted,
    RunStopped,
    SegmentOpened,
    SegmentSealed,
    TrialCompleted,
    TrialEvent,
    TrialFailed,
    TrialWithdrawn,
)
from evaljournal.journal.format.lifecycle import END_STAGES, RUN_RULES, STAGES, TRIAL_RULES, Lifecycle
from tests.journal.samples import enqueued, examples, finished, sample, session, started, trial

EVENTS_TO: dict[str, list[Event]] = {
    "absent": [],
    "queued": [enqueued("a")],
    "running": trial("a")[:2],
    "scoring": trial("a")[:3],
    "unsettled": trial("a", retries=1)[:3],
    "interrupted": [*trial("a")[:2], AttemptInterrupted(trial="a", attempt=1, reason="stopped")],
    "backing_off": trial("a", retries=1)[:4],
    "completed": trial("a"),
    "failed": [*trial("a", retries=1)[:3], TrialFailed(trial="a", attempts=1, reason="exhausted")],
    "withdrawn": [enqueued("a"), TrialWithdrawn(trial="a", reason="removed")],
}
"""Stage → events that lead to it."""

EVENTS_TO_AGAIN: dict[str, list[Event]] = {
    "queued": [*trial("a"), TrialWithdrawn(trial="a", reason="changed"), enqueued("a")],
    "withdrawn": [*trial("a"), TrialWithdrawn(trial="a", reason="changed")],
}
"""Stages that need no attempt → events that lead to them after an attempt."""

RUN_EVENTS_TO: dict[str, list[Event]] = {
    "new": [],
    "between_sessions": [started()],
    "in_session": [started(), session()],
    "in_review": [sample(ReviewStarted)],
}


def event_of(kind: type[Event], name: str = "a", attempts: int = 0, sessions: int = 0) -> Event:
    """Return an event of this kind that fits a trial with this many attempts, or a run with this many sessions."""
    attempt = attempts + (kind in (AttemptStarted, RetryScheduled))
    return sample(kind, trial=name, attempt=attempt, attempts=attempts, session=sessions + 1)


EVENTS_BEFORE: dict[type[Event], list[Event]] = {
    BatchPrepared: [enqueued("x")],
    BatchSubmitted: [enqueued("x"), event_of(BatchPrepared)],
    BatchChanged: [enqueued("x"), event_of(BatchPrepared), event_of(BatchSubmitted)],
    BatchCollected: [enqueued("x"), event_of(BatchPrepared)],
}
"""Event of a batch → events that must precede it."""


def lifecycle_after(*events: Event) -> Lifecycle:
    """Return the lifecycle after these events."""
    lifecycle = Lifecycle()
    for event in events:
        lifecycle.advance(event)
    return lifecycle


def in_session(*events: Event) -> Lifecycle:
    """Return the lifecycle after these events, in the first session."""
    return lifecycle_after(started(), session(), *events)


def state_of(lifecycle: Lifecycle) -> tuple[Any, ...]:
    """Return everything that an event may change."""
    return lifecycle.stage, lifecycle.sessions, lifecycle.open_trials, dict(lifecycle._trials)


def rejection(lifecycle: Lifecycle, event: Event) -> IllegalEvent:
    """Return the error for an illegal event; check that it changed nothing."""
    before = state_of(lifecycle)
    with pytest.raises(IllegalEvent) as raised:
        lifecycle.advance(event)

    assert before == state_of(lifecycle)
    assert type(event).__name__ == raised.value.event
    return raised.value


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_can_be_reached(stage: str) -> None:
    """A sequence of events leads to every stage of a trial."""
    assert stage == in_session(*EVENTS_TO[stage]).stage_of("a")


@pytest.mark.parametrize(("kind", "stage"), [(kind, stage) for kind, row in TRIAL_RULES.items() for stage in row])
def test_legal_event_is_accepted(kind: type[TrialEvent], stage: str) -> None:
    """An event that the table allows leads to its stage, and attempts are counted."""
    lifecycle = in_session(*(EVENTS_TO | EVENTS_TO_AGAIN if kind is AttemptReturnedLate else EVENTS_TO)[stage])
    attempts = lifecycle.attempts_of("a")
    lifecycle.advance(event_of(kind, attempts=attempts))

    assert TRIAL_RULES[kind][stage] == lifecycle.stage_of("a")
    assert attempts + (kind is AttemptStarted) == lifecycle.attempts_of("a")
    assert int(lifecycle.stage_of("a") not in END_STAGES) == lifecycle.open_trials


@pytest.mark.parametrize(
    ("kind", "stage"), [(kind, stage) for kind in TRIAL_RULES for stage in STAGES if stage not in TRIAL_RULES[kind]]
)
def test_illegal_event_is_rejected(kind: type[TrialEvent], stage: str) -> None:
    """An event that the table does not allow changes nothing, and the error lists the allowed ones."""
    lifecycle = in_session(*EVENTS_TO[stage])
    error = rejection(lifecycle, event_of(kind, attempts=lifecycle.attempts_of("a")))

    assert ("a", f"the trial is {stage}") == (error.trial, error.reason)
    assert [kind.__name__ for kind in TRIAL_RULES if stage in TRIAL_RULES[kind]] == error.allowed_events


@pytest.mark.parametrize("stage", ["new", "between_sessions"])
@pytest.mark.parametrize("kind", TRIAL_RULES)
def test_trials_need_a_session(kind: type[TrialEvent], stage: str) -> None:
    """No event of a trial is allowed outside a session."""
    reason = "the run has not started" if stage == "new" else "no session is open"

    assert reason == rejection(lifecycle_after(*RUN_EVENTS_TO[stage]), event_of(kind)).reason


@pytest.mark.parametrize("outcome", [RunStopped(reason="deadline"), JournalRecovered(last_seq=1, bytes=1, file="torn/a")])
def test_open_trials_continue_in_the_next_session(outcome: Event) -> None:
    """A trial that was open when a session ended continues in the next."""
    lifecycle = in_session(*EVENTS_TO["queued"], outcome)

    assert "no session is open" == rejection(lifecycle, event_of(AttemptStarted)).reason
    lifecycle.advance(session(2))
    lifecycle.advance(event_of(AttemptStarted))

    assert "running" == lifecycle.stage_of("a")


@pytest.mark.parametrize("stage", RUN_EVENTS_TO)
@pytest.mark.parametrize("kind", RUN_RULES)
def test_the_run_has_its_own_table(kind: type[Event], stage: str) -> None:
    """Whether an event of the run itself is allowed depends on the stage of the run."""
    lifecycle = lifecycle_after(*RUN_EVENTS_TO[stage])
    event = event_of(kind, sessions=lifecycle.sessions)
    if kind in EVENTS_BEFORE and stage in RUN_RULES[kind]:
        is_open = stage == "in_session"
        edges: tuple[list[Event], list[Event]] = ([], []) if is_open else ([session()], [RunStopped(reason="interrupted")])
        for event_before in (*edges[0], *EVENTS_BEFORE[kind], *edges[1]):
            lifecycle.advance(event_before)
    if stage not in RUN_RULES[kind]:
        rejection(lifecycle, event)
        return
    lifecycle.advance(event)

    assert RUN_RULES[kind][stage] == lifecycle.stage


@pytest.mark.parametrize("kind", [SegmentOpened, SegmentSealed])
def test_file_events_are_rejected(kind: type[Event]) -> None:
    """Only the journal itself may record that a segment begins or ends."""
    assert "only the journal itself writes it" == rejection(in_session(), event_of(kind)).reason


@pytest.mark.parametrize(
    ("stage", "event", "expected"),
    [
        ("queued", AttemptStarted(trial="a", attempt=0, slot=0), "expected attempt 1, got attempt 0"),
        ("queued", AttemptStarted(trial="a", attempt=2, slot=0), "expected attempt 1, got attempt 2"),
        ("backing_off", AttemptStarted(trial="a", attempt=1, slot=0), "expected attempt 2, got attempt 1"),
        ("running", AttemptSucceeded(trial="a", attempt=2, output=1, elapsed=1), "expected attempt 1, got attempt 2"),
        ("running", AttemptTimedOut(trial="a", attempt=0, timeout=1, elapsed=1), "expected attempt 1, got attempt 0"),
        ("running", AttemptInterrupted(trial="a", attempt=2, reason="stopped"), "expected attempt 1, got attempt 2"),
        ("unsettled", RetryScheduled(trial="a", attempt=1, delay=1, reason="c"), "expected attempt 2, got attempt 1"),
        ("unsettled", TrialFailed(trial="a", attempts=2, reason="fatal"), "expected attempt 1, got attempt 2"),
        ("scoring", TrialCompleted(trial="a", attempts=0), "expected attempt 1, got attempt 0"),
    ],
)
def test_attempts_are_numbered(stage: str, event: Event, expected: str) -> None:
    """An event with an unexpected attempt number is rejected."""
    assert expected == rejection(in_session(*EVENTS_TO[stage]), event).reason


def test_late_return_may_be_of_any_attempt() -> None:
    """An abandoned attempt may return while a later one is in flight; one that was not started cannot."""
    lifecycle = in_session(*trial("a", retries=2))
    for attempt in (0, 4):
        late = AttemptReturnedLate(trial="a", attempt=attempt, outcome="succeeded", elapsed=60)
        assert f"attempt {attempt} was never started" == rejection(lifecycle, late).reason
    lifecycle.advance(AttemptReturnedLate(trial="a", attempt=1, outcome="succeeded", elapsed=60))

    assert ("completed", 3) == (lifecycle.stage_of("a"), lifecycle.attempts_of("a"))


def test_attempt_numbers_continue_after_a_withdrawal() -> None:
    """A trial that is withdrawn and enqueued again does not reuse attempt numbers."""
    lifecycle = in_session(*trial("a"), TrialWithdrawn(trial="a", reason="changed"), enqueued("a"))

    assert "expected attempt 2, got attempt 1" == rejection(lifecycle, AttemptStarted(trial="a", attempt=1, slot=0)).reason
    lifecycle.advance(AttemptStarted(trial="a", attempt=2, slot=0))


@pytest.mark.parametrize("n", [0, 1, 3, -1])
def test_sessions_are_numbered(n: int) -> None:
    """The second session is session 2."""
    assert f"expected session 2, got session {n}" == rejection(in_session(), session(n)).reason


@pytest.mark.parametrize("stage", STAGES)
def test_run_with_open_trials_does_not_finish(stage: str) -> None:
    """A run may finish when all of its trials have ended, or if it has none."""
    lifecycle = in_session(*EVENTS_TO[stage])
    if lifecycle.open_trials:
        assert "1 trial is open" == rejection(lifecycle, finished(0)).reason
        return
    lifecycle.advance(finished(0))

    assert stage in {"absent", *END_STAGES}


EVENT_TYPES = [*TRIAL_RULES, *RUN_RULES]


@examples(200)
@given(st.lists(st.tuples(st.sampled_from(EVENT_TYPES), st.sampled_from("ab"), st.integers(-1, 1)), max_size=60))
def test_open_trials_are_counted(walk: list[tuple[type[Event], str, int]]) -> None:
    """After any events the number of open trials is right, rejected events change nothing, and any prefix is legal."""
    lifecycle = in_session()
    history: list[Event] = [started(), session()]
    for kind, name, offset in walk:
        event = event_of(kind, name, lifecycle.attempts_of(name) + (offset if kind in TRIAL_RULES else 0), lifecycle.sessions)
        before = state_of(lifecycle)
        try:
            lifecycle.advance(event)
            history.append(event)
        except IllegalEvent:
            assert before == state_of(lifecycle)
        stages = [lifecycle.stage_of(name) for name in "ab"]

        assert lifecycle.open_trials == sum(stage not in END_STAGES and stage != "absent" for stage in stages)

    assert state_of(lifecycle) == state_of(lifecycle_after(*history))
