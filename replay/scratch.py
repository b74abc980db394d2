"""Columns of a run that may have millions of entries: all but the last few thousand are in a temporary file.

They are used like an `array` or a list. For a short run, no file is created.
"""

import tempfile
import weakref
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice, repeat
from typing import IO, Any, Final, Generic, TypeVar

import orjson

Number = TypeVar("Number", int, float)
_BLOCK: Final = 1_024
"""Numbers that are read at once."""
_IN_MEMORY: Final = 8 * _BLOCK
"""Numbers of a column that stay in memory: the last ones, which are likely to change."""
_BUFFER: Final = 1 << 18
"""Bytes that are written at once."""
_RECENT: Final = 512
"""Maximum number of values that are kept as objects, because they are likely to change."""


class Scratch:
    """A temporary file to which data are appended; it is deleted with this object."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._written = 0
        self._buffer = bytearray(b"\n")  # So that no entry is at position 0.
        self._columns: list[Column[Any]] = []

    def add(self, column: "Column[Any]") -> None:
        """Add a column that `trim` applies to."""
        self._columns.append(column)

    def trim(self) -> None:
        """Move all but the last numbers of each column to the file; call it every few thousand records."""
        for column in self._columns:
            column.trim()

    def append(self, data: bytes) -> int:
        """Append bytes; return their position."""
        position = self._written + len(self._buffer)
        self._buffer += data
        if len(self._buffer) > _BUFFER:
            self._flush()
        return position

    def replace(self, position: int, data: bytes) -> None:
        """Overwrite bytes with the same number of bytes."""
        if position < self._written < position + len(data):
            self._flush()
        if position >= self._written:
            position -= self._written
            self._buffer[position : position + len(data)] = data
        else:
            self._stream(position).write(data)

    def read(self, position: int, size: int) -> bytes:
        """Read bytes."""
        if position < self._written < position + size:
            self._flush()
        if position >= self._written:
            return bytes(self._buffer[position - self._written : position - self._written + size])
        return self._stream(position).read(size)

    def read_line(self, position: int) -> bytes:
        """Read bytes up to the next LF."""
        if position >= self._written:
            position -= self._written
            return bytes(self._buffer[position : self._buffer.index(b"\n", position)])
        return self._stream(position).readline()[:-1]

    def _flush(self) -> None:
        self._stream(self._written).write(self._buffer)
        self._written += len(self._buffer)
        self._buffer.clear()

    def _stream(self, position: int) -> IO[bytes]:
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as this object
            weakref.finalize(self, self._file.close)
        self._file.seek(position)
        return self._file


class Column(Generic[Number]):
    """Numbers of one type, as in an `array`."""

    __slots__ = ("_block", "_blocks", "_first", "_number", "_recent", "_scratch", "append")

    def __init__(self, typecode: str, scratch: Scratch) -> None:
        self._scratch = scratch
        self._recent: array[Number] = array(typecode)
        self._blocks: list[int] = []
        """Positions of the blocks in the file."""
        self._first = 0
        """Index of the first number in memory."""
        self._number = -1
        """The block that was read last."""
        self._block: array[Number] = self._recent
        self.append: Callable[[Number], None] = self._recent.append  # Not a method, for speed.
        scratch.add(self)

    def __len__(self) -> int:
        return self._first + len(self._recent)

    def trim(self) -> None:
        """Move all but the last numbers to the file."""
        if len(self._recent) < 2 * _IN_MEMORY:
            return
        count = (len(self._recent) - _IN_MEMORY) // _BLOCK
        for start in range(0, count * _BLOCK, _BLOCK):
            self._blocks.append(self._scratch.append(self._recent[start : start + _BLOCK].tobytes()))
        del self._recent[: count * _BLOCK]
        self._first += count * _BLOCK

    def __getitem__(self, index: int) -> Number:
        recent = index - self._first
        return self._recent[recent] if recent >= 0 else self._read(index // _BLOCK)[index % _BLOCK]

    def __setitem__(self, index: int, number: Number) -> None:
        recent = index - self._first
        if recent >= 0:
            self._recent[recent] = number
        else:
            offset, block = index % _BLOCK, self._read(index // _BLOCK)
            block[offset] = number
            position = self._blocks[self._number] + offset * block.itemsize
            self._scratch.replace(position, block[offset : offset + 1].tobytes())

    def _read(self, number: int) -> "array[Number]":
        if number < 0:
            raise IndexError("a column has no negative indexes")
        if number != self._number:
            self._number, self._block = number, self._recent[:0]
            self._block.frombytes(self._scratch.read(self._blocks[number], _BLOCK * self._recent.itemsize))
        return self._block

    def select(self, indexes: Iterable[int]) -> Iterator[Number]:
        """Yield the numbers at these indexes; those of a range are read block by block."""
        return self.values(indexes.start, indexes.stop) if isinstance(indexes, range) else map(self.__getitem__, indexes)

    def values(self, first: int = 0, last: int | None = None) -> Iterator[Number]:
        """Yield the numbers from one index up to another, in order."""
        return chain.from_iterable(self._arrays(first, len(self) if last is None else last))

    def _arrays(self, first: int, last: int) -> "Iterator[array[Number]]":
        for block in range(first // _BLOCK, min(len(self._blocks), -(-last // _BLOCK))):
            start = block * _BLOCK
            yield self._read(block)[max(0, first - start) : last - start]
        if last > self._first:
            yield self._recent[max(0, first - self._first) : last - self._first]


class Values:
    """JSON values, as in a list that has None where nothing was set."""

    def __init__(self, scratch: Scratch) -> None:
        self._scratch = scratch
        self._positions = Column[int]("q", scratch)
        self._recent: dict[int, Any] = {}

    def __getitem__(self, index: int) -> Any:
        if index in self._recent:
            return self._recent[index]
        position = self._positions[index] if index < len(self._positions) else 0
        return orjson.loads(self._scratch.read_line(position)) if position else None

    def __setitem__(self, index: int, value: Any) -> None:
        self._recent[index] = value
        if len(self._recent) > _RECENT:
            self._store()

    def _store(self) -> None:
        """Move the older half of the recent values to the file."""
        recent, positions, append = self._recent, self._positions, self._scratch.append
        for index in list(islice(recent, _RECENT // 2)):
            line = orjson.dumps(recent.pop(index), option=orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE)
            while len(positions) <= index:
                positions.append(0)
            positions[index] = append(line)

    def select(self, indexes: Sequence[int]) -> Iterator[bytes]:
        """Yield the JSON of the values at these indexes."""
        on_disk = indexes if isinstance(indexes, range) else [index for index in indexes if index < len(self._positions)]
        positions = chain(self._positions.select(on_disk), repeat(0))
        for index in indexes:
            position = next(positions) if index < len(self._positions) else 0
            if index in self._recent:
                yield orjson.dumps(self._recent[index], option=orjson.OPT_NON_STR_KEYS)
            else:
                yield self._scratch.read_line(position) if position else b"null"
