"""A write-only file object for libraries; the bytes that they write are taken in chunks."""

import io
from typing import Any


class Spool(io.RawIOBase):
    """Bytes that were written and not yet taken."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._size = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        """Return the number of bytes written so far; the file cannot be rewound."""
        return self._size

    def write(self, data: Any) -> int:
        chunk = bytes(data)
        self._chunks.append(chunk)
        self._size += len(chunk)
        return len(chunk)

    def pop(self) -> bytes:
        """Return and remove the bytes written since the last call."""
        chunks, self._chunks = self._chunks, []
        return b"".join(chunks)
