"""Memory of the request bodies that the gateway holds while their calls are in flight."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

import trio

MAX_TOTAL: Final = 512 * 1024 * 1024
"""Maximum bytes of all large bodies together; further ones wait until calls end."""


class RequestMemory:
    """The memory for large request bodies; each takes all it needs in one step, so that no two can block each other."""

    def __init__(self) -> None:
        self._free = MAX_TOTAL
        self._changed = trio.lowlevel.ParkingLot()

    @asynccontextmanager
    async def reserve(self, size: int) -> AsyncGenerator[None]:
        """Reserve memory for a body for the duration of the block."""
        while size > self._free:
            await self._changed.park()
        self._free -= size
        try:
            yield
        finally:
            self._free += size
            self._changed.unpark_all()
