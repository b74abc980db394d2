"""Replies of HTTP endpoints: reading them as JSON, text or a stream, and the errors of invalid ones.

**Memory**: small replies are read immediately, but only a few large ones at a time. Together they take at most `SMALL_REPLY`
bytes for each call and `MAX_BYTES` for each of `LARGE_REPLIES`.
"""

import codecs
import io
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from http.client import responses
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import httpcore2
import orjson
import trio

from evaljournal.journal.threads import run_in_thread
from evaljournal.replay.provider.server_sent_events import BYTE_ORDER_MARK, parse_events
from evaljournal.runner.data.exact_json import read_json
from evaljournal.runner.retries.classify import Fatal
from evaljournal.runner.secrets.masking import excerpt, mask

if TYPE_CHECKING:
    from zlib import _Decompress as _ZlibDecompressor

T = TypeVar("T")

MAX_BYTES: Final = 64 * 1024 * 1024
"""Maximum bytes of a reply that is read; an endless stream must not fill the memory."""

SMALL_REPLY: Final = 1024 * 1024
"""Bytes of a reply that are read without waiting for other replies."""

MAX_VALUES: Final = 1_000_000
"""Maximum number of JSON values in a reply; each takes up to 100 bytes of memory and 0.3 µs, however short it is."""

LARGE_REPLIES: Final = 4
"""Replies of more than `SMALL_REPLY` bytes that are read at the same time; others wait."""

MAX_PARSED_IN_LOOP: Final = 128 * 1024
"""Bytes of a reply that the event loop parses itself, because a thread would take longer."""

_places: trio.lowlevel.RunVar[trio.Semaphore] = trio.lowlevel.RunVar("evaljournal_large_replies")

EXCERPT_LENGTH: Final = 500
_EVENT_ENDS: Final = ("\n\n", "\n\r", "\r\r", "\n\r\n", "\r\r\n")
_EXCLUDED_ENCODINGS: Final = frozenset({"idna", "punycode", "raw-unicode-escape", "unicode-escape", "undefined"})
"""Python encodings that no reply uses; some take quadratic time."""
_CHARSET: Final = re.compile(r"""charset\s*=\s*["']?([\w.:-]+)""", re.IGNORECASE)
_DONE_LINE: Final = re.compile(rb"(?:^|\r)data: ?\[DONE\]\s*$", re.MULTILINE)
_SUPPORTED_ENCODINGS: Final = ("gzip", "x-gzip", "deflate")
_STREAM_TYPES: Final = ("text/event-stream", "ndjson", "jsonl", "stream+json", "jsonlines", "json-seq")


class ReplyTooLarge(Fatal):
    """The reply is larger than `MAX_BYTES`, or has too many values."""


class ReplyMemory:
    """The memory of one reply, until it is parsed."""

    def __init__(self, label: str = "the reply", *, max_small: int | None = None, places: trio.Semaphore | None = None) -> None:
        """Account for a reply; with more than `max_small` bytes, it takes one of `places` (default: the run's)."""
        self._label = label
        self._max_small = SMALL_REPLY if max_small is None else max_small
        self._places = places
        self._size = 0
        self._place: trio.Semaphore | None = None
        """Set while the reply occupies one of the places for large replies."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._place is not None:
            self._place.release()
            self._place = None

    async def add(self, count: int) -> None:
        """Account for received bytes; wait for a place when the reply becomes large."""
        self._size += count
        if self._size > MAX_BYTES:
            raise ReplyTooLarge(f"{self._label} is larger than {MAX_BYTES // 1024 // 1024} MiB; it may be endless")
        if self._size > self._max_small:
            await self.take_place()

    async def take_place(self) -> None:
        """Wait for one of the places for large replies."""
        if self._place is None:
            place = self._places or _semaphore()
            await place.acquire()
            self._place = place

    async def parse(self, function: Callable[[], T]) -> T:
        """Call a function that parses the reply; if it is large, in a thread, which keeps the place until it ends."""
        if self._size <= MAX_PARSED_IN_LOOP and self._place is None:
            return function()
        token, place = trio.lowlevel.current_trio_token(), self._place
        self._place = None

        def parse() -> T:
            try:
                return function()
            finally:
                if place is not None:
                    with suppress(trio.RunFinishedError):
                        token.run_sync_soon(place.release)

        return await run_in_thread(parse, abandon_on_cancel=True)


def _semaphore() -> trio.Semaphore:
    try:
        return _places.get()
    except LookupError:
        semaphore = trio.Semaphore(LARGE_REPLIES)
        _places.set(semaphore)
        return semaphore


def check_values(body: bytes, separators: bytes = b",[{", label: str = "the reply") -> None:
    """Raise a `ReplyTooLarge` if a body has too many JSON values."""
    if len(body) > MAX_VALUES and has_too_many_values(body, separators):
        raise ReplyTooLarge(f"{label} has more than {MAX_VALUES:,} values")


def has_too_many_values(body: bytes, separators: bytes = b",[{") -> bool:
    """Return whether a body has more than `MAX_VALUES` JSON values; each follows a separator outside a string."""
    if len(body) <= MAX_VALUES or _count(body, separators) <= MAX_VALUES:
        return False
    unescaped_body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    has_too_many_strings = unescaped_body.count(b'"') > 4 * MAX_VALUES  # Two quotes for a value, two for its key.
    return has_too_many_strings or _count(b"".join(unescaped_body.split(b'"')[::2]), separators) > MAX_VALUES


def _count(body: bytes, separators: bytes) -> int:
    return sum(body.count(separator) for separator in separators)


class BadStatus(Exception):
    """The endpoint replied with a status other than 2xx."""

    def __init__(self, reply: "Reply", url: str) -> None:
        self.status_code = reply.status
        self.headers = reply.headers
        self.body = _error_of(reply)
        """The provider's error as JSON, if there is one."""
        self.code = error_code(self.body)
        """The provider's own error code, if there is one."""
        phrase = responses.get(reply.status, "")
        body = f": {text}" if (text := reply.excerpt) else ""
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
        message += "; is the server running?" if isinstance(cause, ConnectionRefusedError) else ""
        cause = nested or cause.__cause__ or cause.__context__
    return message


class InvalidReply(Exception):
    """The call succeeded, but its reply is not of the expected form; the next reply may be."""


class EmptyReply(InvalidReply, ValueError):
    """The status is a success, but the reply has no body or no answer; a parse error, so it is retried once."""


class OutputMissing(InvalidReply, Fatal):
    """The reply has nothing at the output path: the path is wrong, and paying for another call would not help."""


class ErrorReply(Exception):
    """The status is a success, but the reply contains an error."""

    def __init__(self, message: str, body: object = None) -> None:
        super().__init__(message)
        self.body = body
        """The error as JSON."""
        self.code = error_code(body)


class IncompleteReply(ConnectionError):
    """The reply ended before it was complete."""


def _error_of(reply: "Reply") -> object:
    try:
        return orjson.loads(reply.body[:SMALL_REPLY])
    except ValueError:
        return None


def error_code(error: object) -> object:
    """Return the code in an error object of a provider, otherwise its type; None if it has none."""
    if isinstance(error, list) and len(error) == 1:  # Gemini's OpenAI-compatible endpoint.
        error = error[0]
    while isinstance(error, dict) and isinstance(error.get("error"), dict):
        error = error["error"]
    return error.get("code") or error.get("type") if isinstance(error, dict) else None


class Reply:
    """A response, whose body is read as it arrives; it may be compressed, although that was not requested."""

    def __init__(self, status: int, headers: Mapping[str, str], *, ends_by_closing: bool | None = None) -> None:
        """Read a reply with this status and these headers, which have lower-case names.

        `ends_by_closing`: whether only the closed connection marks its end (default: HTTP/1.1 without a length).
        """
        self.status = status
        self.headers = headers
        self.media = media = headers.get("content-type", "").partition(";")[0].strip().lower()
        """The media type, in lower case and without parameters."""
        self.is_stream = media != "application/json" and any(kind in media for kind in _STREAM_TYPES)
        """Whether it is a stream of events or lines."""

        has_length = "content-length" in headers or "transfer-encoding" in headers
        self.ends_by_closing = not has_length if ends_by_closing is None else ends_by_closing
        """Whether only the closed connection marks its end, so that an interrupted reply cannot be detected."""

        coding = headers.get("content-encoding", "").strip().lower()
        self.coding = "" if coding == "identity" else coding
        """How the body is compressed; empty if it is not."""
        self.is_readable = not self.coding or self.coding in _SUPPORTED_ENCODINGS
        """Whether the compression is supported; otherwise, `body` has the received bytes."""

        self.problem: Exception | None = None
        """Why the body cannot be read; it is empty then."""
        self._chunks: list[bytes] = []
        self._size = 0
        self._decompressor: _ZlibDecompressor | None = None

    def feed(self, data: bytes) -> None:
        """Add received bytes, up to `MAX_BYTES` of content in all."""
        if self.problem is not None or not data:
            return

        try:
            for content in self._decompress(data) if self.coding and self.is_readable else (data,):
                self._size += len(content)
                if self._size > MAX_BYTES:
                    label = "reply" if self._decompressor is None else "decompressed reply"
                    raise ReplyTooLarge(f"the {label} is larger than {MAX_BYTES // 1024 // 1024} MiB")
                self._chunks.append(content)
                self.on_content(content)
        except (InvalidReply, ReplyTooLarge) as exc:
            self.problem, self._chunks = exc.with_traceback(None), []  # Its frames refer to this reply.

    def _decompress(self, data: bytes) -> Iterator[bytes]:
        """Yield the content of compressed bytes in parts of limited size."""
        if self._decompressor is None:
            is_raw = self.coding == "deflate" and data[0] & 15 != zlib.DEFLATED  # Some servers omit the zlib header.
            self._decompressor = zlib.decompressobj(-zlib.MAX_WBITS if is_raw else zlib.MAX_WBITS | 32)
        try:
            while content := self._decompressor.decompress(data, SMALL_REPLY):
                yield content
                data = self._decompressor.unconsumed_tail
        except zlib.error as exc:
            raise InvalidReply(f"the reply is not valid {self.coding!r} data: {exc}") from exc

    def on_content(self, content: bytes) -> None:
        """Handle a decompressed part of the body; for subclasses."""

    @property
    def body(self) -> bytes:
        """What has arrived so far, decompressed if that is supported."""
        if len(self._chunks) > 1:
            self._chunks = [b"".join(self._chunks)]
        return self._chunks[0] if self._chunks else b""

    @property
    def is_incomplete(self) -> bool:
        """Whether the end of the compressed data is missing."""
        return self._decompressor is not None and not self._decompressor.eof

    def check_content(self) -> None:
        """Raise an exception if the body cannot be decompressed."""
        if self.problem is not None:
            try:
                raise self.problem
            finally:
                self.problem = None  # Otherwise, the exception refers to itself, and is freed late.
        if not self.is_readable:
            names = ", ".join(_SUPPORTED_ENCODINGS)
            raise InvalidReply(f"the reply is compressed with {self.coding!r}; supported: {names}")
        if self.coding and self.is_incomplete:
            raise IncompleteReply(f"the reply, compressed with {self.coding!r}, is incomplete")

    @property
    def is_empty(self) -> bool:
        """Whether it has no content: no body or, in JSON, only whitespace."""
        body = self.body
        return not body or ("json" in self.media and body.isspace())

    @property
    def is_done(self) -> bool:
        """Whether a stream has the usual last event, `[DONE]`."""
        return _DONE_LINE.search(self.body) is not None

    @property
    def excerpt(self) -> str:
        """The beginning of the body, with secrets masked; empty if it cannot be decompressed."""
        if not self.is_readable:
            return ""
        return excerpt(self.body[: 8 * EXCERPT_LENGTH].decode("utf-8", "replace").strip(), EXCERPT_LENGTH)

    def json(self) -> Any:
        body = self.body
        check_values(body)
        try:
            return read_json(body.removeprefix(codecs.BOM_UTF8))
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
        # The last of several JSON lines may be complete without its line break, which is known when it is parsed.
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
                raise ErrorReply(f"the stream ended with an error: {excerpt(data, EXCERPT_LENGTH)}", chunk)
            yield chunk


def _lines(text: str) -> Iterator[tuple[str, str]]:
    for line in io.StringIO(text, newline="\n"):
        if text_line := line.strip(" \t\r\x1e\ufeff"):
            yield "", text_line


def _masked_end(text: str) -> str:
    return mask(text[-4 * EXCERPT_LENGTH :])[-EXCERPT_LENGTH // 5 :]
