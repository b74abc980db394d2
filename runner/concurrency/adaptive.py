"""The default policy: measure what an endpoint accepts, and stay just below it.

Endpoints limit calls in different ways. Each has a module:

    pace        429 because of requests per second   starts are paced, and Retry-After pauses the key
    in_flight   429 because too many are in flight   the limit is set just below what was rate limited
    latency     no errors, only slower               a load that adds no throughput is undone
    breaker     5xx, connection errors, no response  only probes start, until one is answered
    random_429s 429s at random, at any load          they are ignored

This module passes events to them, finds out which of them explains a 429, and makes the decision.

A failure is processed when it arrives, so that the decision that it causes is the next record. Anything that is due by time
alone takes effect at its own time, whether the next event or `elapse` processes it.
"""

from collections import Counter
from typing import Final, assert_never

from evaljournal.journal.events import IntakePaused, IntakeResumed, LimitChanged, PaceChanged, PolicyEvent
from evaljournal.replay.state.pauses import PACE_CHANGE
from evaljournal.runner.concurrency.breaker import Breaker
from evaljournal.runner.concurrency.constants import FEW, LONG_TIME, MANY, SEVERAL, SHORT_TIME, SMOOTHING, WINDOW
from evaljournal.runner.concurrency.in_flight import BUSY_SHARE, FIRST_LIMIT, SHORT_RUN, SHORTEST_RUN, InFlight, lower_load
from evaljournal.runner.concurrency.latency import SAME, SMALL_PART, LatencyBaseline
from evaljournal.runner.concurrency.pace import FIRST_PACE, SHORTEST_ROUND_TRIP, Pace
from evaljournal.runner.concurrency.pause import CurrentPause
from evaljournal.runner.concurrency.policy import (
    FULL,
    OPEN,
    PROBE,
    STARTS,
    CallEvent,
    Decision,
    Result,
    StartPermit,
    call_of,
    result_of,
)
from evaljournal.runner.concurrency.random_429s import TEST_PACE, Random429s
from evaljournal.runner.concurrency.start import Start, Wave

_SETTLE_SHARE: Final = 0.5
"""After the first 429 for a while, nothing starts for this share of its own duration, at most of a second: more may follow.
With 1: +0.2."""
_WINDOW_SHARE: Final = 0.65
"""A limit is exceeded if this share of the latest `WINDOW` starts, and at least `MANY`, were rate limited. With 20 % of random
429s that happens about once in 30,000 starts. With 0.5: +0.9."""
_NEVER: Final = float("inf")
_QUIET_GAP: Final = 4 * WINDOW
"""Starts without a 429, at least, after which the next 429 pauses starts until it is processed, unless random ones are as
frequent. With 64 at any limit, 1 % of random 429s and 100 slots took up to 1.77 times the time of a fixed limit."""


class Adaptive:
    """Limits, paces and pauses the starts of one rate-limit key."""

    def __init__(self, slots: int, *, trials: int | None = None) -> None:
        """Allow at most `slots` attempts in flight; `trials` is the number of trials, if known."""
        if slots < 1:
            raise ValueError(f"a policy needs at least one slot, not {slots!r}")
        is_short = trials is not None and trials <= SHORT_RUN
        first_limit = max(FIRST_LIMIT, trials) if trials is not None and trials <= SHORTEST_RUN else FIRST_LIMIT
        self.limit = min(first_limit, slots)
        """Attempts that may be in flight."""
        self._now = 0.0
        self._start_count = 0
        """Attempts started so far, which is also the order of the newest one."""
        self._calls: dict[str, Start] = {}
        """Trial → its attempt in flight, in the order of starts."""
        self._failure_seconds = 0.1
        """Recent seconds from a start to its failure, near the maximum."""
        self._newest_accepted = 0
        """The newest start that was answered, or has been in flight for longer than failures take."""
        self._last_answered = 0
        """The newest start that was answered."""
        self._limited_starts: dict[int, Start] = {}
        """The latest rate-limited starts after `_last_change`, by their order."""
        self._total_429s = 0
        """429s processed so far."""
        self._rate_limits: Counter[str] = Counter()
        """Trial → rate limits in a row."""
        self._last_limited: dict[str, int] = {}
        """Trial → its last rate-limited start."""
        self._last_change = 0
        """The newest start when a 429 last changed a limit or a pace; earlier starts cannot change it again."""
        self._last_end = 0.0
        self._wave = Wave(0.0)
        self._last_429 = -_QUIET_GAP
        """The newest start that was rate limited."""
        self._outage_at = _NEVER
        """When enough calls have failed for an outage, if none is answered before."""
        self._test_end = _NEVER
        """When the result of a test for random 429s will be known."""
        self._recorded_pace: float | None = None
        self._changes: list[PolicyEvent] = []
        self._pace = Pace(fixed_pace=None if is_short else FIRST_PACE)
        self._in_flight = InFlight(slots=slots, limit=self.limit, first_check=6 * slots, is_short=is_short)
        self._latency = LatencyBaseline()
        self._breaker = Breaker()
        self._random_429s = Random429s()
        self._pause = CurrentPause()

    def observe(self, event: CallEvent, t: float) -> Decision:
        """Process the start or the end of a call; return the decision."""
        self._changes = []
        self._advance(t)
        if isinstance(event, STARTS):
            self._start(call_of(event))
        else:
            start = self._calls.pop(call_of(event), None)
            if start is not None:  # Otherwise it hung for so long that it no longer counts.
                self._end(start, result_of(event))
        self._record_pace()
        return Decision(limit=self.limit, changes=tuple(self._changes))

    def elapse(self, t: float) -> Decision:
        """Process that time has passed until `t`."""
        self._changes = []
        self._advance(t)
        return Decision(limit=self.limit, changes=tuple(self._changes))

    def may_start(self, t: float) -> StartPermit:
        """Return whether an attempt may start at `t`."""
        breaker = self._breaker
        if breaker.open:
            # Probes may start even if hung calls fill the limit; otherwise the run could not recover.
            return PROBE if t >= breaker.next_probe else StartPermit(open=False, check_at=breaker.next_probe)
        if len(self._calls) >= self.limit:
            hung_at = self._hung_at()
            return FULL if hung_at == _NEVER else StartPermit(open=False, check_at=max(hung_at, t))
        start_at = self._pause.earliest_start(t)
        if self._recorded_pace is not None:
            start_at = max(start_at, self._pace.next_start)
        return OPEN if t >= start_at else StartPermit(open=False, check_at=start_at)

    def _advance(self, t: float) -> None:
        """Process everything that is due by `t`, each at its own time."""
        while True:
            hung_at = _NEVER if self._breaker.open else self._hung_at()
            pause = self._pause.event
            pause_end = _NEVER if pause is None or self._breaker.open else pause.until
            next_at = min(hung_at, pause_end, self._test_end, self._outage_at)
            if next_at > t:
                break
            self._now = max(self._now, next_at)
            if next_at == self._outage_at:
                self._open_breaker()
            elif next_at == self._test_end:
                self._end_test(self._random_429s.last_test_start)
            elif next_at == pause_end:
                self._changes += self._pause.end(next_at)
            else:
                self._open_for_hung_calls()
            self._record_pace()  # Only here and after events, so that calling `elapse` more often changes nothing.
        self._now = max(self._now, t)

    def _hung_at(self) -> float:
        """Return when the calls in flight count as hung, unless one ends first."""
        if self._latency.mean is None or len(self._calls) < SEVERAL:
            return _NEVER
        oldest_start = next(iter(self._calls.values())).t
        return max(self._last_end, oldest_start) + max(MANY * self._latency.mean, SHORT_TIME)

    def _open_for_hung_calls(self) -> None:
        evidence = f"no response to {len(self._calls)} calls for {self._now - self._last_end:.1f} s"
        self._in_flight.record_overload(len(self._calls), self._now, self._start_count)
        self._record_limit("no_response", evidence)
        self._calls.clear()
        self._breaker.begin("no_response", self._last_end, self._now, self._start_count, probe_at=self._now)
        self._suspend(evidence)

    def _start(self, trial: str) -> None:
        self._start_count += 1
        probe = self._breaker.open
        if self._now - self._wave.t > max(SAME * (self._latency.mean or 0.0), 0.001):
            self._wave = Wave(self._now)
        self._wave.load = len(self._calls) + 1
        self._calls[trial] = Start(
            trial=trial,
            order=self._start_count,
            t=self._now,
            in_flight=len(self._calls) + 1,
            limit=self.limit,
            group=self._latency.group_for_start(self._start_count, self.limit, self._in_flight.last_lowered),
            wave=self._wave,
            probe=probe,
        )
        self._pace.record_start(self._now, self._flow(self.limit), self._round_trip)
        if probe:
            self._breaker.record_probe(self._now)
        if self._start_count <= self._random_429s.last_test_start and trial in self._last_limited:
            # Another 429 of this trial would not count, so the test is one start longer.
            self._random_429s.last_test_start += 1
        if self._start_count == self._random_429s.last_test_start:
            self._test_end = self._now + 2 * self._failure_seconds

    @property
    def _round_trip(self) -> float:
        return max(self._latency.mean or 0.0, SHORTEST_ROUND_TRIP)

    def _flow(self, in_flight: int) -> float:
        """Return the calls per second for a number in flight (Little's law); 0 before the first success."""
        return 0.0 if self._latency.mean is None else in_flight / max(self._latency.mean, 0.001)

    def _end(self, start: Start, result: Result) -> None:
        self._last_end = self._now
        if result.outcome == "rate_limited":
            self._note_rate_limit(start)
        else:
            self._rate_limits.pop(start.trial, None)
            self._last_limited.pop(start.trial, None)
        is_timeout = result.outcome == "timed_out"
        self._weigh_latency(
            start, result.elapsed if result.outcome == "succeeded" else self._now - start.t if is_timeout else None
        )
        match result.outcome:
            case "succeeded":
                is_quick = self._latency.record_success(result.elapsed)
                has_closed = self._record_answer(start)
                if is_quick and not has_closed and not self._breaker.open and not self._random_429s.is_testing:
                    self._grow(start)
            case "rate_limited":
                self._count_failure(start)
                self._pause_for_others(start)
                self._process_rate_limit(start, result.retry_after)
            case "unavailable":
                self._count_failure(start)
                self._process_unavailable(start, is_timeout=False)
            case "timed_out":
                self._accept_survivors()
                self._process_unavailable(start, is_timeout=True)
            case "interrupted":
                if start.probe:
                    self._breaker.next_probe = self._now
            case "error" | "parse_error" | "fatal":
                # The task's own error: the endpoint answered, or was never called.
                self._record_answer(start)
            case _:
                assert_never(result.outcome)

    def _note_rate_limit(self, start: Start) -> None:
        self._rate_limits[start.trial] += 1
        start.is_repeated = self._last_limited.get(start.trial, self._newest_accepted) < self._newest_accepted
        if start.order > self._last_change:
            self._last_limited[start.trial] = start.order
        if self._rate_limits[start.trial] < SEVERAL and start.order > self._last_change:
            self._limited_starts[start.order] = start
            if len(self._limited_starts) > 4 * WINDOW:
                self._limited_starts = {n: item for n, item in self._limited_starts.items() if n > start.order - 2 * WINDOW}

    def _count_failure(self, start: Start) -> None:
        self._failure_seconds = max(self._now - start.t, (1 - SMOOTHING) * self._failure_seconds)
        for call in self._calls.values():
            if call.order > start.order:  # The endpoint did not work on the failed call, so there was one less in flight.
                call.in_flight -= 1
        self._accept_survivors()

    def _pause_for_others(self, start: Start) -> None:
        """Start nothing for a moment after the first 429 for a while, to see whether others follow."""
        elapsed = self._now - start.t
        # If starts are not paced, a pause costs more the more are in flight.
        gap = max(_QUIET_GAP, 4 * self.limit) if self._last_429 >= 0 and self._pace.estimate is None else _QUIET_GAP
        is_first = start.order - self._last_429 >= gap and _QUIET_GAP * self._random_429s.share < 1
        if is_first or self._pause.is_settling:
            self._changes += self._pause.settle(self._now, _SETTLE_SHARE * min(elapsed, 1.0))
        if self._last_429 < 0 and not self._in_flight.is_short:  # Refill the slots slowly: it may be a rate limit.
            self._pace.fixed_pace = max(FIRST_PACE, FEW / max(elapsed, 0.001))
        self._last_429 = max(self._last_429, start.order)

    def _mark_accepted(self, start: Start) -> None:
        if not start.is_accepted:
            start.is_accepted = True
            self._in_flight.accept(start.in_flight)

    def _record_answer(self, start: Start) -> bool:
        """Process an answer of the endpoint; return whether it closed the breaker."""
        self._last_answered = max(self._last_answered, start.order)
        if not self._random_429s.is_testing and start.order > self._last_429:
            self._pace.speed_up()
        self._newest_accepted = max(self._newest_accepted, start.order)
        self._mark_accepted(start)
        return self._close_breaker(start)

    def _close_breaker(self, start: Start) -> bool:
        evidence = self._breaker.record_answer(start, self._now, self._start_count)
        if evidence is None:
            return False
        reason = self._breaker.reason
        if reason == "all_rate_limited":
            self._pace.phase_start, self._pace.next_start = self._now, self._now + 1 / (self._pace.estimate or 1.0)
        self._pause = CurrentPause()
        self._changes.append(IntakeResumed(reason=reason, evidence=evidence))
        return True

    def _grow(self, start: Start) -> None:
        """Raise the limit if it is used and nothing indicates a limit: up to twice the load of the baseline (as TCP)."""
        in_flight = self._in_flight
        proven_limit = int(2 * (self._latency.load or 0))
        load = round(self._latency.latest_group[0])
        is_in_use = min(start.wave.load, load) >= BUSY_SHARE * self.limit
        if in_flight.is_unchecked and is_in_use and self._start_count >= in_flight.first_check:
            self._measure_lower(lower_load(min(self.limit, load)), f"testing whether fewer than {self.limit} are as fast")
            return
        was_comparing = in_flight.is_comparing
        in_flight.record_success(start, self._now, proven_limit, patience=12 * (self._latency.mean or 0.0))
        if in_flight.is_comparing and not was_comparing:
            self._latency.refresh()
        if in_flight.phase == "climbing":
            self._record_limit("climbing", "slots in use, and calls succeed", coarse=True)
        else:
            self._record_limit("trying", f"{in_flight.known_limit} held for {in_flight.period:.0f} s")

    def _weigh_latency(self, start: Start, elapsed: float | None) -> None:
        in_flight, latency = self._in_flight, self._latency
        comparison = latency.record_end(start, elapsed, in_flight.last_lowered)
        if comparison is None:
            return
        if in_flight.is_comparing:
            if comparison.raises_throughput == in_flight.is_upward:
                latency.restart()
            in_flight.end_comparison(self._now, self._start_count, raises_throughput=comparison.raises_throughput)
            self._record_limit("latency", str(comparison))
            return
        latency.restart()
        if not comparison.raises_throughput and comparison.newest_is_high and not self._breaker.open:
            # The baseline may be out of date, because the endpoint became slower by itself: measure the lower load again.
            self._measure_lower(min(int(comparison.low + 0.5), lower_load(int(comparison.high))), str(comparison))

    def _measure_lower(self, limit: int, evidence: str) -> None:
        if self._in_flight.limit > 1 and not self._random_429s.is_testing:
            self._latency.refresh()
            self._in_flight.measure_lower(self._now, self._start_count, limit)
            self._record_limit("trying", evidence)

    def _accept_survivors(self) -> None:
        """Mark calls as accepted that have been in flight for longer than failures take."""
        cutoff = self._now - 1.2 * self._failure_seconds
        for start in self._calls.values():  # In the order of starts.
            if start.order > self._newest_accepted and start.t <= cutoff and not start.probe:
                self._newest_accepted = start.order
                self._mark_accepted(start)

    def _process_unavailable(self, start: Start, *, is_timeout: bool) -> None:
        breaker = self._breaker
        if breaker.open:
            if start.order > breaker.barrier:
                self._suspend(breaker.record_failed_probe(self._now))
            return
        if is_timeout and (evidence := self._in_flight.record_timeout(start, self._now, self._start_count)):
            self._record_limit("timeouts", evidence)
            return  # A lower load may suffice; if those calls time out too, the endpoint is unavailable.
        if breaker.count(start, self._now, last_answered=self._last_answered, in_flight=len(self._calls) + 1):
            # Calls that started with it may be answered in a moment.
            self._outage_at = min(self._outage_at, self._now + (0.0 if is_timeout else _SETTLE_SHARE * (self._now - start.t)))
            self._advance(self._now)

    def _open_breaker(self) -> None:
        """Open the breaker after failures, unless a call was answered since, or many are still in flight."""
        self._outage_at = _NEVER
        cutoff = self._now - 1.2 * self._failure_seconds
        survivors = sum(call.t <= cutoff for call in self._calls.values() if call.order > self._last_answered)
        if not self._breaker.open and (evidence := self._breaker.open_unless(survivors, self._now, self._start_count)):
            self._suspend(evidence)

    def _suspend(self, evidence: str) -> None:
        """Record that only probes may start."""
        self._pace.anchor = None  # The token bucket overflows meanwhile, and no rate can be measured across the pause.
        self._cancel_test()
        self._random_429s.restart(self._start_count)
        pause = IntakePaused(until=self._breaker.next_probe, reason=self._breaker.reason, evidence=evidence)
        self._pause = CurrentPause(pause)
        self._changes.append(pause)

    def _process_rate_limit(self, start: Start, retry_after: float | None) -> None:
        """Find out which limit caused a 429, if any."""
        self._total_429s += 1
        if self._breaker.open:
            if start.order <= self._breaker.barrier:
                return
            if self._breaker.reason != "all_rate_limited":
                self._close_breaker(start)
                return
            self._pace.record_limited_probe()
            self._suspend(self._breaker.record_failed_probe(self._now, not_before=self._now + min(retry_after or 0.0, 30.0)))
            return
        self._pace.starts_without_token += 1
        if start.order <= self._last_change:
            if retry_after is None and self._rate_limits[start.trial] < SEVERAL and self._in_flight.lower(start):
                self._record_limit("in_flight", f"429 at {start.in_flight} in flight, at the same time")
        elif self._rate_limits[start.trial] < SEVERAL:  # Otherwise the trial may be the reason.
            limited_starts = [
                self._limited_starts[n] for n in range(start.order - WINDOW + 1, start.order + 1) if n in self._limited_starts
            ]
            needed_429s = min(max(MANY, self._random_429s.expected(WINDOW)), WINDOW - 1)
            is_mostly_limited = len(limited_starts) >= max(needed_429s, _WINDOW_SHARE * min(WINDOW, start.order))
            if not self._last_answered and self._pace.fixed_pace and len(limited_starts) == FEW:
                is_mostly_limited = is_mostly_limited or limited_starts[-FEW].order > start.order - FEW
            if not start.is_repeated or is_mostly_limited:  # Otherwise calls between the two 429s of the trial were accepted.
                self._explain(start, retry_after, limited_starts, is_mostly_limited=is_mostly_limited)

    def _explain(
        self, start: Start, retry_after: float | None, limited_starts: list[Start], *, is_mostly_limited: bool
    ) -> None:
        """Explain a 429; `limited_starts` are the rate-limited ones of the latest starts, and most if `is_mostly_limited`."""
        may_be_over_limit = retry_after is None
        if may_be_over_limit and self._in_flight.ends_test(start):
            self._learn_limit(start)
        elif is_mostly_limited:
            if may_be_over_limit and self._in_flight.is_above(limited_starts[0], self._now):
                self._learn_limit(limited_starts[0])
                return
            if may_be_over_limit:
                self._in_flight.doubt(self._now)
            self._learn_rate(start, retry_after, in_a_row=True)
        elif self._random_429s.is_testing or len(limited_starts) <= self._random_429s.expected(WINDOW):
            self._count_unexplained(start)
            if self._random_429s.unexplained_429s >= SEVERAL > len(limited_starts) and self._random_429s.is_testing:
                self._end_test(start.order)
        elif self._pace.is_above(start.t):
            if self._pace.is_confirmed(start):
                self._learn_rate(start, retry_after, in_a_row=False)
        elif may_be_over_limit and self._in_flight.explains(start, self._now):
            self._revise_limit(start)
        else:
            self._count_unexplained(start)

    def _revise_limit(self, start: Start) -> None:
        """Lower the limit after enough 429s above it."""
        is_tested = self._in_flight.is_doubtful and self._count_unexplained(start)
        if not is_tested and self._in_flight.has_enough_evidence():
            self._learn_limit(start)

    def _learn_limit(self, start: Start) -> None:
        self._begin_change()
        self._record_limit("in_flight", self._in_flight.record_rate_limit(start, self._now, self._start_count))

    def _learn_rate(self, start: Start, retry_after: float | None, *, in_a_row: bool) -> None:
        pace = self._pace
        self._begin_change()
        self._random_429s.first_sign = None  # No rate can be measured across a pause.
        pace.fixed_pace = None
        pause = min(retry_after or 0.0, LONG_TIME)
        evidence = pace.learn(start, self._now, flow=self._flow(start.in_flight), pause=pause, round_trip=self._round_trip)
        if evidence is None:
            # Nothing is accepted, so no rate can be measured: probe until something is.
            probe_at = None if retry_after is None else self._now + retry_after
            self._breaker.begin("all_rate_limited", self._now, self._now, self._start_count, probe_at=probe_at)
            self._suspend("every call is rate limited")
            return
        evidence = f"{evidence}; pacing at {pace.estimate or 0.0:.3g}/s"
        if pace.is_steady and self._in_flight.follow_pace(start.in_flight):
            self._record_limit("rate_limit", evidence)
        if retry_after is None or not in_a_row:
            self._changes += self._pause.begin(self._now, pace.restart_at(start, self._now), "rate_limited", evidence)
        else:
            self._changes += self._pause.begin_retry_after(self._now, retry_after, evidence)
        pace.postpone(self._pause.earliest_start(self._now))

    def _count_unexplained(self, start: Start) -> bool:
        """Count a 429 that may be random; return whether a test begins."""
        random_429s = self._random_429s
        if not random_429s.count(start, len(self._calls), self._total_429s) or self._in_flight.is_comparing:
            return False
        random_429s.begin_test(self._start_count)
        rate = min(random_429s.rate, self._pace.estimate or random_429s.rate)
        # Rejected calls may have used up tokens: let the bucket refill first.
        self._pace.fixed_pace, self._pace.next_start = TEST_PACE * rate, self._now + random_429s.signs / rate
        return True

    def _end_test(self, last_start: int) -> None:
        """End the test for random 429s with `last_start`."""
        self._test_end = _NEVER
        random_429s, pace = self._random_429s, self._pace
        if random_429s.end_test(last_start):
            pace.forget()
            self._in_flight.doubt(self._now)
            self._record_limit("random_429s", f"{random_429s.share:.0%} of calls are rate limited at any pace")
        else:
            pace.adopt(random_429s.rate, self._now)
            pace.next_start = self._now

    def _begin_change(self) -> None:
        """Forget the 429s that change a limit or a pace now."""
        self._last_change = self._start_count
        self._limited_starts.clear()
        self._last_limited.clear()
        self._cancel_test()

    def _cancel_test(self) -> None:
        if self._random_429s.is_testing:
            self._random_429s.restart(self._start_count)
            self._pace.fixed_pace, self._test_end = None, _NEVER

    def _record_limit(self, reason: str, evidence: str, *, coarse: bool = False) -> None:
        old_limit, new_limit = self.limit, min(max(self._in_flight.limit, 1), self._in_flight.slots)
        if new_limit == old_limit or (
            coarse and old_limit < new_limit < min(old_limit + old_limit // SMALL_PART, self._in_flight.slots)
        ):
            return
        self.limit = new_limit
        self._changes.append(LimitChanged(before=old_limit, after=new_limit, reason=reason, evidence=evidence))

    def _record_pace(self) -> None:
        """Record the pace if pacing begins or ends, or the pace differs by at least a tenth from the last recorded one."""
        pace, recorded_pace = self._pace.pace_at(self._now), self._recorded_pace
        if pace is None:
            if recorded_pace is None:
                return
        elif recorded_pace is not None and (1 - PACE_CHANGE) * recorded_pace < pace < (1 + PACE_CHANGE) * recorded_pace:
            return
        default = "test" if self._random_429s.is_testing else "start"
        reason = "no_limit" if pace is None else "rate_limit" if self._pace.fixed_pace is None else default
        self._recorded_pace = pace if pace is None else round(pace, 3)
        self._changes.append(PaceChanged(before=recorded_pace, after=self._recorded_pace, reason=reason, evidence=""))
