"""A run as it goes on, for a browser on the same machine: the page, and what is new, from the journal's own tail.

Nothing is kept but what the journal says, and nothing can be changed from here. Who may look is told by an address that nobody
can guess; a page of somebody else's cannot reach it, for it knows neither the address nor may it name the host.
"""

import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Final

import h11
import orjson
import trio

from journal import follow
from journal.errors import JournalDamaged, NotAJournal, RulesBroken
from journal.lock import is_held
from replay import History
from replay.export.page import Shown, live_page, policy
from replay.export.page_content import Cursor
from replay.history import understanding
from runner.cli.look import Seen
from runner.cli.showing import Showing
from runner.errors import UsageError
from runner.places import last_record

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
        self.history = History(path)
        self._showing = Showing(size)
        self._is_live = False
        self._news = trio.Event()
        self._caught_up = trio.Event()
        """Set when everything was read that was there in the beginning."""

    @property
    def shown(self) -> Shown:
        """The run as it stands."""
        return self._showing.shown(Seen(self.history, self._is_live))

    async def go_along(self) -> None:
        """Read the journal, and go on reading as it grows, whoever writes it; stay when it is damaged, and say so."""
        path = self.history.path
        self._is_live = await trio.to_thread.run_sync(is_held, path)
        last = await trio.to_thread.run_sync(last_record, path)
        already = 1 if last is None else last.seq
        try:
            with understanding(path, lambda: self.history.seq + 1):
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
                    await self._choose(request)(stream, connection)
        except (trio.BrokenResourceError, trio.ClosedResourceError, h11.RemoteProtocolError, h11.LocalProtocolError):
            pass  # The browser is gone, or is none.

    def _choose(self, request: h11.Request) -> Callable[[trio.abc.Stream, h11.Connection], Awaitable[None]]:
        headers = dict(request.headers)
        if headers.get(b"host") not in self._hosts:
            return partial(_say, status=403, text=f"this is only for {HOST}\n")
        _, token, *rest = request.target.partition(b"?")[0].split(b"/")
        if not secrets.compare_digest(token, self._token.encode()):
            return partial(_say, status=404, text="there is nothing here; `evaljournal view` says the whole address\n")
        if request.method not in {b"GET", b"HEAD"}:
            return partial(_say, status=405, text="this can only be read\n")
        if rest == [b""]:
            return self._page
        if rest == [b"events"] and request.method == b"GET":
            return partial(self._events, Cursor.read(headers.get(b"last-event-id", b"").decode("latin-1")))
        return partial(_say, status=404, text="there is nothing here\n")

    async def _page(self, stream: trio.abc.Stream, connection: h11.Connection) -> None:
        await _say(stream, connection, status=200, text=live_page(self._live.history.path.name).decode(), kind="text/html")

    async def _events(self, known: Cursor, stream: trio.abc.Stream, connection: h11.Connection) -> None:
        head = h11.Response(status_code=200, headers=_headers("text/event-stream"))
        await stream.send_all(connection.send(head) or b"")
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


async def _say(
    stream: trio.abc.Stream, connection: h11.Connection, *, status: int, text: str, kind: str = "text/plain"
) -> None:
    body = text.encode()
    headers = [*_headers(kind), ("content-length", str(len(body)))]
    pieces = [h11.Response(status_code=status, headers=headers), h11.Data(data=body), h11.EndOfMessage()]
    await stream.send_all(b"".join(connection.send(piece) or b"" for piece in pieces))


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
