"""Decisions: whether a score got worse or better. One rule for `compare`, the report and Markdown.

A score is worse or better if the two-sided test of its paired difference has a p-value below 5 %, Holm-corrected over the
scores of one command, and if the difference is not negligible. The test is exact for passes and for few cases; otherwise it
draws signs, with a constant seed. A gate asks another question, whether a score is worse, and has a rule of its own: `gate`.
"""

from collections.abc import Mapping
from typing import Final, TypeVar

import attrs

from evaljournal.replay.results.pairing import PairedDifference
from evaljournal.replay.statistics import LEVEL, holm

NEGLIGIBLE: Final = 0.01
"""A difference below this share of the baseline's mean is none."""
CLOCK_RESOLUTION: Final = 1e-6
"""Seconds to which times are recorded."""
KeyT = TypeVar("KeyT")


def decide(differences: Mapping[KeyT, PairedDifference], *, is_time: bool = False) -> dict[KeyT, PairedDifference]:
    """Return the differences with their verdicts; they are the scores of one command, and tested together.

    With `is_time` they are seconds: less is better, and a difference below the clock's resolution is none.
    """
    p_values = [difference.p for difference in differences.values() if difference.p is not None]
    comparisons, adjusted_p_values = len(p_values), iter(holm(p_values))
    return {
        key: difference if difference.p is None else _decided(difference, next(adjusted_p_values), comparisons, is_time=is_time)
        for key, difference in differences.items()
    }


def _decided(difference: PairedDifference, p_adjusted: float, comparisons: int, *, is_time: bool) -> PairedDifference:
    amount = difference.difference or 0.0
    negligible = max(NEGLIGIBLE * abs(difference.mean_a or 0.0), CLOCK_RESOLUTION if is_time else 0.0)
    is_found = p_adjusted < 1 - LEVEL and abs(amount) >= negligible
    return attrs.evolve(
        difference,
        verdict=("worse" if (amount < 0) != is_time else "better") if is_found else "no_difference_found",
        p_adjusted=p_adjusted,
        comparisons=comparisons,
    )
