"""Atomic writes of reports, exports and other files: a reader sees the old file or the new one, never a part of it.

The journal's own files are written by `journal.disk.files`.
"""

import contextlib
import itertools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from evaljournal.journal.disk.files import CREATE_NEW, DISK, retry_interrupted
from evaljournal.journal.writers.segment_file import NO_SPACE

_NUMBERS: Final = itertools.count(1)


def write_atomically(path: Path, chunks: Iterable[bytes], *, sync: bool = True) -> None:
    """Write a temporary file that only this user can read, sync it, and rename it to `path`; an existing file is replaced.

    Without `sync`, a power failure may leave an empty or partial file.
    """
    temporary = path.with_name(f".{path.name[:100]}.{os.getpid()}-{next(_NUMBERS)}.new")
    try:
        fd = DISK.open(str(temporary), CREATE_NEW)
    except OSError as exc:
        exc.filename = str(path)  # The error names the file, not the temporary one.
        raise

    try:
        with open(fd, "wb") as stream:
            stream.writelines(chunks)
            stream.flush()
            if sync:
                retry_interrupted(lambda: DISK.fsync(fd))
        os.replace(temporary, path)
    except BaseException as exc:
        if isinstance(exc, OSError) and exc.errno in NO_SPACE and exc.filename is None:  # Of a write, not of what is read.
            exc.filename = str(path)
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    if sync:
        retry_interrupted(lambda: DISK.sync_directory(str(path.parent)))


def write_directory(directory: Path, files: Iterator[tuple[str, Iterator[bytes]]]) -> None:
    """Write several files into a directory, each atomically; other files in it are kept. A name may contain directories."""
    directory.mkdir(exist_ok=True)
    for name, chunks in files:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(directory / name, chunks)
