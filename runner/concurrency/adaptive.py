"""The default policy: five small machines behind one face.

An endpoint refuses work in different ways, and one number cannot answer them all. So each way has a machine of its own:

    rate       429 because of requests per second   starts are paced, and Retry-After pauses everyone
    in_flight  429 because too many are in flight   the limit is held just below what was refused
    illness    5xx, broken connections, timeouts    intake stops, probes ask, the slots come back
    latency    nothing is refused, only slower      a load that buys no throughput is undone
    strays     429 now and then, whatever we do     nothing is learned from those

Here is only what joins them: who hears which signal, which of them explains a refusal, and what the decision is.
"""

from typing import assert_never

from attrs import define, field

from runner.concurrency.headers import Headers
from runner.concurrency.hold import Hold
from runner.concurrency.illness import Illness
from runner.concurrency.in_flight import FIRST, InFlight
from runner.concurrency.latency import Latency
from runner.concurrency.policy import (
    FULL,
    OPEN,
    PROBE,
    Change,
    Decision,
    Failed,
    Gate,
    Interrupted,
    LimitMoved,
    Paused,
    Quota,
    Resumed,
    Signal,
    Started,
    Succeeded,
    TimedOut,
)
from runner.concurrency.rate import Rate
from runner.concurrency.start import Begun
from runner.concurrency.strays import Strays

LITTLE = 3.0
"""Once the rate is known, this many times rate times latency in flight will do (Little's law), hung ones included."""
GROWTH = 1.75
"""Slots per slot that has proven itself: latency tells late, and a server must not drown meanwhile."""
GUESS = 2.0
"""Seconds that a call is thought to take before the first success."""
HURRY = 0.2
"""Growth of the pace per round trip, where strays may have taught us a rate that there is not."""
COARSE = 8
"""While slots are added one by one, the limit is published in steps of an eighth, to spare the journal."""


@define(kw_only=True)
class AdaptiveState:
    """What the machines remember, and who is in flight."""

    now: float = 0.0
    """The time of the last signal; it never runs backwards."""
    started: int = 0
    """Attempts begun so far, and so the newest one's place in the order of starts."""
    flying: dict[str, Begun] = field(factory=dict[str, Begun])
    """Attempts in flight."""
    limit: int = FIRST
    """The limit in force."""
    guess: float = GUESS
    """Seconds that a call takes, before the first success: a guess, or what the last error of a task's own took."""
    rate: Rate = field(factory=Rate)
    headers: Headers = field(factory=Headers)
    in_flight: InFlight = field(factory=InFlight)
    illness: Illness = field(factory=Illness)
    latency: Latency = field(factory=Latency)
    strays: Strays = field(factory=Strays)
    hold: Hold = field(factory=Hold)


class Adaptive:
    """Find out what the endpoint can take, and stay just below it."""

    def __init__(self, most: int, *, state: AdaptiveState | None = None) -> None:
        """Never exceed `most` attempts at once; go on from `state` where one is given."""
        if most < 1:
            raise ValueError(f"a policy needs at least one slot, not {most!r}")
        self.most = most
        if state is None:
            first = min(FIRST, most)
            state = AdaptiveState(limit=first, in_flight=InFlight(limit=first))
        self.state = state
        self._changes: list[Change] = []

    @property
    def limit(self) -> int:
        """Attempts that may be in flight at once."""
        return self.state.limit

    def take(self, signal: Signal) -> Decision:
        """Let the machines that it concerns learn from the signal, and join what they say."""
        state = self.state
        now = state.now = max(state.now, signal.t)
        self._changes = [] if state.hold.pause is None or state.illness.open else state.hold.passed(now)
        probe = False
        if isinstance(signal, Started):
            probe = self._started(signal.attempt)
        else:
            begun = state.flying.pop(signal.attempt, None)
            if begun is not None:  # A late or foreign ending is none of ours.
                self._ended(begun, signal)
        return Decision(
            limit=state.limit,
            probe=probe,
            changes=tuple(self._changes),
        )

    def may_start(self, t: float) -> Gate:
        """Open when there is room, the pace allows it, and nobody is to wait; or when a probe is due."""
        state = self.state
        probing = state.illness.open
        # Probes pass even when hung attempts fill every place: they are the only way out.
        if not probing and len(state.flying) >= state.limit:
            return FULL
        at = self._earliest(t)
        if t < at:
            return Gate(open=False, at=at)
        return PROBE if probing else OPEN

    def _earliest(self, t: float) -> float:
        state = self.state
        if state.illness.open:
            return max(t, state.illness.next_probe)
        return max(state.hold.earliest(t), state.rate.next_start)

    def _started(self, attempt: str) -> bool:
        state = self.state
        state.started += 1
        probe = state.illness.open
        state.flying[attempt] = Begun(
            trial=attempt, order=state.started, t=state.now, in_flight=len(state.flying) + 1, limit=state.limit, probe=probe
        )
        # While we ask for more, a doubling is spread over half a round trip, so that a refusal can come between.
        spread = 32 if state.in_flight.phase == "holding" else 2
        # Before the first answer nobody knows the round trip; so many in a second are no burst, however few the slots.
        opening = spread * (FIRST / max(state.guess, 0.001) if state.latency.mean is None else self._flow(state.limit))
        hurry = 0.0 if state.strays.part is None else HURRY / state.limit
        state.rate.started(state.now, opening, state.headers.told(state.now), hurry)
        if probe:
            state.illness.probing(state.now)
        return probe

    def _flow(self, in_flight: int) -> float:
        """Tell how many per second so many in flight are (Little's law); before the first success, guess."""
        return in_flight / max(self.state.latency.mean or self.state.guess, 0.001)

    def _ended(self, begun: Begun, signal: Succeeded | Failed | TimedOut | Interrupted) -> None:
        """Tell the machines; there are five ways an attempt can end."""
        match signal:
            case Succeeded():
                recovered = self._answered(begun)
                self._latency(begun, signal.elapsed)
                if not recovered:
                    self._succeeded(begun)
                self._quota(signal.quota)
            case Failed(failure="rate_limited"):
                self._answered(begun)
                self._latency(begun, None)
                self._refused(begun, signal.retry_after)
                self._quota(signal.quota)
            case TimedOut() | Failed(failure="unavailable"):
                self._latency(begun, None)
                self._ill(begun)
            case Failed():
                # The task's own error: the endpoint did answer, or was never asked.
                self._answered(begun)
                self._latency(begun, None)
                self.state.guess = self.state.now - begun.t
            case Interrupted():
                self._latency(begun, None)
                if begun.probe:
                    self.state.illness.next_probe = self.state.now
            case _:
                assert_never(signal)

    def _succeeded(self, begun: Begun) -> None:
        """Allow more, where more was asked for and is worth trying."""
        state, machine = self.state, self.state.in_flight
        if state.illness.open:
            return
        if state.illness.ramp is not None:
            state.illness.regain(machine.limit)
            self._publish("recovery", "attempts succeed again", coarse=True)
            return
        most = min(self.most, max(FIRST, int(GROWTH * (state.latency.load or 0))))
        if state.rate.known is not None and state.latency.mean is not None:
            most = min(most, max(int(LITTLE * state.rate.known * state.latency.mean), 2))
        machine.succeeded(begun, state.now, len(state.flying) + 1, most)
        if machine.phase == "climbing":
            self._publish("climbing", "slots in use, and attempts succeed", coarse=True)
        else:
            self._publish("trying", f"{machine.held} held for {machine.period:.0f} s")

    def _refused(self, begun: Begun, retry_after: float | None) -> None:
        """Find out which limit was met. An endpoint that names a time speaks of its rate; if not, judge by the load."""
        state = self.state
        for other in state.flying.values():
            # The endpoint was never busy with the refused one, so whoever began after it met one less.
            if other.order > begun.order:
                other.in_flight -= 1
        if retry_after is None and self._stray(begun):
            state.rate.missed += 1
            return
        if retry_after is None and state.in_flight.blame(begun, state.now):
            state.rate.missed += 1
            seen = state.in_flight.refuse(begun, state.now, state.started)
            if seen is not None:
                self._publish("in_flight", seen)
            return
        named, flow = retry_after is not None, self._flow(begun.in_flight)
        seen = state.rate.refuse(begun, state.now, state.started, flow=flow, named=named, hasty=state.strays.part is not None)
        if state.illness.open:
            return  # Nothing starts but probes; what this refusal asked for will be asked again.
        if retry_after is not None:
            seen = seen or f"429 at {begun.in_flight} in flight"
            self._pause(state.hold.retry_after(state.now, retry_after, seen))
        elif seen is not None:
            self._pause(state.hold.begin(state.now, state.rate.next_start, "rate_limited", seen))

    def _stray(self, begun: Begun) -> bool:
        """Tell whether a refusal is a stray one; the one that proves that there are such takes the last lessons back."""
        state = self.state
        rate, in_flight, strays = state.rate, state.in_flight, state.strays
        if begun.order <= max(rate.lesson, in_flight.lesson):
            return False  # It belongs to a lesson.
        if in_flight.failed(begun):
            return False
        free = rate.free(2 * self._flow(state.limit))
        below = (1.0 if free else rate.below(begun.t)) if in_flight.below(begun) else 0.0
        before = strays.part
        if not strays.tolerate(begun, below):
            return False
        part = strays.check() if free and state.limit == self.most else None
        if part is not None:
            rate.test(state.now, (1 - part) * self._flow(begun.in_flight), 4 / part)
        elif before is None and strays.part is not None:
            rate.search()
            in_flight.release()
            self._publish("strays", f"{strays.strays:.0f} of {strays.starts:.0f} refused whatever the load")
        return True

    def _quota(self, quota: Quota | None) -> None:
        state = self.state
        if quota is None or state.illness.open:
            return
        until = state.headers.believe(state.now, quota)
        if until is not None:
            seen = f"{quota.remaining} remaining by the headers, renewed in {quota.reset:.6g} s"
            self._pause(state.hold.begin(state.now, until, "quota", seen))

    def _pause(self, begun: list[Change]) -> None:
        """Pause because of the rate, whose time goes on meanwhile."""
        state = self.state
        state.rate.wait(state.hold.earliest(state.now))
        self._changes += begun

    def _latency(self, begun: Begun, elapsed: float | None) -> None:
        state = self.state
        compared = state.latency.ended(begun, elapsed, state.in_flight.lesson)
        if compared is not None:
            better = int(compared.better + 0.5)
            state.in_flight.weigh(state.now, state.started, worth=compared.worth, better=better)
            self._publish("latency", compared.seen)

    def _ill(self, begun: Begun) -> None:
        state, illness = self.state, self.state.illness
        state.rate.missed += 1
        seen = illness.failed(begun, state.now, state.started, len(state.flying) + 1)
        if seen is not None:
            state.rate.anchor = None  # The bucket runs over while we are away.
            state.hold.pause = Paused(until=illness.next_probe, cause="illness", evidence=seen)
            self._changes.append(state.hold.pause)

    def _answered(self, begun: Begun) -> bool:
        """Heed that the endpoint answered; tell whether that ended an illness."""
        state = self.state
        if state.latency.mean is None:
            state.rate.answered(state.now)
        seen = state.illness.answered(begun, state.now, state.started)
        if seen is None:
            return False
        state.hold.pause = None
        self._changes.append(Resumed(cause="illness", evidence=seen))
        self._publish("recovery", seen)
        return True

    def _publish(self, cause: str, evidence: str, *, coarse: bool = False) -> None:
        """Put the limit in force, and say why it moved."""
        state = self.state
        limit = state.in_flight.limit
        if state.illness.ramp is not None:
            limit = min(limit, state.illness.ramp)
        before, after = state.limit, min(max(limit, 1), self.most)
        if after == before or (coarse and before < after < min(before + before // COARSE, self.most)):
            return
        state.limit = after
        self._changes.append(LimitMoved(before=before, after=after, cause=cause, evidence=evidence))
