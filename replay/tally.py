"""What one scorer has said so far, added up value by value: enough for its mean and its error at any moment.

A value can be taken back, because a later one supersedes it. Repeats of a case are taken together, once there are any.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final, Literal, TypeGuard

import attrs

from replay.statistics import DUST, Estimate, mean_of_numbers, mean_of_parts, mean_of_shares

LARGEST: Final = 1e100
"""The largest number that goes into a mean: the squares of a million such can still be summed."""


def can_be_summed(value: object) -> TypeGuard[float]:
    """Say whether a value is a number that a mean can be taken of; true and false are."""
    return isinstance(value, (int, float)) and -LARGEST <= value <= LARGEST


@attrs.define
class Tally:
    """What one scorer has said so far, in sums: a run of a million trials is shown several times a second.

    Sums are of what a number differs from the first one, so that a mean that is large beside the differences does not
    swallow them.
    """

    scored: int = 0
    failed: int = 0
    """How many outputs the scorer itself failed at."""
    error: str = ""
    """What it said the last time that it failed, in short."""
    numbers: int = 0
    """Values that are in the mean; true counts as 1, false as 0."""
    verdicts: int = 0
    """Those of them that are true or false."""
    bits: int = 0
    """Numbers that are 0 or 1, those that are true or false among them."""
    off_scale: int = 0
    """Numbers that do not lie between 0 and 1."""
    beyond: int = 0
    """Numbers that are not finite, or larger than `LARGEST`; they are counted, and not in the mean."""
    labels: Counter[str] = attrs.field(factory=Counter)
    origin: float = 0.0
    """What the sums below count from."""
    total: float = 0.0
    squares: float = 0.0
    """The sum of the squares of the cases' sums."""
    by_case: dict[str, tuple[int, float]] | None = None
    """Case → how many numbers it has, and their sum; None as long as no case has repeats, and so each has one number."""
    products: float = 0.0
    """Where cases have repeats, the sum of each case's sum times its numbers."""
    sizes: int = 0
    """Where cases have repeats, the sum of the squares of the cases' numbers."""
    version: str = ""
    """The version of the scorer that spoke last, or was adopted since."""
    _older: dict[str, int] = attrs.field(factory=dict)
    """Another version → how many values are still its own; those of the last are the rest."""

    def add(self, value: object, times: int = 1, case: str = "") -> None:
        """Count a value, or (-1) take it back because a later one supersedes it."""
        self.scored += times
        if isinstance(value, str):
            self.labels[value] += times
        elif not can_be_summed(value):
            self.beyond += times
        else:
            is_verdict = isinstance(value, bool)
            is_bit = is_verdict or value in (0, 1)
            if not self.numbers:  # Passes are counted from 0, so that their share has no rounding in it.
                self.origin = 0.0 if is_bit else float(value)
                self.total = self.squares = self.products = 0.0
            if is_bit:
                self.bits += times
                self.verdicts += times * is_verdict
            elif not 0 < value < 1:
                self.off_scale += times
            self.numbers += times
            value -= self.origin
            self.total += times * value
            if self.by_case is None:
                self.squares += times * value * value
            else:
                self._add_to(case, value, times)

    def _add_to(self, case: str, value: float, times: int) -> None:
        """Count a value, or take it back, among the others of its case."""
        assert self.by_case is not None
        n, total = self.by_case.get(case, (0, 0.0))
        if times < 0:
            n, total = n - 1, total - value
        self.squares += times * value * (2 * total + value)
        self.products += times * (total + value * (n + 1))
        self.sizes += times * (2 * n + 1)
        if times > 0:
            n, total = n + 1, total + value
        if n:
            self.by_case[case] = n, total
        else:
            del self.by_case[case]

    def know_repeats(self, scores: Iterable[tuple[str, object]]) -> None:
        """Tell repeats apart from here on; `scores` are the cases and values so far, one for each case."""
        self.by_case = {case: (1, float(value) - self.origin) for case, value in scores if can_be_summed(value)}
        self.products, self.sizes = self.total, self.numbers

    def hear(self, version: str) -> None:
        """Take what is said from here on for that of another version of the scorer."""
        if own := self.scored - self.from_older_version:
            self._older[self.version] = own
        self.version = version
        self._older.pop(version, None)  # It may have spoken before.

    def take_back(self, value: object, version: str, case: str = "") -> None:
        """Take back a value that is superseded, or no longer counts."""
        self.add(value, -1, case)
        if version != self.version:
            self._older[version] -= 1
            if not self._older[version]:
                del self._older[version]

    @property
    def from_older_version(self) -> int:
        """How many values are those of another version of the scorer than the one that spoke last."""
        return sum(self._older.values())

    @property
    def versions(self) -> int:
        """How many versions of the scorer the values are of."""
        return len(self._older) + (self.scored > self.from_older_version)

    @property
    def cases(self) -> int:
        """How many cases have at least one number."""
        return self.numbers if self.by_case is None else len(self.by_case)

    @property
    def kind(self) -> Literal["pass", "number", "label", "mixed", "nothing"]:
        """What sort of values the scorer gives."""
        labels = self.scored - self.numbers - self.beyond
        if not self.scored:
            return "nothing"
        if labels:
            return "label" if labels == self.scored else "mixed"
        return "pass" if self.verdicts == self.scored else "number"

    @property
    def passed(self) -> int:
        """How many passed, where all values are true or false."""
        return round(self.total + self.numbers * self.origin)

    @property
    def estimate(self) -> Estimate | None:
        """The mean of all numbers, and how sure it is; None where there is none."""
        if not self.numbers:
            return None
        shift = self.total / self.numbers
        products, sizes = (self.total, self.numbers) if self.by_case is None else (self.products, self.sizes)
        scatter = max(0.0, self.squares - 2 * shift * products + shift**2 * sizes)
        if scatter < DUST * self.squares:
            scatter = 0.0  # They are all alike, but for what is left of sums that were taken back.
        estimate = mean_of_numbers if self.off_scale else mean_of_shares if self.bits == self.numbers else mean_of_parts
        return estimate(self.origin + shift, n=self.numbers, cases=self.cases, scatter=scatter)

    @property
    def mean(self) -> float | None:
        """The mean of all numbers; None where there is none."""
        return self.origin + self.total / self.numbers if self.numbers else None

    def passes_by_case(self) -> Counter[tuple[int, int]]:
        """Count the cases that have so many verdicts, so many of them passes; empty while no case has repeats."""
        return Counter((n, round(total + n * self.origin)) for n, total in (self.by_case or {}).values())
