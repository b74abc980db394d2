"""How a line proves that it is whole, genuine, and in its place.

One hash per line, over the run's identity, the hash of the line before, and the line itself: checksum, order and chain in
one member. Only bytes are known here, neither files nor events.
"""

from hashlib import sha256
from typing import Final

GENESIS: Final = b"0" * 32
"""What stands for the hash before the first record."""

TAIL: Final = len(b',"h":""}') + 32
"""The length of the hash member with the closing brace: the rest of the line is what is hashed."""

_OPENING: Final = b',"h":"'
_CLOSING: Final = b'"}'


def link(run: bytes, before: bytes, body: bytes) -> bytes:
    """Hash a line's body into the chain: the first 128 bits of SHA-256, in hex."""
    return sha256(run + before + body).hexdigest()[:32].encode()


def close(body: bytes, h: bytes) -> bytes:
    """Put the hash behind the body, as the last member of the line."""
    return b"%b%b%b%b\n" % (body, _OPENING, h, _CLOSING)


def split(line: bytes) -> tuple[bytes, bytes] | None:
    """Take a line (without its LF) apart into body and stored hash; None if it does not end in a hash."""
    if line[-TAIL:-34] != _OPENING or line[-2:] != _CLOSING:
        return None
    return line[:-TAIL], line[-34:-2]
