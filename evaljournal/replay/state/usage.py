"""Sums of usage (tokens, cost), as reported by attempts, steps and notes; and the answers that attempts note.

The note of an answer of a chat model has how it ended, which model gave it, and its usage.
"""

import math
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any, Final, NamedTuple, TypeGuard

from evaljournal.journal.events import NOTE_PREFIX, LimitUnit
from evaljournal.journal.format.codec import MAX_INTEGER

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

JUDGE_NOTE: Final = f"{NOTE_PREFIX}judge"
"""Name of the note with a judge's call: `scorer`, `model`, `prompt`, `reminder` and `reply`."""
JUDGE_USAGE: Final = f"{NOTE_PREFIX}judge_usage"
"""Name of the note with the usage of a judge's call."""

_NUMBER: Final = (int, float)


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
    """Whether the output is an empty text."""


_UNKNOWN: Final = NotedAnswer("", "", is_excluded=False, cause="")


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


def is_amount(value: object) -> TypeGuard[float]:
    """Return whether a value is a number that can be added up; booleans are not."""
    return isinstance(value, _NUMBER) and not isinstance(value, bool)


def as_integer(amount: float) -> int:
    """Return a number of tokens as an integer that JSON can hold; in a foreign journal it may be any number."""
    return int(max(-MAX_INTEGER, min(amount, MAX_INTEGER)))


def noted_usage(name: str, value: Any) -> Any:
    """Return the usage in a note: that of an answer, the value of a note named `usage`, `{name: value}` for any other.

    A judge's usage is counted separately: `judge.cost`.
    """
    if name == ANSWER:
        return value.get("usage") if isinstance(value, dict) else None
    if name == JUDGE_USAGE:
        usage = value.get("usage") if isinstance(value, dict) else None
        return {f"judge.{unit}": amount for unit, amount in usage.items()} if isinstance(usage, dict) else None
    return value if name == "usage" else {name: value}


def unpriced_models(usage: Any) -> list[tuple[str, str]]:
    """Return each model without a price in some usage, after the name of the sum that counts its calls."""
    models: list[tuple[str, str]] = []
    if isinstance(usage, dict):
        if isinstance(model := usage.get("unpriced_model"), str):
            models.append(("unpriced_calls", model))
        if isinstance(model := usage.get("judge.unpriced_model"), str):
            models.append(("judge.unpriced_calls", model))
    return models


def add(sums: MutableMapping[str, Any], usage: Any) -> None:
    """Add usage to sums; values that are not numbers are ignored."""
    if isinstance(usage, dict):
        for name, value in usage.items():
            if isinstance(value, _NUMBER) and value.__class__ is not bool:  # `is_amount`, without a call for each value.
                sums[name] = sums.get(name, 0) + value


def cost_of(usages: Iterable[Any]) -> float:
    """Return the sum of the costs; NaN if none is reported, or a call has no price."""
    sums: dict[str, Any] = {}
    for usage in usages:
        add(sums, usage)
    return math.nan if "cost" not in sums or sums.get("unpriced_calls") else float(sums["cost"])


def real_tokens(usage: Mapping[str, object] | None) -> dict[LimitUnit, float]:
    """Return the tokens of a call as rate limits count them: those that are read from a cache do not count.

    Replies and foreign journals are untrusted, so numbers that are no counts are ignored.
    """
    tokens: dict[LimitUnit, float] = {}
    if usage:
        if _is_count(input_tokens := usage.get("input_tokens")):
            tokens["input_tokens"] = input_tokens
            if (cached_tokens := usage.get("cached_tokens")) is not None and _is_count(cached_tokens):
                tokens["input_tokens"] = max(input_tokens - cached_tokens, 0)
        if _is_count(output_tokens := usage.get("output_tokens")):
            tokens["output_tokens"] = output_tokens
            if "input_tokens" in tokens:
                tokens["tokens"] = tokens["input_tokens"] + output_tokens
    return tokens


def _is_count(value: object) -> TypeGuard[float]:
    return isinstance(value, _NUMBER) and 0 <= value <= MAX_INTEGER and not isinstance(value, bool)


def total(usage: Mapping[str, float], name: str) -> float | None:
    """Return a sum over tasks and judges (`cost`, `judge.cost`); None if neither is recorded.

    `tokens` is the sum of input and output tokens, where they are recorded separately.
    """
    if name == "tokens":
        parts = [part for part in (total(usage, "input_tokens"), total(usage, "output_tokens")) if part is not None]
        if parts:
            return sum(parts)
    amounts = [amount for unit, amount in usage.items() if unit.rpartition(".")[2] == name]
    return sum(amounts) if amounts else None


def subtract(sums: MutableMapping[str, Any], usage: Any) -> None:
    """Subtract usage from sums that contain it; a sum that becomes 0 is removed."""
    for name, value in usage.items() if isinstance(usage, dict) else ():
        if is_amount(value):
            sums[name] = round(sums.get(name, 0) - value, 12)
            if not sums[name]:
                del sums[name]
