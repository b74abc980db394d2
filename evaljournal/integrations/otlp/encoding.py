"""OTLP requests in JSON and in protobuf, each below 4 MiB, the limit of many collectors.

Spans have the field names of OTLP JSON, with attributes as a dict and times as integers. Attributes without a value are left
out; any value but text, numbers and booleans becomes JSON. A span that is larger than the limit is a request of its own.
Protobuf is encoded without a library, because only a few messages of OpenTelemetry's `trace.proto` and `logs.proto` are needed.
"""

import itertools
import struct
from collections.abc import Iterable, Iterator
from typing import Any, Final

import orjson

from evaljournal.replay.index import MAX_INT64
from evaljournal.replay.text import as_text

MAX_BODY: Final = 4 << 20
"""Maximum bytes of a request."""
SCHEMA_URL: Final = "https://opentelemetry.io/schemas/gen-ai/1.42.0"
"""The version of OpenTelemetry's conventions for generative AI that the attributes follow."""
_VARINT, _FIXED64, _LENGTH = 0, 1, 2
_SEVERITY_INFO: Final = 9
_CONTINUATION_BIT: Final = 0x80
_LOW_BITS: Final = 0x7F
_TIMES: Final = frozenset({"startTimeUnixNano", "endTimeUnixNano", "timeUnixNano"})
_MAX_TIME: Final = (1 << 64) - 1
_MAX_ENVELOPE: Final = 32
"""Maximum bytes of the tags and lengths of the messages around the spans."""


def json_requests(resource: Any, scope: Any, spans: Iterable[Any]) -> Iterator[bytes]:
    """Yield the requests, each a line, as in OpenTelemetry's file format."""
    head = b'{"resourceSpans":[{"resource":%b,"scopeSpans":[{"scope":%b,"spans":[' % (
        orjson.dumps(_json({"attributes": resource})),
        orjson.dumps(scope),
    )
    schema = orjson.dumps(SCHEMA_URL)
    tail = b'],"schemaUrl":%b}],"schemaUrl":%b}]}\n' % (schema, schema)
    for chunk in _chunks((orjson.dumps(_json(span)) for span in spans), MAX_BODY - len(head) - len(tail)):
        yield head + b",".join(chunk) + tail


def _json(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message as OTLP JSON, in which 64-bit integers are strings."""
    values = message["attributes"].items()
    json = message | {name: str(message[name]) for name in _TIMES & message.keys()}
    json["attributes"] = [{"key": name, "value": _json_value(value)} for name, value in values if value is not None]
    return json | {"events": [_json(event) for event in message["events"]]} if "events" in message else json


def _json_value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int) and abs(value) <= MAX_INT64:
        return {"intValue": str(value)}
    return {"doubleValue": float(value)} if isinstance(value, int | float) else {"stringValue": as_text(value)}


def protobuf_requests(resource: Any, scope: Any, spans: Iterable[Any]) -> Iterator[Iterator[bytes]]:
    """Return the pieces of each request, an `ExportTraceServiceRequest`; one request is in memory at a time."""
    return _requests(resource, scope, map(_span, spans))


def log_requests(resource: Any, scope: Any, events: Iterable[Any]) -> Iterator[Iterator[bytes]]:
    """Return the pieces of each `ExportLogsServiceRequest`: span events with the ids of their span, as log events."""
    return _requests(resource, scope, map(_log_event, events))


def _requests(resource: Any, scope: Any, items: Iterable[bytes]) -> Iterator[Iterator[bytes]]:
    """Return the pieces of each request with these spans or log records: both have the same envelope."""
    resource = _message(1, _attributes(1, resource))
    scope, schema = _message(1, _text(1, scope["name"]) + _text(2, scope["version"])), _text(3, SCHEMA_URL)
    room = MAX_BODY - len(resource) - len(scope) - 2 * len(schema) - _MAX_ENVELOPE
    for chunk in _chunks((_message(2, item) for item in items), room):
        size = len(scope) + sum(map(len, chunk)) + len(schema)
        scope_head = _tag(2, _LENGTH) + _varint(size)
        head = _tag(1, _LENGTH) + _varint(len(resource) + len(scope_head) + size + len(schema)) + resource + scope_head
        yield itertools.chain([head, scope], chunk, [schema, schema])


def _chunks(spans: Iterable[bytes], room: int) -> Iterator[list[bytes]]:
    """Yield encoded spans in lists of at most `room` bytes, including separators; at least one list, and one span in each."""
    chunk: list[bytes] = []
    size = 0
    for span in spans:
        if chunk and size + len(span) > room:
            yield chunk
            chunk, size = [], 0
        chunk.append(span)
        size += len(span) + 1
    yield chunk


def _span(span: dict[str, Any]) -> bytes:
    status = span["status"]
    return b"".join(
        (
            _message(1, bytes.fromhex(span["traceId"])),
            _message(2, bytes.fromhex(span["spanId"])),
            _message(4, bytes.fromhex(span["parentSpanId"])) if "parentSpanId" in span else b"",
            _text(5, span["name"]),
            _tag(6, _VARINT) + _varint(span["kind"]),
            _time(7, span["startTimeUnixNano"]),
            _time(8, span["endTimeUnixNano"]),
            _attributes(9, span["attributes"]),
            *(_message(11, _event(event)) for event in span.get("events", ())),
            _message(15, _text(2, status.get("message", "")) + _tag(3, _VARINT) + _varint(status.get("code", 0))),
        )
    )


def _event(event: dict[str, Any]) -> bytes:
    return _time(1, event["timeUnixNano"]) + _text(2, event["name"]) + _attributes(3, event["attributes"])


def _log_event(event: dict[str, Any]) -> bytes:
    ids = _message(9, bytes.fromhex(event["traceId"])) + _message(10, bytes.fromhex(event["spanId"]))
    body = _time(1, event["timeUnixNano"]) + _tag(2, _VARINT) + _varint(_SEVERITY_INFO) + _attributes(6, event["attributes"])
    return body + ids + _time(11, event["timeUnixNano"]) + _text(12, event["name"])


def _attributes(number: int, attributes: dict[str, Any]) -> bytes:
    values = attributes.items()
    return b"".join(
        _message(number, _text(1, name) + _message(2, _value(value))) for name, value in values if value is not None
    )


def _value(value: Any) -> bytes:
    if isinstance(value, bool):
        return _tag(2, _VARINT) + _varint(value)
    if isinstance(value, int) and abs(value) <= MAX_INT64:
        return _tag(3, _VARINT) + _varint(value % (1 << 64))  # Two's complement.
    return _tag(4, _FIXED64) + struct.pack("<d", value) if isinstance(value, int | float) else _text(1, as_text(value))


def _text(number: int, text: str) -> bytes:
    return _message(number, text.encode())


def _time(number: int, nanoseconds: int) -> bytes:
    return _tag(number, _FIXED64) + struct.pack("<Q", min(max(0, nanoseconds), _MAX_TIME))


def _message(number: int, content: bytes) -> bytes:
    return _tag(number, _LENGTH) + _varint(len(content)) + content


def _tag(number: int, wire_type: int) -> bytes:
    return bytes((number << 3 | wire_type,))  # A field number above 15 would need a second byte.


def _varint(number: int) -> bytes:
    if number <= _LOW_BITS:
        return bytes((number,))
    return bytes((number & _LOW_BITS | _CONTINUATION_BIT,)) + _varint(number >> 7)
