"""Replies of chat APIs as bytes, and what a dialect reads from them; nothing here asserts anything."""

import json
from collections.abc import Sequence
from typing import Any

from evaljournal import Dialect
from evaljournal.runner.calls.chat import _checked
from evaljournal.runner.calls.dialects.dialect import Answer
from evaljournal.runner.calls.http.reply import Reply


def encode(chunks: Sequence[Any]) -> bytes:
    """Return the bytes of a stream; an event is named after its type."""
    events = []
    for chunk in chunks:
        name = f"event: {chunk['type']}\n" if isinstance(chunk, dict) and "type" in chunk else ""
        events.append(f"{name}data: {json.dumps(chunk)}\r\n\r\n")
    return "".join(events).encode()


def read_stream(dialect: Dialect, chunks: Sequence[Any]) -> Answer:
    """Return the answer that a dialect reads from a stream, as a chat model does."""
    reply = Reply(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"})
    reply.feed(encode(chunks))
    return dialect.read_stream(_checked(reply.chunks()))
