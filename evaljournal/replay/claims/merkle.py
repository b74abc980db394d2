"""Merkle trees of RFC 6962 (section 2.1), with SHA-256.

A leaf is hashed with the prefix 0 and a node with the prefix 1, so no node can be presented as a leaf. A checker knows the size
of the tree from the signed statement: a path proves a leaf at one index only, and no path is longer or shorter than that index
needs. The root of a million leaves is computed from 20 hashes in memory; only proofs need all leaf hashes, in one byte string.
"""

from collections.abc import Sequence
from functools import reduce
from hashlib import sha256
from typing import Final

SIZE: Final = 32


def leaf_hash(data: bytes) -> bytes:
    return sha256(b"\0" + data).digest()


def _node_hash(left: bytes, right: bytes) -> bytes:
    return sha256(b"\1" + left + right).digest()


class Root:
    """The root of a tree whose leaves are added one after the other."""

    def __init__(self) -> None:
        self.size = 0
        self._complete: list[bytes] = []  # Roots of complete subtrees, one for each bit of the size, the largest first.

    def add(self, item: bytes) -> None:
        self.size += 1
        completed_subtrees = (self.size & -self.size).bit_length() - 1  # As many as the size has zeros at its end.
        for _ in range(completed_subtrees):
            item = _node_hash(self._complete.pop(), item)
        self._complete.append(item)

    def digest(self) -> bytes:
        return reduce(lambda right, left: _node_hash(left, right), reversed(self._complete or [sha256().digest()]))


def levels(leaf_hashes: bytes) -> list[bytes]:
    """Return the hashes of each level of a tree, from the leaves, given one after the other, to the root."""
    result = [leaf_hashes]
    while len(below := result[-1]) > SIZE:
        pairs = range(0, len(below) - SIZE, 2 * SIZE)
        level = b"".join(_node_hash(below[at : at + SIZE], below[at + SIZE : at + 2 * SIZE]) for at in pairs)
        result.append(level + (below[-SIZE:] if len(below) // SIZE % 2 else b""))  # A last node without sibling moves up.
    return result


def path(tree: Sequence[bytes], index: int) -> list[bytes]:
    """Return the hashes beside the way from a leaf to the root, beginning at the leaf; `tree` is from `levels`."""
    siblings = [(level, ((index >> depth) ^ 1) * SIZE) for depth, level in enumerate(tree[:-1])]
    return [level[start : start + SIZE] for level, start in siblings if start < len(level)]


def root_of_path(item: bytes, index: int, size: int, siblings: Sequence[bytes]) -> bytes | None:
    """Return the root that a leaf's hash and its path give in a tree of `size` leaves; None if the path does not fit."""
    if not 0 <= index < size or (size == 1) is bool(siblings):
        return None
    if size == 1:
        return item
    split = 1 << (size - 1).bit_length() - 1  # The largest power of two below the size.
    *others, sibling = siblings
    if index < split:
        return (left := root_of_path(item, index, split, others)) and _node_hash(left, sibling)
    return (right := root_of_path(item, index - split, size - split, others)) and _node_hash(sibling, right)
