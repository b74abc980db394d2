"""The hash chain: each line ends with a hash of the run's id, the previous hash and the line itself.

The hash detects corruption and reordering; a rewritten chain is detected only with a hash that was kept elsewhere. This module
handles bytes, not files or events.
"""

import re
from hashlib import sha256
from typing import Final

HASH_LENGTH: Final = 32
"""Hex digits: the first 128 bits of SHA-256."""
HASH: Final = re.compile(f"[0-9a-f]{{{HASH_LENGTH}}}")
"""The id of a run or the hash of a record; a foreign journal may have any text as its id."""
GENESIS: Final = b"0" * HASH_LENGTH
"""The previous hash of the first record."""

OPENING: Final = b',"h":"'
CLOSING: Final = b'"}'
LINE_CLOSING: Final = CLOSING + b"\n"
TAIL: Final = len(OPENING) + HASH_LENGTH + len(CLOSING)
"""Length of the hash field with the closing brace; the rest of the line is its body."""
LINE_TAIL: Final = TAIL + 1
"""The same with the LF."""
NEXT_LINE: Final = HASH_LENGTH + len(LINE_CLOSING)
"""Distance from the hash of a line to the start of the next line."""

PIECE: Final = 2_047
"""Bytes that hashlib hashes without releasing the interpreter lock; getting it back takes longer than hashing a few kB."""
_MAXPIECES: Final = 8


def link(run: bytes, previous_h: bytes, body: bytes) -> str:
    """Return the hash of a line, given the previous hash and its body."""
    content = run + previous_h + body
    if PIECE < len(content) <= _MAXPIECES * PIECE:
        digest = sha256(content[:PIECE])
        for start in range(PIECE, len(content), PIECE):
            digest.update(content[start : start + PIECE])
        return digest.hexdigest()[:HASH_LENGTH]
    return sha256(content).hexdigest()[:HASH_LENGTH]


def add_hash(body: bytes, h: bytes) -> bytes:
    """Return the line: body, hash field, closing brace and LF."""
    return b"%b%b%b%b" % (body, OPENING, h, LINE_CLOSING)


def split(line: bytes) -> tuple[bytes, bytes] | None:
    """Split a line without LF into body and hash; None if it does not end with a hash."""
    if line[-TAIL : -HASH_LENGTH - len(CLOSING)] != OPENING or not line.endswith(CLOSING):
        return None
    return line[:-TAIL], line[-HASH_LENGTH - len(CLOSING) : -len(CLOSING)]
