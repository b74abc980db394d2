"""The default policy: measure what an endpoint accepts, and stay just below it.

Endpoints limit calls in different ways. Each has a module:

    pace        429 because of requests per second   starts are paced, and Retry-After pauses the key
    in_flight   429 because too many are in flight   the limit is set just below what was rate limited
    latency     no errors, only slower               a load that adds no throughput is undone
    breaker     5xx, connection errors, no response  only probes start, until one is answered
    random_429s 429s at random, at any load          they are ignored

This module passes events to them, finds out which of them explains a 429, and makes the decision.

A failure is processed when it arrives, so that the decision that it causes is the next record. Anything that is due by time
alone takes effect at its own time, whether the next event or `elapse` processes it. No state that an event sets is without an
event or a time that clears it: an endpoint that was slow or limited for a while is used fully again.
"""

import math
from typing import Final, assert_never

from evaljournal.journal.events import IntakePaused, IntakeResumed, LimitChanged, PaceChanged, PolicyEvent
from evaljournal.replay.state.pauses import PACE_CHANGE
from evaljournal.runner.concurrency.breaker import Breaker
from evaljournal.runner.concurrency.in_flight import FIRST_LIMIT, SHORT_RUN, InFlight, lower_load
from evaljournal.runner.concurrency.latency import LatencyBaseline
from evaljournal.runner.concurrency.pace import FIRST_PACE, PLATEAU_LONGEST, SHORTEST_ROUND_TRIP, Pace
from evaljournal.runner.concurrency.pause import CurrentPause
from evaljournal.runner.concurrency.policy import (
    CALL_OF,
    FULL,
    OPEN,
    PROBE,
    STARTS,
    CallEvent,
    Result,
    StartPermit,
    result_of,
)
from evaljournal.runner.concurrency.random_429s import TEST_PACE, Random429s
from evaljournal.runner.concurrency.start import (
    CLEARLY_MORE,
    FEW,
    LONG_TIME,
    MANY,
    SEVERAL,
    SHORT_TIME,
    SMOOTHING,
    WINDOW,
    Start,
)

_LIMITED_SHARE: Final = 0.65
"""A limit is exceeded if this share of the latest `WINDOW` starts, and at least `MANY`, were rate limited. With 20 % of random
429s that happens about once in 30,000 starts."""


class Adaptive:
    """Limits, paces and pauses the starts of one rate-limit key."""

    def __init__(self, slots: int, *, trials: int | None = None) -> None:
        """Allow at most `slots` attempts in flight; `trials` is the number of trials, if known."""
        if slots < 1:
            raise ValueError(f"a policy needs at least one slot, not {slots!r}")
        is_short = trials is not None and trials <= SHORT_RUN
        self.limit = slots if is_short else min(FIRST_LIMIT, slots)
        """Attempts that may be in flight."""
        self._now = 0.0
        self._start_count = 0
        """Attempts started so far, which is also the order of the newest one."""
        self._last_end = 0.0
        self._calls: dict[str, Start] = {}
        """Trial → its attempt in flight, in the order of starts."""
        self._failure_seconds = SMOOTHING
        """Recent seconds from a start to its failure, near the maximum."""
        self._newest_accepted = 0
        """The newest start that was answered, or has been in flight for longer than failures take."""
        self._limited_starts: dict[int, Start] = {}
        """The latest rate-limited starts after `_last_change`, by their order."""
        self._limited_trials: dict[str, tuple[int, float]] = {}
        """Trial → its rate limits in a row, and its last rate-limited start after `_last_change`."""
        self._last_change = 0
        """The newest start when a 429 last changed a limit or a pace; earlier starts cannot change it again."""
        self._recorded_pace: float | None = None
        self._pace_evidence = "a long run begins slowly, to find a rate limit before all slots are in use"
        """Why the pace changes next, if something other than the time without a 429 is the reason."""
        self._changes: list[PolicyEvent] = []
        self._pace = Pace(fixed_pace=None if is_short else FIRST_PACE)
        self._in_flight = InFlight(slots=slots, limit=self.limit, is_short=is_short)
        self._latency = LatencyBaseline()
        self._breaker = Breaker()
        self._random_429s = Random429s()
        self._pause = CurrentPause()

    # Events

    def observe(self, event: CallEvent, t: float) -> list[PolicyEvent]:
        """Process the start or the end of a call; return the changes."""
        self._changes = []
        self._advance(t)
        call = CALL_OF[event.__class__](event)
        if isinstance(event, STARTS):
            self._start(call)
        else:
            start = self._calls.pop(call, None)
            if start is not None:  # Otherwise it hung for so long that it no longer counts.
                self._end(start, result_of(event))
        pace = self._pace
        if self._recorded_pace is not None or pace.estimate is not None or pace.fixed_pace is not None:
            self._record_pace()
        return self._changes

    def elapse(self, t: float) -> list[PolicyEvent]:
        """Process that time has passed until `t`."""
        self._changes = []
        self._advance(t)
        return self._changes

    def may_start(self, t: float) -> StartPermit:
        """Return whether an attempt may start at `t`."""
        if self._breaker.outage:
            # Probes may start even if hung calls fill the limit; otherwise the run could not recover.
            next_probe = self._breaker.next_probe
            return PROBE if t >= next_probe else StartPermit(open=False, check_at=next_probe)
        if len(self._calls) >= self.limit:
            hung_at = self._hung_at()
            return FULL if hung_at == math.inf else StartPermit(open=False, check_at=max(hung_at, t))
        start_at = t if self._pause.event is None else self._pause.earliest_start(t)
        if self._recorded_pace is not None:
            start_at = max(start_at, self._pace.next_start)
        return OPEN if t >= start_at else StartPermit(open=False, check_at=start_at)

    def raise_slots(self, slots: int) -> int:
        """Use `slots` unless there is evidence against it, because the rate is known; return the limit from then on."""
        if not self._last_change and not self._random_429s.is_testing:
            self._pace.fixed_pace = None  # Until there is a limit, the known one alone spreads the starts.
        if self._in_flight.raise_slots(slots):
            self.limit = slots
        return self.limit

    def _advance(self, t: float) -> None:
        """Process everything that is due by `t`, each at its own time."""
        while True:
            hung_at = math.inf if self._breaker.outage or len(self._calls) < SEVERAL else self._hung_at()
            pause_end = math.inf if self._breaker.outage or self._pause.event is None else self._pause.event.until
            next_at = min(hung_at, pause_end, self._random_429s.result_at)
            if next_at > t:
                break
            self._now = max(self._now, next_at)
            if next_at == pause_end:
                self._changes += self._pause.end(next_at)
            elif next_at == hung_at:
                self._open_for_hung_calls()
            else:
                self._end_test(self._random_429s.last_test_start)
            self._record_pace()  # Only here and after events, so that calling `elapse` more often changes nothing.
        self._now = max(self._now, t)

    def _start(self, trial: str) -> None:
        self._start_count += 1
        random_429s = self._random_429s
        self._calls[trial] = Start(
            trial=trial,
            order=self._start_count,
            t=self._now,
            in_flight=len(self._calls) + 1,
            limit=self.limit,
            group=self._latency.group_for_start(self._start_count, self.limit, self._in_flight.last_lowered),
            probe=bool(self._breaker.outage),
        )
        if self._pace.estimate is not None or self._pace.fixed_pace is not None:
            self._pace.record_start(self._now, self._flow(self.limit), self._round_trip)
        if self._breaker.outage:
            self._breaker.record_probe(self._now)
        if random_429s.last_test_start:
            if trial in self._limited_trials:  # Another 429 of this trial would not count, so the test is one start longer.
                random_429s.last_test_start += 1
            if self._start_count == random_429s.last_test_start:
                random_429s.result_at = self._now + 2 * self._failure_seconds

    def _end(self, start: Start, result: Result) -> None:
        self._last_end = self._now
        if result.outcome != "rate_limited":
            self._limited_trials.pop(start.trial, None)
        if result.outcome == "timed_out":
            self._accept_survivors()
            self._process_timeout(start)
            return
        self._weigh_latency(start, result.elapsed if result.outcome == "succeeded" else None)
        match result.outcome:
            case "succeeded":
                self._latency.record_success(result.elapsed)
                has_closed = self._record_answer(start)
                if not has_closed and not self._breaker.outage and not self._random_429s.last_test_start:
                    self._grow(start)
            case "rate_limited":
                self._count_failure(start)
                self._process_rate_limit(start, result.retry_after)
            case "unavailable":
                self._count_failure(start)
                self._process_unavailable(start, self._breaker.count(start, self._now, self._newest_accepted))
            case "interrupted":
                if start.probe:
                    self._breaker.next_probe = self._now
            case "error" | "parse_error" | "fatal":
                # The task's own error: the endpoint answered, or was never called.
                self._record_answer(start)
            case _:
                assert_never(result.outcome)

    # Calls that were accepted

    @property
    def _round_trip(self) -> float:
        return max(self._latency.mean or 0.0, SHORTEST_ROUND_TRIP)

    def _flow(self, in_flight: int) -> float:
        """Return the calls per second for a number in flight (Little's law); 0 before the first success."""
        return in_flight / self._latency.mean if self._latency.mean else 0.0

    def _record_answer(self, start: Start) -> bool:
        """Process an answer of the endpoint; return whether it closed the breaker."""
        is_first_pace = self._pace.fixed_pace is not None and not self._random_429s.last_test_start
        if is_first_pace and start.order > max(self._limited_starts, default=self._last_change):
            self._pace.speed_up()
        self._mark_accepted(start)
        evidence = self._breaker.answer(start, self._now, self._start_count)
        if evidence is not None:
            self._resume(evidence)
        return evidence is not None

    def _mark_accepted(self, start: Start) -> None:
        self._newest_accepted = max(self._newest_accepted, start.order)
        if not start.is_accepted:
            start.is_accepted = True
            self._in_flight.accept(start.in_flight)
            if self._breaker.failures and not self._breaker.outage:
                self._breaker.accept(self._newest_accepted)

    def _count_failure(self, start: Start) -> None:
        self._failure_seconds = max(self._now - start.t, (1 - SMOOTHING) * self._failure_seconds)
        for call in self._calls.values():
            if call.order > start.order:  # The endpoint did not work on the failed call, so there was one less in flight.
                call.in_flight -= 1
        self._accept_survivors()

    def _accept_survivors(self) -> None:
        """Mark calls as accepted that have been in flight for longer than failures take."""
        for start in self._calls.values():  # In the order of starts.
            if start.order > self._newest_accepted and self._has_survived(start) and not start.probe:
                self._mark_accepted(start)

    def _has_survived(self, start: Start) -> bool:
        return self._now - start.t >= CLEARLY_MORE * self._failure_seconds

    # The load

    def _grow(self, start: Start) -> None:
        """Raise the limit if it is used and nothing indicates a limit: up to twice the load of the baseline (as TCP)."""
        in_flight, latency = self._in_flight, self._latency
        was_comparing = in_flight.phase == "comparing"
        proven_limit = int(2 * latency.baseline[0]) if latency.baseline else 0
        in_flight.record_success(start, self._now, proven_limit)
        if in_flight.phase == "comparing" and not was_comparing:
            latency.refresh()
        if in_flight.limit == self.limit:
            return
        if in_flight.phase == "climbing":
            self._record_limit("climbing", "slots in use, and calls succeed")
        else:
            self._record_limit("trying", f"{in_flight.good_limit} held for {in_flight.period:.0f} s")

    def _weigh_latency(self, start: Start, elapsed: float | None) -> None:
        in_flight, latency = self._in_flight, self._latency
        comparison = latency.record_end(start, elapsed, in_flight.last_lowered)
        if comparison is None:
            return
        if in_flight.phase == "comparing":
            if comparison.raises_throughput == in_flight.is_upward:
                latency.restart()
            in_flight.end_comparison(self._now, self._start_count, raises_throughput=comparison.raises_throughput)
            self._record_limit("latency", str(comparison))
            return
        latency.restart()
        is_worse = not comparison.raises_throughput and comparison.newest_is_high
        if is_worse and not self._breaker.outage and not self._random_429s.is_testing and in_flight.limit > 1:
            # The baseline may be out of date, because the endpoint became slower by itself: measure the lower load again.
            limit = min(round(comparison.low), lower_load(int(comparison.high)))
            in_flight.measure_lower(self._now, self._start_count, limit)
            self._record_limit("trying", str(comparison))

    # Unavailable endpoints

    def _hung_at(self) -> float:
        """Return when the calls in flight count as hung, unless one ends first."""
        if self._latency.mean is None or len(self._calls) < SEVERAL:
            return math.inf
        oldest_start = next(iter(self._calls.values())).t
        return max(self._last_end, oldest_start) + max(MANY * self._latency.mean, SHORT_TIME)

    def _open_for_hung_calls(self) -> None:
        evidence = f"no response to {len(self._calls)} calls for {self._now - self._last_end:.1f} s"
        # Timeouts show a load that was too high for longer, so they lower the limit further.
        self._in_flight.record_overload(len(self._calls) // 2, self._now, self._start_count)
        self._record_limit("no_response", evidence)
        self._calls.clear()
        self._breaker.begin("no_response", self._last_end, self._now, self._start_count, probe_at=self._now)
        self._suspend(evidence)

    def _process_timeout(self, start: Start) -> None:
        """Lower the limit after several timeouts in a row, unless calls sent later were answered in much less time."""
        breaker, in_flight = self._breaker, self._in_flight
        seconds = self._now - start.t
        is_slow = self._latency.median > seconds / FEW  # Then answers to others do not show that the load is right.
        failures = breaker.count(start, start.t, 0 if is_slow else breaker.newest_answered)
        is_counted = start.order in breaker.failures
        self._weigh_latency(start, seconds if is_counted else None)
        if start.order > in_flight.last_lowered:
            in_flight.timeouts = in_flight.timeouts + 1 if is_counted else 0
        if breaker.outage or self.limit == 1 or breaker.newest_answered <= in_flight.last_lowered:
            self._process_unavailable(start, failures)  # At a lower load, calls time out too: the endpoint is unavailable.
        elif in_flight.timeouts >= breaker.in_a_row(FEW):
            evidence = f"{in_flight.timeouts} calls timed out, and none that was sent later was answered soon"
            in_flight.record_overload(start.in_flight // FEW, self._now, self._start_count)
            self._record_limit("timeouts", evidence)
            breaker.failures.clear()

    def _process_unavailable(self, start: Start, failures: int) -> None:
        """Open the breaker if there are enough failures; if it is open, schedule the next probe."""
        breaker = self._breaker
        if breaker.outage:
            if not start.probe:
                return
            evidence = breaker.close_without_outage(self._start_count)
            if evidence is not None:
                self._resume(evidence)
            else:
                self._suspend(breaker.record_failed_probe(self._now))
        elif failures >= breaker.in_a_row(MANY):
            first = min(breaker.failures)
            if failures > sum(call.order > first for call in self._calls.values()):  # Those may still be answered.
                self._suspend(breaker.open_for_failures(self._now))

    def _suspend(self, evidence: str) -> None:
        """Record that only probes may start."""
        self._pace.anchor = None  # The token bucket overflows meanwhile, and no rate can be measured across the pause.
        self._cancel_test()
        self._random_429s.restart(self._start_count)
        pause = IntakePaused(until=self._breaker.next_probe, reason=self._breaker.outage, evidence=evidence)
        self._pause = CurrentPause(pause)
        self._changes.append(pause)

    def _resume(self, evidence: str) -> None:
        """Record that the breaker is closed."""
        assert self._pause.event is not None, "the breaker was open"
        reason, self._pause = self._pause.event.reason, CurrentPause()
        if reason == "all_rate_limited":
            self._pace.resume(self._now)
            self._pace_evidence = "calls are accepted again"
        self._changes.append(IntakeResumed(reason=reason, evidence=evidence))

    # 429s

    def _process_rate_limit(self, start: Start, retry_after: float | None) -> None:
        """Find out which limit caused a 429, if any."""
        breaker = self._breaker
        self._random_429s.limited_calls += 1
        count, last = self._limited_trials.get(start.trial, (0, math.inf))
        is_new = start.order > self._last_change
        self._limited_trials[start.trial] = count + 1, start.order if is_new else last
        if breaker.outage:
            if start.order <= breaker.barrier:
                return
            if breaker.outage != "all_rate_limited":
                if (evidence := breaker.answer(start, self._now, self._start_count)) is not None:
                    self._resume(evidence)
                return
            not_before = self._now + min(retry_after or 0.0, PLATEAU_LONGEST)
            self._suspend(breaker.record_failed_probe(self._now, not_before=not_before))
            return
        if not self._limited_starts and not self._last_change and not self._in_flight.is_short:
            # The first 429: refill the slots slowly, because it may be a rate limit.
            self._pace_evidence = f"first 429, at {start.in_flight} in flight"
            self._pace.fixed_pace = max(FIRST_PACE, FEW / max(self._now - start.t, SMOOTHING))
        self._pace.starts_without_token += 1
        if not is_new or count + 1 >= SEVERAL:  # After several, the trial may be the reason.
            return
        self._limited_starts[start.order] = start
        if len(self._limited_starts) > SEVERAL * WINDOW:
            del self._limited_starts[min(self._limited_starts)]
        limited_starts = [
            self._limited_starts[n] for n in range(start.order - WINDOW + 1, start.order + 1) if n in self._limited_starts
        ]
        needed_429s = min(max(MANY, self._random_429s.expected(WINDOW)), WINDOW - 1)
        is_mostly_limited = len(limited_starts) >= max(needed_429s, _LIMITED_SHARE * min(WINDOW, start.order))
        if last >= self._newest_accepted or is_mostly_limited:  # Otherwise calls between the trial's two 429s were accepted.
            self._explain(start, retry_after, limited_starts, is_mostly_limited=is_mostly_limited)

    def _explain(
        self, start: Start, retry_after: float | None, limited_starts: list[Start], *, is_mostly_limited: bool
    ) -> None:
        """Explain a 429; `limited_starts` are the rate-limited ones of the latest starts, and most if `is_mostly_limited`."""
        in_flight, random_429s = self._in_flight, self._random_429s
        may_be_over_limit = retry_after is None
        if may_be_over_limit and in_flight.ends_test(start):
            self._learn_limit(start)
        elif is_mostly_limited and may_be_over_limit and in_flight.is_above(limited_starts[0]):
            self._learn_limit(limited_starts[0])
        elif is_mostly_limited:
            if may_be_over_limit:
                in_flight.discard()
            self._learn_rate(start, retry_after, in_a_row=True)
        elif random_429s.is_testing or len(limited_starts) <= random_429s.expected(WINDOW):
            self._count_unexplained(start)
            if random_429s.is_testing and len(random_429s.signs) >= SEVERAL > len(limited_starts):
                self._end_test(start.order)
        elif self._pace.is_above(start.t):
            if len(limited_starts) > 1 or self._pace.is_used_up(start):  # Otherwise it may be random.
                self._learn_rate(start, retry_after, in_a_row=False)
        else:
            is_tested = self._count_unexplained(start)  # Also near a limit: several there may be random.
            if may_be_over_limit and not is_tested and in_flight.explains(start):
                self._learn_limit(start)

    def _learn_limit(self, start: Start) -> None:
        self._begin_change()
        self._record_limit("in_flight", self._in_flight.record_rate_limit(start, self._now, self._start_count))

    def _learn_rate(self, start: Start, retry_after: float | None, *, in_a_row: bool) -> None:
        pace = self._pace
        self._begin_change()
        self._random_429s.restart(self._start_count)  # No rate can be measured across a pause.
        pace.fixed_pace = None
        pause = min(retry_after or 0.0, LONG_TIME)
        evidence = pace.learn(start, self._now, flow=self._flow(start.in_flight), pause=pause, round_trip=self._round_trip)
        is_ban = in_a_row and pause >= PLATEAU_LONGEST
        if evidence is None or is_ban:
            # Nothing is accepted, so no rate can be measured: probe until something is.
            probe_at = None if retry_after is None else self._now + pause
            self._breaker.begin("all_rate_limited", self._now, self._now, self._start_count, probe_at=probe_at)
            retry_text = f"; Retry-After: {retry_after:.6g} s" if is_ban else ""
            self._pace_evidence = f"every call is rate limited{retry_text}"
            self._suspend(self._pace_evidence)
            return
        self._pace_evidence = evidence
        evidence = f"{evidence}; pacing at {pace.estimate or 0.0:.3g}/s"
        if retry_after is None or not in_a_row:
            self._changes += self._pause.begin(self._now, pace.restart_at(self._now), "rate_limited", evidence)
        else:
            self._changes += self._pause.begin_retry_after(self._now, retry_after, evidence)
        pace.postpone(self._pause.earliest_start(self._now))

    def _count_unexplained(self, start: Start) -> bool:
        """Count a 429 that may be random; return whether a test begins."""
        random_429s, pace = self._random_429s, self._pace
        accepted_rate = random_429s.count(start, len(self._calls))
        if accepted_rate is None or self._in_flight.phase == "comparing":
            return False
        self._pace_evidence = f"{random_429s.observed_share:.0%} of calls were rate limited, and no limit explains it"
        random_429s.begin_test(self._start_count)
        rate = min(accepted_rate, pace.estimate or accepted_rate)
        # Rejected calls may have used up tokens: let the bucket refill first.
        pace.fixed_pace, pace.next_start = TEST_PACE * rate, self._now + MANY / rate
        return True

    def _end_test(self, last_start: int) -> None:
        """End the test for random 429s with `last_start`."""
        random_429s, pace = self._random_429s, self._pace
        if random_429s.end_test(last_start):
            pace.forget()
            self._in_flight.discard()
            self._pace_evidence = f"{random_429s.share:.0%} of calls are rate limited at any pace"
        else:
            self._pace_evidence = "fewer 429s at a lower pace"
            pace.adopt((pace.fixed_pace or 0.0) / TEST_PACE, self._now)

    def _begin_change(self) -> None:
        """Forget the 429s that change a limit or a pace now."""
        self._last_change = self._start_count
        self._limited_starts.clear()
        self._limited_trials = {trial: (count, math.inf) for trial, (count, _) in self._limited_trials.items()}
        self._cancel_test()

    def _cancel_test(self) -> None:
        if self._random_429s.is_testing:
            self._random_429s.restart(self._start_count)
            self._pace.fixed_pace = None

    # Records

    def _record_limit(self, reason: str, evidence: str) -> None:
        old_limit, new_limit = self.limit, min(max(self._in_flight.limit, 1), self._in_flight.slots)
        if new_limit != old_limit:
            self.limit = new_limit
            self._changes.append(LimitChanged(before=old_limit, after=new_limit, reason=reason, evidence=evidence))

    def _record_pace(self) -> None:
        """Record the pace if pacing begins or ends, or the pace differs by at least a tenth from the last recorded one."""
        pace, recorded_pace, is_testing = self._pace.pace_at(self._now), self._recorded_pace, self._random_429s.is_testing
        if pace is None:
            if recorded_pace is None:
                return
        elif recorded_pace is not None and (1 - PACE_CHANGE) * recorded_pace < pace < (1 + PACE_CHANGE) * recorded_pace:
            return
        is_fixed = self._pace.fixed_pace is not None
        reason = "no_limit" if pace is None else "rate_limit" if not is_fixed else "test" if is_testing else "start"
        self._recorded_pace = pace if pace is None else round(pace, 3)
        evidence = self._pace_evidence or ("calls are answered" if is_fixed else "no 429 at this pace")
        self._pace_evidence = ""
        self._changes.append(PaceChanged(before=recorded_pace, after=self._recorded_pace, reason=reason, evidence=evidence))
