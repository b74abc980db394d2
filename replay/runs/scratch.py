"""Columns that may have millions of entries: all but the last few thousand are in a temporary file.

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
"""Numbers at the end of a column that stay in memory, because they are likely to change."""
_BUFFER: Final = 1 << 18
"""Bytes that are written at once."""
_RECENT: Final = 512
"""Maximum number of values that are kept as objects, because they are likely to change."""


class Scratch:
    """A temporary file to which data are appended; it is deleted with this object."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._file_size = 0
        self._buffer = bytearray(b"\n")  # No entry is at position 0.
        self._columns: list[Column[Any]] = []

    def add(self, column: "Column[Any]") -> None:
        """Add a column for `trim`."""
        self._columns.append(column)

    def trim(self) -> None:
        """Move all but the last numbers of each column to the file; call it every few thousand records."""
        for column in self._columns:
            column.trim()

    def append(self, data: bytes) -> int:
        """Append bytes; return their position."""
        position = self._file_size + len(self._buffer)
        self._buffer += data
        if len(self._buffer) > _BUFFER:
            self._flush()
        return position

    def replace(self, position: int, data: bytes) -> None:
        """Overwrite bytes with the same number of bytes."""
        if position < self._file_size < position + len(data):
            self._flush()
        if position >= self._file_size:
            position -= self._file_size
            self._buffer[position : position + len(data)] = data
        else:
            self._stream(position).write(data)

    def read(self, position: int, size: int) -> bytes:
        """Read bytes."""
        if position < self._file_size < position + size:
            self._flush()
        if position >= self._file_size:
            return bytes(self._buffer[position - self._file_size : position - self._file_size + size])
        return self._stream(position).read(size)

    def read_line(self, position: int) -> bytes:
        """Read bytes up to the next LF."""
        if position >= self._file_size:
            position -= self._file_size
            return bytes(self._buffer[position : self._buffer.index(b"\n", position)])
        return self._stream(position).readline()[:-1]

    def _flush(self) -> None:
        self._stream(self._file_size).write(self._buffer)
        self._file_size += len(self._buffer)
        self._buffer.clear()

    def _stream(self, position: int) -> IO[bytes]:
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as this object
            weakref.finalize(self, self._file.close)
        self._file.seek(position)
        return self._file


class Column(Generic[Number]):
    """Numbers of one type, as in an `array`."""

    __slots__ = ("_block", "_blocks", "_number", "_scratch", "_tail", "_tail_start", "append")

    def __init__(self, typecode: str, scratch: Scratch) -> None:
        self._scratch = scratch
        self._tail: array[Number] = array(typecode)
        self._blocks: list[int] = []
        """Positions of the blocks in the file."""
        self._tail_start = 0
        """Index of the first number in memory."""
        self._number = -1
        """The block that was read last."""
        self._block: array[Number] = self._tail
        self.append: Callable[[Number], None] = self._tail.append  # Not a method, for speed.
        scratch.add(self)

    def __len__(self) -> int:
        return self._tail_start + len(self._tail)

    def trim(self) -> None:
        """Move all but the last numbers to the file."""
        if len(self._tail) < 2 * _IN_MEMORY:
            return
        count = (len(self._tail) - _IN_MEMORY) // _BLOCK
        for start in range(0, count * _BLOCK, _BLOCK):
            self._blocks.append(self._scratch.append(self._tail[start : start + _BLOCK].tobytes()))
        del self._tail[: count * _BLOCK]
        self._tail_start += count * _BLOCK

    def __getitem__(self, index: int) -> Number:
        tail_index = index - self._tail_start
        return self._tail[tail_index] if tail_index >= 0 else self._read(index // _BLOCK)[index % _BLOCK]

    def __setitem__(self, index: int, number: Number) -> None:
        tail_index = index - self._tail_start
        if tail_index >= 0:
            self._tail[tail_index] = number
        else:
            offset, block = index % _BLOCK, self._read(index // _BLOCK)
            block[offset] = number
            position = self._blocks[self._number] + offset * block.itemsize
            self._scratch.replace(position, block[offset : offset + 1].tobytes())

    def _read(self, number: int) -> "array[Number]":
        if number < 0:
            raise IndexError("a column has no negative indexes")
        if number != self._number:
            self._number, self._block = number, self._tail[:0]
            self._block.frombytes(self._scratch.read(self._blocks[number], _BLOCK * self._tail.itemsize))
        return self._block

    def select(self, indexes: Iterable[int]) -> Iterator[Number]:
        """Yield the numbers at these indexes; those of a range are read block by block."""
        return self.values(indexes.start, indexes.stop) if isinstance(indexes, range) else map(self.__getitem__, indexes)

    def values(self, start: int = 0, stop: int | None = None) -> Iterator[Number]:
        """Yield the numbers from index `start` up to `stop`, in order."""
        return chain.from_iterable(self._arrays(start, len(self) if stop is None else stop))

    def _arrays(self, start: int, stop: int) -> "Iterator[array[Number]]":
        for block in range(start // _BLOCK, min(len(self._blocks), -(-stop // _BLOCK))):
            block_start = block * _BLOCK
            yield self._read(block)[max(0, start - block_start) : stop - block_start]
        if stop > self._tail_start:
            yield self._tail[max(0, start - self._tail_start) : stop - self._tail_start]


class Values:
    """JSON values, as in a list that has None where nothing was set."""

    def __init__(self, scratch: Scratch) -> None:
        self._scratch = scratch
        self._positions = Column[int]("q", scratch)
        self._recent_values: dict[int, Any] = {}

    def __getitem__(self, index: int) -> Any:
        if index in self._recent_values:
            return self._recent_values[index]
        position = self._positions[index] if index < len(self._positions) else 0
        return orjson.loads(self._scratch.read_line(position)) if position else None

    def __setitem__(self, index: int, value: Any) -> None:
        self._recent_values[index] = value
        if len(self._recent_values) > _RECENT:
            self._store()

    def _store(self) -> None:
        recent_values, positions, append = self._recent_values, self._positions, self._scratch.append
        for index in list(islice(recent_values, _RECENT // 2)):
            line = orjson.dumps(recent_values.pop(index), option=orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE)
            while len(positions) <= index:
                positions.append(0)
            positions[index] = append(line)

    def select(self, indexes: Sequence[int]) -> Iterator[bytes]:
        """Yield the JSON of the values at these indexes."""
        on_disk = indexes if isinstance(indexes, range) else [index for index in indexes if index < len(self._positions)]
        positions = chain(self._positions.select(on_disk), repeat(0))
        for index in indexes:
            position = next(positions) if index < len(self._positions) else 0
            if index in self._recent_values:
                yield orjson.dumps(self._recent_values[index], option=orjson.OPT_NON_STR_KEYS)
            else:
                yield self._scratch.read_line(position) if position else b"null"
