"""A write-only file object that returns what a library writes to it, piece by piece."""

import io
from typing import Any


class Spool(io.RawIOBase):
    """Bytes that were written and not yet taken."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._written = 0

    def writable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the number of bytes written so far; the file cannot be rewound."""
        return self._written

    def write(self, data: Any) -> int:
        """Add bytes."""
        piece = bytes(data)
        self._pieces.append(piece)
        self._written += len(piece)
        return len(piece)

    def take(self) -> bytes:
        """Return and remove what was written since the last call."""
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)
