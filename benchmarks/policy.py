"""What the concurrency policies are worth, measured on simulated endpoints: `python -m benchmarks policy [--quick]`.

The policies are the real ones; only the endpoint, the executor and the clock are simulated, so twenty minutes take a
second. It prints a table for `Fixed` (four times too many slots, as people set it), `Aimd` and `Adaptive`, then checks
ours against what is required of it, and fails where it falls short.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence

from attrs import evolve, frozen

from benchmarks.simulated.endpoint import Endpoint
from benchmarks.simulated.executor import Simulation, Tally
from benchmarks.simulated.scenarios import SCENARIOS, STRAYS, Required, random_endpoint
from runner.concurrency import Adaptive, Aimd, Decision, Fixed, Policy, Signal

MOST = 1000
"""The most slots that `Aimd` and `Adaptive` may use: far too many, so that they have to find the right number."""
BASELINE = 300.0
"""Seconds of a run with `Fixed`, which has nothing to learn, and sends a million calls in twenty minutes."""
UNTUNED = 2026
"""Seed of the random endpoints. Do not tune on them: roll others to develop with, and leave these for the proof."""


@frozen(kw_only=True)
class Result:
    """A policy on an endpoint, averaged over seeds; in per cent, but for `lost`."""

    goodput: float
    refused: float
    ill: float
    lost: float

    def __str__(self) -> str:
        """Goodput, refused and ill per completed trial, and trials lost, as in the table's header."""
        return f"{self.goodput:.0f} / {self.refused:.{1 if self.refused < 100 else 0}f} / {self.ill:.1f} / {self.lost:.0f}"


def fixed(endpoint: Endpoint) -> Policy:
    """Four times as many slots as are right; Retry-After delays only the trial that met it."""
    return Fixed(4 * max(1, round(endpoint.per_second() * endpoint.mean())), heed_retry_after=False)


def aimd(_: Endpoint) -> Policy:
    """Phoenix's controller with its defaults, which does not know Retry-After either."""
    return Aimd(MOST, heed_retry_after=False)


def adaptive(_: Endpoint) -> Policy:
    """Ours."""
    return Adaptive(MOST)


POLICIES: dict[str, Callable[[Endpoint], Policy]] = {"fixed, 4 x too high": fixed, "aimd": aimd, "adaptive": adaptive}


def measure(make: Callable[[Endpoint], Policy], endpoint: Endpoint, seconds: float, seeds: Sequence[int]) -> Result:
    """Run a policy against an endpoint once per seed."""
    seconds = min(seconds, BASELINE) if make is fixed else seconds
    tallies = [Simulation(make(endpoint), endpoint, seed).run(seconds) for seed in seeds]
    possible = endpoint.per_second() * endpoint.well(seconds)
    return Result(
        goodput=statistics.fmean(100 * t.completed / possible for t in tallies),
        refused=statistics.fmean(100 * t.refused / max(t.completed, 1) for t in tallies),
        ill=statistics.fmean(100 * t.ill / max(t.completed, 1) for t in tallies),
        lost=statistics.fmean(t.lost for t in tallies),
    )


class Checks:
    """What held and what did not."""

    def __init__(self) -> None:
        """Begin with nothing checked."""
        self.failed = 0

    def check(self, what: str, figure: str, *, held: bool) -> None:
        """Print one line, and remember a failure."""
        self.failed += not held
        print(f"{'PASS' if held else 'FAIL'}  {what:<52} {figure}")


def scenarios(checks: Checks, seconds: float, seeds: int) -> None:
    """Print the table, and check what is required of ours in each scenario."""
    print(f"{seconds:.0f} s, {seeds} seeds for ours; goodput % / refused % / ill % per completed / trials lost\n")
    print(f"{'':4}" + "".join(f"{name:>28}" for name in POLICIES))
    ours: dict[str, tuple[Result, Required]] = {}
    for name, (endpoint, required) in SCENARIOS.items():
        print(f"{name:4}", end="", flush=True)
        for make in POLICIES.values():
            result = measure(make, endpoint, seconds, range(seeds if make is adaptive else 1))
            print(f"{result!s:>28}", end="", flush=True)
            if make is adaptive:
                ours[name] = result, required
        print()
    print()
    for name, (result, required) in ours.items():
        checks.check(
            f"{name}: >= {required.goodput:.0f} %, refused <= {required.refused:.0f} %, ill <= 4 %, 0 lost",
            str(result),
            held=result.goodput >= required.goodput
            and result.refused <= required.refused
            and result.ill <= required.ill
            and result.lost == 0,
        )


def untuned(checks: Checks, seconds: float, count: int) -> None:
    """Check the policies on endpoints that nobody has looked at while building them."""
    chance = random.Random(UNTUNED)
    endpoints = [random_endpoint(chance) for _ in range(count)]
    print(f"\n{count} random endpoints: median goodput %, median refused %, trials lost in all; goodput on each")
    for name, make in POLICIES.items():
        results = [measure(make, endpoint, seconds, [k]) for k, endpoint in enumerate(endpoints)]
        goodput = statistics.median(r.goodput for r in results)
        refused = statistics.median(r.refused for r in results)
        lost = sum(r.lost for r in results)
        each = " ".join(f"{r.goodput:.0f}" for r in results)
        print(f"  {name:<20} {goodput:5.1f} / {refused:6.2f} / {lost:.0f}   {each}", flush=True)
        if make is adaptive:
            figure = f"{goodput:.1f} / {refused:.2f} / {lost:.0f}"
            held = goodput >= 92 and refused <= 1 and lost == 0
            checks.check("random: median >= 92 %, refused <= 1 %, 0 lost", figure, held=held)


def recovery(checks: Checks) -> None:
    """Check that 100 slots are back at 90 % within 30 s after a collapse."""
    print()
    for what, refuses in (("breakdown", False), ("storm of 429", True)):
        endpoint = Endpoint(cap=100, brownout_every=300, brownout_refuses=refuses)
        over = 150 + endpoint.brownout
        for name, make in (("aimd", Aimd(100, initial=100)), ("adaptive", Adaptive(100))):
            tally = Simulation(make, endpoint, 1).run(420)
            back = next((t - over for t, n in tally.in_flight if t >= over and n >= 90), None)
            took = "not back within 240 s" if back is None else f"{back:.1f} s"
            if name == "aimd":
                print(f"      aimd: back at 90 slots of 100 after a {what}: {took}")
            else:
                held = back is not None and back <= 30
                checks.check(f"back at 90 slots of 100 after a {what}: <= 30 s", took, held=held)


def sprint(checks: Checks) -> None:
    """Check the time for 10,000 trials at the 100/s tier, as a multiple of the shortest possible."""
    endpoint, trials = SCENARIOS["F"][0], 10_000
    ideal = (trials - endpoint.burst) / endpoint.per_second() + endpoint.mean()
    for name, policy in (("aimd", aimd(endpoint)), ("adaptive", adaptive(endpoint))):
        tally: Tally = Simulation(policy, endpoint, 1, trials=trials).run(10_000)
        figure = f"{tally.ended / ideal:.2f} x"
        if name == "aimd":
            print(f"      aimd: {trials:,} trials at 100/s: {figure} the ideal time")
        else:
            checks.check(f"{trials:,} trials at 100/s: <= 1.4 x the ideal time", figure, held=tally.ended <= 1.4 * ideal)


def strays(checks: Checks, trials: int, seeds: int) -> None:
    """Check that calls which are refused by chance cost no more than themselves.

    The time is what so many trials need at best. The most that can be done in it is what the same policy does when
    nothing is refused: it has to climb first, and where the slots are many and the calls short, that is most of the time.
    """
    print(f"\ntrials done in the time of {trials:,}: aimd; ours; ours per what it does without strays (worst of {seeds} seeds)")
    for name, (endpoint, slots) in STRAYS.items():
        seconds = trials * endpoint.mean() / slots
        calm = evolve(endpoint, strays=0.0)
        done = [_done(Adaptive(slots), endpoint, seed, seconds) for seed in range(seeds)]
        most = [(1 - endpoint.strays) * _done(Adaptive(slots), calm, seed, seconds) for seed in range(seeds)]
        part = statistics.fmean(done) / statistics.fmean(most)
        worst = min(d / m for d, m in zip(done, most, strict=True))
        other = _done(Aimd(slots, initial=slots), endpoint, 0, seconds)
        figure = f"{other:5} {statistics.fmean(done):5.0f}  {100 * part:.0f} % ({100 * worst:.0f} %)"
        checks.check(f"{name}: >= 90 %", figure, held=part >= 0.9)


def _done(policy: Policy, endpoint: Endpoint, seed: int, seconds: float) -> int:
    return Simulation(policy, endpoint, seed, ahead=50).run(seconds).completed


class Recording:
    """A policy that keeps what it was told, so that the same can be told again."""

    def __init__(self, policy: Policy) -> None:
        """Stand in front of `policy`."""
        self.told: list[Signal] = []
        self.state = policy.state
        self.may_start = policy.may_start
        self._policy = policy
        self._take = policy.take

    @property
    def limit(self) -> int:
        """What the policy says."""
        return self._policy.limit

    def take(self, signal: Signal) -> Decision:
        """Keep the signal, and pass it on."""
        self.told.append(signal)
        return self._take(signal)


def cost() -> None:
    """Print processor time per signal, without the simulation. A figure, not a check: machines differ."""
    for name in ("F", "X"):
        recording = Recording(Adaptive(MOST))
        Simulation(recording, SCENARIOS[name][0], 1).run(300)
        again = Adaptive(MOST)
        began = time.process_time()
        for signal in recording.told:
            again.take(signal)
        spent = time.process_time() - began
        count = len(recording.told)
        print(f"      {1e6 * spent / count:.1f} us per signal over {count:,} signals of {name}")


def main(argv: Sequence[str]) -> int:
    """Print the table and the checks; 1 if ours fell short anywhere."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks policy", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="shorter runs, fewer seeds; half a minute instead of minutes")
    quick: bool = parser.parse_args(argv).quick
    checks = Checks()
    scenarios(checks, *((1200.0, 1) if quick else (1200.0, 5)))
    recovery(checks)
    sprint(checks)
    strays(checks, 5_000, 2 if quick else 5)
    untuned(checks, *((300.0, 6) if quick else (1200.0, 12)))
    print()
    cost()
    print(f"\n{'all required figures hold' if not checks.failed else f'{checks.failed} required figures do not hold'}")
    return 1 if checks.failed else 0
