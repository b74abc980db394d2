"""Summaries of runs without a disk."""

import itertools

from evaljournal.journal import Event
from evaljournal.replay.results.summary import Summary, summarize
from tests.replay.trial_events import state_of


def chain(*trials: list[Event]) -> list[Event]:
    """Concatenate lists of events."""
    return list(itertools.chain.from_iterable(trials))


def summary_of(*trials: list[Event]) -> Summary:
    """Return the summary of a run with these events."""
    return summarize(state_of(chain(*trials)))
