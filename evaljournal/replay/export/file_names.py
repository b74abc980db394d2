"""Safe file and directory names for untrusted names in a journal."""

import re
from collections.abc import Iterable
from typing import Final

_NAME_CHARS: Final = 200


def file_names(names: Iterable[str], suffix: str, *, reserved_names: Iterable[str] = ()) -> dict[str, str]:
    """Return a safe file name for each name, different from all others and from `reserved_names` in any letter case."""
    taken_names = {name.casefold() for name in reserved_names}
    files: dict[str, str] = {}
    for name in names:
        stem = re.sub(r"[^\w.-]", "_", name, flags=re.ASCII)[:_NAME_CHARS].lstrip(".") or "_"
        file, number = f"{stem}{suffix}", 1
        while file.casefold() in taken_names:
            number += 1
            file = f"{stem}-{number}{suffix}"
        taken_names.add(file.casefold())
        files[name] = file
    return files
