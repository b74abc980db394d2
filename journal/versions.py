"""How lines of an older format become lines of this one.

An upcaster is a pure function from the members of an old line to the members of a new one; it is applied after the hash was
checked, so the bytes on disk are never touched. Version 1 is the first, so the table begins empty.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from journal.errors import UnknownFormat
from journal.segments import FORMAT, MAJOR

Members = dict[str, Any]
Upcaster = Callable[[Members], Members]
Upcasters = Mapping[tuple[int, str], Upcaster]

UPCASTERS: Upcasters = {}
"""(Major version that the line was written in, type of event) → what turns it into the next major version."""


def major_of(header: Mapping[str, Any], where: str) -> int:
    """Read the major version from a file's first record; refuse one that this version cannot read."""
    if header.get("format") != FORMAT:
        raise UnknownFormat(
            f"{where} is not a journal of evaljournal: its first line names the format {header.get('format')!r}"
        )
    version = str(header.get("version"))
    major = version.partition(".")[0]
    if not re.fullmatch("[1-9][0-9]{0,5}", major) or int(major) > MAJOR:
        raise UnknownFormat(
            f"{where} is in format {version!r}, and this evaljournal reads format {MAJOR}; "
            f"an evaljournal that reads format {major!r} is needed",
        )
    return int(major)


def upcast(members: Members, major: int, upcasters: Upcasters) -> Members:
    """Bring the members of a line up to the present format, one major version at a time."""
    for version in range(major, MAJOR):
        change = upcasters.get((version, members["type"]))
        if change is not None:
            members = change(members)
    return members
