"""Safe names of files and directories for names in a journal, which are untrusted."""

import re
from collections.abc import Iterable
from typing import Final

_NAME_CHARS: Final = 200
"""Characters of a name in a file name."""


def file_names(names: Iterable[str], ending: str, *, used: Iterable[str] = ()) -> dict[str, str]:
    """Return a unique, safe file name for each name, not in `used`; no two differ only in upper and lower case."""
    used_names = {name.casefold() for name in used}
    files: dict[str, str] = {}
    for name in names:
        safe = re.sub(r"[^\w.-]", "_", name, flags=re.ASCII)[:_NAME_CHARS].lstrip(".") or "_"
        file, number = f"{safe}{ending}", 1
        while file.casefold() in used_names:
            number += 1
            file = f"{safe}-{number}{ending}"
        used_names.add(file.casefold())
        files[name] = file
    return files
