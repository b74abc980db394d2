"""Format versions: which ones can be read, and conversion of lines in an older format.

An upcaster converts the members of a line to the next major version. It is applied after the hash was checked; files are never
changed. Version 1 is the first, so there is none yet.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from journal.errors import UnknownFormat
from journal.segments import FORMAT, MAJOR

Members = dict[str, Any]

UPCASTERS: Final[dict[tuple[int, str], Callable[[Members], Members]]] = {}
"""(Major version of the line, event type) → function that converts it to the next major version."""


def major_version(header: Mapping[str, Any], file: str) -> int:
    """Return the major version in the first record of a file; raise if it cannot be read."""
    version = str(header.get("version"))
    major = version.partition(".")[0]
    if header.get("format") != FORMAT or not re.fullmatch("[1-9][0-9]{0,5}", major) or int(major) > MAJOR:
        raise UnknownFormat(file, format=str(header.get("format")), version=version, readable=MAJOR)
    return int(major)


def upcast(members: Members, major: int) -> Members:
    """Convert the members of a line to the current format, one major version at a time."""
    for version in range(major, MAJOR):
        convert = UPCASTERS.get((version, members["type"]))
        if convert is not None:
            members = convert(members)
    return members
