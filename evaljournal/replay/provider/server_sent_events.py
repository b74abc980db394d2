"""Server-sent events, parsed from text that may arrive in chunks."""

import re
from collections.abc import Iterator
from typing import Final

_LINE_END: Final = re.compile(r"\r\n|\n|\r")
BYTE_ORDER_MARK: Final = "\ufeff"


def parse_events(text: str) -> Iterator[tuple[str, str]]:
    """Yield the type and the data of each event of a complete stream."""
    parser = EventParser()
    yield from parser.feed(text)
    yield from parser.end()


class EventParser:
    """Parses a stream; an event without data is omitted unless its type is `error`."""

    def __init__(self) -> None:
        self._ignored = BYTE_ORDER_MARK
        """What is ignored if it comes next: the byte order mark, or the line feed after a carriage return."""
        self._line_parts: list[str] = []
        """The chunks of an incomplete line, joined once it is complete."""
        self._event = ""
        self._data: list[str] = []

    def feed(self, text: str) -> Iterator[tuple[str, str]]:
        """Add received text; yield the type and the data of each event that is complete, one line at a time."""
        if not text:
            return
        start = len(self._ignored) if text.startswith(self._ignored) else 0
        self._ignored = "\n" if text.endswith("\r") else ""
        for end in _LINE_END.finditer(text, start):
            line = text[start : end.start()]
            start = end.end()
            if self._line_parts:
                line, self._line_parts = "".join([*self._line_parts, line]), []
            name, _, value = line.partition(":")
            if not line:
                if self._data or self._event == "error":
                    yield self._event, "\n".join(self._data)
                self._event, self._data = "", []
            elif name == "data":
                self._data.append(value.removeprefix(" "))
            elif name == "event":
                self._event = value.strip()
        if start < len(text):
            self._line_parts.append(text[start:])

    def end(self) -> Iterator[tuple[str, str]]:
        """Yield the last event if the line breaks after it are missing."""
        yield from self.feed("\n\n")
