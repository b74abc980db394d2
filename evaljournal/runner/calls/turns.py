"""Conversations with scripted user messages: each turn is sent with the messages before it, and is a step of the attempt."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

from evaljournal.replay.text import as_text
from evaljournal.runner.data.case import Case
from evaljournal.runner.data.exact_json import read_json
from evaljournal.runner.data.templates import Fields
from evaljournal.runner.errors import UsageError

Message = dict[str, Any]


def turns_of(case: Case, column: str) -> list[str]:
    """Return the user messages of a case: a column with a list of strings, or with its JSON, as in a CSV file."""
    value = Fields(case).get(column)
    if isinstance(value, str):
        with suppress(ValueError):  # Reported below.
            value = read_json(value)
    if not isinstance(value, list) or not value or not all(isinstance(turn, str) for turn in value):
        raise UsageError(
            f"case {case.name!r}: column {column!r} must be a list of strings, the user messages; it is {as_text(value)[:80]!r}"
        )
    return value


async def converse(
    turns: Sequence[str], messages: Sequence[Message], reply_to: Callable[[int, list[Message]], Awaitable[Any]]
) -> Any:
    """Send one turn after the other, each with the conversation so far; return the last reply.

    `reply_to` gets the number of a turn, from 1, and the messages up to it.
    """
    conversation, reply = list(messages), None
    for number, turn in enumerate(turns, 1):
        conversation.append({"role": "user", "content": turn})
        reply = await reply_to(number, list(conversation))
        conversation.append({"role": "assistant", "content": as_text(reply)})
    return reply
