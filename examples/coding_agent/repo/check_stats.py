"""The tests: `python check_stats.py`. `--score-files` restores this file, in case the agent has changed it."""

import os

import stats

MEAN, EVEN_MEDIAN = 2.0, 2.5

assert stats.mean([1.0, 2.0, 3.0]) == MEAN, "mean"
if os.environ.get("EVALJOURNAL_TRIAL", "").startswith("median"):
    median = getattr(stats, "median")  # noqa: B009  # the agent adds it
    assert median([3.0, 1.0, 2.0]) == MEAN, "median of three"
    assert median([4.0, 1.0, 2.0, 3.0]) == EVEN_MEDIAN, "median of four"
