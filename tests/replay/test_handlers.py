"""Dispatch of events to methods by name."""

import pytest

from evaljournal.journal.events import TrialScored
from evaljournal.replay.state.handlers import handlers


class _Scores:
    def _on_trial_scored(self) -> str:
        return "scored"


class _Misspelled:
    def _on_trial_scorde(self) -> None: ...


def test_a_method_handles_the_event_that_it_names() -> None:
    """Other events have no handler."""
    assert {TrialScored: _Scores._on_trial_scored} == handlers(_Scores)


def test_a_handler_of_an_unknown_event_is_rejected() -> None:
    """A misspelled method would otherwise never be called."""
    with pytest.raises(TypeError, match="_Misspelled has handlers of unknown events: trial_scorde"):
        handlers(_Misspelled)
