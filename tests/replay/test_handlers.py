"""Dispatch of events to methods by name."""

import pytest

from evaljournal.replay.state.handlers import handlers


class _Misspelled:
    def _on_trial_scorde(self) -> None: ...


def test_a_handler_of_an_unknown_event_is_rejected() -> None:
    """A misspelled method would otherwise never be called."""
    with pytest.raises(TypeError, match="_Misspelled has handlers of unknown events: trial_scorde"):
        handlers(_Misspelled)
