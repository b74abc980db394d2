"""Known rate limits in the state of a run and in its audit."""

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from evaljournal.journal import Event, Record
from evaljournal.journal.events import (
    AttemptFailed,
    AttemptInterrupted,
    AttemptStarted,
    AttemptSucceeded,
    IntakePaused,
    LimitChanged,
    Noted,
    PaceChanged,
    RateLimitSeen,
    RetryScheduled,
    RunStopped,
    ScorerCallStarted,
    StepCompleted,
    TrialCompleted,
    TrialEnqueued,
    TrialScored,
)
from evaljournal.journal.fact import evolve_fact
from evaljournal.journal.format.codec import MAX_INTEGER
from evaljournal.replay import RunState, fold
from evaljournal.replay.auditing.auditor import audit
from evaljournal.replay.index import Index
from evaljournal.replay.render.trajectory import trajectory_lines
from evaljournal.replay.results.warning_text import warnings_of
from evaljournal.replay.runs.idle import busy_slots_text, reasons
from evaljournal.replay.runs.limit_use import limit_series
from evaljournal.replay.runs.timeline import Span
from evaljournal.replay.runs.trajectory import StepDetails
from evaljournal.replay.runs.trial import AttemptDetails
from evaljournal.replay.runs.waits import Wait, WaitLog
from evaljournal.replay.state.answers import ANSWER
from evaljournal.replay.state.known_limits import RecordedLimits
from evaljournal.replay.state.slot_use import SlotUse
from evaljournal.replay.state.usage import JUDGE_USAGE
from tests.journal.samples import session, started

Timed = tuple[float, Event]
RPM = RateLimitSeen(unit="requests", size=60.0, window=60.0, source="declared", header="rpm")
TPM = RateLimitSeen(unit="tokens", size=6_000.0, window=60.0, source="declared", header="tpm")
RPD = RateLimitSeen(unit="requests", size=3.0, window=86_400.0, source="declared", header="rpd")
TOKENS = RateLimitSeen(unit="tokens", size=6_000.0, window=60.0, source="advertised", header="x-ratelimit-limit-tokens")


def records(*sessions: tuple[str, Iterable[Timed]]) -> list[Record]:
    """Return the records of a run: the time of day at which each session starts, and its events."""
    events: list[tuple[str, float, Event]] = [("00:00:00", 0.0, evolve_fact(started(), scorers={"judge": "v1"}))]
    for number, (at, timed_events) in enumerate(sessions, 1):
        events.append((at, 0.0, evolve_fact(session(), session=number)))
        events += [(at, t, event) for t, event in timed_events]
    return [Record(seq, f"2026-11-15T{at}Z", t, event, 0, "", 1, seq) for seq, (at, t, event) in enumerate(events, 1)]


def call(
    name: str, t: float, *, seconds: float = 0.5, need: float = 100.0, used: int | None = None, attempt: int = 1
) -> Iterator[Timed]:
    """Yield the events of a trial with one call."""
    yield t, TrialEnqueued(trial=name, case=name, repeat=1, input=1, fingerprint=name)
    yield t, AttemptStarted(trial=name, attempt=attempt, slot=int(name), need={"requests": 1, "tokens": need})
    if used is not None:
        usage = {"input_tokens": used, "output_tokens": 0}
        yield t + seconds, Noted(name=ANSWER, value={"usage": usage}, trial=name, attempt=attempt)
    yield t + seconds, AttemptSucceeded(trial=name, attempt=attempt, output=1, elapsed=seconds)
    yield t + seconds, TrialCompleted(trial=name, attempts=attempt)


def calls(times: Iterable[float], **options: Any) -> list[Timed]:
    """Return the events of trials that start at these times."""
    return sorted(
        (event for number, t in enumerate(times) for event in call(str(number), t, **options)), key=lambda event: event[0]
    )


def findings(*limits: RateLimitSeen, events: Iterable[Timed]) -> list[tuple[str, str]]:
    """Return the findings of an audit of a session with these limits."""
    result = audit(records(("00:00:00", [*((0.0, limit) for limit in limits), *events])))
    return [(finding.check, finding.message) for finding in result.findings]


def test_recent_needs() -> None:
    """The state has the needs of the calls of the last minute, and the requests of the last 24 hours, by wall time."""
    first_session = [(0.0, RPM), *calls([1.0, 100.0, 101.0]), (102.0, RunStopped(reason="interrupted"))]
    state = fold(records(("00:00:00", first_session), ("00:02:00", [])))

    assert [
        (69.0, {"requests": 1.0}),
        (30.0, {"requests": 1.0, "tokens": 100.0}),
        (29.0, {"requests": 1.0, "tokens": 100.0}),
    ] == state.policy.known_limits.recent_needs("", 10.0)
    assert [] == state.policy.known_limits.recent_needs("other", 10.0)


def test_a_foreign_need_of_too_many_requests() -> None:
    """A call that says that it was many takes only so much memory."""
    limits = RecordedLimits()
    limits.begin_session("2026-11-15T00:00:00Z", 0.0)
    limits.add("", {"requests": 1e15}, 1.0)
    limits.add("", {"requests": 1.0}, 100.0)

    assert 100_001 == len(limits.recent_needs("", 101.0))


def test_uses() -> None:
    """The state has the use of each limit that is believed, and when the next call fits."""
    advertised = evolve_fact(TOKENS, is_believed=False)
    events = [(0.0, RPM), (0.0, TPM), (0.0, RPD), (0.0, TOKENS), (0.0, advertised), *calls([1.0, 1.5], need=3_000)]
    uses = list(fold(records(("00:00:00", events))).policy.known_limits.uses(3.0))

    assert [("rpm", 2.0), ("tpm", 6_000.0), ("rpd", 2.0)] == [(use.limit.header, use.used) for use in uses]
    # Half of the limit lasts for 30 s after the last start, at 1.5 s.
    assert [0.0, 28.5, 0.0] == [round(use.next_start, 3) for use in uses]


@pytest.mark.parametrize(("times", "end"), [([1.0, 2.0], 0.0), ([1.0, 2.0, 3.0], 1.0), ([1.0, 2.0, 3.0, 3.5], 2.0)])
def test_the_end_of_a_day_limit(times: list[float], end: float) -> None:
    """Another call fits 24 hours after the first of the last calls that use up the limit."""
    state = fold(records(("00:00:00", [(0.0, RPM), (0.0, RPD), *calls(times)])))

    assert (1_794_700_800.0 + end + 86_400.0 if end else 0.0) == state.policy.known_limits.day_limit_end()


def test_a_foreign_limit_of_less_than_one_call_per_day() -> None:
    """It is used up by one call, as a limit of one."""
    limit = evolve_fact(RPD, size=0.5)
    state = fold(records(("00:00:00", [(0.0, RPM), (0.0, limit), *calls([5.0])])))

    assert 1_794_700_805.0 + 86_400.0 == state.policy.known_limits.day_limit_end()


@pytest.mark.parametrize(
    ("task", "limit", "errors", "has_hint"),
    [
        ({"model": "gpt"}, TOKENS, 1, True),
        ({"model": "gpt", "max_completion_tokens": 9}, TOKENS, 1, False),
        ({"source": "def agent(): ..."}, TOKENS, 1, False),
        ({"model": "gpt"}, TPM, 1, False),
        ({"model": "gpt"}, TOKENS, 0, False),
    ],
)
def test_a_missing_token_limit(task: dict[str, str], limit: RateLimitSeen, errors: int, *, has_hint: bool) -> None:
    """Many 429s of a chat model without `max_tokens`, whose limit of tokens is known, lead to a warning."""
    failure = AttemptFailed(trial="9", attempt=1, error="RateLimited", message="", category="rate_limited", elapsed=1.0)
    rate_limited: list[Timed] = [
        (2.0, TrialEnqueued(trial="9", case="9", repeat=1, input=1, fingerprint="9")),
        (2.0, AttemptStarted(trial="9", attempt=1, slot=9)),
        (3.0, failure),
        (3.0, RetryScheduled(trial="9", attempt=2, delay=1.0, reason="rate_limited")),
    ]
    timed: list[Timed] = [(0.0, limit), *calls([1.0] * 9, seconds=0.5), *(rate_limited if errors else [])]
    run_records = records(("00:00:00", timed))
    first = evolve_fact(started(), definition={"task": task})
    state = fold([run_records[0]._replace(event=first), *run_records[1:]])

    text = (
        "1 of 10 attempts rate limited: the provider may reserve more tokens for an answer than it has; pass --max-tokens, so "
    )
    assert ([f"{text}that calls wait for what is reserved"] if has_hint else []) == warnings_of(state)


START = LimitChanged(before=0, after=2, reason="start")
RAISED = LimitChanged(before=2, after=250, reason="known_limit")


@pytest.mark.parametrize(
    ("events", "limit"),
    [
        ([START, RAISED], None),  # Another run of the process may have recorded the limit.
        ([RPM, START, RAISED, LimitChanged(before=250, after=99, reason="latency")], None),
        ([RPM, START, evolve_fact(RAISED, after=1_001)], 1_001),
        ([RPM, START, evolve_fact(RAISED, reason="climbing")], 250),
    ],
)
def test_slots_of_a_known_limit(events: list[Event], limit: int | None) -> None:
    """A known limit may raise the concurrency limit above the slots of the settings, to at most 1,000; nothing else may."""
    expected = [] if limit is None else [("limit", f"it sets a limit of {limit}, but the settings have slots=2")]

    assert expected == findings(events=[(0.0, event) for event in events])


def test_invalid_needs() -> None:
    """A need in a foreign journal may be anything; what is no amount is ignored."""
    need = {"requests": True, "tokens": "x", "input_tokens": -1, "output_tokens": float("nan")}
    events = [(0.0, RPM), *calls([1.0]), (2.0, AttemptStarted(trial="0", attempt=2, slot=0, need=need))]

    assert [1.0] == [use.used for use in fold(records(("00:00:00", events))).policy.known_limits.uses(3.0)]


def agent(steps: Iterable[tuple[float, float]], *, key: str = "") -> Iterator[Timed]:
    """Yield the events of a trial whose steps start and end at these times."""
    yield 0.0, TrialEnqueued(trial="a", case="a", repeat=1, input=1, fingerprint="a")
    yield 0.0, AttemptStarted(trial="a", attempt=1, slot=0)
    for number, (start, end) in enumerate(steps, 1):
        yield (
            end,
            StepCompleted(
                trial="a", attempt=1, step=number, name="ask", fingerprint="f", input=1, output=1, elapsed=end - start,
                need={"requests": 1}, key=key, waited=0.5,
            ),
        )  # fmt: skip
    yield 200.0, AttemptSucceeded(trial="a", attempt=1, output=1, elapsed=200.0)
    yield 200.0, TrialCompleted(trial="a", attempts=1)


EVERY_SECOND = [float(number) for number in range(59)]
FAST = [0.01 * number for number in range(5_000)]
TWO_PER_MINUTE = evolve_fact(RPM, size=2.0, key="m")
BURST = [(1.0, 100.0), (1.0, 101.0), (1.0, 102.0), (1.0, 103.0)]
IMPOSSIBLE = [
    evolve_fact(RPM, size=size, window=window) for size, window in ((0.0, 60.0), (-1.0, 60.0), (5.0, 0.0), (5.0, -1.0))
]
"""Limits of a foreign journal."""


@pytest.mark.parametrize(
    ("limits", "events"),
    [
        ([RPM, TPM], calls(range(90))),
        ([RPM], calls([0.0] * 60 + [61.0])),
        ([], calls([0.0] * 90)),
        (IMPOSSIBLE, calls([1.0] * 9)),
        ([TOKENS], calls(EVERY_SECOND, need=200)),
        ([TOKENS, evolve_fact(TOKENS, is_believed=False)], calls(EVERY_SECOND, need=240)),
        ([TPM], calls(EVERY_SECOND, need=200, used=90)),
        ([TWO_PER_MINUTE], [*agent([(0.0, 130.0), (31.0, 131.0), (62.0, 132.0), (93.0, 133.0)], key="m")]),
        ([TWO_PER_MINUTE], [*agent(BURST, key="other")]),
        ([evolve_fact(RPM, size=30_000.0)], calls(FAST)),
    ],
)
def test_limits_that_hold(limits: list[RateLimitSeen], events: list[Timed]) -> None:
    """A second of a declared limit may be used at once, and of an advertised one, while it is believed, a full bucket.

    Calls count with the tokens that they used, and steps from their start, for the limit of their key.
    """
    assert [] == findings(*limits, events=events)


@pytest.mark.parametrize(
    ("limit", "events", "count", "subject"),
    [
        (RPM, calls([0.0] * 61 + [59.0] * 2), 1, "'62' starts when the calls of the last minute need 63 requests"),
        (TPM, calls([0.0, 10.0, 59.0], need=3_100.0), 1, "'2' starts when the calls of the last minute need 9,300 tokens"),
        (RPD, calls([0.0, 1.0, 2.0, 80_000.0, 86_399.0]), 1, "'4' starts when the calls of the last day need 5 requests"),
        (TOKENS, calls(EVERY_SECOND, need=240), 8, "'51' starts when the calls of the last minute need 12,480 tokens"),
        (TPM, calls(EVERY_SECOND, need=200, used=190), 26, "'33' starts when the calls of the last minute need 6,470 tokens"),
        (TWO_PER_MINUTE, [*agent(BURST, key="m")], 1, "step 4 of 'a' starts when the calls of the last minute need 4 requests"),
    ],
)
def test_limits_that_are_broken(limit: RateLimitSeen, events: list[Timed], count: int, subject: str) -> None:
    """Calls of one window that need more than the limit and one need are reported."""
    problem = f"{subject}; the {limit.source} limit is {limit.size:,.0f} ({limit.header})"

    violations = findings(limit, events=events)
    assert (("rate_limit", problem), count) == (violations[0], len(violations))


def test_findings_while_a_run_goes_on() -> None:
    """Calls are checked in the order of their starts before the end of a long run; only the first findings are kept."""
    assert 100 == len(findings(evolve_fact(RPM, size=3_000.0), events=calls(FAST)))


def test_scorer_calls() -> None:
    """Calls of a judge count for the limit of their key, with the tokens that the judge reports."""
    limit = evolve_fact(TPM, size=1_000.0, key="scorer:judge")

    def judged(used: int) -> list[Timed]:
        events: list[Timed] = []
        for number in range(4):
            name, t = str(number), float(number)
            *first_events, completed = call(name, t, need=0)
            key, usage = "scorer:judge", {"input_tokens": used, "output_tokens": 0}
            start = ScorerCallStarted(trial=name, scorer="judge", call=1, key=key, need={"requests": 1, "tokens": 500})
            events += [*first_events, (t + 0.5, start)]
            events.append((t + 0.6, Noted(name=JUDGE_USAGE, value={"model": "m", "usage": usage}, trial=name)))
            events.append((t + 0.6, TrialScored(trial=name, scorer="judge", version="v1", value=1, elapsed=0.1)))
            events.append((t + 0.6, completed[1]))
        return events

    assert [] == findings(limit, events=judged(300))
    assert ["rate_limit"] == [check for check, _ in findings(limit, events=judged(500))]


def test_sessions() -> None:
    """The calls of the session before count, if it has ended less than a window ago; an earlier limit does not."""
    limit = evolve_fact(RPM, size=2.0)
    first_session = [(0.0, limit), *calls([0.0, 1.0, 2.0]), (3.0, RunStopped(reason="interrupted"))]
    events = list(call("9", 5.0))

    assert ["rate_limit"] == [
        finding.check for finding in audit(records(("00:00:00", first_session), ("00:00:10", [(0.0, limit), *events]))).findings
    ]
    assert () == audit(records(("00:00:00", first_session), ("00:01:10", [(0.0, limit), *events]))).findings
    assert () == audit(records(("00:00:00", first_session), ("00:00:10", events))).findings


def test_an_interrupted_call() -> None:
    """The need of an interrupted call counts."""
    events: list[Timed] = [(0.0, evolve_fact(RPM, size=1.0))]
    for name in "012":
        events += list(call(name, 1.0))[:2]
    events += [(2.0, AttemptInterrupted(trial=name, attempt=1, reason="stopped", elapsed=1.0)) for name in "012"]

    assert ["rate_limit"] == [check for check, _ in findings(events=events)]


def waiting(*events: Event, limit: RateLimitSeen = TPM, times: Iterable[float] = (1.0,), need: float = 5_900.0) -> list[str]:
    """Return why slots are idle at 10 s, while a trial is ready and these calls have started."""
    queued = TrialEnqueued(trial="9", case="9", repeat=1, input=1, fingerprint="9")
    start = LimitChanged(before=0, after=8, reason="start")
    timed_events: list[Timed] = [(0.0, start), (0.0, limit), *calls(times, need=need)]
    timed_events += [(9.0, event) for event in (*events, queued)]
    return [reason.text for reason in reasons(fold(records(("00:00:00", timed_events))), now=10.0, total=2)]


PACED, PAUSED = PaceChanged(after=2.0, reason="rate_limit"), IntakePaused(until=12.0, reason="retry_after")


@pytest.mark.parametrize(
    ("events", "options", "text"),
    [
        ([], {}, "tokens: 5.9k of 6k per minute used, next start in 50 s (declared)"),
        ([], {"limit": TOKENS}, "tokens: 5.9k of 6k per minute used, next start in 49 s (advertised)"),
        (
            [],
            {"limit": TOKENS, "need": 100},
            "tokens: 100 of 6k per minute used by this run, others may use the rest (advertised)",
        ),
        ([], {"limit": RPM}, "requests: 1 of 60 per minute used by this run, others may use the rest (declared)"),
        ([], {"limit": RPM, "times": (9.5,)}, "60 requests per minute, spread evenly: next start in 0.5 s (declared)"),
        ([PACED], {}, "tokens: 5.9k of 6k per minute used, next start in 50 s (declared)"),
        ([PAUSED], {}, "Retry-After: 2 s left"),
        ([PACED], {"need": 100}, "pace: 2 starts/s"),
    ],
)
def test_waiting_for_a_limit(events: list[Event], options: dict[str, Any], text: str) -> None:
    """A limit that holds starts is the reason, with its use and the next start, before the pace, but not before a pause."""
    assert [text] == waiting(*events, **options)


def test_a_limit_that_is_hardly_used() -> None:
    """It is no reason just after a start, nor if all calls that the concurrency limit allows are in flight."""
    lowered = LimitChanged(before=8, after=1, reason="latency", evidence="slower")
    queued = TrialEnqueued(trial="8", case="8", repeat=1, input=1, fingerprint="8")
    started_again: list[Event] = [queued, AttemptStarted(trial="8", attempt=1, slot=0, need={"requests": 1}), lowered]

    assert [] == waiting(limit=TOKENS, need=100, times=(9.5,))
    assert ["concurrency limit 1 of 2: slower"] == waiting(*started_again, limit=evolve_fact(RPM, size=6.0))


def busy(size: float, limit: int = 2, *, starts: int = 12) -> RunState:
    """Return the state of a run in which two calls of 2 s each are always in flight, under a limit of requests."""
    events: list[Timed] = [(0.0, evolve_fact(RPM, size=size)), (0.0, LimitChanged(before=0, after=limit, reason="start"))]
    names = [str(number) for number in range(starts + 1)]
    events += [(0.0, TrialEnqueued(trial=name, case=name, repeat=1, input=1, fingerprint=name)) for name in names]
    for number in range(starts):
        t = 2.0 * (number // 2)
        if number > 1:
            name = str(number - 2)
            events.append((t, AttemptSucceeded(trial=name, attempt=1, output=1, elapsed=2.0)))
            events.append((t, TrialCompleted(trial=name, attempts=1)))
        events.append((t, AttemptStarted(trial=str(number), attempt=1, slot=number % 2, need={"requests": 1})))
    return fold(records(("00:00:00", events)))


@pytest.mark.parametrize(
    ("size", "limit", "starts", "texts"),
    [
        (300.0, 2, 12, ["all 2 slots are busy; `--slots 20` would use the limit"]),
        (300.0, 2, 4, []),  # The use of the limit is not known yet.
        (60.0, 2, 12, []),
        (300.0, 1, 12, []),
    ],
)
def test_all_slots_are_busy(size: float, limit: int, starts: int, texts: list[str]) -> None:
    """If all slots are busy although a known limit has room, that is shown, with the slots that would use the limit."""
    assert texts == [reason.text for reason in reasons(busy(size, limit, starts=starts), now=11.0, total=99)]


def test_all_slots_were_busy() -> None:
    """The summary says for how long, and how much of the limit was used; not if the limit held the starts."""
    text = "all 2 slots were busy for 10 s, and 24 % of 300 requests per minute were used; `--slots 20` would use the limit"

    state = busy(300.0)
    assert (text, {}) == (busy_slots_text(state), state.policy.paused_seconds(state.t))
    assert "" == busy_slots_text(busy(60.0))


@pytest.mark.parametrize(
    ("limit", "times", "seconds"),
    [
        (RPM, [1.0, 2.0, 3.0], {"rate_limit": 2.0}),
        (RPM, [1.0, 31.0], {"rate_limit": 1.0}),
        (RPD, [1.0, 2.0], {}),
    ],
)
def test_time_held_by_a_limit(limit: RateLimitSeen, times: list[float], seconds: dict[str, float]) -> None:
    """Time in which a known limit held starts is counted, but not longer than it explains; a limit per day holds none."""
    state = fold(records(("00:00:00", [(0.0, limit), *calls(times)])))

    assert seconds == state.policy.paused_seconds(state.t)


def test_agents_wait_in_their_slots() -> None:
    """If the calls of an agent wait for a limit, that is shown although no slot is idle."""
    limit = evolve_fact(RPM, size=2.0, key="m")
    events = [(0.0, limit), *list(agent([(1.0, 2.0), (1.0, 3.0)], key="m"))[:4]]
    state = fold(records(("00:00:00", events)))
    state.settings["slots"] = 1

    assert ["requests: 2 of 2 per minute used, next start in 27 s (declared)"] == [
        reason.text for reason in reasons(state, now=4.0, total=1)
    ]
    assert ["requests: 2 of 2 per minute used (declared)"] == [reason.text for reason in reasons(state, now=40.0, total=1)]


def test_waits_are_not_latency() -> None:
    """The time that steps of an attempt wait for limits is no part of its latency; overlapping waits count once."""
    steps = [(1.0, 2.0), (1.2, 4.0), (50.0, 60.0)]  # Each has waited for half a second.
    state = fold(records(("00:00:00", agent(steps))))

    assert [200.0 - 0.7 - 0.5] == list(state.trials.attempts.latencies)
    assert 1.5 == state.steps.seconds_waited


def test_a_step_as_text() -> None:
    """A step is shown with its need and its wait."""
    span = Span("a", 1, 0, 1, 0.0, 1.0, "succeeded", 1, 2)
    step = StepDetails(1, "ask", "model", 0, 3, 2.0, 1.0, "q", "a", need={"requests": 1, "tokens": 812}, waited=1.25)
    *_, line = trajectory_lines(AttemptDetails(span, steps=[step]), full=False)

    assert "   1  model       1 s  ask  q → a  needs 812 tokens, 1 request, waited 1.2 s" == line


def test_waits_of_a_trial() -> None:
    """A trial that waits without a reason of the policy waits for the known limits of its key."""
    state, waits = RunState(), list[Wait]()
    log = WaitLog("1", state)
    first_events: list[Timed] = [(0.0, LimitChanged(before=0, after=8, reason="start")), (0.0, TPM)]
    enqueued, *later_events = call("1", 5.0)
    events = [*first_events, (0.0, enqueued[1]), *call("0", 0.25), *later_events]
    for record in records(("00:00:00", events)):
        log.before(record)
        state.apply(record)
        waits += log.after(record)

    assert [Wait("rate_limit", 5.0, "6k tokens per minute")] == waits


def test_use_over_time() -> None:
    """The report has the used share of each limit that is believed, from where it was first seen, with its size at the time."""
    larger_limit, disbelief = evolve_fact(TPM, size=12_000.0), evolve_fact(TOKENS, is_believed=False)
    events = [
        (0.0, disbelief),
        (1.0, TPM),
        *calls([2.0, 30.0], need=3_000),
        (70.0, larger_limit),
        (100.0, Noted(name="a", value=1)),
    ]
    index = Index()
    for record in records(("00:00:00", events)):
        index.apply(record)
    [series] = limit_series(index)
    shares = {round(point.t): point.percent for point in series.points}

    assert "12k tokens per minute (declared)" == series.label
    assert [0, 50, 100, 50, 25, 0] == [shares[t] for t in (1, 10, 40, 65, 75, 95)]


def test_impossible_limits() -> None:
    """A limit of a foreign journal that makes no sense is ignored."""
    events: list[Timed] = [(0.0, limit) for limit in IMPOSSIBLE]
    index = Index()
    for record in records(("00:00:00", [*events, *calls([1.0])])):
        index.apply(record)

    assert [] == limit_series(index)
    assert [] == list(fold(records(("00:00:00", events))).policy.known_limits.uses(1.0))


def test_slots_of_a_limit_that_is_not_believed() -> None:
    """If no limit is believed any more, its use is unknown, and no number of slots is better."""
    use = SlotUse(begin=0.0)
    for second in range(10):
        use.start(float(second), 0.0)
        use.end(second + 0.5)

    assert use.better_slots(2, 10.0) is None


def test_slots_of_an_enormous_limit() -> None:
    """The slots that a foreign limit needs are an integer that JSON can hold."""
    use = SlotUse(begin=0.0)
    for second in range(10):
        use.start(float(second), 60.0 / 1e308)
        use.end(second + 0.5)
    better_slots = use.better_slots(2, 10.0)

    assert better_slots is not None
    assert MAX_INTEGER <= better_slots < 2 * MAX_INTEGER
