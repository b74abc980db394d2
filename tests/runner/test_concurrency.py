"""The adaptive policy: what each of its machines learns, and what the executor is told."""

import random
from collections.abc import Callable

import pytest

from runner.concurrency import (
    Adaptive,
    Decision,
    Failed,
    LimitMoved,
    Paused,
    Quota,
    Resumed,
    Signal,
    Started,
    Succeeded,
    TimedOut,
)


class Drive:
    """An executor of a few lines: it starts attempts when the gate is open, and ends them as it is told."""

    def __init__(self, most: int = 200) -> None:
        """Begin at time 0 with nothing in flight."""
        self.policy = Adaptive(most)
        self.t = 0.0
        self.flying: dict[str, float] = {}
        self.told: list[Signal] = []
        self.decisions: list[Decision] = []
        self.pauses: list[Paused | None] = []
        """The pause that held after each of them, if one did."""
        self.count = 0

    def take(self, signal: Signal) -> Decision:
        """Tell the policy, and keep both sides of the talk."""
        self.told.append(signal)
        self.decisions.append(self.policy.take(signal))
        self.pauses.append(self.policy.state.hold.pause)
        return self.decisions[-1]

    def start(self, trial: str = "") -> str:
        """Start one attempt, as soon as the gate allows it."""
        gate = self.policy.may_start(self.t)
        if not gate.open:
            assert gate.at is not None, "every place is taken"
            self.t = gate.at
        self.count += 1
        name = trial or str(self.count)
        self.take(Started(t=self.t, attempt=name))
        self.flying[name] = self.t
        return name

    def fill(self) -> list[str]:
        """Start attempts until every place is taken."""
        names: list[str] = []
        while (gate := self.policy.may_start(self.t)).open or gate.at is not None:
            names.append(self.start())
        return names

    def ok(self, name: str, elapsed: float = 1.0) -> Decision:
        """Let an attempt succeed now."""
        del self.flying[name]
        return self.take(Succeeded(t=self.t, attempt=name, elapsed=elapsed))

    def refuse(self, name: str, retry_after: float | None = None) -> Decision:
        """Let an attempt be refused now."""
        del self.flying[name]
        return self.take(Failed(t=self.t, attempt=name, failure="rate_limited", retry_after=retry_after))

    def ill(self, name: str) -> Decision:
        """Let an attempt meet a 503 now."""
        del self.flying[name]
        return self.take(Failed(t=self.t, attempt=name, failure="unavailable"))

    def run(self, until: float, answer: Callable[[float, int], float | None]) -> int:
        """Keep every place busy, and count refusals.

        `answer` is asked with the time and how many the endpoint would be busy with; it gives the latency, or None to
        refuse.
        """
        ends: list[tuple[float, str, bool]] = []
        refused = 0
        while self.t < until:
            gate = self.policy.may_start(self.t)
            if gate.open:
                name = self.start()
                seconds = answer(self.t, 1 + sum(granted for _, _, granted in ends))
                ends.append((self.t + (0.1 if seconds is None else seconds), name, seconds is not None))
                ends.sort()
            elif gate.at is not None and (not ends or gate.at < ends[0][0]):
                self.t = gate.at
            else:
                self.t, name, granted = ends.pop(0)
                if granted:
                    self.ok(name, self.t - self.flying[name])
                else:
                    refused += 1
                    self.refuse(name)
        return refused


def test_the_first_starts_are_spread() -> None:
    """Sixteen slots are filled over a second, not in one moment, so that a small tier refuses few of them."""
    drive = Drive()
    drive.fill()

    assert len(drive.flying) == 16
    assert drive.t == pytest.approx(15 / 16)


@pytest.mark.parametrize("slots", [1, 2, 10])
def test_the_first_answer_ends_the_spreading(slots: int) -> None:
    """Ten calls of 10 ms take no longer than the slots and a start or two need: nobody waits for a guess."""
    drive = Drive(slots)
    drive.run(0.1 / slots + 0.02, lambda _t, _n: 0.01)

    assert drive.count >= 10


@pytest.mark.parametrize("slots", [1, 2])
def test_few_slots_are_filled_at_once(slots: int) -> None:
    """One or two slots are in use within a tenth of a second, long before the first answer."""
    drive = Drive(slots)
    drive.fill()

    assert len(drive.flying) == slots
    assert drive.t < 0.1


def test_errors_of_the_task_do_not_wait_for_a_success() -> None:
    """A task that fails by itself in 10 ms is tried a hundred times a second on one slot, though nothing ever succeeds."""
    drive = Drive(1)
    while drive.t < 1:
        name = drive.start()
        drive.t = drive.flying.pop(name) + 0.01
        drive.take(Failed(t=drive.t, attempt=name, failure="error"))

    assert drive.count >= 99


def test_slow_start_waits_for_proof_and_then_adds_a_slot_per_success() -> None:
    """Sixteen slots must prove themselves first; then every success adds one, published in steps of an eighth."""
    drive = Drive()
    drive.run(15.0, lambda _t, _n: 1.0)
    moves = [
        (change.before, change.after, change.cause)
        for decision in drive.decisions
        for change in decision.changes
        if isinstance(change, LimitMoved)
    ]
    proven = next(k for k, decision in enumerate(drive.decisions) if decision.limit > 16)

    assert sum(isinstance(signal, Succeeded) for signal in drive.told[:proven]) >= 28
    assert moves[:3] == [(16, 18, "climbing"), (18, 20, "climbing"), (20, 22, "climbing")]
    assert drive.decisions[-1].limit > 100


def test_unused_slots_do_not_grow() -> None:
    """A success while few slots are used proves nothing about more of them."""
    drive = Drive()
    for _ in range(50):
        drive.ok(drive.start())

    assert drive.decisions[-1].limit == 16


def test_most_is_never_exceeded() -> None:
    """The user's own limit holds, also at the start."""
    assert Drive(3).start()
    drive = Drive(20)
    drive.run(60.0, lambda _t, _n: 1.0)

    assert max(decision.limit for decision in drive.decisions) == 20


def test_refusals_by_number_hold_the_limit_just_below() -> None:
    """A third 429 in a row, at n in flight and without a time, puts the limit to n - 1, with the evidence."""
    drive = Drive()
    *_, third, second, first = drive.fill()
    decisions = [drive.refuse(name) for name in (first, second, third)]

    evidence = "429 at 14 in flight, 0 accepted before"
    move = LimitMoved(before=16, after=13, cause="in_flight", evidence=evidence)
    assert [decision.changes for decision in decisions] == [(), (), (move,)]
    assert decisions[-1].limit == 13


def test_refusals_at_a_number_known_to_be_good_are_about_the_rate() -> None:
    """Refused at 14, then again and again at 2 in flight: it was the rate each time, so the number is free to grow again."""
    drive = Drive()
    names = drive.fill()
    for name in reversed(names[-3:]):
        drive.refuse(name)
    assert drive.policy.state.in_flight.held == 13
    for name in names[:-3]:
        drive.ok(name)
    drive.start()
    for _ in range(4):
        drive.refuse(drive.start())

    assert drive.policy.state.in_flight.phase == "climbing"
    assert drive.policy.state.rate.known is not None
    paused = drive.pauses[-1]
    assert paused is not None
    assert paused.cause == "rate_limited"


def test_one_lesson_per_episode() -> None:
    """Attempts that began before a cut cannot cause another, by number or by rate."""
    drive = Drive()
    names = drive.fill()
    limits = [drive.refuse(name).limit for name in names[8:]]
    assert limits == [16] + 7 * [8]

    drive = Drive()
    names = drive.fill()
    drive.refuse(names[8], retry_after=1.0)
    pace = drive.policy.state.rate.known
    for name in names[9:]:
        drive.refuse(name, retry_after=1.0)
    assert drive.policy.state.rate.known == pace


def test_a_lone_refusal_teaches_nothing() -> None:
    """A 429 without a time, after a hundred successes, changes neither pace nor limit, and pauses nobody."""
    drive = Drive()
    drive.run(10.0, lambda _t, _n: 1.0)
    before = drive.policy.limit
    decision = drive.refuse(next(iter(drive.flying)))

    assert (decision.limit, decision.changes, drive.pauses[-1]) == (before, (), None)
    assert drive.policy.state.rate.known is None


@pytest.mark.parametrize("part", [0.002, 0.01, 0.03])
@pytest.mark.parametrize("slots", [10, 50])
def test_strays_cost_no_more_than_themselves(part: float, slots: int) -> None:
    """Where a few calls are refused by chance, whatever the load, nine tenths of what is possible are done, or more."""
    drive = Drive(slots)
    chance = random.Random(5)
    refused = drive.run(250.0 / slots, lambda _t, _n: None if chance.random() < part else 0.05)

    possible = 5_000 / (1 + 2 * part)  # A refusal takes a slot for twice the time of an answer.
    assert drive.count - refused > 0.9 * possible


def test_more_refused_than_strays_is_put_to_the_test() -> None:
    """A rate limit just below what all slots ask for looks like strays, until a little less is asked for."""
    drive = Drive(50)
    chance = random.Random(1)
    bucket, filled = 48.0, 0.0

    def answer(t: float, _n: int) -> float | None:
        nonlocal bucket, filled
        bucket, filled = min(48.0, bucket + 48 * (t - filled)), t
        if bucket < 1:
            return None
        bucket -= 1
        return chance.uniform(0.8, 1.2)

    refused = drive.run(400.0, answer)

    assert drive.policy.state.rate.known == pytest.approx(48.0, rel=0.05)
    assert refused < 0.01 * drive.count
    assert drive.count > 0.95 * 400 * 48


def test_retry_after_pauses_everyone_and_says_so() -> None:
    """Until the time that was named, nothing starts; the first signal after it tells that intake has resumed."""
    drive = Drive()
    first, second = drive.start(), drive.start()
    decision = drive.refuse(first, retry_after=7.0)
    until = drive.t + 7.0
    assert isinstance(decision.changes[0], Paused)
    assert (decision.changes[0].until, decision.changes[0].cause) == (until, "retry_after")
    assert "Retry-After 7 s" in decision.changes[0].evidence
    assert (drive.policy.may_start(drive.t).at, drive.pauses[-1]) == (until, decision.changes[0])
    drive.t = until
    decision = drive.ok(second)

    assert [type(change) for change in decision.changes] == [Resumed]
    assert drive.pauses[-1] is None
    assert drive.policy.may_start(until).open


def test_retry_after_is_capped() -> None:
    """An endpoint that asks for an hour is asked again after two minutes."""
    drive = Drive()
    drive.refuse(drive.start(), retry_after=3600.0)

    assert drive.policy.may_start(drive.t).at == drive.t + 120.0


def test_the_rate_is_what_was_granted_between_refusals() -> None:
    """Against a bucket of 10/s, the pace settles at 10/s within 3 %, and few starts are refused."""
    drive = Drive()
    bucket, filled = 20.0, 0.0

    def answer(t: float, _n: int) -> float | None:
        nonlocal bucket, filled
        bucket, filled = min(20.0, bucket + 10 * (t - filled)), t
        if bucket < 1:
            return None
        bucket -= 1
        return 1.0

    refused = drive.run(400.0, answer)

    assert drive.policy.state.rate.known == pytest.approx(10.0, rel=0.03)
    assert refused < 0.01 * drive.count
    assert drive.count > 3900


def test_a_number_in_flight_is_found_and_kept() -> None:
    """Against 12 in flight, the limit is 12, and trying 13 now and then costs less than 1 % of the starts."""
    drive = Drive()
    refused = drive.run(300.0, lambda _t, n: 2.0 if n <= 12 else None)

    assert drive.policy.state.in_flight.held == 12
    assert refused < 0.01 * drive.count
    assert drive.policy.state.rate.known is None


def test_strays_do_not_hide_a_number_in_flight() -> None:
    """Against 12 in flight and 1 % strays, the limit is 12 all the same, and few starts are refused because of it."""
    drive = Drive()
    chance = random.Random(2)
    strays = over = 0

    def answer(_t: float, n: int) -> float | None:
        nonlocal strays, over
        stray = chance.random() < 0.01
        strays += stray
        over += n > 12 and not stray
        return None if stray or n > 12 else 2.0

    drive.run(600.0, answer)

    assert drive.policy.state.in_flight.held == 12
    assert strays > 20
    assert over < 0.02 * drive.count
    assert drive.count > 0.9 * 600 * 12 / 2.0


def test_growth_without_throughput_is_undone() -> None:
    """A server whose latency grows with the square of the load beyond 20 is not asked for much more than 20."""
    drive = Drive()
    chance = random.Random(1)
    drive.run(300.0, lambda _t, n: chance.uniform(0.8, 1.2) * max(1.0, (n / 20) ** 2))

    assert any(isinstance(c, LimitMoved) and c.cause == "latency" for d in drive.decisions for c in d.changes)
    assert 15 <= drive.policy.state.in_flight.held <= 26


def test_growth_with_throughput_is_kept() -> None:
    """A server that stays as quick gets every slot that the user allows."""
    drive = Drive(150)
    chance = random.Random(1)
    drive.run(60.0, lambda _t, _n: chance.uniform(0.8, 1.2))

    assert drive.decisions[-1].limit == 150


def test_headers_are_believed_at_once() -> None:
    """What remains is spread over the time until renewal, before anything was refused."""
    drive = Drive()
    name = drive.start()
    drive.t = 1.0
    del drive.flying[name]
    drive.take(Succeeded(t=1.0, attempt=name, elapsed=1.0, quota=Quota(remaining=10, reset=20.0)))
    drive.start()
    drive.start()

    assert drive.policy.may_start(drive.t).at == drive.t + 2.0


def test_headers_that_leave_nothing_pause_intake() -> None:
    """With nothing remaining, everyone waits for the renewal."""
    drive = Drive()
    name = drive.start()
    del drive.flying[name]
    drive.t = 1.0
    drive.take(Succeeded(t=1.0, attempt=name, elapsed=1.0, quota=Quota(remaining=0, reset=20.0)))
    paused = drive.pauses[-1]

    assert paused is not None
    assert (paused.until, paused.cause) == (21.0, "quota")


def test_the_breaker_opens_on_illness_alone() -> None:
    """Five failures that outweigh successes stop intake; the limit is not cut, since it was not wrong."""
    drive = Drive()
    names = drive.fill()
    decisions = [drive.ill(name) for name in names[:5]]
    assert drive.pauses[-5:-1] == [None] * 4

    paused = drive.pauses[-1]
    assert paused is not None
    assert (paused.cause, paused.until, decisions[4].limit) == ("illness", drive.t + 1.0, 16)
    assert paused.evidence == "5 failed and 0 succeeded in 0.0 s"


def test_with_few_in_flight_the_breaker_opens_sooner() -> None:
    """The last trial of a run does not have to fail five times before an illness is seen: that would be its end."""
    drive = Drive()
    for _ in range(3):
        drive.ill(drive.start())

    assert drive.pauses[-1] is not None


def test_a_few_failures_among_successes_are_no_illness() -> None:
    """One failure in three does not open the breaker: retries deal with those."""
    drive = Drive()
    for k in range(300):
        name = drive.start()
        drive.t += 0.05
        drive.ill(name) if k % 3 == 0 else drive.ok(name)

    assert not any(drive.pauses)


def test_trials_that_failed_while_others_did_not_make_no_illness() -> None:
    """Ten trials that always fail are no illness when they are all that is left: the others were answered meanwhile."""
    drive = Drive()
    for k in range(10):
        drive.ill(drive.start(f"bad-{k}"))
        for _ in range(3):
            drive.ok(drive.start())
    for k in range(30):
        drive.ill(drive.start(f"bad-{k % 10}"))

    assert not any(drive.pauses)


def test_trials_that_failed_in_an_illness_are_heard_when_it_comes_back() -> None:
    """Soon after an illness, those that it has hit count again: it may be the same one."""
    drive = Drive()
    for k in range(5):
        drive.ill(drive.start(f"c{k}"))
    drive.t += 1
    drive.ok(drive.start())
    for k in range(5):
        drive.ill(drive.start(f"c{k}"))

    assert drive.pauses[-1] is not None


def open_breaker() -> Drive:
    """Drive a policy into an illness that began now."""
    drive = Drive()
    for name in drive.fill():
        drive.ill(name)
    return drive


def test_an_open_breaker_sends_one_probe_at_a_time() -> None:
    """The gate opens for one attempt, which is told to be a probe; then it is shut until the probe's answer."""
    drive = open_breaker()
    gate = drive.policy.may_start(drive.t)
    assert not gate.open
    assert gate.at is not None
    drive.t = gate.at
    assert drive.policy.may_start(drive.t).probe
    drive.start()

    assert drive.decisions[-1].probe
    assert not drive.policy.may_start(drive.t + 2.0).open


def test_probe_gaps_grow_with_the_outage() -> None:
    """The gap is a tenth of the outage so far, between 1 and 30 s."""
    drive = open_breaker()
    gaps = []
    while drive.t < 600:
        failed = drive.t
        probe = drive.start()
        gaps.append(drive.t - failed)
        drive.ill(probe)

    assert gaps[0] == 1.0
    assert gaps[10:40] == sorted(gaps[10:40])
    assert max(gaps) == pytest.approx(30.0)
    assert len(gaps) < 60


def test_a_probe_that_hangs_does_not_shut_the_gate_for_good() -> None:
    """If a probe does not answer, another is sent after a while."""
    drive = open_breaker()
    drive.start()

    assert drive.policy.may_start(drive.t + 10.0).probe


def test_a_probe_that_is_answered_closes_the_breaker() -> None:
    """After an illness 8 slots are open, and each success adds 3, up to the limit from before."""
    drive = open_breaker()
    decision = drive.ok(drive.start())
    assert drive.pauses[-1] is None
    assert [type(change) for change in decision.changes] == [Resumed, LimitMoved]
    limits = [decision.limit]
    names = drive.fill()
    limits += [drive.ok(name).limit for name in names[:4]]

    assert limits == [8, 11, 14, 16, 16]


def test_endings_from_before_the_illness_do_not_open_it_again() -> None:
    """Attempts that began before the breaker opened, and end late, are not weighed any more."""
    drive = Drive()
    names = drive.fill()
    for name in names[:5]:
        drive.ill(name)
    drive.ok(drive.start())
    for name in names[5:]:
        del drive.flying[name]
        drive.take(TimedOut(t=drive.t, attempt=name))

    assert drive.pauses[-1] is None


def test_a_late_or_foreign_ending_is_ignored() -> None:
    """Only the first ending of an attempt counts."""
    drive = Drive()
    name = drive.start()
    drive.ok(name)
    before = drive.decisions[-1]

    assert drive.take(Succeeded(t=drive.t, attempt=name, elapsed=9.0)) == before


def test_a_replay_decides_the_same() -> None:
    """The signals of a long run, told again, give the very same decisions and state."""
    drive = Drive()
    chance = random.Random(3)
    drive.run(200.0, lambda _t, n: chance.lognormvariate(0, 0.5) if n <= 30 else None)
    again = Adaptive(200)

    assert [again.take(signal) for signal in drive.told] == drive.decisions
    assert again.state == drive.policy.state


def test_errors_of_the_task_do_not_hold_up_its_start() -> None:
    """Where every attempt fails by the task's own fault, as quickly as it may, nothing is paced as if each took 2 s."""
    policy = Adaptive(3)
    t = 0.0
    for number in range(100):
        gate = policy.may_start(t)
        t = gate.at or t
        policy.take(Started(t=t, attempt=str(number)))
        t += 0.01
        policy.take(Failed(t=t, attempt=str(number), failure="error"))

    assert t < 2.0
