"""Workers without processes: both sides of the connection run in one loop, and a task can end its worker."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any, Final

import attrs
import trio

from evaljournal import Outcome, Retry
from evaljournal.journal import read
from evaljournal.replay import audit
from evaljournal.runner.retries.rules import retry_rules
from evaljournal.runner.sessions.worker.calls import Calls, open_evaluation
from evaljournal.runner.workers.pool import StartWorker, WorkerDied, WorkerPool
from tests.journal.disk import SimulatedDisk
from tests.runs import PATH, AnyEvaluation, run_virtual

RETRY: Final = Retry(errors=1, timeouts=0, rate_limits=5, base_delay=0.5)

AGENT: Final = """
import json, os, sys, urllib.request
body = json.dumps({"model": "small", "messages": [{"role": "user", "content": sys.stdin.read()}]}).encode()
with urllib.request.urlopen(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body) as reply:
    print(json.load(reply)["choices"][0]["message"]["content"])
"""
"""An agent that calls a model through the gateway."""


class MemoryPipe:
    """A connection in memory to a worker in the same loop."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_killed = False
        self.scope = trio.CancelScope()
        self._to_session, self._from_worker = trio.open_memory_channel[bytes | WorkerDied](100_000)
        self.opened = trio.Event()
        self.sent: list[bytes] = []
        """Frames from the session that were not received yet."""
        self._deliver: Callable[[list[bytes] | None], None] | None = None

    def send(self, frame: bytes, /) -> None:
        if self._deliver is None:
            self.sent.append(frame)
            self.opened.set()
        else:
            self._deliver([frame])

    async def frames(self) -> AsyncGenerator[list[bytes]]:
        async for frame in self._from_worker:
            if isinstance(frame, WorkerDied):
                raise frame
            yield [frame]

    def kill(self) -> None:
        if not self.is_killed:
            self.end(WorkerDied("signal 9 (SIGKILL)"))

    def received(self) -> bytes | WorkerDied:
        """Return the next frame from the worker, which has arrived already."""
        return self._from_worker.receive_nowait()

    def reply(self, frame: bytes) -> None:
        if not self.is_killed:
            self._to_session.send_nowait(frame)

    def deliver_to(self, deliver: Callable[[list[bytes] | None], None]) -> None:
        self._deliver = deliver
        if self.sent:
            deliver(self.sent)

    @property
    def worker_side(self) -> Any:
        """What a worker's code uses of a pipe."""
        return SimpleNamespace(send=self.reply, deliver_to=self.deliver_to)

    def end(self, reason: WorkerDied) -> None:
        """End the worker, as if its process had ended."""
        self._to_session.send_nowait(reason)
        self.is_killed = True
        self.scope.cancel()


@attrs.define(eq=False)
class MemoryWorkers(WorkerPool):
    """A pool of workers in the loop of the session, all with the same evaluation."""

    evaluation: Any = None
    workers: int = 2
    concurrency: int | None = 2
    spares: int = 1
    runs_tasks: bool = True
    capacity: trio.CapacityLimiter | None = None
    """Limits the workers that run; others wait."""
    pipes: list[Any] = attrs.field(factory=list[Any])
    new_pipe: Callable[[str], MemoryPipe] = MemoryPipe

    kind = "memory"
    is_local = True

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[StartWorker]:
        async with trio.open_nursery() as nursery:

            async def start(number: int) -> MemoryPipe:
                await trio.lowlevel.checkpoint()
                if self.capacity is not None:
                    await self.capacity.acquire_on_behalf_of(number)
                pipe = self.new_pipe(f"process {number}")
                self.pipes.append(pipe)
                nursery.start_soon(self._serve, pipe, number)
                return pipe

            try:
                yield start
            finally:
                nursery.cancel_scope.cancel()

    def started(self, pipe: MemoryPipe) -> None:
        """Called when a worker is ready."""

    async def _serve(self, pipe: MemoryPipe, number: int) -> None:
        _pipe.set(pipe)
        with pipe.scope:
            await pipe.opened.wait()
            opened = open_evaluation(pipe.worker_side, pipe.sent.pop(0), lambda _: self.evaluation)
            if opened is not None:
                self.started(pipe)
                await Calls(pipe.worker_side, *opened).run()
        if self.capacity is not None:
            self.capacity.release_on_behalf_of(number)


_pipe: ContextVar[MemoryPipe] = ContextVar("tests_pipe")


def worker_name() -> str:
    """Return the name of the worker that runs this task, or an empty string in the process of the run."""
    pipe = _pipe.get(None)
    return "" if pipe is None else pipe.name


def send(frame: bytes) -> None:
    """Send a frame from the worker that this task runs in, as its code could do."""
    _pipe.get().reply(frame)


async def die(detail: str = "exit code 3", *, is_external: bool = False) -> None:
    """End the worker that this task runs in."""
    _pipe.get().end(WorkerDied(detail, is_external=is_external))
    await trio.sleep_forever()


async def run_in(pool: MemoryWorkers | None, evaluation_: AnyEvaluation, disk: SimulatedDisk, **options: Any) -> Outcome:
    """Run an evaluation in a pool of workers; its audit has no findings."""
    if pool is not None:
        pool.evaluation = evaluation_
    outcome = await run_virtual(evaluation_, disk, task="it.py:it", workers=pool, policy="fixed", **options)
    assert () == audit(read(PATH, files=disk), rules=retry_rules).findings
    return outcome
