"""Random 429s: some endpoints rate-limit a share of all calls at any load.

If a limit is exceeded, many calls in a row are rate limited, and none once the pace is below it. Random 429s occur singly,
and as often at a lower pace. So unexplained 429s are counted; if there are many, a short test at a lower pace
shows whether they become fewer. If not, their share is stored, and they are ignored from then on.
"""

import math
from typing import Final

from attrs import define, field

from evaljournal.runner.concurrency.start import FEW, MANY, MEASURED_CALLS, SEVERAL, WINDOW, Start

_TESTED_SHARE: Final = 0.02
"""Minimum share of random 429s for which a test is worth its cost."""
TEST_PACE: Final = 0.8
"""Pace of a test, as a share of the accepted rate: below any rate limit that could explain the 429s."""
_TEST_EXPECTED_429S: Final = 10
"""429s expected in a test if they are random; none means a rate limit. (A test begins where 429s happen to be frequent, so
fewer occur.)"""
_LONGEST_TEST: Final = int(_TEST_EXPECTED_429S / _TESTED_SHARE)
"""Starts of a test. After twice as many, counts of random 429s are halved."""
_LARGEST_SHARE: Final = 0.9
"""More are not random."""


@define(kw_only=True)
class Random429s:
    """Unexplained 429s, and the test in progress. A stored share falls as soon as fewer 429s are counted."""

    share: float = 0.0
    """Share of starts that are rate limited at random."""
    first_start: int = 1
    """The first start that is counted."""
    signs: list[Start] = field(factory=list[Start])
    """Unexplained 429s since `first_start`."""
    limited_calls: int = 0
    """All 429s since the first sign, explained ones included."""
    observed_share: float = 0.0
    """Share of 429s that led to the current test."""
    last_test_start: int = 0
    """Last start of the test, which begins at `first_start`; 0 while there is none."""
    result_at: float = math.inf
    """When the result of the test will be known."""

    @property
    def is_testing(self) -> bool:
        """Whether a test is in progress."""
        return self.last_test_start > 0

    def expected(self, starts: int) -> float:
        """Return how many of `starts` may be rate limited at random: the mean plus several standard deviations."""
        mean = self.share * starts
        return mean + SEVERAL * math.sqrt(mean)

    def count(self, start: Start, in_flight: int) -> float | None:
        """Count an unexplained 429 with this many in flight; return the accepted calls per second if a test should begin."""
        if start.order < self.first_start:
            return None
        if not self.signs:
            self.limited_calls = 1
        self.signs.append(start)
        if self.is_testing:
            return None
        starts = start.order - self.first_start + 1
        self.observed_share = len(self.signs) / starts
        if starts > 2 * _LONGEST_TEST:
            self.first_start, self.limited_calls = start.order - _LONGEST_TEST, len(self.signs) // 2
            self.signs = self.signs[-self.limited_calls :]
            self.share = min(self.share, self.observed_share)
        accepted_calls = start.order - self.signs[0].order - self.limited_calls
        seconds = start.t - self.signs[0].t
        is_measured = accepted_calls >= max(MEASURED_CALLS, in_flight) and seconds > 0
        if len(self.signs) < MANY + self.expected(starts) or not is_measured or self.observed_share <= _TESTED_SHARE:
            return None
        return accepted_calls / seconds  # Between two 429s a rate limit grants exactly its rate.

    def begin_test(self, newest_start: int) -> None:
        """Test the starts after `newest_start`."""
        self.restart(newest_start)
        self.last_test_start = newest_start + max(int(_TEST_EXPECTED_429S / self.observed_share), 2 * WINDOW)

    def end_test(self, last_start: int) -> bool:
        """End the test with the start `last_start`; return whether the 429s are random."""
        is_random = len(self.signs) >= FEW
        if self.signs:
            share = len(self.signs) / (last_start - self.first_start + 1)
            self.share = min(max(share, self.observed_share if is_random else 0.0), _LARGEST_SHARE)
        self.restart(last_start)
        return is_random

    def restart(self, newest_start: int) -> None:
        """Cancel the test, if there is one, and count the starts after `newest_start`."""
        self.last_test_start, self.result_at = 0, math.inf
        self.first_start, self.signs = newest_start + 1, []
