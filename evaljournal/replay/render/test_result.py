"""The error or the failing scores of a trial as the text of a test result, for JUnit XML and pytest."""

from typing import Any, Final

from evaljournal.replay.runs.trial import AttemptDetails, TrialDetails
from evaljournal.replay.text import as_text, plural

_VALUE_CHARS: Final = 10_000


def error_text(trial: TrialDetails) -> str:
    """Return why a trial has an error, with every failed attempt, or the errors of its scorers."""
    texts = [f"{name}: {score.error}: {score.message}\n{score.traceback}" for name, score in trial.scorer_failures.items()]
    if trial.stage == "failed":
        summary = f"error after {plural(len(trial.attempts), 'attempt')}: {trial.failure}"
        texts = [summary, *map(_attempt_text, trial.failures)]
    return "\n\n".join(texts)


def failure_text(trial: TrialDetails) -> str:
    false_scores = [score for score in trial.scores.values() if score.value is False]
    texts = [f"{score.scorer}: fail{f': {_shorten(score.reason)}' if score.reason else ''}" for score in false_scores]
    values = {"input": trial.input, "expected": trial.expected, "output": trial.output}
    return "\n".join([*texts, *(f"{name}: {_shorten(value)}" for name, value in values.items())])


def _attempt_text(attempt: AttemptDetails) -> str:
    return f"attempt {attempt.span.attempt}: {attempt.error}: {attempt.message}\n{attempt.traceback}".rstrip()


def _shorten(value: Any) -> str:
    text = as_text(value)
    return text if len(text) <= _VALUE_CHARS else f"{text[:_VALUE_CHARS]}… ({len(text):,} characters)"
