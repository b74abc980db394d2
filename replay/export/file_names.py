"""Safe file and directory names for untrusted names in a journal."""

import re
from collections.abc import Iterable
from typing import Final

_NAME_CHARS: Final = 200
"""Characters of a name in a file name."""


def file_names(names: Iterable[str], ending: str, *, reserved_names: Iterable[str] = ()) -> dict[str, str]:
    """Return a safe file name for each name; all are unique, also among `reserved_names`, even if case is ignored."""
    taken_names = {name.casefold() for name in reserved_names}
    files: dict[str, str] = {}
    for name in names:
        stem = re.sub(r"[^\w.-]", "_", name, flags=re.ASCII)[:_NAME_CHARS].lstrip(".") or "_"
        file, number = f"{stem}{ending}", 1
        while file.casefold() in taken_names:
            number += 1
            file = f"{stem}-{number}{ending}"
        taken_names.add(file.casefold())
        files[name] = file
    return files
