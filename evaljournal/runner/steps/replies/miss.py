"""The error of a call without a recorded reply: its trial and step, the nearest recorded request, and the first difference."""

from collections.abc import Collection
from typing import Final

from evaljournal.replay.text import printable
from evaljournal.runner.steps.admission import NotSent
from evaljournal.runner.steps.attempt_steps import Step
from evaljournal.runner.steps.keys import KeyRules, common_length, first_difference
from evaljournal.runner.steps.replies.recorded import RecordedReply

_NAME_CHARS: Final = 60
_TEXT_CHARS: Final = 200


class ReplyMissing(NotSent):
    """No reply is recorded for a call, so it was not made."""


def missing_step(trial: str, step: Step, replies: Collection[RecordedReply], rules: KeyRules, sources: str) -> ReplyMissing:
    """Return the error of a step that has no reply; `replies` are those of its trial that were not used."""
    name = printable(step.name, _NAME_CHARS)
    problem = f"no reply is recorded for step {step.number:,} of {printable(trial, _NAME_CHARS)} ({name})"
    failed = next((reply for reply in replies if reply.error and reply.key == (step.name, step.input.fingerprint)), None)
    if failed is not None:
        error = printable(f"{failed.error}: {failed.message}", _TEXT_CHARS)
        return ReplyMissing(f"{problem}: it failed in {sources} ({error}); --replay-errors replays failures")
    asked = rules.request_text(step.name, step.input.value)
    texts = {reply.step: rules.request_text(reply.name, reply.input) for reply in replies if not reply.error}
    nearest = max(
        (reply for reply in replies if not reply.error),
        key=lambda reply: (reply.name == step.name, common_length(texts[reply.step], asked), -reply.step),
        default=None,
    )
    if nearest is None:
        return ReplyMissing(f"{problem}; {sources} has no further reply for this trial")
    place = f"the nearest recorded request is step {nearest.step:,} ({printable(nearest.name, _NAME_CHARS)})"
    if nearest.input is None and step.input.value is not None:
        return ReplyMissing(f"{problem}; {place}; {sources} has no requests, so pass the run itself to see the difference")
    difference = first_difference(texts[nearest.step], asked)
    if difference is None:
        difference = (nearest.name, step.name) if nearest.name != step.name else None
    return ReplyMissing(f"{problem}; {place}{difference_text(difference)}")


def difference_text(difference: tuple[str, str] | None) -> str:
    """Return where two requests differ first; None: nowhere in what is recorded."""
    if difference is None:
        return ", whose recorded part is the same"
    recorded, asked = (printable(text, _TEXT_CHARS) for text in difference)
    return f"\n  recorded: {recorded}\n  asked:    {asked}"
