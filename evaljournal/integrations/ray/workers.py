"""Workers on a Ray cluster. Ray is imported when a session starts its first worker.

An attempt is not a Ray task: a worker is an actor, and several frames go to it or come back together, so that many attempts
share one Ray call. Retries are those of the run; Ray's own are not used.
"""

import atexit
import importlib
import math
import os
import queue
import socket
import threading
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any, Final

import attrs
import trio

from evaljournal.integrations.ray import actor as actor_process
from evaljournal.journal.threads import run_in_thread
from evaljournal.replay.text import printable
from evaljournal.runner.errors import UsageError, rule, whole_number
from evaljournal.runner.signals import reinstall_handlers
from evaljournal.runner.workers.pool import Pipe, StartWorker, WorkerDied, WorkerPool, valid_concurrency, valid_runs_tasks
from evaljournal.runner.workers.streams import EXIT_TIMEOUT, START_CODE, FrameSplitter, StderrPrinter, exit_text

CONNECT_TIMEOUT: Final = 60.0
"""Seconds that a cluster gets to accept the session; Ray needs 20 s to report a missing token."""
_PORT_TIMEOUT: Final = 5.0
_ANSWER_TIMEOUT: Final = 5.0
_LAST_LINES_TIMEOUT: Final = 1.0
"""Seconds that the last lines of workers that have exited get to arrive."""
_JOIN_TIMEOUT: Final = 5.0
_CLOSE_TIMEOUT: Final = 15.0
CHECK_INTERVAL: Final = 5.0
LOST_TIMEOUT: Final = 25.0
"""Seconds after which a cluster that does not answer counts as lost; after 60 s without its head, Ray ends the process."""
_LOST_DETAIL: Final = "the Ray cluster does not answer"
_MAX_DETAIL: Final = 800
_CLIENT_PROBLEM: Final = "leads to a proxy that cannot stream the results of workers"
_CLIENT_HINT: Final = (
    "start the run on a node of the cluster, for example with `ray job submit`, and pass HOST:6379 or no address"
)


class RayPipe:
    """An actor and the streams of its process. Two threads make the blocking calls of Ray: one writes, the other reads."""

    name: str = ""

    def __init__(self, ray: Any, actor: Any, messages: Any) -> None:
        self._ray = ray
        self._actor = actor
        self._token = trio.lowlevel.current_trio_token()
        self._frames: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        """Frames to write; None ends the thread."""
        self._send_message, self._messages = trio.open_memory_channel[bytes | WorkerDied](math.inf)
        self._printer = StderrPrinter()
        self.is_started = False
        self.is_released = False
        self._threads: list[threading.Thread] = []
        self._start_thread(partial(self._read, messages))

    def _start_thread(self, target: Callable[[], None]) -> None:
        self._threads.append(threading.Thread(target=target, name="evaljournal-ray", daemon=True))
        self._threads[-1].start()

    def send(self, frame: bytes, /) -> None:
        self._frames.put(frame)

    def _write(self) -> None:
        """Write all waiting frames together: the actor has written them before it gets more, so that their order is kept."""
        while (frame := self._frames.get()) is not None:
            frames = [frame]
            with suppress(queue.Empty):
                while (frame := self._frames.get_nowait()) is not None:
                    frames.append(frame)
            frames.append(b"")
            try:
                self._ray.get(self._actor.write.remote(b"\n".join(frames)))
            except Exception:  # noqa: BLE001  # the other thread reports it
                return
            if frame is None:
                return

    def _read(self, messages: Any) -> None:
        try:
            for message in messages:
                self._deliver(self._ray.get(message))
            self._deliver(WorkerDied("its actor ended", is_external=True))
        except Exception as exc:  # noqa: BLE001  # reported
            self._deliver(WorkerDied(_error_text(exc), is_external=True))
        self.release()

    def _deliver(self, message: bytes | WorkerDied) -> None:
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._put, message)

    def _put(self, message: bytes | WorkerDied) -> None:
        """Print the worker's standard error, even if its frames are no longer read; keep other messages for `_receive`."""
        if isinstance(message, bytes) and message.startswith(actor_process.STDERR):
            self._printer.print(message[1:])
            return
        if isinstance(message, WorkerDied) or message.startswith(actor_process.EXITED):
            self._printer.end()
        self._send_message.send_nowait(message)

    def lose(self, reason: str) -> None:
        """End the pipe: the cluster does not answer. No more calls of Ray are made."""
        self.is_released = True
        self._frames.put(None)
        self._put(WorkerDied(reason, is_external=True))

    async def _receive(self) -> bytes:
        message = await self._messages.receive()
        if isinstance(message, WorkerDied):
            raise message
        return message

    async def wait_started(self) -> None:
        message = await self._receive()
        if not message.startswith(actor_process.STARTED):
            raise WorkerDied(message[1:].decode("utf-8", "replace"), is_external=True)
        self.is_started = True
        self._start_thread(self._write)

    async def frames(self) -> AsyncGenerator[list[bytes]]:
        splitter = FrameSplitter()
        while True:
            message = await self._receive()
            if message.startswith(actor_process.EXITED):
                raise WorkerDied(exit_text(int(message[1:])))
            if lines := splitter.split(message[1:]):
                yield lines

    def kill(self) -> None:
        """End the process and its group, then the actor."""
        if not self.is_started:
            self.release()
        elif not self.is_released:
            self._actor.kill.remote()

    def close(self) -> Any:
        """Let the worker exit; return the reference of a call that ends when it has."""
        self._frames.put(None)
        return self._actor.close.remote()

    def release(self) -> None:
        """End the actor, so that others can have its resources."""
        if not self.is_released:
            self.is_released = True
            self._frames.put(None)
            with suppress(Exception):  # The connection to the cluster may be lost.
                self._ray.kill(self._actor)

    @property
    def has_ended(self) -> bool:
        """Whether it makes no more calls of Ray."""
        return not any(thread.is_alive() for thread in self._threads)

    def join(self, deadline: float) -> None:
        """Wait until the threads have ended: a call of Ray after the end of the connection would make a new one."""
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))


def _error_text(exc: BaseException) -> str:
    """Return an error of Ray on one line, without the stack traces in it."""
    lines = [line.partition("Traceback (most")[0] for line in str(exc).splitlines() if line[:1].strip()]
    return printable(f"{type(exc).__name__}: {' '.join(filter(None, lines))}", _MAX_DETAIL)


def _print_message(message: Mapping[str, Any], **_: object) -> None:
    """Print the first line of each message of Ray about the cluster on standard error; Ray would use standard output."""
    printer = StderrPrinter()
    for line in message["lines"]:
        printer.print(f"Ray: {line}".partition("\n")[0].encode()[:_MAX_DETAIL] + b"\n")


class _Cluster:
    """The connection of a session to a cluster, and its workers there."""

    def __init__(self, pool: "RayWorkers") -> None:
        self._pool = pool
        self._ray: Any = None
        self._stack = ExitStack()
        """Ends the connection, if the session has made it."""
        self._lock = trio.Lock()
        self._is_connected = trio.Event()
        self._is_lost = False
        self._creation_scopes: set[trio.CancelScope] = set()
        """Cancel scopes of the actors that are being created; creating one waits for the cluster."""
        self._pipes: list[RayPipe] = []

    async def start(self, number: int) -> Pipe:
        """Start a worker when a node has its resources.

        The first workers wait for `start_timeout` at most, later ones as long as another worker runs.
        """
        async with self._lock:
            if self._ray is None:
                await self._connect()

        actor = messages = None
        with trio.CancelScope() as scope:
            if self._is_lost:
                scope.cancel()
            self._creation_scopes.add(scope)
            actor, messages = await run_in_thread(self._new_actor, abandon_on_cancel=True)
        self._creation_scopes.discard(scope)
        if scope.cancelled_caught:
            raise WorkerDied(_LOST_DETAIL, is_external=True)

        pipe = RayPipe(self._ray, actor, messages)
        self._pipes = [pipe for pipe in self._pipes if not pipe.has_ended]
        self._pipes.append(pipe)
        try:
            while True:
                with trio.move_on_after(self._pool.start_timeout):
                    await pipe.wait_started()
                    return pipe
                if number <= max(1, self._pool.workers) or not any(
                    pipe.is_started and not pipe.is_released for pipe in self._pipes
                ):
                    raise WorkerDied(await self._start_failure(), is_external=True)
        except BaseException:
            pipe.release()
            raise

    def _new_actor(self) -> tuple[Any, Any]:
        """Create an actor; return it and the messages that it sends."""
        pool = self._pool
        actor_class = self._ray.remote(actor_process.RayActor).options(
            num_cpus=pool.num_cpus,
            num_gpus=pool.num_gpus,
            resources=dict(pool.resources),
            runtime_env=dict(pool.runtime_env) or None,
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=4,  # Threads: one for each method.
        )
        directory = None if "working_dir" in pool.runtime_env else os.getcwd()
        actor = actor_class.remote(START_CODE, directory, EXIT_TIMEOUT)
        return actor, actor.read.options(num_returns="streaming").remote()

    async def _connect(self) -> None:
        """Connect to the cluster, or use the connection that this process has."""
        ray = _import_ray()
        if ray.util.client.ray.is_connected():
            raise UsageError(f"a ray:// address {_CLIENT_PROBLEM}", hint=_CLIENT_HINT)
        if not ray.is_initialized():
            address = self._pool.address or os.environ.get("RAY_ADDRESS") or "auto"
            _check_address(address, "workers.address" if self._pool.address else "RAY_ADDRESS")
            worker = ray._private.worker  # noqa: SLF001  # not every version of Ray has the function
            self._stack.callback(setattr, worker, "print_to_stdstream", getattr(worker, "print_to_stdstream", None))
            worker.print_to_stdstream = _print_message  # While it is connected, from the first message to the last.

            is_connected = False
            try:
                with trio.move_on_after(CONNECT_TIMEOUT):
                    await run_in_thread(partial(_connect, ray, address), abandon_on_cancel=True)
                    is_connected = True
            finally:
                if not is_connected:
                    atexit.unregister(ray.shutdown)  # It would wait for the thread that still tries to connect.
            if not is_connected:
                raise UsageError(f"the Ray cluster {printable(address)} did not answer within {CONNECT_TIMEOUT:g} s")
            self._stack.callback(ray.shutdown)

        reinstall_handlers()
        self._ray = ray
        self._is_connected.set()

    async def watch(self) -> None:
        """End all workers if the cluster does not answer: Ray does not report its loss, and ends the process after 60 s."""
        await self._is_connected.wait()
        while not self._is_lost:
            await trio.sleep(CHECK_INTERVAL)
            self._is_lost = not await self._answers()
        for pipe in self._pipes:
            pipe.lose(_LOST_DETAIL)
        for scope in self._creation_scopes:
            scope.cancel()

    async def _answers(self) -> bool:
        """Return whether the cluster lists its nodes in time; an error of Ray counts as no answer."""
        with trio.move_on_after(LOST_TIMEOUT), suppress(Exception):
            await run_in_thread(self._ray.nodes, abandon_on_cancel=True)
            return True
        return False

    async def _start_failure(self) -> str:
        with trio.move_on_after(_ANSWER_TIMEOUT):
            return await run_in_thread(self._start_failure_of_cluster, abandon_on_cancel=True)
        return _LOST_DETAIL

    def _start_failure_of_cluster(self) -> str:
        pool = self._pool
        request = {"CPU": pool.num_cpus, "GPU": pool.num_gpus, **pool.resources}
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        shortage = {name: amount for name, amount in request.items() if all(node.get(name, 0) < amount for node in nodes)}
        wait_text = f"waited {pool.start_timeout:g} s"
        if shortage:
            return f"no node of the Ray cluster has {_amounts_text(shortage)}; {wait_text}"

        free_resources = self._ray.available_resources()
        amounts = _amounts_text({name: amount for name, amount in request.items() if amount})
        total_free = _amounts_text({name: free_resources.get(name, 0) for name in request})
        return f"no node of the Ray cluster has {amounts} free (free in total: {total_free}); {wait_text}"

    async def close(self) -> None:
        """End the workers, and the connection if the session made it."""
        if self._ray is None:
            return
        with trio.move_on_after(_CLOSE_TIMEOUT) as scope:
            scope.shield = True
            await run_in_thread(self._close, abandon_on_cancel=True)
        if scope.cancelled_caught:
            atexit.unregister(self._ray.shutdown)  # It would wait for a cluster that does not answer.

    def _close(self) -> None:
        close_calls = [pipe.close() for pipe in self._pipes if pipe.is_started and not pipe.is_released]
        if close_calls:
            self._ray.wait(close_calls, num_returns=len(close_calls), timeout=EXIT_TIMEOUT + 1.0)
        _join([pipe for pipe in self._pipes if pipe.is_started], _LAST_LINES_TIMEOUT)
        for pipe in self._pipes:
            pipe.release()
        _join(self._pipes, _JOIN_TIMEOUT)
        self._stack.close()


def _join(pipes: Sequence[RayPipe], timeout: float) -> None:
    deadline = time.monotonic() + timeout
    for pipe in pipes:
        pipe.join(deadline)


def _import_ray() -> Any:
    try:
        importlib.import_module("ray.util.client")
        return importlib.import_module("ray")
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] != "ray":
            raise
        raise UsageError("workers on Ray need the package ray", hint="pip install 'evaljournal[ray]'") from exc


def _connect(ray: Any, address: str) -> None:
    """Connect to a running cluster. Ray logs nothing: it would write over the screen of the run."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        try:
            socket.create_connection((host.strip("[]"), int(port)), _PORT_TIMEOUT).close()
        except OSError as exc:  # Ray would retry for minutes.
            raise UsageError(f"cannot connect to the Ray cluster {printable(address)}: {exc}") from exc

    try:
        ray.init(address=address, log_to_driver=False, logging_level="critical")
    except Exception as exc:
        cause = exc if exc.__cause__ is None else exc.__cause__
        raise UsageError(f"cannot connect to the Ray cluster {printable(address)}: {_error_text(cause)}") from exc


def _amounts_text(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{printable(name)} {amount:g}" for name, amount in resources.items())


def _check_address(address: object, setting: str) -> None:
    """Raise a `UsageError` if an address is neither HOST:PORT nor `auto`, which is the cluster on this machine."""
    if address is None or address == "auto":
        return
    text = address if isinstance(address, str) else ""
    if text.startswith("ray://"):
        raise UsageError(_CLIENT_PROBLEM, setting=setting, value=address, hint=_CLIENT_HINT)

    host, _, port = text.rpartition(":")
    if not host or "://" in host or not port.isdecimal():
        problem = "must be HOST:PORT of a running cluster; `ray start --head` starts one"
        raise UsageError(problem, setting=setting, value=address)


def _valid_address(_: object, __: object, address: str | None) -> None:
    _check_address(address, "workers.address")


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")


def _reject_env_vars(_: object, __: object, value: Mapping[str, Any]) -> None:
    if "env_vars" in value:
        problem = "Ray stores the values of env_vars; pass names of variables: environment=(…)"
        raise UsageError(problem, setting="workers.runtime_env")


def _copy(value: Mapping[str, Any]) -> dict[str, Any]:
    return dict(value)


_valid_count: Final = whole_number(0, prefix="workers.")
_valid_amount: Final = rule(_is_amount, "must be a number, 0 or more", prefix="workers.")
_valid_resources: Final = rule(
    lambda value: all(map(_is_amount, value.values())), "must map names of resources to numbers, 0 or more", prefix="workers."
)
_valid_variables: Final = rule(
    lambda value: isinstance(value, tuple | list) and all(isinstance(name, str) for name in value),
    "must be a tuple of names",
    prefix="workers.",
)
_valid_duration: Final = rule(
    lambda value: _is_amount(value) and value > 0, "must be a number of seconds above 0", prefix="workers."
)


@attrs.frozen
class RayWorkers(WorkerPool):
    """Runs attempts on a Ray cluster: `@evaluation(…, workers=RayWorkers(workers=4, num_gpus=1))`.

    Each worker is an actor with these resources, whose process imports the evaluation. The cluster must be running.
    """

    address: str | None = attrs.field(default=None, validator=_valid_address)
    """HOST:PORT of the cluster. None: RAY_ADDRESS, otherwise the cluster on this machine. An existing connection of the
    process has precedence."""
    workers: int = attrs.field(default=0, validator=_valid_count, kw_only=True)
    """Number of workers. 0: as many as the attempts need and the cluster has room for; nodes may be added and removed."""
    concurrency: int | None = attrs.field(default=None, validator=valid_concurrency, kw_only=True)
    """Attempts that a worker runs concurrently; see `ProcessWorkers`."""
    runs_tasks: bool = attrs.field(default=True, validator=valid_runs_tasks, kw_only=True)
    """Whether attempts run there; see `ProcessWorkers`."""
    num_cpus: float = attrs.field(default=1, validator=_valid_amount, kw_only=True)
    """CPUs that Ray reserves for each worker."""
    num_gpus: float = attrs.field(default=0, validator=_valid_amount, kw_only=True)
    """GPUs that Ray reserves for each worker."""
    resources: Mapping[str, float] = attrs.field(
        factory=dict[str, float], converter=_copy, validator=_valid_resources, kw_only=True
    )
    """Other resources that Ray reserves for each worker."""
    runtime_env: Mapping[str, Any] = attrs.field(
        factory=dict[str, Any], converter=_copy, validator=_reject_env_vars, repr=False, kw_only=True
    )
    """Ray's runtime environment, such as `{"working_dir": ".", "pip": ["openai"]}`. Without a `working_dir`, every node must
    have the current directory."""
    environment: Sequence[str] = attrs.field(default=(), validator=_valid_variables, kw_only=True)
    """Names of environment variables that are sent to the workers; Ray sends none. Only the names are recorded."""
    start_timeout: float = attrs.field(default=30.0, validator=_valid_duration, kw_only=True)
    """Seconds that the first workers wait for a node with these resources; raise it if the cluster adds nodes on demand."""

    kind = "ray"

    def __attrs_post_init__(self) -> None:
        if not self.workers and not any((self.num_cpus, self.num_gpus, *self.resources.values())):
            problem = "without a number of workers, each worker must reserve a resource"
            raise UsageError(problem, setting="workers.num_cpus", value=self.num_cpus, hint="pass workers=…, or num_cpus=1")

    @property
    def spares(self) -> int:
        """Workers that are kept ready to replace one that has ended; none that would reserve a GPU or one of `resources`."""
        return int(self.workers > 0 and not self.num_gpus and not self.resources)

    def describe(self) -> dict[str, Any]:
        return {
            **super().describe(),
            "address": self.address,
            "num_cpus": self.num_cpus,
            "num_gpus": self.num_gpus,
            "resources": dict(self.resources),
            "runtime_env": sorted(self.runtime_env),
            "environment": list(self.environment),
        }

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[StartWorker]:
        """Open the pool for a session; it connects when its first worker starts."""
        cluster = _Cluster(self)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cluster.watch)
            try:
                yield cluster.start
            finally:
                nursery.cancel_scope.cancel()
                await cluster.close()


def ray_workers(argument: str | None) -> RayWorkers:
    """Return the workers of `--workers ray`, `ray:HOST:PORT` or `ray://HOST:PORT`."""
    return RayWorkers(f"ray:{argument}" if argument is not None and argument.startswith("//") else argument)
