"""Replies of HTTP endpoints: reading them as JSON, text or a stream, and the errors of invalid ones."""

import codecs
import io
import re
import zlib
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from http.client import responses
from typing import TYPE_CHECKING, Any, Final

import attrs
import httpcore2
import orjson

from evaljournal.replay.server_sent_events import BYTE_ORDER_MARK, parse_events
from evaljournal.runner.data.exact_json import read_json
from evaljournal.runner.http.reply_memory import MAX_BYTES, SMALL_REPLY, ReplyTooLarge
from evaljournal.runner.retries.classify import Fatal
from evaljournal.runner.secrets import excerpt, mask

if TYPE_CHECKING:
    from zlib import _Decompress as _ZlibDecompressor

MAX_VALUES: Final = 1_000_000
"""Maximum number of JSON values in a reply; each takes up to 100 bytes of memory and 0.3 µs, however short it is."""

EXCERPT_LENGTH: Final = 500
_EVENT_ENDS: Final = ("\n\n", "\n\r", "\r\r", "\n\r\n", "\r\r\n")
_EXCLUDED_ENCODINGS: Final = frozenset({"idna", "punycode", "raw-unicode-escape", "unicode-escape", "undefined"})
"""Python encodings that no reply uses; some take quadratic time."""
_CHARSET: Final = re.compile(r"""charset\s*=\s*["']?([\w.:-]+)""", re.IGNORECASE)
_DONE_LINE: Final = re.compile(rb"(?:^|\r)data: ?\[DONE\]\s*$", re.MULTILINE)
_SUPPORTED_ENCODINGS: Final = ("gzip", "x-gzip", "deflate")
_STREAM_TYPES: Final = ("text/event-stream", "ndjson", "jsonl", "stream+json", "jsonlines", "json-seq")


class BadStatus(Exception):
    """The endpoint replied with a status other than 2xx."""

    def __init__(self, reply: "Reply", url: str) -> None:
        self.status_code = reply.status
        self.headers = reply.headers
        self.code = _code_of(reply)
        """The provider's own error code, if there is one."""
        phrase = responses.get(reply.status, "")
        body = f": {reply.excerpt}" if reply.body else ""
        location = f" (redirects to {mask(reply.headers['location'])})" if "location" in reply.headers else ""
        super().__init__(f"{reply.status} {phrase} from {url}{location}{body}".replace("  ", " "))


class Redirected(BadStatus, Fatal):
    """The endpoint redirects. A redirected POST loses its body, so the user must change the URL."""


class NoResponse(Exception):
    """No complete response arrived; `__cause__` is the underlying error."""

    def __init__(self, exc: BaseException, url: str) -> None:
        super().__init__(f"no response from {url}: {_innermost_message(exc)}")


def _innermost_message(exc: BaseException) -> str:
    message = type(exc).__name__
    cause: BaseException | None = None if isinstance(exc, httpcore2.TimeoutException) else exc
    while cause is not None:
        message = str(cause) or message
        nested = cause.exceptions[0] if isinstance(cause, BaseExceptionGroup) else None  # Each address of a host was tried.
        cause = nested or cause.__cause__ or cause.__context__
    return message


class InvalidReply(Exception):
    """The call succeeded, but its reply is not of the expected form; the next reply may be."""


class EmptyReply(InvalidReply, ValueError):
    """The status is a success, but the reply has no body; a parse error, so it is retried once."""

    def __init__(self, reply: "Reply", url: str) -> None:
        super().__init__(f"the reply from {url} is empty (status {reply.status})")


class OutputMissing(InvalidReply, Fatal):
    """The reply has nothing at the output path: the path is wrong, and paying for another call would not help."""


class ErrorReply(Exception):
    """The status is a success, but the reply contains an error."""

    def __init__(self, message: str, code: object = None) -> None:
        super().__init__(message)
        self.code = code


class IncompleteReply(ConnectionError):
    """The reply ended before it was complete."""


def _code_of(reply: "Reply") -> object:
    try:
        error = orjson.loads(reply.body[:SMALL_REPLY])["error"]
    except (ValueError, TypeError, KeyError):
        return None
    return error_code(error)


def error_code(error: object) -> object:
    """Return the code in an error object of a provider, otherwise its type; None if it has none."""
    while isinstance(error, dict) and isinstance(error.get("error"), dict):
        error = error["error"]
    return error.get("code") or error.get("type") if isinstance(error, dict) else None


@attrs.define
class Reply:
    """A complete response."""

    status: int
    headers: dict[str, str]
    """Headers, with lower-case names."""
    body: bytes

    @property
    def media(self) -> str:
        """The media type, in lower case and without parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def is_stream(self) -> bool:
        """Whether it is a stream of events or lines."""
        media = self.media
        return media != "application/json" and any(kind in media for kind in _STREAM_TYPES)

    @property
    def is_empty(self) -> bool:
        """Whether it has no content: no body or, in JSON, only whitespace."""
        return not self.body or ("json" in self.media and self.body.isspace())

    @property
    def ends_by_closing(self) -> bool:
        """Whether only the closed connection marks its end, so that an interrupted reply cannot be detected."""
        return "content-length" not in self.headers and "transfer-encoding" not in self.headers

    @property
    def is_done(self) -> bool:
        """Whether a stream has the usual last event, `[DONE]`."""
        return _DONE_LINE.search(self.body) is not None

    @property
    def excerpt(self) -> str:
        """The beginning of the body, with secrets masked."""
        return excerpt(self.body[: 8 * EXCERPT_LENGTH].decode("utf-8", "replace").strip(), EXCERPT_LENGTH)

    def json(self) -> Any:
        """Parse the body as JSON."""
        check_values(self.body)
        try:
            return read_json(self.body.removeprefix(codecs.BOM_UTF8))
        except ValueError as exc:
            raise InvalidReply(f"the reply is not JSON ({exc}): {self.excerpt!r}") from exc

    def text(self) -> str:
        """Decode the body with its charset (default: UTF-8)."""
        charset = _CHARSET.search(self.headers.get("content-type", ""))
        encoding = charset[1] if charset else "UTF-8"
        try:
            if codecs.lookup(encoding).name in _EXCLUDED_ENCODINGS:
                raise LookupError(f"unknown encoding: {encoding}")
            return self.body.decode(encoding).removeprefix(BYTE_ORDER_MARK)
        except (ValueError, LookupError) as exc:
            raise InvalidReply(f"the reply ({self.media or 'no media type'}) is not text in {encoding}: {exc}") from exc

    def chunks(self) -> Iterator[Any]:
        """Yield the data of each event or line of a stream, parsed where it is JSON, up to `[DONE]`."""
        is_sse = self.media == "text/event-stream"
        check_values(self.body, b",[{\n\r")
        text = self.text()
        is_incomplete = self.ends_by_closing and not self.is_done and not text.endswith(_EVENT_ENDS if is_sse else "\n")
        if is_incomplete and (is_sse or not text):
            raise IncompleteReply(f"the stream ended within {_masked_end(text)!r}")
        for event, data in parse_events(text) if is_sse else _lines(text):
            if data == "[DONE]":
                return
            try:
                chunk = read_json(data)
            except ValueError as exc:
                if is_incomplete:
                    raise IncompleteReply(f"the stream ended within {_masked_end(data)!r}") from exc
                if not is_sse:
                    raise InvalidReply(f"a line of the stream is not JSON ({exc}): {excerpt(data, EXCERPT_LENGTH)!r}") from exc
                chunk = data
            if event == "error":
                raise ErrorReply(f"the stream ended with an error: {excerpt(data, EXCERPT_LENGTH)}", error_code(chunk))
            yield chunk

    def decompress(self) -> None:
        """Undo the content encoding, which was not requested; the body of an error is dropped if that fails."""
        try:
            decompressor = Decompressor(self.headers)
            if not decompressor.is_supported:
                names = ", ".join(_SUPPORTED_ENCODINGS)
                raise InvalidReply(f"the reply is compressed with {decompressor.coding!r}; supported: {names}")
            self.body = b"".join(decompressor.feed(self.body))
            if decompressor.is_incomplete:
                raise IncompleteReply(f"the reply, compressed with {decompressor.coding!r}, is incomplete")
        except (InvalidReply, IncompleteReply, ReplyTooLarge):
            if self.status < HTTPStatus.MULTIPLE_CHOICES:
                raise
            self.body = b""


class Decompressor:
    """Undoes the content encoding of a body as it arrives."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        """Decompress a body with these headers, which have lower-case names."""
        self.coding = headers.get("content-encoding", "").strip().lower()
        self.is_supported = self.coding in {"", "identity", *_SUPPORTED_ENCODINGS}
        """Whether the content can be read; otherwise, `feed` yields the received bytes."""
        self._decompressor: _ZlibDecompressor | None = None
        self._size = 0

    @property
    def is_incomplete(self) -> bool:
        """Whether the end of the compressed data is missing."""
        return self._decompressor is not None and not self._decompressor.eof

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the content of received bytes, in parts of limited size, up to `MAX_BYTES` in all."""
        if self.coding in _SUPPORTED_ENCODINGS and data:
            if self._decompressor is None:
                is_raw = self.coding == "deflate" and data[0] & 15 != zlib.DEFLATED  # Some servers omit the zlib header.
                self._decompressor = zlib.decompressobj(-zlib.MAX_WBITS if is_raw else zlib.MAX_WBITS | 32)
            parts = self._decompress(self._decompressor, data)
        else:
            parts = iter([data])
        for part in parts:
            self._size += len(part)
            if self._size > MAX_BYTES:
                label = "reply" if self._decompressor is None else "decompressed reply"
                raise ReplyTooLarge(f"the {label} is larger than {MAX_BYTES // 1024 // 1024} MiB")
            yield part

    def _decompress(self, decompressor: "_ZlibDecompressor", data: bytes) -> Iterator[bytes]:
        try:
            while content := decompressor.decompress(data, SMALL_REPLY):
                yield content
                data = decompressor.unconsumed_tail
        except zlib.error as exc:
            raise InvalidReply(f"the reply is not valid {self.coding!r} data: {exc}") from exc


def _lines(text: str) -> Iterator[tuple[str, str]]:
    for line in io.StringIO(text, newline="\n"):
        if text_line := line.strip(" \t\r\x1e\ufeff"):
            yield "", text_line


def _masked_end(text: str) -> str:
    return mask(text[-4 * EXCERPT_LENGTH :])[-EXCERPT_LENGTH // 5 :]


def check_values(body: bytes, separators: bytes = b",[{", label: str = "the reply") -> None:
    """Raise a `ReplyTooLarge` if a body has too many JSON values; each follows a separator outside a string."""
    if len(body) <= MAX_VALUES or _count(body, separators) <= MAX_VALUES:
        return
    unescaped_body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    has_too_many_strings = unescaped_body.count(b'"') > 4 * MAX_VALUES  # Two quotes for a value, two for its key.
    if has_too_many_strings or _count(b"".join(unescaped_body.split(b'"')[::2]), separators) > MAX_VALUES:
        raise ReplyTooLarge(f"{label} has more than {MAX_VALUES:,} values")


def _count(body: bytes, separators: bytes) -> int:
    return sum(body.count(separator) for separator in separators)
