"""The interface of a pool of workers: it starts workers, and provides a pipe to each.

All pools share the code that uses the pipes. A frame is one line of JSON. Nothing in a frame is unpickled or evaluated: the
worker may have run code that a model wrote.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar, Final, Protocol

from evaljournal.runner.errors import rule, whole_number


class WorkerDied(Exception):
    """A worker, or the connection to it, has ended or could not be started."""

    def __init__(self, detail: str, *, is_external: bool = False) -> None:
        super().__init__(detail)
        self.detail = detail
        """The known cause, such as `signal 11` or `exit code 3`."""
        self.is_external = is_external
        """Whether the cause is outside the worker: the machine or the connection was lost."""


class Pipe(Protocol):
    @property
    def name(self) -> str:
        """Name of the worker; empty: the one that it reports, its host and process number."""
        ...

    def send(self, frame: bytes, /) -> None:
        """Send a frame, without its line break; never blocks, and does nothing if the worker has ended."""
        ...

    def frames(self) -> AsyncGenerator[list[bytes]]:
        """Yield the frames from the worker, each time all that have arrived; raises `WorkerDied` when it has ended."""
        ...

    def kill(self) -> None:
        """Kill the worker and its process group."""
        ...


StartWorker = Callable[[int], Awaitable[Pipe]]
"""Starts a worker; its argument is its number in the session, from 1. Raises `WorkerDied` if it cannot be started."""


class WorkerPool:
    """Starts workers; subclasses have the options."""

    kind: ClassVar[str]
    """Its name in the journal."""
    workers: int
    """Number of workers; 0: as many as the attempts need, and the pool can start."""
    concurrency: int | None
    """Attempts that a worker runs concurrently; None: 16 if the tasks mostly wait, otherwise 1."""
    runs_tasks: bool
    """Whether attempts run in its workers; if not, only scorers that are defined with `workers=True` do."""
    is_local = False
    """Whether its workers run on this machine, with access to its loopback address."""

    @property
    def spares(self) -> int:
        """Workers that are kept ready to replace one that has ended."""
        return 0

    @property
    def environment(self) -> Sequence[str]:
        """Names of the environment variables of this process that are sent to its workers."""
        return ()

    def describe(self) -> dict[str, Any]:
        """Return its description for the journal, without secrets."""
        return {"kind": self.kind, "workers": self.workers, "concurrency": self.concurrency, "tasks": self.runs_tasks}

    def open(self) -> AbstractAsyncContextManager[StartWorker]:
        """Open the pool for a session; its workers end with it."""
        raise NotImplementedError


valid_concurrency: Final = whole_number(1, prefix="workers.", optional=True)
valid_runs_tasks: Final = rule(lambda value: isinstance(value, bool), "must be True or False", prefix="workers.")
