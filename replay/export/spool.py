"""A file that is none: it takes what a library writes, and hands it on piece by piece."""

import io
from typing import Any


class Spool(io.RawIOBase):
    """What was written and not handed on yet."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._written = 0

    def writable(self) -> bool:
        """It is there to be written."""
        return True

    def tell(self) -> int:
        """Tell how much was written; whoever writes to it can never go back."""
        return self._written

    def write(self, data: Any) -> int:
        """Take a piece."""
        piece = bytes(data)
        self._pieces.append(piece)
        self._written += len(piece)
        return len(piece)

    def taken(self) -> bytes:
        """Hand on what was written since the last time."""
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)
