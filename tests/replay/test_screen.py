"""The live screen and the progress lines; untrusted text cannot control the terminal."""

import itertools
from typing import Any

import pytest

from evaljournal.journal import Event
from evaljournal.journal.events import (
    AttemptSucceeded,
    AttemptTimedOut,
    IntakePaused,
    IntakeResumed,
    LimitChanged,
    Noted,
    RunStopped,
    ScorerCallFailed,
    ScorerCallStarted,
    SessionStarted,
    TrialCompleted,
    TrialScored,
)
from evaljournal.replay import RunState
from evaljournal.replay.render.ending import final_report
from evaljournal.replay.render.screen import line
from evaljournal.replay.state.session_errors import LastError
from tests.replay.screens import SCORERS, ok, row, screen_lines
from tests.replay.trial_events import attempt_started, failed, fatal, queued, rate_limited, run_state

PASS, FAIL = True, False
CONTROL = "\x1b]0;owned\x07\x1b[31m[bold]red[/bold]\r\n\u202eevil"
SESSION = SessionStarted(session=2, pid=1, host="here", boot_id="b1")


def completed(name: str, *scores: bool | float | str, attempt: int = 1, elapsed: float = 0.25) -> list[Event]:
    """Return the end of a running trial that completes."""
    return [
        AttemptSucceeded(trial=name, attempt=attempt, output="Lima", elapsed=elapsed),
        *(
            TrialScored(trial=name, scorer=scorer, version="v1", value=value, elapsed=0.0)
            for scorer, value in zip(SCORERS, scores, strict=False)
        ),
        TrialCompleted(trial=name, attempts=attempt),
    ]


def test_panel() -> None:
    """The panel of a running run, with every row and denominator."""
    state = run_state(
        [
            LimitChanged(before=0, after=4, reason="start"),
            *queued("peru", "chile", "cuba", "france", "japan", "kenya"),
            attempt_started("peru"),
            *rate_limited("peru", delay=1.0),
            attempt_started("peru", 2),
            *completed("peru", PASS, 0.5, "polite", attempt=2),
            attempt_started("chile", slot=1),
            *completed("chile", FAIL, 1.0, "rude"),
            attempt_started("cuba", slot=2),
            *fatal("cuba"),
            attempt_started("france", slot=3),
            *rate_limited("france"),
            attempt_started("japan", slot=1),
            Noted(name="tokens", value=1200, trial="japan", attempt=1),
            Noted(name="cost", value=0.25, trial="japan", attempt=1),
            Noted(name="temperature", value=0.7, trial="japan", attempt=1),
            IntakePaused(until=30.0, reason="retry_after"),
        ],
    )

    assert [
        "capitals  runs/1",
        f"{12 * '━'}{28 * '─'}  3 of 10 · 30 % · paused for 12 s",
        "slots    1 of 4 busy · 1 queued · 1 in backoff · 4 to come",
        "waiting  Retry-After: 12 s left",
        "error    2 in a row, the last 3.5 s ago: RateLimited: slow down",
        "trials   2 outputs (1 after a failed attempt) · 1 error",
        "scores   exact      50.0 %  1 of 2 passed (95 % CI 9.5–90.5 %); excluded: 1 error",
        "         closeness  0.75  mean of 2 scored (95 % CI 0 to 1); excluded: 1 error",
        "         tone       polite 50 %, rude 50 %  of 2 scored; excluded: 1 error",
        "latency  p50 0.25 s · p95 0.25 s of 2 outputs",
        "usage    tokens 1,200 · cost $0.250",
        "longest  slot   1  japan                 attempt 1  2.5 s of 30 s",
        f"journal  seq {state.seq} · synced up to {state.seq - 1}",
    ] == screen_lines(state, now=18.0, total=10)


def test_unknown_total() -> None:
    """Without a known total there is no percentage and no remaining time."""
    lines = screen_lines(run_state([*ok("a"), *ok("b"), *ok("c"), *ok("d"), *queued("e")]), now=10.0)

    assert "4 done of 5 so far; total unknown" == lines[1]
    assert "%" not in "".join(lines)


def test_rate_of_this_session() -> None:
    """Trials done in earlier sessions do not count in the rate."""
    state = run_state(itertools.chain.from_iterable(ok(f"t{number}") for number in range(8)))

    assert "8 of 10 · 80 % · 0.8/s · about 2 s left" in screen_lines(state, now=10.0, total=10)[1]
    state.trials.done_before = 5
    assert "8 of 10 · 80 % · 0.3/s · about 7 s left" in screen_lines(state, now=10.0, total=10)[1]
    state.trials.done_before = 6
    assert screen_lines(state, now=10.0, total=10)[1].endswith("8 of 10 · 80 %")


def timed_out(name: str, attempt: int = 1) -> Event:
    """Return an attempt's timeout."""
    return AttemptTimedOut(trial=name, attempt=attempt, timeout=5.0, elapsed=5.0)


def test_unauthorized_scorer() -> None:
    """A scorer is shown as unauthorized only if the run was stopped as unauthorized; notes alone are not trusted."""
    noted = [
        Noted(name="evaljournal.unauthorized", value={"scorer": "judge", "message": "\x1b[31m401"}, trial="z", attempt=1),
        Noted(name="evaljournal.unauthorized", value=[1]),
    ]
    stopped, interrupted = run_state([*ok("z"), *noted, RunStopped(reason="unauthorized")]), run_state([*ok("z"), *noted])

    assert "\n  scorer judge: unauthorized: \\x1b[31m401\n" in final_report(stopped, path="r")
    assert "judge" not in final_report(interrupted, path="r")


def test_an_unreachable_scorer() -> None:
    """Its URL and the cause are on the screen, in the progress line and in the final report, until it scores an output."""
    message = f"no response from http://judge.internal.example:8000/{'v' * 40}/chat/completions: Connection refused"
    output = AttemptSucceeded(trial="a", attempt=1, output="x", elapsed=1.0)
    events: list[Event] = [*queued("a"), attempt_started("a"), output]
    for number in (1, 2):
        error: dict[str, Any] = {
            "error": "NoResponse",
            "message": message,
            "category": "unavailable",
            "elapsed": 0.1,
            "delay": 1.0,
        }
        events += [
            ScorerCallStarted(trial="a", scorer="judge", call=number, key="scorer:judge"),
            ScorerCallFailed(trial="a", scorer="judge", call=number, **error),
        ]
    scored = TrialScored(trial="a", scorer="judge.tone", version="1", value=True, elapsed=0.1)
    state, recovered = run_state(events), run_state([*events, scored])
    lines = screen_lines(state, now=state.t + 2, width=80)
    first_line = next(index for index, text in enumerate(lines) if text.startswith("error"))
    shown_error = "".join(text[9:] for text in lines[first_line : first_line + 3])

    expected = f"scorer judge: 2 in a row, the last 2 s ago: NoResponse: {message}"
    assert expected.replace(" ", "") == shown_error.replace(" ", "")
    assert f" · {expected}" in line(state, now=state.t + 2, total=1)
    assert f"\n  scorer judge: 2 in a row: NoResponse: {message}\n" in final_report(state, path="r")
    assert "no trial done for 30 s" in line(state, now=30, total=1)
    assert ({}, {}) == (recovered.sessions.errors.scorer_errors, run_state([*events, SESSION]).sessions.errors.scorer_errors)


def test_last_error() -> None:
    """The last error is shown until an output follows, and for at least a minute."""
    errors = [*ok("z"), *queued("a", "b"), attempt_started("a"), *rate_limited("a"), attempt_started("b"), timed_out("b")]
    state = run_state(errors)
    recovered = run_state([*errors, *ok("c")])

    assert "2 in a row, the last 1 min 59 s ago: timed out after 5 s" == row(screen_lines(state, now=125.5), "error")
    assert "2 in a row, the last 3 s ago: timed out after 5 s" == row(screen_lines(recovered, now=9.5), "error")
    assert not [line for line in screen_lines(recovered, now=125.5) if line.startswith("error")]
    assert "\n  no output since the last error, 2 in a row: timed out after 5 s\n" in final_report(state, path="r")
    assert "the last error" not in final_report(recovered, path="r")
    assert None is run_state([*errors, SESSION]).sessions.errors.last_error


def test_consecutive_errors() -> None:
    """Only errors since the last output are consecutive."""
    state = run_state(
        [*queued("a", "b"), attempt_started("a"), *rate_limited("a"), *ok("c"), attempt_started("b"), *rate_limited("b")]
    )

    assert LastError("RateLimited: slow down", 6.5, consecutive=1, outputs=1) == state.sessions.errors.last_error


DONE = list(itertools.chain.from_iterable(ok(f"t{number}") for number in range(8)))


@pytest.mark.parametrize(
    ("events", "now", "text"),
    [
        ([], 25.0, "· 0.32/s · about 6 s left"),
        ([], 60.0, "· no trial done for 42 s"),
        (rate_limited("x"), 60.0, "· no trial done for 42 s"),
        ([IntakePaused(until=29.0, reason="retry_after")], 25.0, "· 0.32/s · about 6 s left"),
        ([IntakePaused(until=85.0, reason="retry_after")], 25.0, "· paused for 1 min"),
        ([IntakePaused(until=20.0, reason="unavailable")], 25.0, "· endpoint unavailable; probing"),
        ([IntakePaused(until=20.0, reason="unavailable"), IntakeResumed(reason="unavailable")], 25.0, "· about 6 s left"),
        (
            [LimitChanged(before=0, after=4, reason="start", key="b"), IntakePaused(until=85.0, reason="retry_after", key="a")],
            25.0,
            "about 6 s left",
        ),
        ([RunStopped(reason="interrupted")], 25.0, "about 6 s left"),
    ],
)
def test_no_remaining_time_while_stalled(events: list[Event], now: float, text: str) -> None:
    """While nothing may start or no trial was done for long, that is shown instead of the remaining time."""
    state = run_state([*queued("x"), attempt_started("x"), *DONE, *events])

    assert screen_lines(state, now=now, total=10)[1].endswith(text)
    assert ("about" in text) == ("about" in line(state, now=now, total=10))


def test_open_breaker() -> None:
    """An unavailable endpoint is shown until the breaker closes, also while a probe is due or in flight."""
    state = run_state(
        [*DONE, *queued("x", "y"), attempt_started("x"), *rate_limited("x"), IntakePaused(until=25.0, reason="unavailable")]
    )

    assert "endpoint unavailable; probing, next probe in 2 s" == row(screen_lines(state, now=23.0, total=10), "waiting")
    assert "endpoint unavailable; probing" == row(screen_lines(state, now=99.0, total=10), "waiting")
    expected = "waiting: endpoint unavailable; probing · no trial done for 1 min 22 s · 1 min 20 s ago: RateLimited: slow down"
    assert expected in line(state, now=99.0, total=10)


@pytest.mark.parametrize(
    ("timeout", "text"), [(5.0, "58 s, over its timeout; not responding to cancellation"), (None, "attempt 1  58 s")]
)
def test_attempt_in_flight(timeout: float | None, text: str) -> None:
    """An attempt that does not respond to cancellation is marked; without a timeout, only the time so far is shown."""
    state = run_state([*queued("peru"), attempt_started("peru", slot=3)], timeout=timeout)

    assert row(screen_lines(state, now=60.0), "longest").endswith(text)


def test_truncated_outputs() -> None:
    """Truncated outputs are shown while the run is running."""
    truncated = Noted(name="evaljournal.answer", value={"outcome": "truncated"}, trial="peru", attempt=1)
    state = run_state([*queued("peru"), attempt_started("peru"), truncated, *completed("peru"), *ok("cuba")])

    text = "outputs  1 of 2 outputs truncated by the token limit; raise --max-tokens"
    assert text in screen_lines(state, now=18.0)


def test_attempts_without_a_step() -> None:
    """Attempts whose calls should have been steps are shown while the run is running."""
    state = run_state([*ok("peru"), *ok("cuba")], durable=["http"])

    lines = screen_lines(state, now=18.0)
    assert row(lines, "steps").startswith('2 attempts without a step: durable="http" records only calls')
    assert " · 2 attempts without a step" in line(state, now=18.0, total=2)


def test_longest_attempts() -> None:
    """The four attempts that have run longest are shown, the longest first."""
    names = [f"t{number}" for number in range(9)]
    state = run_state([*queued(*names), *(attempt_started(name, slot=index) for index, name in enumerate(names))])
    shown = [line.partition("attempt")[0].split()[-1] for line in screen_lines(state, now=30.0) if " attempt 1 " in line]

    assert ["t0", "t1", "t2", "t3"] == shown


def test_ended_pause() -> None:
    """A pause that has ended, by its time or by a record, is not shown."""
    expired = run_state([IntakePaused(until=5.0, reason="retry_after")])
    lifted = run_state([IntakePaused(until=50.0, reason="retry_after"), IntakeResumed(reason="retry_after")])

    assert "paused" not in screen_lines(expired, now=6.0, total=9)[1]
    assert "dataset: 9 trials to come" == row(screen_lines(expired, now=6.0, total=9), "waiting")
    assert "dataset: 9 trials to come" == row(screen_lines(lifted, now=6.0, total=9), "waiting")


def test_limit_before_the_first_decision() -> None:
    """Before the first decision of a policy, the limit is the setting."""
    assert row(screen_lines(run_state([], slots=6)), "slots").startswith("0 of 6 busy")


def test_empty_journal() -> None:
    """An empty journal has a panel and a final report."""
    state = RunState()

    assert "a run that has not started  runs/1" == screen_lines(state)[0]
    assert "the run ended without a final record (killed, power loss or disk full): 0 trials done" in final_report(
        state, path="r"
    )


@pytest.mark.parametrize("width", [20, 40, 80])
def test_width(width: int) -> None:
    """Every line is truncated to the width."""
    events = [*ok("a" * 300, PASS, 0.5, "label " * 50), *queued("b" * 300), attempt_started("b" * 300)]

    assert width >= max(map(len, screen_lines(run_state(events), now=9.0, total=3, width=width)))


def test_control_characters() -> None:
    """Escape sequences and rich's markup in names, errors, scorers, labels and causes are escaped."""
    state = run_state(
        [
            *queued(CONTROL, f"{CONTROL}2", f"{CONTROL}3"),
            attempt_started(CONTROL),
            *fatal(CONTROL, CONTROL, CONTROL),
            attempt_started(f"{CONTROL}2"),
            AttemptSucceeded(trial=f"{CONTROL}2", attempt=1, output=CONTROL, elapsed=0.1),
            TrialScored(trial=f"{CONTROL}2", scorer=CONTROL, version="v1", value=CONTROL, elapsed=0.0),
            TrialCompleted(trial=f"{CONTROL}2", attempts=1),
            attempt_started(f"{CONTROL}3"),
            IntakePaused(until=99.0, reason=CONTROL),
            Noted(name=f"tokens{CONTROL}", value=1),
        ]
    )
    screen = "\n".join(screen_lines(state, now=1.0, width=300, title=CONTROL))
    texts = [screen, line(state, now=1.0, total=9), final_report(state, path=CONTROL, detail=CONTROL)]

    assert "[bold]red" in texts[0]
    assert all(char == "\n" or char.isprintable() for text in texts for char in text)


def test_progress_line() -> None:
    """A progress line shows trials done, results, scores, waits and the durable record."""
    events = [
        *ok("a", PASS, 0.5),
        *ok("b", FAIL, 1.0, "rude"),
        *failed("c"),
        *queued("d"),
        attempt_started("d"),
        *rate_limited("d"),
    ]
    state = run_state(events)

    assert (
        "3 of 6 (50 %) · 2 outputs · 1 error · exact 50.0 % · closeness 0.75"
        " · about 20 s left · waiting: 1 trial in backoff, next in 3.5 s · dataset: 2 trials to come"
    ) == line(state, now=20.0, total=6)
    assert line(state, now=30.0, total=None).startswith("3 done · 2 outputs · 1 error")


@pytest.mark.parametrize(
    ("in_flight", "reason", "left", "text"),
    [
        (3, "interrupted", 4.2, "3 attempts in flight, 4.2 s left; press Ctrl-C again to interrupt them"),
        (1, "interrupted", 4.2, "1 attempt in flight, 4.2 s left; press Ctrl-C again to interrupt it"),
        (2, "interrupted", -0.1, "interrupting 2 attempts in flight"),
        (0, "interrupted", 4.2, "no attempt in flight"),
        (1, "deadline", 5.0, "deadline reached; 1 attempt in flight, 5 s left; press Ctrl-C to interrupt it"),
        (1, CONTROL, 0.0, "\\x1b]0;owned\\x07\\x1b[31m[bold]red[/bold]\\r\\n\\u202eevil; interrupting 1 attempt in flight"),
    ],
)
def test_stopping(in_flight: int, reason: str, left: float, text: str) -> None:
    """While a run stops, the screen shows the attempts in flight, the time left, and what another Ctrl-C does."""
    names = [str(number) for number in range(in_flight)]
    state = run_state([*queued(*names), *(attempt_started(name) for name in names)])

    assert f"stopping {text}" == screen_lines(state, width=200, stop_status=(reason, left))[2].rstrip()
