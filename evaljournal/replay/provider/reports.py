"""What a reply reports about itself: the model, the service tier, the usage, and how a stream ended."""

import codecs
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

import attrs
import orjson

from evaljournal.replay.provider.server_sent_events import EventParser

LAST_EVENTS: Final = frozenset({"message_stop", "response.completed", "response.incomplete"})
"""Types of the last event of a stream that is an answer."""
_ERROR_EVENTS: Final = frozenset({"error", "response.failed", "response.cancelled"})
_FINAL_EVENTS: Final = LAST_EVENTS | _ERROR_EVENTS
_PARSED_DATA: Final = re.compile(f'"(?:usage|usageMetadata|finishReason|{"|".join(map(re.escape, _FINAL_EVENTS))})"')
"""Only data that contains one of these is parsed."""


def fields_of(value: object) -> Mapping[str, Any]:
    """Return the fields of an object in a request or a reply; none if the value is of another type."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def objects_of(value: object) -> list[Mapping[str, Any]]:
    """Return the objects in a list of a request or a reply; none if the value is of another type."""
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def text_field(value: Mapping[str, Any], name: str) -> str:
    """Return the text in a field of a request or a reply; empty if it is missing or of another type."""
    text = value.get(name)
    return text if isinstance(text, str) else ""


@attrs.define
class Report:
    """What the parts of a reply report; a reply that is no stream is its only part. Later counts replace earlier ones."""

    model: str = ""
    """The model that answered; empty if it is unknown."""
    tier: str = ""
    """The service tier, which prices depend on; empty if it is unknown."""
    usage: Mapping[str, Any] | None = None
    """The provider's count of tokens, under its own names; None if there is none."""
    has_finish_reason: bool = False
    """Whether an answer of Gemini is complete; its streams have no last event, and their usage may follow."""

    def add(self, part: object) -> None:
        """Add a reply, or a part of one."""
        fields = fields_of(part)
        usage = fields.get("usage") or fields.get("usageMetadata")  # Gemini
        if isinstance(usage, Mapping):
            self.usage = {**(self.usage or {}), **{name: count for name, count in usage.items() if count is not None}}
        self.model = text_field(fields, "model") or text_field(fields, "modelVersion") or self.model
        self.tier = _tier(fields, self.usage or {}) or self.tier
        match fields.get("candidates"):
            case [{"finishReason": str()}, *_]:
                self.has_finish_reason = True
            case _:
                pass

    def add_event(self, event: object) -> None:
        """Add an event of a stream, which may contain the reply so far."""
        fields = fields_of(event)
        for part in (fields, fields.get("message"), fields.get("response")):
            self.add(part)


def _tier(fields: Mapping[str, Any], usage: Mapping[str, Any]) -> str:
    if usage.get("speed") == "fast":  # Anthropic; it has another price.
        return "fast"
    return text_field(fields, "service_tier") or (text_field(usage, "serviceTier") or text_field(usage, "trafficType")).lower()


class StreamReport(Report):
    """The report of a stream of server-sent events, which are read while they arrive, and whether it has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.is_done = False
        """Whether the last event has arrived."""
        self.is_ending = False
        """Whether only the last event of an Anthropic stream is missing; litellm stops reading here."""
        self.error: tuple[str, Any] | None = None
        """The data of an event that is an error, and the object with the error in it."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._parser = EventParser()

    def feed(self, content: bytes) -> None:
        self._read(self._parser.feed(self._decoder.decode(content)))

    def end(self) -> None:
        """Handle the end of the stream; a line break after the last event may be missing."""
        self._read(self._parser.end())

    def _read(self, events: Iterable[tuple[str, str]]) -> None:
        for event, data in events:
            if data == "[DONE]":
                self.is_done = True
            elif event in _FINAL_EVENTS or _PARSED_DATA.search(data) is not None:
                self._read_event(event, data)

    def _read_event(self, event: str, data: str) -> None:
        try:
            value = fields_of(orjson.loads(data))
        except ValueError:
            value = {}
        event = event or str(value.get("type", ""))
        if event in _ERROR_EVENTS or value.get("error"):
            self.error = data, value.get("response") or value
        elif event in LAST_EVENTS and value:
            self.is_done = True
        self.is_ending = bool(fields_of(value.get("delta")).get("stop_reason"))
        self.add_event(value)
