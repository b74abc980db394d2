"""Server-sent events of a model's reply, read while they arrive: which one is the last, errors, and usage."""

import codecs
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson

from evaljournal.replay.provider.server_sent_events import EventParser
from evaljournal.runner.calls.http.reply import EXCERPT_LENGTH, ErrorReply
from evaljournal.runner.secrets.masking import excerpt

_LAST_EVENTS: Final = frozenset({"message_stop", "response.completed", "response.incomplete"})
_ERROR_EVENTS: Final = frozenset({"error", "response.failed", "response.cancelled"})
_FINAL_EVENTS: Final = _LAST_EVENTS | _ERROR_EVENTS
_PARSED_DATA: Final = re.compile(f'"(?:usage|usageMetadata|finishReason|{"|".join(map(re.escape, _FINAL_EVENTS))})"')
"""Only data that contains one of these is parsed."""


class StreamEvents:
    """Reads the events of a stream; keeps only the error, the model and the usage."""

    def __init__(self) -> None:
        self.is_done = False
        """Whether the last event has arrived."""
        self.has_finish_reason = False
        """Whether the answer of a Gemini stream, which has no last event, is complete; its usage may follow."""
        self.is_ending = False
        """Whether only the last event of an Anthropic stream is missing; litellm stops reading here."""
        self.error: ErrorReply | None = None
        self.response: dict[str, Any] = {}
        """`model` and `usage`, as in a reply that is not a stream."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._parser = EventParser()

    def feed(self, content: bytes) -> None:
        """Add received bytes."""
        self._read(self._parser.feed(self._decoder.decode(content)))

    def end(self) -> None:
        """Handle the end of the stream; a line break after the last event may be missing."""
        self._read(self._parser.end())

    def _read(self, events: Iterable[tuple[str, str]]) -> None:
        for event, data in events:
            if data == "[DONE]":
                self.is_done = True
            else:
                self._read_event(event, data)

    def _read_event(self, event: str, data: str) -> None:
        if event not in _FINAL_EVENTS and _PARSED_DATA.search(data) is None:
            return
        value = _parse_object(data)
        event = event or str(value.get("type", ""))
        if event in _ERROR_EVENTS or value.get("error"):
            message = f"the stream contains an error: {excerpt(data, EXCERPT_LENGTH)}"
            self.error = ErrorReply(message, value.get("response") or value)
        elif event in _LAST_EVENTS and value:
            self.is_done = True
        delta = value.get("delta")
        self.is_ending = isinstance(delta, Mapping) and bool(delta.get("stop_reason"))
        for part in (value, value.get("message"), value.get("response")):
            if isinstance(part, Mapping):
                self.add_usage(part)

    def add_usage(self, part: Mapping[str, Any]) -> None:
        """Add the model, the usage and the finish reason in a part of the reply; later counts replace earlier ones."""
        usage = part.get("usage") or part.get("usageMetadata")  # Gemini
        if isinstance(usage, Mapping):
            counts = {name: count for name, count in usage.items() if count is not None}
            self.response["usage"] = {**self.response.get("usage", {}), **counts}
        if isinstance(model := part.get("model") or part.get("modelVersion"), str):
            self.response["model"] = model
        match part.get("candidates"):
            case [{"finishReason": str()}, *_]:
                self.has_finish_reason = True
            case _:
                pass


def _parse_object(data: str) -> dict[str, Any]:
    try:
        value = orjson.loads(data)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
