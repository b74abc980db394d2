"""A run as it goes on, for a browser on the same machine: the page, and what is new, from the journal's own tail.

Nothing is kept but what the journal says, and nothing can be changed from here. Who may look is told by an address that nobody
can guess; a page of somebody else's cannot reach it, for it knows neither the address nor may it name the host.
"""

import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Final

import attrs
import h11
import orjson
import trio

from journal import follow
from journal.errors import JournalDamaged, NotAJournal, RulesBroken
from journal.lock import is_held
from replay import LoadedRun
from replay.export.page import Shown, live_page, policy
from replay.export.page_content import Cursor
from replay.loaded_run import reject_invalid_record
from runner.cli._page import Showing
from runner.cli.look import Seen
from runner.errors import UsageError
from runner.run_paths import last_record

HOST: Final = "127.0.0.1"
FRAME: Final = 0.5
"""Seconds at least between two messages to a page: it draws itself anew each time."""
LOOK: Final = 1.0
"""Seconds after which it is seen again whether the writer lives."""
HEARTBEAT: Final = 15.0
"""Seconds of silence after which a page is told that there is nothing new, so that one that is gone is noticed."""
PATIENCE: Final = 10.0
"""Seconds in which a request must be whole."""
_AT_ONCE: Final = 65_536
_POLICY: Final = policy(connect="'self'") + "; frame-ancestors 'none'"


class Live:
    """A run as far as its journal has been read, and an event for those who wait for more."""

    def __init__(self, path: Path, size: int) -> None:
        self.history = LoadedRun(path)
        self._showing = Showing(size)
        self._is_live = False
        self._news = trio.Event()
        self._caught_up = trio.Event()
        """Set when everything was read that was there in the beginning."""

    @property
    def shown(self) -> Shown:
        """The run as it stands; after its last word it is over, though its writer may take a moment to leave."""
        return self._showing.shown(Seen(self.history, self._is_live and not self.history.state.ending))

    async def go_along(self) -> None:
        """Read the journal, and go on reading as it grows, whoever writes it; stay when it is damaged, and say so."""
        path = self.history.path
        self._is_live = await trio.to_thread.run_sync(is_held, path)
        last = await trio.to_thread.run_sync(last_record, path)
        already = 1 if last is None else last.seq
        try:
            with reject_invalid_record(path, lambda: self.history.seq + 1):
                async with aclosing(follow(path, load_blobs=False)) as records:
                    async for record in records:
                        self._showing.take(self.history, record)
                        if record.seq >= already:
                            self._caught_up.set()
                        self._tell()
        except (JournalDamaged, RulesBroken) as exc:
            self.history.problem = exc
        except NotAJournal as exc:
            self.history.problem = RulesBroken(path, self.history.seq + 1, str(exc))
        self._caught_up.set()
        self._tell()

    async def look_after_the_writer(self) -> None:
        """See now and then whether somebody writes it."""
        while True:
            await trio.sleep(LOOK)
            is_live = await trio.to_thread.run_sync(is_held, self.history.path)
            if is_live != self._is_live:
                self._is_live = is_live
                self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = trio.Event()

    async def messages(self, known: Cursor) -> AsyncGenerator[bytes, None]:
        """Tell somebody who knows so much what is new, for ever."""
        await self._caught_up.wait()
        while True:
            news = self._news
            told = orjson.dumps(self.shown.told(known), option=orjson.OPT_NON_STR_KEYS)
            known = self._showing.content.cursor
            yield b"retry: 1000\nid: %b\nevent: run\ndata: %b\n\n" % (str(known).encode(), told)
            while True:
                with trio.move_on_after(HEARTBEAT) as silence:
                    await news.wait()
                if not silence.cancelled_caught:
                    break
                yield b": nothing new\n\n"
            await trio.sleep(FRAME)


@attrs.frozen
class _Reply:
    """An answer that is there whole."""

    status: int
    text: str
    kind: str = "text/plain"
    headers: tuple[tuple[str, str], ...] = ()
    """Those that not every answer has."""


@attrs.frozen
class _Events:
    """An answer without an end: what is new to somebody who knows so much."""

    known: Cursor


class Server:
    """What answers the browser: two addresses, to be read only."""

    def __init__(self, live: Live, port: int, token: str | None = None) -> None:
        self._live = live
        self._token = token or secrets.token_urlsafe(24)
        self._port = port
        self._hosts = {f"{name}:{port}".encode() for name in (HOST, "localhost")}

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://{HOST}:{self._port}/{self._token}/"

    async def answer(self, stream: trio.abc.Stream) -> None:
        """Answer one request, and close."""
        connection = h11.Connection(h11.SERVER)
        request = None
        try:
            async with stream:
                with trio.move_on_after(PATIENCE):
                    request = await _request(stream, connection)
                if request is not None:
                    await self._send(stream, connection, self._choose(request), whole=request.method != b"HEAD")
        except (trio.BrokenResourceError, trio.ClosedResourceError, h11.RemoteProtocolError, h11.LocalProtocolError):
            pass  # The browser is gone, or is none.

    def _choose(self, request: h11.Request) -> _Reply | _Events:  # noqa: PLR0911  # one way out for each answer
        headers = dict(request.headers)
        if headers.get(b"host") not in self._hosts:
            return _Reply(403, f"this is only for {HOST}\n")
        root, *path = request.target.partition(b"?")[0].split(b"/")
        if root or not path or not secrets.compare_digest(path[0], self._token.encode()):
            return _Reply(404, "there is nothing here; `evaljournal view` says the whole address\n")
        if request.method not in {b"GET", b"HEAD"}:
            return _Reply(405, "this can only be read\n", headers=(("allow", "GET, HEAD"),))
        match path[1:]:
            case []:
                return _Reply(307, "the address ends with a /\n", headers=(("location", f"/{self._token}/"),))
            case [b""]:
                return _Reply(200, live_page(self._live.history.path.name).decode(), "text/html")
            case [b"events"]:
                return _Events(Cursor.read(headers.get(b"last-event-id", b"").decode("latin-1")))
            case _:
                return _Reply(404, "there is nothing here\n")

    async def _send(self, stream: trio.abc.Stream, connection: h11.Connection, reply: _Reply | _Events, *, whole: bool) -> None:
        """Send an answer; to who asks for its head alone, no more than that."""
        match reply:
            case _Reply():
                body = reply.text.encode()
                headers = [*_headers(reply.kind), *reply.headers, ("content-length", str(len(body)))]
                pieces = [h11.Response(status_code=reply.status, headers=headers), *([h11.Data(data=body)] if whole else [])]
                await stream.send_all(b"".join(connection.send(piece) or b"" for piece in [*pieces, h11.EndOfMessage()]))
            case _Events():
                head = h11.Response(status_code=200, headers=_headers("text/event-stream"))
                await stream.send_all(connection.send(head) or b"")
                if whole:
                    await self._go_on(stream, connection, reply.known)

    async def _go_on(self, stream: trio.abc.Stream, connection: h11.Connection, known: Cursor) -> None:
        """Tell what is new until the browser is gone."""
        async with trio.open_nursery() as nursery:

            async def wait_gone() -> None:
                while await stream.receive_some(_AT_ONCE):
                    pass
                nursery.cancel_scope.cancel()

            nursery.start_soon(wait_gone)
            async with aclosing(self._live.messages(known)) as messages:
                async for message in messages:
                    await stream.send_all(connection.send(h11.Data(data=message)) or b"")


async def _request(stream: trio.abc.Stream, connection: h11.Connection) -> h11.Request | None:
    """Read a request to its end; None where none comes."""
    request = None
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(bytes(await stream.receive_some(_AT_ONCE)))
        elif isinstance(event, h11.Request):
            request = event
        elif isinstance(event, h11.EndOfMessage):
            return request
        elif not isinstance(event, h11.Data):
            return None


def _headers(kind: str) -> list[tuple[str, str]]:
    """Keep the page to itself: not kept, not framed, not taken for anything else, not told to anybody."""
    return [
        ("content-type", f"{kind}; charset=utf-8"),
        ("content-security-policy", _POLICY),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-resource-policy", "same-origin"),
        ("cache-control", "no-store"),
        ("connection", "close"),
    ]


async def serve(path: Path, size: int, port: int, *, ready: Callable[[str], object], token: str | None = None) -> None:
    """Serve a run until cancelled; `ready` is told the address."""
    live = Live(path, size)
    try:
        (listener,) = await trio.open_tcp_listeners(port, host=HOST)
    except OSError as exc:
        raise UsageError(
            f"port {port} cannot be had: {exc.strerror}; give another --port, or none for one that is free"
        ) from exc
    server = Server(live, listener.socket.getsockname()[1], token)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(live.go_along)
        nursery.start_soon(live.look_after_the_writer)
        ready(server.address)
        await trio.serve_listeners(server.answer, [listener])
