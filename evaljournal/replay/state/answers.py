"""The answers of chat models, as attempts note them: how they ended, and which model gave them."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from evaljournal.journal.events import NOTE_PREFIX

ANSWER: Final = f"{NOTE_PREFIX}answer"
"""Name of the note with the outcome, the served model and the usage of an answer."""
OTHER_MODELS: Final = "(other models)"
"""Stands for the models after the first `_MAX_MODELS`."""
_OUTCOMES: Final = ("truncated", "declined")
MAX_TOKENS: Final = "the token limit"
_CONTEXT_WINDOW: Final = "the context window"
_PAUSE: Final = "a pause of the provider's tools"
ADVICE: Final[Mapping[str, str]] = {
    MAX_TOKENS: "raise --max-tokens",
    _CONTEXT_WINDOW: "shorten the prompt, or use a model with a larger context window",
    _PAUSE: "limit the uses of the tools, or continue the turn in a task of your own",
}
"""What truncates an answer → what to change."""
_CAUSES: Final[Mapping[object, str]] = {
    **dict.fromkeys(("model_context_window_exceeded", "model_length"), _CONTEXT_WINDOW),
    **dict.fromkeys(("pause_turn", "TOO_MANY_TOOL_CALLS", "CONTINUATION"), _PAUSE),
}
"""Finish reason of a truncated answer → what truncated it, if that is not the token limit."""
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
    cause: str
    """What truncated the answer, a key of `ADVICE`; empty if it is not truncated."""
    is_empty: bool = False


_UNKNOWN: Final = NotedAnswer("", "", is_excluded=False, cause="")


class Answers:
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
        outcome, model, reason = value.get("outcome"), value.get("model"), value.get("finish_reason")
        outcome = outcome if outcome in _OUTCOMES else ""
        cause = _CAUSES.get(reason if isinstance(reason, str) else "", MAX_TOKENS) if outcome == "truncated" else ""

        model = model[:_MAX_NAME] if isinstance(model, str) else ""
        if model not in self._models:
            if len(self._models) > _MAX_MODELS:
                model = OTHER_MODELS
            else:
                self._models.add(model)

        answer = NotedAnswer(outcome, model, outcome in self._excluded_outcomes, cause)
        return self._answers.setdefault(answer, answer)

    def empty(self, answer: NotedAnswer | None) -> NotedAnswer:
        """Return an answer, or None if it was not noted, as that of an empty output."""
        empty_answer = (answer or _UNKNOWN)._replace(is_empty=True)
        return self._answers.setdefault(empty_answer, empty_answer)
