"""The error of a call without a recorded reply: its trial and step, the nearest recorded request, and the first difference."""

from collections.abc import Collection
from typing import Any, Final

from evaljournal.replay.text import printable
from evaljournal.runner.steps.attempt_steps import Key, NotSent
from evaljournal.runner.steps.keys import NO_RULES, KeyRules, common_length, first_difference
from evaljournal.runner.steps.replies.recorded import RecordedReply

_NAME_CHARS: Final = 60
_TEXT_CHARS: Final = 200


class ReplyMissing(NotSent):
    """No reply is recorded for a call, so it was not made."""


def missing_reply(
    trial: str,
    key: Key,
    asked: Any,
    replies: Collection[RecordedReply],
    sources: str,
    *,
    step: int = 0,
    rules: KeyRules = NO_RULES,
) -> ReplyMissing:
    """Return the error of a call without a reply; `replies` are those of its trial that were not used; `step` 0: it is none."""
    name = key[0]
    label, trial = printable(name, _NAME_CHARS), printable(trial, _NAME_CHARS)
    problem = f"no reply is recorded for {f'step {step:,} of {trial} ({label})' if step else f'the {label} of {trial}'}"
    failed = next((reply for reply in replies if reply.error and reply.key == key), None)
    if failed is not None:
        error = printable(f"{failed.error}: {failed.message}", _TEXT_CHARS)
        return ReplyMissing(f"{problem}: it failed in {sources} ({error}); --replay-errors replays failures")
    asked_text = rules.request_text(name, asked)
    texts = [(reply, rules.request_text(reply.name, reply.input)) for reply in replies if not reply.error]
    nearest, nearest_text = max(
        texts, key=lambda pair: (pair[0].name == name, common_length(pair[1], asked_text), -pair[0].step), default=(None, "")
    )
    if nearest is None:
        return ReplyMissing(f"{problem}; {sources} has no further reply for this trial")
    place = f"; the nearest recorded request is step {nearest.step:,} ({printable(nearest.name, _NAME_CHARS)})" if step else ""
    if nearest.input is None and asked is not None:
        return ReplyMissing(f"{problem}{place}; {sources} has no requests, so pass the run itself to see the difference")
    difference = first_difference(nearest_text, asked_text) or first_difference(nearest.name, name)
    if difference is None:
        return ReplyMissing(f"{problem}{place}, whose recorded part is the same")
    recorded, requested = (printable(text, _TEXT_CHARS) for text in difference)
    return ReplyMissing(f"{problem}{place}\n  recorded: {recorded}\n  asked:    {requested}")
