"""OTLP requests in JSON and in protobuf, each below 4 MiB, the limit of many collectors.

The functions take spans as OTLP JSON. A span that is larger than the limit is a request of its own. Protobuf is encoded without
a library, because only a few messages of OpenTelemetry's `trace.proto` are needed.
"""

import itertools
import struct
from collections.abc import Iterable, Iterator
from typing import Any, Final

import orjson

MAX_BODY: Final = 4 << 20
"""Maximum bytes of a request."""
_VARINT, _FIXED64, _LENGTH = 0, 1, 2
"""Wire types."""
_CONTINUATION_BIT: Final = 0x80
_LOW_BITS: Final = 0x7F
_MAX_TIME: Final = (1 << 64) - 1
_MAX_ENVELOPE: Final = 32
"""Maximum bytes of the tags and lengths of the messages around the spans."""


def json_requests(resource: Any, scope: Any, spans: Iterable[Any]) -> Iterator[bytes]:
    """Yield the requests, each a line, as in OpenTelemetry's file format."""
    head = b'{"resourceSpans":[{"resource":%b,"scopeSpans":[{"scope":%b,"spans":[' % (
        orjson.dumps(resource),
        orjson.dumps(scope),
    )
    tail = b"]}]}]}\n"
    for batch in _batches(map(orjson.dumps, spans), MAX_BODY - len(head) - len(tail)):
        yield head + b",".join(batch) + tail


def protobuf_requests(resource: Any, scope: Any, spans: Iterable[Any]) -> Iterator[Iterator[bytes]]:
    """Return the pieces of each request, an `ExportTraceServiceRequest`; one request is in memory at a time."""
    resource = _message(1, _attributes(1, resource["attributes"]))
    scope = _message(1, _text(1, scope["name"]) + _text(2, scope["version"]))
    room = MAX_BODY - len(resource) - len(scope) - _MAX_ENVELOPE
    for batch in _batches((_message(2, _span(span)) for span in spans), room):
        size = len(scope) + sum(map(len, batch))
        scope_head = _tag(2, _LENGTH) + _varint(size) + scope
        head = _tag(1, _LENGTH) + _varint(len(resource) + len(scope_head) + size - len(scope)) + resource + scope_head
        yield itertools.chain([head], batch)


def _batches(spans: Iterable[bytes], room: int) -> Iterator[list[bytes]]:
    """Yield encoded spans in lists of at most `room` bytes, including separators; at least one list, and one span in each."""
    batch: list[bytes] = []
    size = 0
    for span in spans:
        if batch and size + len(span) > room:
            yield batch
            batch, size = [], 0
        batch.append(span)
        size += len(span) + 1
    yield batch


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


def _attributes(number: int, attributes: list[dict[str, Any]]) -> bytes:
    return b"".join(_message(number, _text(1, item["key"]) + _message(2, _value(item["value"]))) for item in attributes)


def _value(value: dict[str, Any]) -> bytes:
    match value:
        case {"stringValue": text}:
            return _text(1, text)
        case {"boolValue": flag}:
            return _tag(2, _VARINT) + _varint(int(flag))
        case {"intValue": integer}:
            return _tag(3, _VARINT) + _varint(int(integer) % (1 << 64))  # Two's complement.
        case _:
            return _tag(4, _FIXED64) + struct.pack("<d", value["doubleValue"])


def _text(number: int, text: str) -> bytes:
    return _message(number, text.encode())


def _time(number: int, nanoseconds: str) -> bytes:
    return _tag(number, _FIXED64) + struct.pack("<Q", min(max(0, int(nanoseconds)), _MAX_TIME))


def _message(number: int, content: bytes) -> bytes:
    return _tag(number, _LENGTH) + _varint(len(content)) + content


def _tag(number: int, wire_type: int) -> bytes:
    return _varint(number << 3 | wire_type)


def _varint(number: int) -> bytes:
    varint = bytearray()
    while number > _LOW_BITS:
        varint.append(number & _LOW_BITS | _CONTINUATION_BIT)
        number >>= 7
    varint.append(number)
    return bytes(varint)
