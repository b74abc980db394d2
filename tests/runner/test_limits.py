"""Known limits of a rate-limit key: how calls are spread by declared limits, and follow advertised ones."""

import itertools
import math
import random
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from evaljournal.journal.events import RateLimitSeen
from evaljournal.replay.state.known_limits import DAY, MINUTE
from evaljournal.runner.calls.call_size import CallSize
from evaljournal.runner.concurrency.limits import AdmittedCall, Limits
from evaljournal.runner.gates.known_limits import KeyLimits, KnownLimits, shared_limits
from evaljournal.runner.retries.limit_headers import AdvertisedLimit, advertised_limits
from tests.headers import advertised_limit

REQUEST = CallSize()


def declared(**limits: float) -> Limits:
    known = Limits()
    known.declare(limits, 0.0)
    return known


def requests(size: float, remaining: float, *, reset: float | None = None, **fields: Any) -> list[AdvertisedLimit]:
    reset = (size - remaining) * MINUTE / size if reset is None else reset
    return [advertised_limit("x-ratelimit-limit-requests", "requests", size, MINUTE, remaining, reset, **fields)]


def tokens(size: float, remaining: float) -> list[AdvertisedLimit]:
    reset = (size - remaining) * MINUTE / size
    return [advertised_limit("x-ratelimit-limit-tokens", "tokens", size, MINUTE, remaining, reset)]


def start_when_allowed(limits: Limits, size: CallSize, t: float) -> AdmittedCall:
    """Start a call at the first moment from `t` on when the limits allow it."""
    while (wait := limits.wait(size, t)) > 0:
        t += wait
    return limits.start(size, t)


sizes = st.builds(CallSize, st.integers(0, 30_000), st.none() | st.integers(0, 8000))


@given(
    limits=st.fixed_dictionaries({}, optional={name: st.floats(1, 1e5) for name in ("rpm", "tpm", "itpm", "otpm")}),
    calls=st.lists(st.tuples(st.floats(0, 30), sizes), max_size=60),
)
def test_declared_limits_hold_in_every_minute(limits: dict[str, float], calls: list[tuple[float, CallSize]]) -> None:
    """In every 60 s, the needs of the calls that start are at most a declared limit and one need."""
    known = declared(**limits)
    starts: list[AdmittedCall] = []
    t = 0.0
    for pause, size in calls:
        starts.append(start_when_allowed(known, size, t + pause))
        t = starts[-1].t
    for name, limit in limits.items():
        needs = [(start.t, start.needs[("rpm", "tpm", "itpm", "otpm").index(name)]) for start in starts]
        for index, (begin, _) in enumerate(needs):
            in_window = [need for t, need in needs[index:] if t < begin + MINUTE]
            assert sum(in_window) <= (limit + max(in_window)) * (1 + 1e-9)


def test_declared_requests_are_spread_evenly() -> None:
    """Some providers enforce 60 per minute as one per second, so no more than a quarter of a second's share starts at once."""
    known, t = declared(rpm=600), 0.0
    starts: list[float] = []
    for _ in range(100):
        t = start_when_allowed(known, REQUEST, t).t
        starts.append(t)
    assert 3 == sum(t < 0.05 for t in starts)
    assert 0.98 * 10 == pytest.approx(99 / (starts[-1] + 0.25), rel=0.01)


def test_the_lower_of_two_declared_limits_applies() -> None:
    """Runs that share a key may declare different values."""
    known = declared(rpm=600)
    known.declare({"rpm": 60}, 0.0)
    known.declare({"rpm": 100}, 0.0)
    assert [RateLimitSeen(unit="requests", size=60, window=MINUTE, source="declared", header="rpm")] == known.seen()


def test_a_resumed_run_waits_for_the_calls_of_earlier_sessions() -> None:
    """The starts of the last minute count against a declared limit."""
    earlier, resumed = declared(rpm=60), declared(rpm=60)
    starts = list(itertools.accumulate(range(30), lambda t, _: start_when_allowed(earlier, REQUEST, t).t, initial=0.0))
    resumed.restore((t, {"requests": 1}) for t in starts[1:])
    assert earlier.wait(REQUEST, starts[-1]) == pytest.approx(resumed.wait(REQUEST, starts[-1]))
    assert resumed.wait(REQUEST, starts[-1]) > 0


def test_a_declared_limit_per_day_is_not_spread() -> None:
    """Requests of a day may all start at once; the next one starts 24 hours after the first."""
    known = declared(rpd=3)
    for t in (0.0, 10.0, 20.0):
        assert known.wait(REQUEST, t) <= 0
        known.start(REQUEST, t)
    assert DAY - 70 == known.day_limit_wait(70.0) == known.wait(REQUEST, 70.0)
    assert 0 == known.day_limit_wait(DAY)


def test_a_call_is_counted_with_its_real_tokens_if_its_need_was_an_estimate() -> None:
    """Without `max_tokens`, what a call did not use can be used by others; a call that used more makes others wait."""
    size, wait = CallSize(input_bytes=6000), []
    for used in (200, 2000, 20_000):
        known = declared(tpm=60_000)
        call = known.start(size, 0.0)
        known.end(call, {"input_tokens": used, "output_tokens": 0})
        wait.append(known.wait(CallSize(), 0.0))
    assert [0.0, pytest.approx(2 / 0.98 - 0.25), pytest.approx(20 / 0.98 - 0.25)] == wait


def test_reserved_output_stays_reserved() -> None:
    """Providers that count `max_tokens` at admission do not return what was not used."""
    known = declared(tpm=60_000)
    call = known.start(CallSize(max_output=5000), 0.0)
    known.end(call, {"input_tokens": 0, "output_tokens": 5})
    assert known.wait(CallSize(), 0.0) == pytest.approx(5 / 0.98 - 0.25)


def test_needs_are_estimated_from_earlier_replies() -> None:
    """Before the first reply, 3 bytes are a token; then the real ratio and the mean output count."""
    known, size = declared(tpm=1e6), CallSize(input_bytes=900)
    first = known.start(size, 0.0)
    known.end(first, {"input_tokens": 100, "output_tokens": 50, "cached_tokens": 10})
    assert (1, 300, 300, 0) == first.needs  # requests, tokens, input tokens, output tokens
    # A reservation counts the input by its bytes.
    assert (1, 275, 90, 50) == known.start(size, 0.0).needs
    assert (1, 1225, 90, 50) == known.start(CallSize(900, max_output=1000), 0.0).needs


@pytest.mark.parametrize("value", [None, "5", -1, math.nan, math.inf, 10**400, True, [], {}], ids=str)
def test_usage_that_makes_no_sense(value: Any) -> None:
    """Replies are untrusted: numbers of tokens that cannot be are ignored."""
    known = declared(tpm=1000)
    call = known.start(CallSize(300), 0.0)
    known.end(call, {"input_tokens": value, "output_tokens": value, "cached_tokens": value})
    assert math.isfinite(known.wait(CallSize(300), 0.0))


def test_the_newest_request_describes_the_level() -> None:
    """The level is what remained after the newest request that was answered, minus the needs of the calls after it.

    Replies may arrive in any order.
    """
    known = Limits()
    calls = [known.start(CallSize(max_output=100), t) for t in (0.0, 1.0, 2.0, 3.0)]
    known.read(calls[0], tokens(6000, 5900), 3.0, is_429=False)
    in_order = Limits()
    calls_in_order = [in_order.start(CallSize(max_output=100), t) for t in (0.0, 1.0, 2.0, 3.0)]
    known.read(calls[2], tokens(6000, 1000), 4.0, is_429=False)
    known.read(calls[1], tokens(6000, 5800), 4.0, is_429=False)  # It says less than the reply before.
    for call, remaining in zip(calls_in_order[:3], (5900, 5800, 1000), strict=True):
        in_order.read(call, tokens(6000, remaining), 4.0, is_429=False)
    large = CallSize(max_output=2000)
    assert in_order.wait(large, 4.0) == pytest.approx(known.wait(large, 4.0))
    assert (2000 - (1000 + 2 * 100 - 100)) / 100 == pytest.approx(known.wait(large, 4.0))


def test_calls_wait_until_a_limit_has_room() -> None:
    """A call starts when what remains covers its need; the limit fills at its size per window."""
    known = Limits()
    known.read(known.start(REQUEST, 0.0), tokens(60_000, 1000), 0.0, is_429=False)
    assert 0 == known.wait(CallSize(max_output=1000), 0.0)
    assert 5 == known.wait(CallSize(max_output=6000), 0.0)
    assert 0 == known.wait(CallSize(max_output=6000), 5.0)


def test_the_refill_rate_follows_from_the_reset() -> None:
    """A limit that needs longer than its window to be full refills more slowly."""
    known = Limits()
    known.read(known.start(REQUEST, 0.0), requests(1000, 0, reset=600.0), 0.0, is_429=False)
    assert 0.6 == pytest.approx(known.wait(REQUEST, 0.0))


def recording(recorded: list[RateLimitSeen]) -> KeyLimits:
    """Return the limits of a key as a new run uses them, which adds what it records to a list."""
    session = KnownLimits(recorded.append, lambda: 0.0, lambda _: {}, lambda _: ())
    return session.of("an endpoint, an API key and a model", key="a key", model="a model", host="")


def header_values(size: float) -> dict[str, str]:
    values = {"limit": f"{size:g}", "remaining": "10", "reset": "6s"}
    return {f"x-ratelimit-{name}-requests": value for name, value in values.items()}


async def test_limits_are_recorded_when_they_are_new_or_have_changed() -> None:
    """A change below 5 % is not recorded, and another one at most once a minute: behind a gateway, sizes alternate."""
    recorded: list[RateLimitSeen] = []
    known = recording(recorded)
    sizes = []
    for pause, size in ((0, 100), (70, 104), (10, 106), (10, 106), (10, 50), (10, 106), (10, 50), (20, 50)):
        await trio.sleep(pause)
        known.read(known.limits.start(REQUEST, known.now()), 200, header_values(size))
        sizes.append([seen.size for seen in recorded])
        recorded.clear()
    assert [[100], [], [106], [], [], [], [], [50]] == sizes


async def test_each_run_records_the_limits_that_it_shares() -> None:
    """A run of a suite obeys what the replies to another run have shown, so its journal states that, too."""
    first, second, third = list[RateLimitSeen](), list[RateLimitSeen](), list[RateLimitSeen]()
    known, other = recording(first), recording(second)
    for session in (known, other):
        session.read(session.limits.start(REQUEST, session.now()), 200, header_values(100))
    recording(third)
    assert [100] == [seen.size for seen in first]
    assert first == second == third


def test_a_429_for_which_there_was_room_spreads_a_limit_evenly() -> None:
    """Some enforce 600 per minute as 10 per second, although the headers allow more."""
    starts = []
    for remaining in (599, 0):
        known, t = Limits(), 1.0
        known.read(known.start(REQUEST, 0.0), requests(600, remaining), 0.1, is_429=True)
        known.read(known.start(REQUEST, 0.2), requests(600, 500), 1.0, is_429=False)
        count = 0
        while (t := start_when_allowed(known, REQUEST, t).t) < 11:
            count += 1
        starts.append(count)
    assert 0.98 * 10 * 10 == pytest.approx(starts[0], abs=3)
    assert starts[1] > 2 * starts[0]


def starts_within(known: Limits, t: float, seconds: float, size: CallSize = REQUEST) -> int:
    """Return how many calls start within some seconds if each starts as soon as the limits allow it."""
    end, count = t + seconds, 0
    while (t := start_when_allowed(known, size, t).t) < end:
        count += 1
    return count


def test_a_limit_is_used_faster_again() -> None:
    """Five minutes after a 429 for which there was room, a limit may be used faster again, the longer ago the faster."""
    counts = []
    for t in (299.0, 600.0, 3000.0):
        known = Limits()
        known.read(known.start(REQUEST, 0.0), requests(600, 599), 0.1, is_429=True)
        known.read(known.start(REQUEST, t - 1), requests(600, 599), t, is_429=False)
        counts.append(starts_within(known, t, 10.0))
    assert [98, 196] == [pytest.approx(count, rel=0.05) for count in counts[:2]]
    assert counts[2] > 300


def test_a_429_is_explained_by_the_limit_without_room() -> None:
    """A 429 for tokens does not spread requests evenly, although there was room for another one."""
    known, size = Limits(), CallSize(max_output=100)
    known.read(known.start(size, 0.0), [*requests(600, 599), *tokens(60_000, 0)], 0.1, is_429=True)
    known.read(known.start(size, 59.0), [*requests(600, 599), *tokens(60_000, 60_000)], 60.0, is_429=False)
    assert starts_within(known, 60.0, 10.0, size) > 200


def test_few_requests_start_without_a_burst() -> None:
    """One of 60 per minute that arrives early is rejected by a provider that enforces one per second."""
    known, t = declared(rpm=60), 0.0
    starts = [t := start_when_allowed(known, REQUEST, t).t for _ in range(10)]
    assert [1 / 0.93] * 9 == pytest.approx([later - start for start, later in itertools.pairwise(starts)])


@pytest.mark.parametrize("held", [10, 100])
def test_a_small_bucket_is_used_at_its_rate(held: int) -> None:
    """A bucket of 600 per minute may hold a second's or ten seconds' worth: what remains does not say how large it is."""
    known, t, level, count = Limits(), 0.0, float(held), 0
    calls: list[AdmittedCall] = []
    while t < 60:
        call = start_when_allowed(known, REQUEST, t)
        level = min(level + 10 * (call.t - t), held) - 1
        t, count = call.t, count + 1
        assert level >= -1e-6
        calls.append(call)
        if len(calls) > 5:
            known.read(calls.pop(0), requests(600, math.floor(level)), t, is_429=False)
    assert count >= 0.85 * 600


def mistral(remaining: float, reset: float) -> list[AdvertisedLimit]:
    return [advertised_limit("x-ratelimitbysize-limit-minute", "tokens", 60_000, MINUTE, remaining, reset, is_window=True)]


def test_a_fixed_window_is_spread_over_its_rest() -> None:
    """What remains is used until the next window begins; nothing flows in before."""
    known, size = Limits(), CallSize(max_output=100)
    known.read(known.start(size, 0.0), mistral(10_000, 20.0), 0.0, is_429=False)
    assert 50 == pytest.approx(starts_within(known, 0.0, 10.0, size), abs=3)
    known.read(known.start(size, 11.0), mistral(50, 9.0), 11.0, is_429=True)
    assert 9 == known.wait(size, 11.0)
    assert 600 == pytest.approx(starts_within(known, 20.0, 60.0, size), abs=10)


@pytest.mark.parametrize(("host", "count"), [("api.openai.com", 13), ("name.openai.azure.com", 13), ("localhost", 1000)])
def test_few_calls_start_before_the_first_reply(host: str, count: int) -> None:
    """Others may have used the limits that a provider will advertise. Endpoints that may say nothing are not waited for."""
    known, t = Limits(host), 0.0
    starts = [t := start_when_allowed(known, REQUEST, t).t for _ in range(1000)]
    assert count == pytest.approx(sum(t < 1.0 for t in starts), abs=1)


@pytest.mark.parametrize("is_advertised", [True, False])
def test_the_first_reply_ends_the_wait_for_it(*, is_advertised: bool) -> None:
    """After a reply, the limits in its headers count, or none."""
    known = Limits("api.openai.com")
    call, *_ = [known.start(REQUEST, 0.0) for _ in range(10)]
    assert known.wait(REQUEST, 0.0) > 0
    if is_advertised:
        known.read(call, requests(600, 599), 0.0, is_429=False)
    else:
        known.end(call, None)
    assert 0 == known.wait(REQUEST, 0.0)


def is_believed(known: Limits) -> bool:
    [seen] = known.seen()
    return seen.is_believed


def test_successes_refute_that_nothing_is_left() -> None:
    """A proxy sends `remaining: 0` with a reset in a day. A call is tried every 5 s, and three successes refute it."""
    known, t, starts = Limits(), 0.0, list[tuple[float, bool]]()
    for _ in range(5):
        call = start_when_allowed(known, REQUEST, t)
        t = call.t + 1
        known.read(call, requests(100, 0, reset=DAY), t, is_429=False)
        starts.append((call.t, is_believed(known)))
    assert [(0.0, True), (5.0, True), (10.0, True), (15.0, False), (16.0, False)] == starts


def test_room_for_a_call_restores_a_refuted_limit() -> None:
    """A 429 does not: another limit may be the reason, and it would take minutes to refute this one again."""
    known = Limits()
    for t in (0.0, 5.0, 10.0, 15.0):
        known.read(known.start(REQUEST, t), requests(100, 0, reset=DAY), t + 1, is_429=False)
    known.read(known.start(REQUEST, 30.0), requests(100, 0, reset=DAY), 31.0, is_429=True)
    assert not is_believed(known)
    known.read(known.start(REQUEST, 80.0), requests(100, 50), 81.0, is_429=False)
    assert is_believed(known)


def test_an_honest_empty_bucket_is_not_refuted() -> None:
    """Calls that start at the rate at which a bucket fills succeed, and nothing remains after each of them."""
    known, t = Limits(), 0.0
    for _ in range(100):
        call = start_when_allowed(known, REQUEST, t)
        t = call.t
        known.read(call, requests(600, 0), t + 0.5, is_429=False)
        assert is_believed(known)


@pytest.mark.parametrize("has_headers", [True, False])
def test_a_rejected_probe_is_not_repeated_soon(*, has_headers: bool) -> None:
    """`remaining: 0` is honest on the last call of a window: after a 429, a call is tried once a minute."""
    known = Limits()
    known.read(known.start(REQUEST, 0.0), requests(100, 0, reset=DAY), 1.0, is_429=False)
    probe = start_when_allowed(known, REQUEST, 1.0)
    known.read(probe, requests(100, 0, reset=DAY) if has_headers else [], probe.t + 0.1, is_429=True)
    assert (5.0, 65.0) == (probe.t, start_when_allowed(known, REQUEST, probe.t + 0.1).t)


@pytest.mark.parametrize(
    ("size", "usage"), [(CallSize(max_output=9), None), (CallSize(10), {"input_tokens": 4, "output_tokens": 5})]
)
def test_a_limit_below_a_successful_call_is_not_believed(size: CallSize, usage: dict[str, int] | None) -> None:
    """A proxy sends `limit-tokens: 2` beside calls of nine tokens: none of them is impossible."""
    known = Limits()
    calls = [known.start(size, 0.0) for _ in range(2)]
    for call in calls:
        known.read(call, tokens(2, 1), 1.0, is_429=False)
        known.end(call, usage)
        assert known.impossible(size) is None
    known.read(known.start(size, 2.0), tokens(2, 1), 3.0, is_429=True)
    known.read(known.start(CallSize(max_output=1), 4.0), tokens(2, 1), 5.0, is_429=False)
    assert known.impossible(size) is None
    assert not is_believed(known)


def test_a_larger_limit_counts_again() -> None:
    """What refuted a size does not refute another one."""
    known, size = Limits(), CallSize(max_output=9)
    known.read(known.start(size, 0.0), tokens(2, 1), 1.0, is_429=False)
    known.read(known.start(size, 2.0), tokens(100, 90), 3.0, is_429=False)
    [seen] = known.seen()
    assert (100, True) == (seen.size, seen.is_believed)
    assert known.impossible(CallSize(max_output=101)) is not None


def test_a_limit_without_a_reset_is_spread_evenly() -> None:
    """Azure has fixed windows: what remains does not say when the next one begins. Calls before the first reply count."""
    known, t = Limits(), 1.0
    calls = [known.start(REQUEST, 0.0) for _ in range(20)]
    known.read(calls[0], [advertised_limit("x-ratelimit-limit-requests", "requests", 100, 10.0, 90, None)], 1.0, is_429=False)
    count = 20
    while (t := start_when_allowed(known, REQUEST, t).t) < 10:
        count += 1
    assert 0.98 * 100 == pytest.approx(count, abs=3)


def test_openai_counts_the_larger_of_input_and_output() -> None:
    """OpenAI takes the larger of the estimated input and `max_tokens`; others reserve both."""
    size = CallSize(input_bytes=3000, max_output=800)
    assert [1000, 1800] == [Limits(host).start(size, 0.0).needs[1] for host in ("api.openai.com", "")]


def test_advice_counts_after_a_429() -> None:
    """Headers that are often wrong are ignored until a call is rate limited."""
    known = Limits()
    known.read(known.start(REQUEST, 0.0), requests(10, 0, is_advice=True), 0.1, is_429=False)
    assert 0 == known.wait(REQUEST, 0.1)
    known.read(known.start(REQUEST, 1.0), requests(10, 0, is_advice=True), 1.1, is_429=True)
    assert known.wait(REQUEST, 1.1) > 0


def test_a_request_that_never_fits() -> None:
    """A need above a limit is impossible; the input counts once replies have shown how many tokens a request has."""
    known = declared(tpm=1000)
    [limit] = known.seen()
    assert (limit, 1001) == known.impossible(CallSize(max_output=1001))
    assert known.impossible(CallSize(max_output=1000)) is None
    assert known.impossible(CallSize(input_bytes=9000)) is None
    known.end(known.start(CallSize(input_bytes=300), 0.0), {"input_tokens": 100, "output_tokens": 1})
    assert (limit, 3001) == known.impossible(CallSize(input_bytes=9000))
    assert Limits().impossible(CallSize(10**9, 10**9)) is None


def test_anthropic_starts_at_half_its_rate() -> None:
    """Anthropic rejects sudden growth: calls start at half the rate, and at all of it after half a minute."""
    starts = []
    for header in ("anthropic-ratelimit-requests-limit", "x-ratelimit-limit-requests"):
        known, t = Limits(), 0.0
        advertised = [advertised_limit(header, "requests", 600, MINUTE, 599, 0.1)]
        known.read(known.start(REQUEST, 0.0), advertised, 0.0, is_429=False)
        count = 0
        while (t := start_when_allowed(known, REQUEST, t).t) < 10:
            count += 1
        starts.append(count)
    assert (0.5 + 5 / 60) * 10 * 10 == pytest.approx(starts[0], rel=0.1)
    assert starts[1] > 1.8 * starts[0]


async def test_runs_of_one_process_share_the_limits_of_a_key() -> None:
    """The same endpoint, API key and model have one set of limits; others have their own."""
    assert shared_limits(("https://a", "key", "model")) is shared_limits(("https://a", "key", "model"))
    assert shared_limits(("https://a", "key", "model")) is not shared_limits(("https://a", "key", "other"))


def test_runs_with_other_virtual_clocks_share_nothing() -> None:
    """Times of different virtual clocks cannot be compared."""

    async def limits() -> Limits:
        return shared_limits("key")

    clocks = [trio.testing.MockClock(), trio.testing.MockClock()]
    first, second = (trio.run(limits, clock=clock) for clock in clocks)
    assert first is not second


FIELDS = ("limit", "remaining", "reset")
NAMES = [
    *(f"x-ratelimit-{field}-{unit}" for unit in ("requests", "tokens") for field in (*FIELDS, "renewalperiod")),
    *(f"anthropic-ratelimit-input-tokens-{field}" for field in FIELDS),
    *(f"x-ratelimit-{field}" for field in FIELDS),
    *("x-ratelimitbysize-limit-minute", "x-ratelimitbysize-remaining-minute", "ratelimitbysize-reset"),
    *("ratelimit", "ratelimit-policy", "date", "retry-after"),
]
VALUES = [
    *["0", "1", "5", "100", "-1", "1e15", "1e16", "1e308", "1e-308", "5e-324", "nan", "inf", "-inf", "abc", "٣"],
    *("", " ", "\x00"),
    *("1s", "6m0s", "0ms", "s", "1e3s", "9" * 70 + "s", "9" * 5000, "1" + "x" * 5000 + "s", "1.1.1s", "1d1d1d"),
    *("1794934812", "1794934812000", "2026-11-17T17:00:12Z", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z"),
    *("Tue, 17 Nov 2026 17:00:00 GMT", "Tue, 99 Nov 2026 17:00:00 GMT"),
    *('"a";r=0;t=12', '"a";q=100;w=60', '"a";q=1e308;w=1e-308,"b";q=0;w=0', '"a";r=;;;=', '"' * 50),
]


@pytest.mark.parametrize("count", [1000, pytest.param(100_000, marks=pytest.mark.exhaustive)])
def test_no_headers_crash_or_stall_a_run(count: int) -> None:
    """Whatever headers replies have, a call may start at the latest 60 s after the last one, and all numbers stay finite."""
    rng = random.Random(count)
    limits, t = Limits(), 0.0
    for number in range(count):
        if number % 200 == 0:
            limits = Limits()
        names = rng.sample(NAMES, rng.randrange(len(NAMES) + 1))
        if rng.random() < 0.1:
            scope = "".join(rng.choices("abc_-", k=rng.randrange(5)))
            names += [f"x-ratelimit-{scope}-limit-requests", f"x-ratelimit-{scope}-remaining-requests"]
        headers = {name: rng.choice(VALUES) if rng.random() < 0.5 else str(rng.randrange(1000)) for name in names}
        size = CallSize(rng.choice([0, 100, 10**9]), rng.choice([None, 0, 100, 10**9]))
        wait = limits.wait(size, t)
        assert 0 <= wait <= MINUTE + 1e-6
        t += wait
        call = limits.start(size, t)
        t_of_reply = t + rng.choice([0.0, 1e-9, 1.0, 100.0])
        limits.impossible(size)
        limits.read(call, advertised_limits(headers, 1_794_934_800.0, "api.groq.com"), t_of_reply, is_429=rng.random() < 0.3)
        limits.end(call, rng.choice([None, {}, {"input_tokens": rng.choice([0, 10, 1e15]), "output_tokens": 1}]))
        t += rng.choice([0.0, 0.1, 10.0])
