"""Server-sent events of a model's reply, read while they arrive: which one is the last, errors, and usage."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import orjson

from runner.secrets import excerpt
from runner.tasks.reply import ErrorReply, error_code

_LAST_EVENTS: Final = frozenset({"message_stop", "response.completed", "response.incomplete"})
_ERROR_EVENTS: Final = frozenset({"error", "response.failed", "response.cancelled"})
_FINAL_EVENTS: Final = _LAST_EVENTS | _ERROR_EVENTS
_PARSED_DATA: Final = re.compile(f'"(?:usage|{"|".join(map(re.escape, _FINAL_EVENTS))})"'.encode())
"""Only data that contains one of these is parsed."""
_EXCERPT_LENGTH: Final = 500


class StreamEvents:
    """Reads the events of a stream; keeps only the error, the model and the usage."""

    def __init__(self) -> None:
        self.is_done = False
        """Whether the last event has arrived."""
        self.error: ErrorReply | None = None
        self.response: dict[str, Any] = {}
        """`model` and `usage`, as in a reply that is not a stream."""
        self._line_parts: list[bytes] = []
        """The parts of an incomplete line."""
        self._is_after_return = False
        """Whether the last byte was a carriage return, which a line feed may follow."""
        self._event = ""
        self._data: list[bytes] = []

    def feed(self, content: bytes) -> None:
        """Add received bytes."""
        for line in self._lines(content):
            name, _, value = line.partition(b":")
            if not line:
                self._dispatch()
            elif name == b"data":
                self._data.append(value.removeprefix(b" "))
            elif name == b"event":
                self._event = value.strip().decode("utf-8", "replace")

    def end(self) -> None:
        """Handle the end of the stream; a line break after the last event may be missing."""
        self.feed(b"\n\n")

    def _lines(self, content: bytes) -> Iterator[bytes]:
        """Yield the lines that are complete; a line in many parts is joined once."""
        if self._is_after_return:
            content = content.removeprefix(b"\n")
        self._is_after_return = content.endswith(b"\r")
        self._line_parts.append(content)
        if b"\n" in content or b"\r" in content:
            text = b"".join(self._line_parts).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
            *lines, incomplete_line = text.split(b"\n")
            self._line_parts = [incomplete_line]
            yield from lines

    def _dispatch(self) -> None:
        data, event = b"\n".join(self._data), self._event
        self._data, self._event = [], ""
        if data == b"[DONE]":
            self.is_done = True
            return
        if event not in _FINAL_EVENTS and _PARSED_DATA.search(data) is None:
            return
        value = _parse_object(data)
        event = event or str(value.get("type", ""))
        if event in _ERROR_EVENTS or value.get("error"):
            message = excerpt(data.decode("utf-8", "replace"), _EXCERPT_LENGTH)
            self.error = ErrorReply(f"the stream contains an error: {message}", error_code(value.get("response") or value))
        elif event in _LAST_EVENTS and value:
            self.is_done = True
        for part in (value, value.get("message"), value.get("response")):
            if isinstance(part, Mapping):
                self._add_usage(part)

    def _add_usage(self, part: Mapping[str, Any]) -> None:
        """Add the model and the usage in a part of the reply; later counts replace earlier ones."""
        usage = part.get("usage")
        if isinstance(usage, Mapping):
            counts = {name: count for name, count in usage.items() if count is not None}
            self.response["usage"] = {**self.response.get("usage", {}), **counts}
        if isinstance(part.get("model"), str):
            self.response["model"] = part["model"]


def _parse_object(data: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(data)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
