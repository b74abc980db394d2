"""Scorers: those that come with the package, and what a scorer is."""

from runner.scorers.builtin import (
    NAMES,
    CloseTo,
    MissingExpected,
    Regex,
    Similarity,
    close_to,
    contains,
    exact,
    f1,
    iexact,
    json_equal,
    judge,
    named,
    one_of,
    regex,
    similarity,
)

__all__ = [
    "NAMES",
    "CloseTo",
    "MissingExpected",
    "Regex",
    "Similarity",
    "close_to",
    "contains",
    "exact",
    "f1",
    "iexact",
    "json_equal",
    "judge",
    "named",
    "one_of",
    "regex",
    "similarity",
]
