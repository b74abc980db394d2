"""A slice of `python -m benchmarks limits`: the required figures on some rows, for four minutes of virtual time.

Every third row of the slice runs in every test run; `pytest -m exhaustive` runs the others.
"""

import pytest
from attrs import evolve

from benchmarks.limits import misses
from benchmarks.simulated.limits_rows import LIMITS_ROWS, LimitsRow, measure
from evaljournal.runner.concurrency.adaptive import Adaptive

pytestmark = pytest.mark.slow

ROWS = {row.name: evolve(row, seconds=240.0) for rows in LIMITS_ROWS.values() for row in rows}
SLICE = [
    "OpenAI, 200k tokens, at admission",
    "OpenAI, replies out of order",
    "OpenAI, enforced per second",
    "OpenAI, requests of the day stated",
    "Azure, windows of 10 s",
    "Groq, 300k tokens",
    "Anthropic, 450k input tokens",
    "declared 600 rpm, Gemini",
    "declared 200k tpm, OpenAI",
    "100-8,000 tokens, OpenAI",
    "agents, 8 calls, advertised",
    "agents, 8 calls, declared",
    "another tenant, 200k tokens",
    "four processes, 200k tokens",
    "bans, advertised",
    "bans, declared, enforced per second",
    "remaining is always 0",
    "bucket of 1 s",
    "bucket of 10 s, at admission",
    "sliding window",
    "Mistral, windows of a minute",
    "Mistral, at admission",
    "nearly empty at the start",
    "two bursts, 200k tokens",
    "two bursts, enforced per second",
    "remaining is always 0 of 100, for a day",
    "a limit of 2 tokens",
    "a renewal period of 27,777 hours",
]


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(ROWS[name], id=name, marks=pytest.mark.exhaustive if number % 3 else ())
        for number, name in enumerate(SLICE)
    ],
)
def test_required_figures(row: LimitsRow) -> None:
    """The required figures hold: used shares, 429s, bans, and shares of several processes."""
    assert [] == misses(row, measure(row, Adaptive, seed=7))


def test_few_requests() -> None:
    """A declared 30 per minute, enforced as one per 2 s, is used; for ten minutes, because four would have only 120 calls."""
    [row] = (row for row in LIMITS_ROWS["declared"] if row.name == "declared 30 rpm, enforced per 2 s")

    assert [] == misses(row, measure(row, Adaptive, seed=7))


def test_the_figures_are_missed_without_known_limits() -> None:
    """A policy that has to infer the limits does not reach the figures, so they show something."""
    row = ROWS["bans, declared, enforced per second"]

    assert [] != misses(row, measure(row, Adaptive, seed=7, use_limits=False))


def test_names_of_rows_are_unique() -> None:
    """A name selects one row."""
    assert len(ROWS) == sum(map(len, LIMITS_ROWS.values()))
