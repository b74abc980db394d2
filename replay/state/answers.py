"""The answers of chat models, as attempts note them: how they ended, and which model gave them."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from evaljournal.journal.events import NOTE_PREFIX

ANSWER: Final = f"{NOTE_PREFIX}answer"
"""Name of the note with the outcome, the served model and the usage of an answer."""
OTHER_MODELS: Final = "(other models)"
"""Stands for the models after the first `_MAX_MODELS`."""
_OUTCOMES: Final = ("truncated", "declined")
_MAX_MODELS: Final = 20
_MAX_NAME: Final = 200
"""Maximum number of models that are counted by name, and characters of a name: servers are untrusted."""


class NotedAnswer(NamedTuple):
    """What a run's state keeps of an answer; equal ones are one object."""

    outcome: str
    """`truncated` by the token limit, `declined` by the model or its provider, or empty: complete, as far as it is known."""
    model: str
    """The model that answered; empty if it is unknown."""
    is_excluded: bool
    """Whether the settings of the run exclude answers with this outcome from its scores."""


class Answers:
    """Reads the notes of answers, and keeps each different one once."""

    def __init__(self) -> None:
        self._answers: dict[NotedAnswer, NotedAnswer] = {}
        self._models = {""}
        self._excluded_outcomes: frozenset[str] = frozenset()

    def use_settings(self, settings: Mapping[str, Any]) -> None:
        """Exclude answers from now on according to the settings of a run."""
        self._excluded_outcomes = frozenset(name for name in _OUTCOMES if settings.get(f"on_{name}") == "exclude")

    def read(self, name: str, value: Any) -> NotedAnswer | None:
        """Return the answer in a note; None if the note is about something else."""
        if name != ANSWER or not isinstance(value, dict):
            return None
        outcome, model = value.get("outcome"), value.get("model")
        outcome = outcome if outcome in _OUTCOMES else ""
        model = model[:_MAX_NAME] if isinstance(model, str) else ""
        if model not in self._models:
            if len(self._models) > _MAX_MODELS:
                model = OTHER_MODELS
            else:
                self._models.add(model)
        answer = NotedAnswer(outcome, model, outcome in self._excluded_outcomes)
        return self._answers.setdefault(answer, answer)
