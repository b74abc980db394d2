"""Running sums of one scorer's values: enough for the mean and its standard error at any time.

A value can be removed when a later one supersedes it. Repeats of a case are grouped once there are any.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final, Literal, TypeGuard

import attrs

from evaljournal.replay.statistics import ROUNDING, Estimate, mean_of_fractions, mean_of_numbers, mean_of_shares

LARGEST: Final = 1e100
"""The largest number that is included in a mean; the squares of a million of these can still be summed."""


def is_summable(value: object) -> TypeGuard[float]:
    """Return whether a value can be part of a mean; booleans can."""
    return isinstance(value, (int, float)) and -LARGEST <= value <= LARGEST


def main_scorer(kinds: Iterable[tuple[str, str]]) -> str | None:
    """Return the scorer to show where only one fits: the first with passes, otherwise with numbers, otherwise the first."""
    return min(kinds, key=lambda item: {"pass": 0, "number": 1}.get(item[1], 2), default=(None, ""))[0]


@attrs.define
class Tally:
    """Sums of one scorer's values.

    Numbers are summed relative to the first one, so that small differences of large numbers are not lost to rounding.
    """

    scored: int = 0
    failed: int = 0
    """Outputs for which the scorer failed."""
    error: str = ""
    """Its last error, shortened."""
    numbers: int = 0
    """Values in the mean; true counts as 1, false as 0."""
    booleans: int = 0
    zeros_and_ones: int = 0
    """Numbers that are 0 or 1, booleans included."""
    outside_unit: int = 0
    """Numbers below 0 or above 1."""
    out_of_range: int = 0
    """Numbers that are not finite or exceed `LARGEST`; they are excluded from the mean."""
    labels: Counter[str] = attrs.field(factory=Counter)
    origin: float = 0.0
    """Subtracted from each number in the sums below."""
    total: float = 0.0
    squares: float = 0.0
    """Sum of the squared sums of the cases."""
    by_case: dict[str, tuple[int, float]] | None = None
    """Case → count and sum of its numbers; None while no case has repeats."""
    products: float = 0.0
    """With repeats: the sum over cases of sum times count."""
    sizes: int = 0
    """With repeats: the sum over cases of the squared count."""
    version: str = ""
    _older_versions: dict[str, int] = attrs.field(factory=dict)
    """Older version → number of its values; all others are of the current version."""

    def add(self, value: object, sign: int = 1, case: str = "") -> None:
        """Add a value, or (`sign` = -1) remove it."""
        self.scored += sign
        if isinstance(value, str):
            self.labels[value] += sign
        elif not is_summable(value):
            self.out_of_range += sign
        else:
            is_boolean = isinstance(value, bool)
            is_zero_or_one = is_boolean or value in (0, 1)
            if not self.numbers:  # Relative to 0 for passes, so that their share is exact.
                self.origin = 0.0 if is_zero_or_one else float(value)
                self.total = self.squares = self.products = 0.0
            if is_zero_or_one:
                self.zeros_and_ones += sign
                self.booleans += sign * is_boolean
            elif not 0 < value < 1:
                self.outside_unit += sign
            self.numbers += sign
            value -= self.origin
            self.total += sign * value
            if self.by_case is None:
                self.squares += sign * value * value
            else:
                self._add_to_case(case, value, sign)

    def _add_to_case(self, case: str, value: float, sign: int) -> None:
        assert self.by_case is not None
        n, total = self.by_case.get(case, (0, 0.0))
        if sign < 0:
            n, total = n - 1, total - value

        self.squares += sign * value * (2 * total + value)
        self.products += sign * (total + value * (n + 1))
        self.sizes += sign * (2 * n + 1)

        if sign > 0:
            n, total = n + 1, total + value
        if n:
            self.by_case[case] = n, total
        else:
            del self.by_case[case]

    def group_by_case(self, scores: Iterable[tuple[str, object]]) -> None:
        """Group values by case from here on; `scores` are the cases and values so far, one per case."""
        self.by_case = {case: (1, float(value) - self.origin) for case, value in scores if is_summable(value)}
        self.products, self.sizes = self.total, self.numbers

    def set_version(self, version: str) -> None:
        """Set the version of the values that follow."""
        if count := self.scored - self.from_older_version:
            self._older_versions[self.version] = count
        self.version = version
        self._older_versions.pop(version, None)

    def remove(self, value: object, version: str, case: str = "") -> None:
        """Remove a value that was superseded or whose trial was withdrawn."""
        self.add(value, -1, case)
        if version != self.version:
            self._older_versions[version] -= 1
            if not self._older_versions[version]:
                del self._older_versions[version]

    @property
    def from_older_version(self) -> int:
        return sum(self._older_versions.values())

    @property
    def versions(self) -> int:
        return len(self._older_versions) + (self.scored > self.from_older_version)

    @property
    def cases(self) -> int:
        """Cases with at least one number."""
        return self.numbers if self.by_case is None else len(self.by_case)

    @property
    def kind(self) -> Literal["pass", "number", "label", "mixed", "nothing"]:
        labels = self.scored - self.numbers - self.out_of_range
        if not self.scored:
            return "nothing"
        if labels:
            return "label" if labels == self.scored else "mixed"
        return "pass" if self.booleans == self.scored else "number"

    @property
    def passed(self) -> int:
        """Number of passes, if all values are booleans."""
        return round(self.total + self.numbers * self.origin)

    @property
    def estimate(self) -> Estimate | None:
        if not self.numbers:
            return None
        shift = self.total / self.numbers
        products, sizes = (self.total, self.numbers) if self.by_case is None else (self.products, self.sizes)
        scatter = max(0.0, self.squares - 2 * shift * products + shift**2 * sizes)
        if scatter < ROUNDING * self.squares:
            scatter = 0.0  # Rounding errors of removed values.
        is_share = self.zeros_and_ones == self.numbers
        estimate = mean_of_numbers if self.outside_unit else mean_of_shares if is_share else mean_of_fractions
        return estimate(self.origin + shift, n=self.numbers, cases=self.cases, scatter=scatter)

    @property
    def mean(self) -> float | None:
        return self.origin + self.total / self.numbers if self.numbers else None

    def passes_by_case(self) -> Counter[tuple[int, int]]:
        """Return (values, passes) → number of cases; empty while no case has repeats."""
        return Counter((n, round(total + n * self.origin)) for n, total in (self.by_case or {}).values())
