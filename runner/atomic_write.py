"""Putting a file in its place: whole or not at all.

What we make of a journal for others is written here, under another name first. Whoever looks finds what was there before or
what is there now, and never half of it. The journal's own files are `journal.files`' to write.
"""

import contextlib
import itertools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from journal.files import DISK, retry_interrupted

_NUMBERS: Final = itertools.count(1)
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def write_atomically(path: Path, pieces: Iterable[bytes]) -> None:
    """Write a file piece by piece, and give it its name when it is on disk; what had that name before is replaced."""
    temporary = path.with_name(f".{path.name[:100]}.{os.getpid()}-{next(_NUMBERS)}.new")
    try:
        fd = os.open(temporary, _NEW, 0o666)  # As readable as the user's other files: it was made to be given away.
    except OSError as exc:
        exc.filename = str(path)  # The other name is nothing that anybody has asked for.
        raise
    try:
        with open(fd, "wb") as stream:
            stream.writelines(pieces)
            stream.flush()
            retry_interrupted(lambda: DISK.fsync(fd))
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    retry_interrupted(lambda: DISK.sync_directory(str(path.parent)))


def write_directory(directory: Path, files: Iterator[tuple[str, Iterator[bytes]]]) -> None:
    """Write several files into a directory, each of them whole; others in it are left alone."""
    directory.mkdir(exist_ok=True)
    for name, pieces in files:
        write_atomically(directory / name, pieces)
