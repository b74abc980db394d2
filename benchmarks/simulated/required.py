"""The required figures of our policy, each printed as PASS or FAIL."""

import statistics
from collections.abc import Mapping, Sequence

from benchmarks.simulated.compare import FIXED, MUCH_SLOWER, OURS, Comparison, goodputs
from benchmarks.simulated.endpoint import Endpoint
from benchmarks.simulated.rows import Row, ours, simulate
from benchmarks.simulated.scenarios import SCENARIOS

ORDINARY = ("lettered", "random")
MEANS = {"tenants": 88.0, "bans": 75.0, "provider-like": 90.5}
"""Family → required mean goodput, in percent."""
NOT_ADVERSARIAL = (*ORDINARY, "bans", "cool-downs", "provider-like")
"""Families that are not in the mean of the adversarial rows."""
MAX_MUCH_SLOWER = 0.05
"""Part of the small runs that may take more than `MUCH_SLOWER` times as long as with a fixed limit."""


class Checks:
    """Counts failed checks."""

    def __init__(self) -> None:
        """Start without failures."""
        self.failed = 0

    def check(self, requirement: str, figure: str, *, passed: bool) -> None:
        """Print one line, and count a failure."""
        self.failed += not passed
        print(f"{'PASS' if passed else 'FAIL'}  {requirement:<78} {figure}")


def check(families: Mapping[str, Sequence[Comparison]], seeds: Sequence[int]) -> int:
    """Check the figures of the families that were run; return the number of failures."""
    checks = Checks()
    print(f"\nrequired figures, seeds {', '.join(map(str, seeds))}")
    adversarial = [c for name, comparisons in families.items() if name not in NOT_ADVERSARIAL for c in comparisons]
    ordinary = [c for name in ORDINARY for c in families.get(name, ())]
    if goodputs(adversarial, OURS):
        _adversarial(checks, adversarial)
    if ordinary:
        _ordinary(checks, ordinary)
    for name, minimum in MEANS.items():
        _mean(checks, name, families.get(name, ()), minimum)
    _fixed(checks, [comparison for comparisons in families.values() for comparison in comparisons])
    _times(checks, "random 429s", families.get("random-429", ()), 1.5)
    _times(checks, "judge of the same latency", [c for c in families.get("scoring", ()) if "same latency" in c.row.name], 1.2)
    _times(checks, "20 and 100 cases without a limit", families.get("small", ()), 1.15)
    _times(checks, "poison", families.get("poison", ()), 1.5)
    _small_runs(checks, families.get("small-runs", ()))
    for comparison in families.get("lettered", ()):
        _lettered(checks, comparison)
    if "lettered" in families:
        _recovery(checks)
        _short_run(checks, range(seeds[0], seeds[0] + 3))
    print("all required figures hold" if not checks.failed else f"{checks.failed} required figures do not hold")
    return checks.failed


def _adversarial(checks: Checks, comparisons: Sequence[Comparison]) -> None:
    """Check the unlimited rows of all families with a known capacity."""
    values = goodputs(comparisons, OURS)
    mean = statistics.fmean(values)
    checks.check(f"adversarial: mean >= 91 % over {len(values)} unlimited rows", f"{mean:.1f} %", passed=mean >= 91)
    low = sorted((c.goodput(OURS), c.row.name, c.seed) for c in comparisons if c.row.trials is None and c.row.has_capacity)
    worst = [entry for entry in low if entry[0] < 60] or low[:1]
    checks.check("adversarial: no row below 60 %", f"{len(worst) if worst[0][0] < 60 else 0} below", passed=worst[0][0] >= 60)
    for goodput, name, seed in worst:
        print(f"      {goodput:5.1f} %  {name} (seed {seed})")
    print(f"      trials lost that the best fixed limit would not lose: {sum(c.lost() for c in comparisons):.0f}")


def _mean(checks: Checks, family: str, comparisons: Sequence[Comparison], minimum: float) -> None:
    """Check the mean goodput of a family, and print that of each group in it and of the policies that were run."""
    values = goodputs(comparisons, OURS)
    if not values:
        return
    mean = statistics.fmean(values)
    checks.check(f"{family}: mean >= {minimum:g} % over {len(values)} rows", f"{mean:.1f} %", passed=mean >= minimum)
    for group in sorted({c.row.group for c in comparisons} - {""}):
        rows = [c for c in comparisons if c.row.group == group]
        means = (f"{name} {statistics.fmean(goodputs(rows, name)):.1f}" for name in rows[0].results if goodputs(rows, name))
        print(f"      {group}: {', '.join(means)} %")


def _ordinary(checks: Checks, comparisons: Sequence[Comparison]) -> None:
    """Check A-X and the random endpoints together."""
    mean = statistics.fmean(goodputs(comparisons, OURS))
    rate_limited = statistics.median(c.results[OURS].rate_limited for c in comparisons)
    lost = sum(c.lost() for c in comparisons)
    checks.check(f"ordinary: mean >= 96 % over {len(comparisons)} rows", f"{mean:.1f} %", passed=mean >= 96)
    checks.check("ordinary: rate limited <= 1 % (median)", f"{rate_limited:.2f} %", passed=rate_limited <= 1)
    checks.check("ordinary: no trial lost that the best fixed limit would not lose", f"{lost:.0f} lost", passed=lost == 0)


def _fixed(checks: Checks, comparisons: Sequence[Comparison]) -> None:
    """Check every row on which a fixed limit of all slots loses no trial, if it was run."""
    compared = [
        c for c in comparisons if FIXED in c.results and c.row.baseline != FIXED and not c.results[FIXED].failed
    ]  # Rows with this baseline have a check of their own.
    slow = sorted((c for c in compared if c.slowdown() > 1.5), key=lambda c: -c.slowdown())
    if not compared:
        return
    figure = f"highest {max(c.slowdown() for c in compared):.2f} x, {len(slow)} of {len(compared)} above"
    checks.check("no row slower than 1.5 x -s policy=fixed where that loses no trial", figure, passed=not slow)
    for c in slow[:10]:
        print(f"      {c.slowdown():5.2f} x  {c.row.name} (seed {c.seed})")


def _times(checks: Checks, rows: str, comparisons: Sequence[Comparison], maximum: float) -> None:
    """Check the ratio of every finite run to its baseline, where that loses no trial."""
    compared = [c for c in comparisons if c.row.trials is not None and not c.results[c.row.baseline].failed]
    if not compared:
        return
    slow = sorted((c for c in compared if c.ratio(OURS) > maximum), key=lambda c: -c.ratio(OURS))
    limit = "-s policy=fixed" if compared[0].row.baseline == FIXED else "the best fixed limit"
    figure = f"highest {max(c.ratio(OURS) for c in compared):.2f} x, {len(slow)} of {len(compared)} above"
    checks.check(f"{rows}: <= {maximum} x the time of {limit}", figure, passed=not slow)
    for c in slow[:5]:
        print(f"      {c.ratio(OURS):5.2f} x  {c.row.name} (seed {c.seed})")


def _small_runs(checks: Checks, comparisons: Sequence[Comparison]) -> None:
    """Check how many small runs take noticeably longer than with a fixed limit, and the slowest."""
    compared = [c for c in comparisons if not c.results[FIXED].failed]
    if not compared:
        return
    slower = sum(c.ratio(OURS) > MUCH_SLOWER for c in compared)
    checks.check(
        f"small runs: <= {MAX_MUCH_SLOWER:.0%} of {len(compared)} more than {MUCH_SLOWER - 1:.0%} slower than -s policy=fixed",
        f"{slower} slower; fixed loses trials in {len(comparisons) - len(compared)} others",
        passed=slower <= MAX_MUCH_SLOWER * len(compared),
    )
    _times(checks, "small runs", compared, 1.5)


def _lettered(checks: Checks, comparison: Comparison) -> None:
    """Check the requirements of a scenario of A-X."""
    required, ours = SCENARIOS[comparison.row.name][1], comparison.results[OURS]
    goodput = ours.goodput or 0.0
    requirement = f"{comparison.row.name}: >= {required.goodput:.0f} %, rate limited <= {required.rate_limited:.0f} %, "
    checks.check(
        f"{requirement}unavailable <= {required.unavailable:.0f} %, 0 lost (seed {comparison.seed})",
        f"{goodput:.0f} / {ours.rate_limited:.1f} / {ours.unavailable:.1f} / {ours.failed:.0f}",
        passed=goodput >= required.goodput
        and ours.rate_limited <= required.rate_limited
        and ours.unavailable <= required.unavailable
        and not comparison.lost(),
    )


def _recovery(checks: Checks) -> None:
    """Check that 90 of 100 slots are in use within 30 s after an outage or a burst of 429s."""
    for fault, limited in (("an outage", False), ("a burst of 429s", True)):
        endpoint = Endpoint(cap=100, brownout_every=300, brownout_kind="rate_limited" if limited else "unavailable")
        end = 150 + endpoint.brownout
        [tally] = simulate(Row(name=fault, endpoint=endpoint, seconds=420.0), ours, 1, trace=True)
        recovery = next((t - end for t, n in tally.in_flight or () if t >= end and n >= 90), None)
        figure = "not back within 240 s" if recovery is None else f"{recovery:.1f} s"
        passed = recovery is not None and recovery <= 30
        checks.check(f"back at 90 slots of 100 after {fault}: <= 30 s", figure, passed=passed)


def _short_run(checks: Checks, seeds: Sequence[int]) -> None:
    """Check the mean time of 10,000 trials at 100/s, divided by the shortest possible."""
    endpoint, trials = SCENARIOS["F"][0], 10_000
    ideal = (trials - endpoint.burst) / (endpoint.rate or 1.0) + endpoint.mean()
    row = Row(name="sprint", endpoint=endpoint, slots=1000, trials=trials)
    ratio = statistics.fmean(simulate(row, ours, seed)[0].ended for seed in seeds) / ideal
    checks.check(f"{trials:,} trials at 100/s: <= 1.4 x the ideal time", f"{ratio:.2f} x", passed=ratio <= 1.4)
