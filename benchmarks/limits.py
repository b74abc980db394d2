"""Pacing by declared and advertised limits, on simulated providers: `python -m benchmarks limits`.

The limits, the parser of headers and the policies are the real ones; the providers have the headers and the rules of OpenAI,
Azure, Groq, Anthropic and Gemini. Next to ours are the policy without known limits, a fixed limit, and the policies of Inspect
and the AWS SDKs. Each cell: used share after 5 s / in the second half / in the first minute / 429s per accepted call, in
percent; bans and the smallest share of several processes where there are any. The exit code is 1 if a figure is missed.
"""

import argparse
import re
import statistics
import time
from collections.abc import Sequence

from benchmarks.simulated.limits_rows import LIMITS_ROWS, LimitsResult, LimitsRow, MakePolicy, measure
from benchmarks.simulated.meter import DAY, Limit
from benchmarks.simulated.providers import Anthropic, OpenAI, Request, per_minute
from benchmarks.simulated.required import Checks
from benchmarks.simulated.rivals import Aws, Inspect
from evaljournal.runner.calls.call_size import CallSize
from evaljournal.runner.concurrency.adaptive import Adaptive
from evaljournal.runner.concurrency.fixed import Fixed
from evaljournal.runner.concurrency.limits import Limits
from evaljournal.runner.retries.limit_headers import advertised_limits

LEGEND = "used share after 5 s / in the second half / in the first minute / 429s per accepted call, in %"
OURS = "ours"
POLICIES: dict[str, MakePolicy] = {"inferring": Adaptive, "fixed": Fixed, "inspect": Inspect, "aws": Aws}
"""What ours is compared with: these know no limits."""
STALLED, FLOODING = 5.0, 100.0
"""Required of rows with wrong headers: percent of the limit that is used, at least; 429s per accepted call, at most."""
FIELDS = ("used", "second_half", "first_minute", "rate_limited")
CPU = 15.0
"""Microseconds of CPU that parsing and admission may add to a call."""


def select(family: str, pattern: str, *, quick: bool) -> list[LimitsRow]:
    """Return the rows of a family; a quick run takes a third of them."""
    return [row for row in LIMITS_ROWS[family] if re.search(pattern, row.name)][:: 3 if quick else 1]


def compare(row: LimitsRow, seeds: Sequence[int], names: Sequence[str]) -> dict[str, list[LimitsResult]]:
    """Run ours and the named policies on a row, once per seed."""
    results = {OURS: [measure(row, Adaptive, seed) for seed in seeds]}
    for name in names:
        results[name] = [measure(row, POLICIES[name], seed, use_limits=False) for seed in seeds]
    return results


def misses(row: LimitsRow, result: LimitsResult) -> list[str]:
    """Return the required figures that a result misses."""
    required = row.required
    if required is None:
        bounds = [("used", result.used, ">=", STALLED), ("429s", result.rate_limited, "<=", FLOODING)]
    else:
        bounds = [
            ("429s", result.rate_limited, "<=", required.rate_limited),
            ("used after 5 s", result.used, ">=", required.used),
            ("used in the second half", result.second_half, ">=", required.used),
            ("first minute", result.first_minute, ">=", required.first_minute),
            ("bans", result.bans, "<=", required.bans),
            ("smallest share", result.smallest_share, ">=", required.smallest_share),
            ("trials lost", result.lost, "<=", 0),
        ]
    return [
        f"{name} {value:.4g} (required {sign} {bound:g})"
        for name, value, sign, bound in bounds
        if (value < bound if sign == ">=" else value > bound)
    ]


def _cell(results: Sequence[LimitsResult]) -> str:
    first = results[0]
    means = [statistics.fmean(getattr(r, name) for r in results) for name in FIELDS]
    text = f"{means[0]:.1f} / {means[1]:.1f} / {means[2]:.0f} / {means[3]:.2f}"
    if first.smallest_share < 100:
        text += f" / {min(result.smallest_share for result in results):.0f}"
    bans = sum(result.bans for result in results)
    return text + (f" / {bans} bans" if bans else "")


def cpu_per_call(provider: OpenAI | Anthropic, calls: int = 20_000) -> float:
    """Return the microseconds of CPU that the limits add to a call: parsing, admission, and counting."""
    request = Request(characters=4000, input_tokens=1000, output_tokens=200, max_tokens=500)
    all_headers = [provider.headers(t / 10) for t in range(100)]
    limits, size, usage = Limits(), CallSize(4000, 500), {"input_tokens": 1000, "output_tokens": 200}
    provider.start(0.0, request)
    started = time.process_time()
    for number in range(calls):
        t = float(number)
        limits.impossible(size)
        call = limits.admit(size, t)
        assert not isinstance(call, float), "there is room for a call per second"
        limits.read(call, advertised_limits(all_headers[number % 100], 1_793_491_200.0 + t), t + 2.0, is_429=False)
        limits.end(call, usage)
    return 1e6 * (time.process_time() - started) / calls


def check_cpu(checks: Checks) -> None:
    """Check the CPU per call with the headers of OpenAI and Anthropic; the best of five, because others use the machine."""
    openai = OpenAI(limits=(*per_minute(requests=500, tokens=200_000), Limit(kind="requests", amount=1e4, window=DAY)))
    anthropic = Anthropic(limits=per_minute(requests=1000, input_tokens=450_000, output_tokens=90_000))
    for name, provider in (("OpenAI", openai), ("Anthropic", anthropic)):
        best = min(cpu_per_call(provider) for _ in range(5))
        checks.check(f"CPU per call, headers of {name}: <= {CPU:.0f} us", f"{best:.1f} us", passed=best <= CPU)


def main(argv: Sequence[str]) -> int:
    """Print the tables and the checks; return 1 if a required figure is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks limits", description=__doc__)
    parser.add_argument("--family", action="append", choices=LIMITS_ROWS, help="family of rows (repeatable; default: all)")
    parser.add_argument("--rows", default="", metavar="REGEX", help="only rows whose name matches")
    parser.add_argument("--seed", type=int, default=0, help="first seed (default: 0)")
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds (default: 1)")
    parser.add_argument("--quick", action="store_true", help="a third of the rows, ours only")
    parser.add_argument("--only-ours", action="store_true", help="all rows, ours only")
    options = parser.parse_args(argv)
    seeds = range(options.seed, options.seed + options.seeds)
    names = [] if options.quick or options.only_ours else list(POLICIES)
    checks = Checks()
    print(f"seeds {', '.join(map(str, seeds))}; {LEGEND}")
    for family in options.family or LIMITS_ROWS:
        rows = select(family, options.rows, quick=options.quick)
        if not rows:
            continue
        print(f"\n{family:<44}" + "".join(f"{name:>36}" for name in [OURS, *names]))
        for row in rows:
            results = compare(row, seeds, names)
            print(f"{row.name:<44.44}" + "".join(f"{_cell(results[name]):>36}" for name in [OURS, *names]), flush=True)
            for seed, result in zip(seeds, results[OURS], strict=True):
                missed = misses(row, result)
                checks.failed += bool(missed)
                if missed:
                    print(f"  FAIL (seed {seed}): {', '.join(missed)}")
    print()
    check_cpu(checks)
    print("all required figures hold" if not checks.failed else f"{checks.failed} rows or figures miss what is required")
    return 1 if checks.failed else 0
