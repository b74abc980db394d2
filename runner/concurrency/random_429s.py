"""Random 429s: some endpoints rate-limit a share of all calls at any load.

If a limit is exceeded, many calls in a row are rate limited, and none once the pace is below it. Random 429s occur singly,
and as often at a lower pace. So 429s that no known limit explains are counted; if there are many, a short test at a lower
pace shows whether they become fewer. If not, their share is stored, and they are ignored from then on.
"""

import math
from typing import Final

from attrs import define

from evaljournal.runner.concurrency.constants import FEW, MANY, MEASURED_CALLS, WINDOW
from evaljournal.runner.concurrency.start import Start

_TESTED_SHARE: Final = 0.02
"""Minimum share of random 429s for which a test is worth its cost. With 0.05: +0.6."""
TEST_PACE: Final = 0.8
"""Pace of a test, as a share of the accepted rate: below any rate limit that could explain the 429s. With 0.9: +0.3."""
_TEST_EXPECTED_429S: Final = 10
"""429s expected in a test if they are random; none means a rate limit. A test begins where 429s happen to be frequent, so fewer
occur: with 6, and one tolerated, 1 % of random 429s were taken for a rate limit in one of three tests."""
_MEMORY: Final = int(2 * _TEST_EXPECTED_429S / _TESTED_SHARE)
"""Starts after which counts of random 429s are halved: twice the longest test."""


@define(kw_only=True)
class Random429s:
    """Counts of starts and of unexplained 429s, and the test in progress."""

    share: float = 0.0
    """Share of starts that are rate limited at random."""
    first_start: int = 0
    """The first start that is counted."""
    unexplained_429s: int = 0
    """Unexplained 429s since `first_start`."""
    first_sign: Start | None = None
    """The start of the first unexplained 429."""
    total_429s_before: int = 0
    """All 429s up to the first sign."""
    observed_share: float = 0.0
    """Share of 429s that led to the current test."""
    signs: int = 0
    """429s that led to the current test."""
    first_test_start: int = 0
    """First start of the test; 0 while there is none."""
    last_test_start: int = 0
    """Last start of the test."""
    rate: float = 0.0
    """Accepted calls per second between the first sign and the last."""

    @property
    def is_testing(self) -> bool:
        """Whether a test is in progress."""
        return self.first_test_start > 0

    def expected(self, starts: int) -> float:
        """Return how many of `starts` may be rate limited at random: the mean plus four standard deviations."""
        mean = self.share * starts
        return mean + 4 * math.sqrt(mean)

    def count(self, start: Start, in_flight: int, total_429s: int) -> bool:
        """Count an unexplained 429 with this many in flight; return whether a test should begin.

        `total_429s` is the number of 429s so far, explained ones included.
        """
        order = start.order
        if self.is_testing:
            self.unexplained_429s += order >= self.first_test_start
            return False
        if order < self.first_start:
            return False
        self.unexplained_429s += 1
        if self.first_sign is None:
            self.first_sign, self.total_429s_before = start, total_429s
        starts = order - self.first_start + 1
        self.observed_share = self.unexplained_429s / starts
        if starts > _MEMORY:
            self.first_start, self.unexplained_429s = order - _MEMORY // 2, (self.unexplained_429s + 1) // 2
            self.first_sign, self.total_429s_before = start, total_429s
            self.share = min(self.share, self.observed_share)
        accepted_calls = order - self.first_sign.order - (total_429s - self.total_429s_before)
        seconds = start.t - self.first_sign.t
        is_measured = accepted_calls >= max(MEASURED_CALLS, in_flight) and seconds > 0
        if self.unexplained_429s < MANY + self.expected(starts) or not is_measured:
            return False
        # Between two 429s a rate limit grants exactly its rate.
        self.rate = accepted_calls / seconds
        return self.observed_share > _TESTED_SHARE

    def begin_test(self, newest_start: int) -> None:
        """Test the starts after `newest_start`."""
        self.first_test_start = newest_start + 1
        self.last_test_start = newest_start + max(int(_TEST_EXPECTED_429S / self.observed_share), 2 * WINDOW)
        self.signs, self.unexplained_429s = self.unexplained_429s, 0

    def end_test(self, last_start: int) -> bool:
        """End the test with the start `last_start`; return whether the 429s are random."""
        is_random = self.unexplained_429s > FEW - 1
        if self.unexplained_429s:
            share = self.unexplained_429s / (last_start - self.first_test_start + 1)
            self.share = min(max(share, self.observed_share if is_random else 0.0), 0.9)
        self.restart(last_start)
        return is_random

    def restart(self, newest_start: int) -> None:
        """Cancel the test, if there is one, and count the starts after `newest_start`."""
        self.first_test_start, self.last_test_start = 0, 0
        self.first_start, self.unexplained_429s, self.first_sign = newest_start + 1, 0, None
