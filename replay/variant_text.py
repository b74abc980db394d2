"""The variants of a run as text, one line for each."""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from replay.state import RunState
from replay.tally import Tally
from replay.text import digits, money, printable
from replay.variant_totals import Totals

_MAX_VARIANTS: Final = 8
"""Maximum number of variants to list."""
_MAX_SCORES: Final = 3
"""Maximum number of scores in a line."""
_COSTS: Final = ("cost", "judge.cost")


def variant_lines(state: RunState) -> Iterator[str]:
    """Yield results of the first variants: `mini   60 of 60 done · 2 failed · exact 91.4 % · $0.034`."""
    rows = list(islice(variant_rows(state), _MAX_VARIANTS))
    width = max((len(name) for name, _ in rows), default=0)
    yield from (f"{name:<{width}}  {results}" for name, results in rows)
    count = sum(totals.total > 0 for totals in state.variants.values())
    if count > _MAX_VARIANTS:
        yield f"… and {count - _MAX_VARIANTS:,} more"


def variant_rows(state: RunState) -> Iterator[tuple[str, str]]:
    """Yield the name and the results of each variant."""
    for name, totals in state.variants.items():
        if totals.total:
            yield printable(name, 40) or "(no variant)", variant_result(totals)


def variant_result(totals: Totals) -> str:
    """Return the results of a variant in one line: `60 of 60 done · 2 failed · exact 91.4 % · $0.034`."""
    parts = [f"{totals.done:,} of {totals.total:,} done"]
    if totals.failed:
        parts.append(f"{totals.failed:,} failed")
    means = [(scorer, mean) for scorer, tally in totals.scores.items() if (mean := mean_text(tally))]
    parts += [f"{printable(scorer, 24)} {mean}" for scorer, mean in means[:_MAX_SCORES]]
    if any(unit in totals.usage for unit in _COSTS):
        parts.append(money(sum(totals.usage[unit] for unit in _COSTS)))
    return " · ".join(parts)


def mean_text(tally: Tally) -> str:
    """Return the mean of a score as text, of a pass/fail score as a percentage; empty for labels."""
    if tally.mean is None:
        return ""
    return f"{100 * tally.mean:.1f} %" if tally.kind == "pass" else digits(tally.mean, 3)
