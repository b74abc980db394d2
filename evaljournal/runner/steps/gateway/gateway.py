"""The gateway's server on 127.0.0.1, and the task that has an address there for each of its attempts."""

import functools
import secrets
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from http import HTTPStatus
from typing import Any, Final

import attrs
import trio

from evaljournal.runner.calls import OnLateResult, Task
from evaljournal.runner.calls.function import FunctionTask
from evaljournal.runner.calls.gateway_env import set_gateway_env
from evaljournal.runner.calls.http.client import Client
from evaljournal.runner.calls.http.heads import RequestHead
from evaljournal.runner.calls.http.reply import LARGE_REPLIES, MAX_BYTES, SMALL_REPLY
from evaljournal.runner.calls.http.server import RequestTooLarge, TokenListener
from evaljournal.runner.secrets.masking import add_secret
from evaljournal.runner.steps.attempt_steps import current_steps
from evaljournal.runner.steps.gateway.call import AgentConnection, Call, GatewayAttempt, TooManyConnections
from evaljournal.runner.steps.gateway.providers import (
    Provider,
    Route,
    agent_environment,
    common_environment,
    routes,
    split_model,
)

HOST: Final = "127.0.0.1"
MAX_CONNECTIONS: Final = 2_000
SWEEP_INTERVAL: Final = 10.0
"""Seconds between two searches for idle connections."""
CONNECT_TIMEOUT: Final = 10.0
"""Seconds to connect to a provider."""

_TOKEN_BYTES: Final = 16
MAX_REQUESTS: Final = 512 * 1024 * 1024
"""Maximum bytes of all large request bodies together; further ones wait until calls end."""


class RequestMemory:
    """The memory for large request bodies; each takes all it needs in one step, so that no two can block each other."""

    def __init__(self) -> None:
        self._available = MAX_REQUESTS
        self._waiters = trio.lowlevel.ParkingLot()

    @asynccontextmanager
    async def reserve(self, size: int) -> AsyncGenerator[None]:
        while size > self._available:
            await self._waiters.park()
        self._available -= size
        try:
            yield
        finally:
            self._available += size
            self._waiters.unpark_all()


@attrs.define
class Gateway:
    port: int
    _listener: TokenListener
    _routes: Mapping[str, tuple[Route, Client]]
    _attempts: dict[str, GatewayAttempt] = attrs.field(init=False, factory=dict[str, GatewayAttempt])
    """Token → attempt in flight."""
    _memory: RequestMemory = attrs.field(init=False, factory=RequestMemory)
    _places: trio.Semaphore = attrs.field(init=False, factory=lambda: trio.Semaphore(LARGE_REPLIES))
    _environment: Mapping[str, str] = attrs.field(init=False, factory=lambda: common_environment(HOST))
    _connections: set[AgentConnection] = attrs.field(init=False, factory=set[AgentConnection])
    """Those that have sent the token of an attempt."""

    async def call(self, task: Task, value: Any, on_late: OnLateResult) -> Any:
        """Call a task for the attempt in this context; while it runs, it may call the gateway."""
        steps = current_steps()
        assert steps is not None
        # A thread cannot be cancelled: it gets the error of the provider, and ends by itself.
        attempt = GatewayAttempt(steps, is_cancellable=not (isinstance(task, FunctionTask) and task.loop is None))
        output = None

        with self._open_attempt(attempt) as token:
            environment = agent_environment(f"http://{HOST}:{self.port}/{token}", self._environment)
            try:
                with set_gateway_env(environment), attempt.scope:
                    output = await task.call(value, on_late)
            except Exception as exc:
                if attempt.failure is None:
                    raise
                raise attempt.failure from exc

        if attempt.failure is not None:
            raise attempt.failure
        return output

    @contextmanager
    def _open_attempt(self, attempt: GatewayAttempt) -> Generator[str]:
        """Give an attempt a token, which its address contains, for the duration of the block."""
        token = f"{_token_prefix()}-{secrets.token_hex(_TOKEN_BYTES)}"
        self._attempts[token] = attempt
        try:
            yield token
        finally:
            del self._attempts[token]
            for call in attempt.calls:
                call.cancel()

    async def serve(self, stream: trio.abc.HalfCloseableStream) -> None:
        connection = AgentConnection(stream, listener=self._listener)
        try:
            await connection.serve(functools.partial(self._answer, connection))
        finally:
            self._connections.discard(connection)

    async def close_idle_connections(self) -> None:
        """Close connections that wait too long for a request, until cancelled."""
        while True:
            await trio.sleep(SWEEP_INTERVAL)
            for connection in self._connections:
                connection.close_if_idle()

    async def _answer(self, connection: AgentConnection, request: RequestHead) -> None:
        path, _, query = request.target.partition("?")
        _, _, token_and_path = path.partition("/")
        token, slash, api_path = token_and_path.partition("/")

        attempt = self._attempts.get(token)
        if attempt is None:
            message = "no attempt in flight has this address: the attempt has ended, or the address is wrong"
            await connection.reject(HTTPStatus.FORBIDDEN, message)
            return

        has_place = connection in self._connections or len(self._connections) < MAX_CONNECTIONS
        if has_place:
            self._connections.add(connection)
            connection.authorize()

        template, model = split_model(slash + api_path)
        if (route_and_client := self._routes.get(template)) is None:
            await connection.reject(
                HTTPStatus.NOT_FOUND, f"{slash}{api_path} is not forwarded; paths: {', '.join(self._routes)}"
            )
            return
        route, client = route_and_client[0].with_model(model), route_and_client[1]
        if request.method != route.method:
            await connection.reject(HTTPStatus.METHOD_NOT_ALLOWED, f"use {route.method}", (b"allow", route.method.encode()))
            return

        length = request.length
        if length is not None and length > MAX_BYTES:
            raise RequestTooLarge(MAX_BYTES)
        call = Call(attempt, route, client, request, route.target_with(query), connection, self._places)
        if not has_place:
            await call.fail(
                None, TooManyConnections(f"the gateway has {MAX_CONNECTIONS:,} open connections, its maximum; use fewer slots")
            )
            return

        attempt.calls.add(connection.call_scope)
        try:
            if length is not None and length <= SMALL_REPLY:
                await call.answer()
            else:
                async with self._memory.reserve(length or MAX_BYTES):
                    await call.answer()
        finally:
            attempt.calls.discard(connection.call_scope)


@functools.cache
def _token_prefix() -> str:
    """Return a random prefix for the tokens of this process, and mask it from now on.

    Masking whole tokens would get slower with each attempt.
    """
    prefix = secrets.token_hex(_TOKEN_BYTES)
    add_secret(prefix)
    return prefix


@asynccontextmanager
async def open_gateway(providers: Sequence[Provider]) -> AsyncGenerator[Gateway]:
    """Serve a gateway to these providers on a free port."""
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(Client(provider.address, connect_timeout=CONNECT_TIMEOUT, read_timeout=None))
            for provider in providers
        ]
        (socket_listener,) = await trio.open_tcp_listeners(0, host=HOST)
        listener = TokenListener(socket_listener)
        routes_by_path = {
            path: (route, client)
            for provider, client in zip(providers, clients, strict=True)
            for path, route in routes(provider).items()
        }
        gateway = Gateway(socket_listener.socket.getsockname()[1], listener, routes_by_path)
        nursery = await stack.enter_async_context(trio.open_nursery())
        nursery.start_soon(trio.serve_listeners, gateway.serve, [listener])
        nursery.start_soon(gateway.close_idle_connections)
        try:
            yield gateway
        finally:
            nursery.cancel_scope.cancel()
