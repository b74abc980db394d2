"""How `show` explains which steps were compared: what their keys leave out, and where two requests differ first."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from evaljournal.journal import JournalError
from evaljournal.journal.ownership import is_own_run
from evaljournal.replay.runs.trial import AttemptDetails
from evaljournal.replay.text import printable
from evaljournal.runner.errors import UsageError
from evaljournal.runner.steps.keys import NO_RULES, KeyRules, endpoint_of_step, first_difference, without_identity

_MAX_TEXT = 200


def recorded_rules(path: Path, settings: Mapping[str, Any]) -> KeyRules:
    """Return what the keys of a run leave out. A pattern of a run that the user has not written is not executed."""
    patterns = settings.get("key_without")
    with suppress(UsageError, JournalError):
        if isinstance(patterns, list) and patterns and is_own_run(path):
            return KeyRules.parse(map(str, patterns))
    return NO_RULES


def difference_of(attempt: AttemptDetails, rules: KeyRules) -> tuple[str, str] | None:
    """Return where the request of the step at which an attempt diverged differs from the recorded one; None if nowhere."""
    recorded, asked = attempt.recorded_step, attempt.diverged_step
    if recorded is None or asked is None:
        return None
    if recorded.name != asked.name:
        return printable(recorded.name, _MAX_TEXT), printable(asked.name, _MAX_TEXT)
    return first_difference(*(rules.request_text(step.name, step.input) for step in (recorded, asked)))


def comparison_lines(attempt: AttemptDetails, rules: KeyRules) -> Iterator[str]:
    """Yield where an attempt that reuses steps diverged, and what was not compared."""
    omitted = {name: None for step in attempt.steps for name in without_identity(endpoint_of_step(step.name), step.input)[1]}
    texts = [*omitted, *(f"text that matches {pattern.pattern}" for pattern in rules.patterns)]
    if texts:
        yield f"compared without: {printable(', '.join(texts), _MAX_TEXT)}"
    if (difference := difference_of(attempt, rules)) is not None:
        yield f"recorded: {printable(difference[0], _MAX_TEXT)}"
        yield f"asked:    {printable(difference[1], _MAX_TEXT)}"
