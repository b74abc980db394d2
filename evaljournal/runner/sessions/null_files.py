"""A file system that discards everything, for runs without a journal."""

import math
from typing import BinaryIO, Final

from evaljournal.journal.disk.files import Files


class NullFiles(Files):
    """Writes succeed and are discarded; there is nothing to read."""

    idle_check_interval = math.inf

    def open(self, path: str, flags: int, parents: int = 0) -> int:
        return 0

    def write(self, fd: int, data: memoryview) -> int:
        return len(data)

    def _ignore(self, *_: object, **__: object) -> None:
        pass

    fdatasync = fsync = ftruncate = close = replace = remove = sync_directory = make_read_only = _ignore

    def read(self, path: str, parents: int = 0) -> BinaryIO:
        raise FileNotFoundError(path)

    def list_directory(self, path: str) -> list[str]:
        return []

    def size(self, path: str) -> int | None:
        return None

    def link_count(self, fd: int) -> int:
        return 1

    def _confirm(self, *_: object, **__: object) -> bool:
        return True

    is_directory = is_same_file = is_intact = lock = _confirm


NULL_FILES: Final = NullFiles()
