"""The server of `evaljournal view`: the page of a run, and its updates as the journal grows.

It is read-only and listens on 127.0.0.1. The address contains a random token, and the Host header is checked, so that other
web pages cannot read it. `TokenServer` is the part that it shares with the server of `evaljournal review`.
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
from evaljournal.replay import LoadedRun
from evaljournal.replay.page.page import PageRun, live_page, security_policy
from evaljournal.replay.page.page_columns import PageCursor, encode_json
from evaljournal.replay.runs.loaded_run import reject_invalid_record
from evaljournal.replay.text import printable
from evaljournal.runner.calls.http.heads import RequestHead
from evaljournal.runner.calls.http.server import CONNECTION_ERRORS, ClientConnection, ReplyAborted
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


class FollowedRun:
    """A run as far as its journal has been read, and an event that is set when it changes."""

    def __init__(self, path: Path, size: int) -> None:
        self.run = LoadedRun(path)
        self._reader = PageReader(size)
        self._is_live = False
        self._change_event = trio.Event()
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
                        self._notify()
        except (JournalDamaged, InvalidRecord) as exc:
            self.run.problem = exc
        except NotAJournal as exc:
            self.run.problem = InvalidRecord(path, self.run.seq + 1, str(exc))
        self._caught_up_event.set()
        self._notify()

    async def watch_lock(self) -> None:
        """Check periodically whether a process writes the run."""
        while True:
            await trio.sleep(LOCK_INTERVAL)
            is_live = await trio.to_thread.run_sync(is_held, self.run.path)
            if is_live != self._is_live:
                self._is_live = is_live
                self._notify()

    def _notify(self) -> None:
        self._change_event.set()
        self._change_event = trio.Event()

    async def messages(self, cursor: PageCursor) -> AsyncGenerator[bytes, None]:
        """Yield server-sent events with everything after the cursor, indefinitely."""
        await self._caught_up_event.wait()
        while True:
            change_event = self._change_event
            data = b"".join(encode_json(self.page_run.data(cursor)))
            cursor = PageCursor.end(self._reader.content)
            yield b"retry: 1000\nid: %b\nevent: run\ndata: %b\n\n" % (str(cursor).encode(), data)
            while True:
                with trio.move_on_after(HEARTBEAT) as timeout:
                    await change_event.wait()
                if not timeout.cancelled_caught:
                    break
                yield b": no change\n\n"
            await trio.sleep(UPDATE_INTERVAL)


_HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
"""Headers that forbid caching, content sniffing and referrers."""


class TokenServer(ABC):
    """Answers requests to an address with a random token."""

    command: ClassVar[str]
    """The command that printed the address."""
    methods: ClassVar[Sequence[str]] = ("GET", "HEAD")
    policy: ClassVar[str]
    """The Content-Security-Policy of its page."""

    def __init__(self, port: int, token: str | None = None) -> None:
        self._token = token or secrets.token_urlsafe(24)
        self._port = port
        self._hosts = {f"{name}:{port}".encode() for name in (HOST, "localhost")}

    @property
    def address(self) -> str:
        """The URL of the page."""
        return f"http://{HOST}:{self._port}/{self._token}/"

    async def answer(self, stream: trio.abc.HalfCloseableStream) -> None:
        """Answer one request and close the connection."""
        headers = (*_HEADERS, (b"content-security-policy", f"{self.policy}; frame-ancestors 'none'".encode()))
        connection = ClientConnection(stream, headers, keeps_alive=False)
        await connection.serve(partial(self._respond, connection))

    async def _respond(self, connection: ClientConnection, request: RequestHead) -> None:
        headers = dict(request.headers)
        root, *path = request.target.partition("?")[0].split("/")
        if headers.get(b"host") not in self._hosts:
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
    """Answers requests for the page and for its events."""

    command = "view"
    policy = security_policy(connect="'self'")

    def __init__(self, followed_run: FollowedRun, port: int, token: str | None = None) -> None:
        super().__init__(port, token)
        self._followed_run = followed_run

    async def _route(self, connection: ClientConnection, request: RequestHead, path: str) -> None:
        if path == "":
            page = live_page(self._followed_run.run.path.name)
            await connection.send(200, [(b"content-type", b"text/html; charset=utf-8")], page)
        elif path == "events":
            await connection.begin(200, [(b"content-type", b"text/event-stream; charset=utf-8")])
            if request.method == "GET":
                event_id = dict(request.headers).get(b"last-event-id", b"").decode("latin-1")
                await self._send_events(connection, PageCursor.parse(event_id))
        else:
            await connection.reject(404, "not found")

    async def _send_events(self, connection: ClientConnection, cursor: PageCursor) -> None:
        """Send events until the browser closes the connection."""
        async with aclosing(self._followed_run.messages(cursor)) as messages:
            async for message in messages:
                await connection.send_chunk(message)


async def open_listener(port: int) -> trio.SocketListener:
    """Listen on a port of 127.0.0.1; 0: a free one."""
    try:
        (listener,) = await trio.open_tcp_listeners(port, host=HOST)
    except OSError as exc:
        hint = "pass another --port, or none to use a free one"
        raise UsageError(f"cannot listen on port {port}: {exc.strerror}", hint=hint) from exc
    return listener


async def serve(path: Path, size: int, port: int, *, on_ready: Callable[[str], object], token: str | None = None) -> None:
    """Serve a run until cancelled; `on_ready` is called with the address."""
    followed_run = FollowedRun(path, size)
    listener = await open_listener(port)
    server = Server(followed_run, listener.socket.getsockname()[1], token)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(followed_run.follow)
        nursery.start_soon(followed_run.watch_lock)
        on_ready(server.address)
        await trio.serve_listeners(server.answer, [listener])
