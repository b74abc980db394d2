"""Answers that are no outputs: the model declined, or the answer was truncated, and the settings make that an error."""

from collections.abc import Collection
from typing import Any, Final

from evaljournal.replay.text import as_text
from evaljournal.runner.definition.settings import Settings
from evaljournal.runner.engine.jobs import TrialWork
from evaljournal.runner.engine.layers import Layer, Rejected
from evaljournal.runner.secrets.masking import excerpt

_ERRORS: Final = {
    "declined": ("Declined", "the model declined to answer"),
    "truncated": ("Truncated", "the answer was truncated"),
}
"""Outcome of an answer → type and message of the error that it is."""
_MAX_ANSWER: Final = 300
"""Maximum characters of the answer in such an error."""


def error_outcomes(settings: Settings) -> list[str]:
    """Return the outcomes of answers that are errors (`on_declined="error"`, `on_truncated="error"`)."""
    actions = {"declined": settings.on_declined, "truncated": settings.on_truncated}
    return [outcome for outcome, action in actions.items() if action == "error"]


class AnswersLayer(Layer):
    """Rejects answers with some outcomes."""

    def __init__(self, outcomes: Collection[str]) -> None:
        self._outcomes = frozenset(outcomes)

    def check(self, work: TrialWork, output: Any) -> Rejected | None:
        """Return the error that an answer is."""
        answer = work.state.answer
        if answer is None or answer.outcome not in self._outcomes:
            return None
        error, message = _ERRORS[answer.outcome]
        message += f" by {answer.cause}" if answer.cause else ""
        text = excerpt(as_text(output), _MAX_ANSWER) or f"`evaljournal show {work.trial}` has what the provider replied"
        return Rejected(error=error, message=f"{message}: {text}")
