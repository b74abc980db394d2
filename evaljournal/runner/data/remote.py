"""Cases at an address, `SCHEME://…`: an entry point of the group `evaljournal.data`, whose name is the scheme, reads them."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Final

from evaljournal import entry_points
from evaljournal.runner.errors import UsageError, suggest

_ADDRESS: Final = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]+):/{1,2}(?P<place>.+)", re.DOTALL)
"""A scheme has two letters, because one is a drive of Windows; a path has only one of its two slashes left."""


class RemoteCases(ABC):
    """The rows at an address. They can be read again, and a resumed run reads the same: the address is that of a version."""

    def __init__(self, place: str) -> None:
        self.place = place
        """The address without its scheme, as the user wrote it."""

    @property
    @abstractmethod
    def stem(self) -> str:
        """A short name, for an evaluation without a name."""

    @property
    @abstractmethod
    def address(self) -> str:
        """The address of exactly this version; asks the server if the user has named none."""

    @abstractmethod
    def rows(self, delimiter: str | None) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield the rows with their numbers."""


def remote_cases(address: str) -> RemoteCases:
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise UsageError(f"{address!r} is no address; write hf://owner/name")
    entry = entry_points.find("data", match["scheme"])
    if entry is None:
        names = entry_points.names("data")
        raise UsageError(f"cases cannot be read from {match['scheme']}://{suggest(match['scheme'], names)}; download the file")
    cases: RemoteCases = entry_points.checked(
        entry, UsageError, lambda: entry.load()(match["place"]), RemoteCases, noun="RemoteCases", verb="returned"
    )
    return cases
