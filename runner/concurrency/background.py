"""Random 429s: some endpoints reject a share of all calls at any load.

An exceeded limit rejects many calls in a row, and none once the pace is below it. Random 429s occur singly, and as often at a
lower pace. So 429s that no known limit explains are counted; if there are many, a short test at a lower pace shows whether they
become fewer. If not, their share is stored, and they are ignored from then on.
"""

import math

from attrs import define

from runner.concurrency.constants import (
    MEASURED_CALLS,
    MEMORY,
    TEST_ENOUGH,
    TEST_EXPECTED,
    TEST_SHORTEST,
    TEST_SIGNS,
    TEST_TOLERATED,
    TESTED_SHARE,
)
from runner.concurrency.start import Start


@define(kw_only=True)
class Background:
    """Counts of starts and of unexplained 429s, and the test in progress."""

    longest_test: float
    """Starts of the longest test that is worth its cost."""
    share: float = 0.0
    """Share of starts that are rate limited at random."""
    first: int = 0
    """The start from which on starts are counted."""
    limited: int = 0
    """Unexplained 429s since then."""
    first_sign: Start | None = None
    """The first of them."""
    limited_before: int = 0
    """All 429s up to that one."""
    observed: float = 0.0
    """Share of 429s that led to the current test."""
    signs: int = 0
    """429s that led to it."""
    test_from: int = 0
    """First start of the test; 0 while there is none."""
    test_to: int = 0
    """Last start of the test."""
    parts: int = 1
    """2 if the result was unclear and the test continues."""
    rate: float = 0.0
    """Accepted calls per second between the first sign and the last."""

    @property
    def is_testing(self) -> bool:
        """Whether a test is in progress."""
        return self.test_from > 0

    @property
    def is_decided(self) -> bool:
        """Whether there were enough 429s in the current test."""
        return self.is_testing and self.limited >= TEST_ENOUGH * self.parts

    def expected(self, starts: int) -> float:
        """Return how many of `starts` may be rate limited at random: the mean and four standard deviations."""
        mean = self.share * starts
        return mean + 4 * math.sqrt(mean)

    def count(self, start: Start, in_flight: int, all_limited: int) -> bool:
        """Count an unexplained 429 with this many in flight; return whether a test should begin.

        `all_limited` is the number of 429s so far, explained ones included.
        """
        order = start.order
        if self.is_testing:
            self.limited += order >= self.test_from
            return False
        if order < self.first:
            return False
        self.limited += 1
        if self.first_sign is None:
            self.first_sign, self.limited_before = start, all_limited
        starts = order - self.first + 1
        self.observed = self.limited / starts
        if starts > MEMORY:
            self.first, self.limited = order - MEMORY // 2, (self.limited + 1) // 2
            self.first_sign, self.limited_before = start, all_limited
            self.share = min(self.share, self.observed)
        accepted = order - self.first_sign.order - (all_limited - self.limited_before)
        seconds = start.t - self.first_sign.t
        if self.limited < TEST_SIGNS + self.expected(starts) or accepted < max(MEASURED_CALLS, in_flight) or seconds <= 0:
            return False
        # Between two 429s a rate limit grants exactly its rate.
        self.rate = accepted / seconds
        return self.observed > max(TESTED_SHARE, TEST_EXPECTED / self.longest_test)

    def begin_test(self, newest: int) -> None:
        """Test the starts after `newest`."""
        self.test_from = newest + 1
        self.test_to = newest + max(int(TEST_EXPECTED / self.observed), TEST_SHORTEST)
        self.signs, self.limited = self.limited, 0

    def extend_test(self, newest: int) -> bool:
        """If the result is unclear, test as many starts again after `newest`, once; return whether that is done."""
        if self.parts > 1 or not 0 < self.limited <= TEST_TOLERATED:
            return False
        self.test_to, self.parts = newest + self.test_to - self.test_from + 1, 2
        return True

    def end_test(self, last: int) -> bool:
        """End the test with the start `last`; return whether the 429s are random."""
        is_random = self.limited > TEST_TOLERATED * self.parts
        if self.limited:
            share = self.limited / (last - self.test_from + 1)
            self.share = min(max(share, self.observed if is_random else 0.0), 0.9)
        self.restart(last)
        return is_random

    def restart(self, newest: int) -> None:
        """Cancel the test, if there is one, and count the starts after `newest`."""
        self.test_from, self.test_to, self.parts = 0, 0, 1
        self.first, self.limited, self.first_sign = newest + 1, 0, None
