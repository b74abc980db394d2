"""The server of `evaljournal view`: the page of a run, and its updates as the journal grows.

It is read-only and listens on 127.0.0.1, unless another address is passed. The URL contains a random token, and the Host header
is checked, so that other web pages cannot read it. `TokenServer` is the part that it shares with other servers.
"""

import secrets
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import ClassVar, Final

import trio

from evaljournal.journal import follow
from evaljournal.journal.disk.lock import is_held
from evaljournal.journal.errors import InvalidRecord, JournalDamaged, NotAJournal
from evaljournal.replay.page.page import PageRun, live_page, security_policy
from evaljournal.replay.page.page_columns import PageCursor, encode_json
from evaljournal.replay.runs.loaded_run import LoadedRun, reject_invalid_record
from evaljournal.replay.text import printable
from evaljournal.runner.calls.http.heads import RequestHead
from evaljournal.runner.calls.http.server import CONNECTION_ERRORS, ClientConnection, ReplyAborted, TokenListener
from evaljournal.runner.cli.terminal.output import echo
from evaljournal.runner.errors import UsageError
from evaljournal.runner.runs.page import PageReader
from evaljournal.runner.runs.paths import last_record

HOST: Final = "127.0.0.1"
UPDATE_INTERVAL: Final = 0.5
"""Minimum seconds between two updates of a page."""
LOCK_INTERVAL: Final = 1.0
"""Seconds between two checks whether a process still writes the run."""
HEARTBEAT: Final = 15.0
"""Seconds without an update after which a comment is sent, to detect a closed connection."""


class Changes:
    """An event that is set when something changes, and the messages about it."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def notify(self) -> None:
        self._event.set()
        self._event = trio.Event()

    async def messages(self, message: Callable[[], bytes]) -> AsyncGenerator[bytes, None]:
        """Yield a server-sent event now and after each change, at most one per interval, indefinitely."""
        while True:
            event = self._event
            yield message()
            while True:
                with trio.move_on_after(HEARTBEAT) as timeout:
                    await event.wait()
                if not timeout.cancelled_caught:
                    break
                yield b": no change\n\n"
            await trio.sleep(UPDATE_INTERVAL)


class FollowedRun:
    """A run as far as its journal has been read, and an event that is set when it changes."""

    def __init__(self, path: Path, size: int) -> None:
        self.run = LoadedRun(path)
        self._reader = PageReader(size)
        self._is_live = False
        self._changes = Changes()
        self._caught_up_event = trio.Event()
        """Set when all records have been read that existed at the start."""

    @property
    def page_run(self) -> PageRun:
        """The run as it is now. After its last record it has ended, even if the process still holds the lock."""
        self.run.is_live = self._is_live and not self.run.state.outcome
        return self._reader.run(self.run)

    async def follow(self) -> None:
        """Read the journal and follow it as it grows; if it is damaged, record the problem and return."""
        path = self.run.path
        self._is_live = await trio.to_thread.run_sync(is_held, path)
        newest_record = await trio.to_thread.run_sync(last_record, path)
        last_seq = 1 if newest_record is None else newest_record.seq

        try:
            with reject_invalid_record(path, lambda: self.run.seq + 1):
                async with aclosing(follow(path, load_blobs=False)) as records:
                    async for record in records:
                        self._reader.apply(self.run, record)
                        if record.seq >= last_seq:
                            self._caught_up_event.set()
                        self._changes.notify()
        except (JournalDamaged, InvalidRecord) as exc:
            self.run.problem = exc
        except (NotAJournal, OSError) as exc:  # It was removed, or cannot be read.
            self.run.problem = InvalidRecord(path, self.run.seq + 1, str(exc))
        self._caught_up_event.set()
        self._changes.notify()

    async def watch_lock(self) -> None:
        while True:
            await trio.sleep(LOCK_INTERVAL)
            is_live = await trio.to_thread.run_sync(is_held, self.run.path)
            if is_live != self._is_live:
                self._is_live = is_live
                self._changes.notify()

    async def messages(self, cursor: PageCursor) -> AsyncGenerator[bytes, None]:
        """Yield server-sent events with everything after the cursor, indefinitely."""
        await self._caught_up_event.wait()

        def message() -> bytes:
            nonlocal cursor
            data = b"".join(encode_json(self.page_run.data(cursor)))
            cursor = PageCursor.end(self._reader.content)
            return b"retry: 1000\nid: %b\nevent: run\ndata: %b\n\n" % (str(cursor).encode(), data)

        async with aclosing(self._changes.messages(message)) as messages:
            async for item in messages:
                yield item


_HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


class TokenServer(ABC):
    command: ClassVar[str]
    """The command that printed the address."""
    methods: ClassVar[Sequence[str]] = ("GET", "HEAD")
    policy: ClassVar[str]
    """The Content-Security-Policy of its page."""

    def __init__(self, port: int, token: str | None = None, host: str = HOST) -> None:
        """Answer requests to a port; only requests to `host`, unless it is an address that a proxy may stand before."""
        self._token = token or secrets.token_urlsafe(24)
        self._host, self._port = host, port
        self._hosts = {f"{name}:{port}".encode() for name in (HOST, "localhost")} if host == HOST else None
        self._listener: TokenListener | None = None

    @property
    def address(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}/{self._token}/"

    async def serve(self, listener: trio.SocketListener) -> None:
        self._listener = TokenListener(listener)
        await trio.serve_listeners(self.answer, [self._listener])

    async def answer(self, stream: trio.abc.HalfCloseableStream) -> None:
        """Answer one request and close the connection."""
        headers = (*_HEADERS, (b"content-security-policy", f"{self.policy}; frame-ancestors 'none'".encode()))
        connection = ClientConnection(stream, headers, keeps_alive=False, listener=self._listener)
        await connection.serve(partial(self._respond, connection))

    async def _respond(self, connection: ClientConnection, request: RequestHead) -> None:
        headers = dict(request.headers)
        root, *path = request.target.partition("?")[0].split("/")
        if self._hosts is not None and headers.get(b"host") not in self._hosts:
            await connection.reject(403, f"only requests to {HOST} are answered")
        elif root or not path or not secrets.compare_digest(path[0], self._token):
            await connection.reject(404, f"not found; use the complete address that `evaljournal {self.command}` printed")
        elif request.method not in self.methods:
            allowed = ", ".join(self.methods)
            await connection.reject(405, f"use {allowed}", (b"allow", allowed.encode()))
        elif path[1:] == []:
            await connection.reject(307, "the address ends with a /", (b"location", f"/{self._token}/".encode()))
        else:
            connection.authorize()
            try:
                await self._route(connection, request, "/".join(path[1:]))
            except CONNECTION_ERRORS:
                raise
            except Exception as exc:  # One request must not end the server.
                echo(printable(f"a request failed: {exc!r}", 400), err=True)
                if connection.is_reply_started:
                    raise ReplyAborted from exc
                await connection.reject(500, f"the request failed with {type(exc).__name__}")

    @abstractmethod
    async def _route(self, connection: ClientConnection, request: RequestHead, path: str) -> None:
        """Answer a request with a valid token; `path` is what follows the token."""


class Server(TokenServer):
    command = "view"
    policy = security_policy(connect="'self'")

    def __init__(self, followed_run: FollowedRun, port: int, token: str | None = None, host: str = HOST) -> None:
        super().__init__(port, token, host)
        self._followed_run = followed_run

    async def _route(self, connection: ClientConnection, request: RequestHead, path: str) -> None:
        if path == "":
            await send_page(connection, live_page(self._followed_run.run.path.name))
        elif path == "events":
            await send_events(connection, request, self._followed_run.messages(cursor_of(request)))
        else:
            await connection.reject(404, "not found")


async def send_page(connection: ClientConnection, page: bytes) -> None:
    await connection.send(200, [(b"content-type", b"text/html; charset=utf-8")], page)


def cursor_of(request: RequestHead) -> PageCursor:
    """Return what a page that reconnects has already."""
    return PageCursor.parse(dict(request.headers).get(b"last-event-id", b"").decode("latin-1"))


async def send_events(connection: ClientConnection, request: RequestHead, events: AsyncGenerator[bytes, None]) -> None:
    """Send events until the browser closes the connection."""
    await connection.begin(200, [(b"content-type", b"text/event-stream; charset=utf-8")])
    async with aclosing(events) as messages:
        if request.method == "GET":
            async for message in messages:
                await connection.send_chunk(message)


async def open_listener(port: int, host: str = HOST) -> trio.SocketListener:
    """Listen on a port of an IP address; 0: a free one."""
    try:
        (listener,) = await trio.open_tcp_listeners(port, host=host)
    except OSError as exc:
        hint = "pass another --port, or none to use a free one"
        place = f"port {port}" if host == HOST else f"port {port} of {host}"
        raise UsageError(f"cannot listen on {place}: {exc.strerror}", hint=hint) from exc
    return listener


async def serve(
    path: Path, size: int, port: int, *, on_ready: Callable[[str], object], token: str | None = None, host: str = HOST
) -> None:
    """Serve a run until cancelled; `on_ready` is called with the address."""
    followed_run = FollowedRun(path, size)
    listener = await open_listener(port, host)
    server = Server(followed_run, listener.socket.getsockname()[1], token, host)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(followed_run.follow)
        nursery.start_soon(followed_run.watch_lock)
        on_ready(server.address)
        await server.serve(listener)
