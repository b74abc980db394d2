"""Results of a batch: a temporary file with lines, which are read one by one, and may be anything: a server has sent them."""

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any, Final, Self

import attrs
import orjson

from evaljournal.runner.calls.http.client import Response
from evaljournal.runner.calls.http.reply import MAX_BYTES, InvalidReply, ReplyTooLarge, check_values
from evaljournal.runner.data.exact_json import read_json

_MAX_FILE: Final = 8 * 1024**3
"""Maximum bytes of the results of a batch; an endless reply must not fill the disk."""


@attrs.frozen
class LineResult:
    custom_id: str
    """As in the line; it may be one that was never sent."""
    status: int
    """As a live call would have it."""
    body: bytes
    """JSON, as a live call would have it."""


LineParser = Callable[[Mapping[str, Any]], LineResult | None]
"""Reads a line; returns None if it has no reply, raises a ValueError if it is invalid."""


class Results:
    """The results of a batch in any order, as a context manager that deletes the file."""

    def __init__(self, parse: LineParser) -> None:
        self._parse = parse
        self._file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `__exit__`
        self._size = 0
        self.broken = 0
        """Lines that cannot be read, so far."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Delete the file."""
        self._file.close()

    async def add(self, response: Response) -> None:
        if response.head.text_headers.get("content-encoding", "identity").strip().lower() != "identity":
            raise InvalidReply("the results are compressed, which was not requested")
        while chunk := await response.read():
            self._size += len(chunk)
            if self._size > _MAX_FILE:
                raise ReplyTooLarge(f"the results are larger than {_MAX_FILE // 1024**3} GiB; they may be endless")
            self._file.write(chunk)
        self._file.write(b"\n")  # The last line of a file may have no end.

    def __iter__(self) -> Iterator[LineResult]:
        """Yield the lines that have a reply."""
        self._file.seek(0)
        self.broken = 0

        while line := self._file.readline(MAX_BYTES):
            if line.isspace():
                continue
            try:
                result = self._read(line)
            except (ValueError, ReplyTooLarge):
                self.broken += 1
                continue
            if result is not None:
                yield result

    def _read(self, line: bytes) -> LineResult | None:
        check_values(line)
        value = read_json(line)
        if not isinstance(value, Mapping) or not isinstance(value.get("custom_id"), str):
            raise ValueError("a line of the results has no custom_id")  # noqa: TRY004  # not a mistake of the caller
        return self._parse(value)


def dump_body(value: Any) -> bytes:
    """Return JSON for a value; orjson has no integers of more than 64 bits."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value).encode()
