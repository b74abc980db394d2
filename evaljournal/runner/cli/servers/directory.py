"""The server of `evaljournal view` for a directory: all its runs on one page, the page of each, and two of them compared.

- The runs are read in a thread, the newest first, from the cache of digests if they are there. Rows are sent as they are read.
- A run is read again if its files have changed, or if it was running. Without incremental state, nothing can be stale; a pause
  is at least five times as long as the pass before it, so that large runs in progress do not use up a processor.
- A run is followed only while its page is open, once for all browsers.
- Only runs that were found in the directory have an address. Nothing is written but the cache.
"""

import os
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, quote

import orjson
import trio

from evaljournal.journal.disk.segments import total_size
from evaljournal.replay.history.digest import RunDigest
from evaljournal.replay.page.page import live_page
from evaljournal.replay.page.runs_page import run_row, runs_page, runs_policy
from evaljournal.replay.text import escape_controls, printable
from evaljournal.runner.calls.http.heads import RequestHead
from evaljournal.runner.calls.http.server import ClientConnection
from evaljournal.runner.cli.digests import DigestCache
from evaljournal.runner.cli.servers.server import (
    HOST,
    UPDATE_INTERVAL,
    Changes,
    FollowedRun,
    TokenServer,
    cursor_of,
    open_listener,
    send_events,
    send_page,
)
from evaljournal.runner.cli.terminal.output import echo
from evaljournal.runner.runs.page import read_page_run, side_by_side
from evaljournal.runner.runs.paths import runs_under

_PAUSE_RATIO: Final = 5
"""Minimum length of a pause, in terms of the pass before it."""
_Queue = deque[tuple[Path, int, bool]]
"""Runs to read: path, time of the last write, and whether to read all of a large one."""


class _Row(NamedTuple):
    """What the page shows of a run."""

    version: int
    """Number of the update in which it changed."""
    time: int
    """The time of the last write before it was read."""
    data: Any
    """None: the run was removed."""


class FollowedDirectory:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._rows: dict[Path, _Row] = {}
        self._addresses: dict[str, Path] = {}
        self._version = 0
        self._is_complete = False
        """Whether all runs were read once."""
        self._changes = Changes()

    def find(self, address: str) -> Path | None:
        """Return the run with an address, relative to the page; None if there is none."""
        path = self._addresses.get(address)
        return None if path is None or self._rows[path].data is None else path

    async def follow(self) -> None:
        """Read the runs, and then those that have changed, until cancelled."""
        while True:
            start_time, is_first = time.perf_counter(), not self._is_complete
            times = await trio.to_thread.run_sync(runs_under, self.path)
            if removed := [path for path, row in self._rows.items() if path not in times and row.data is not None]:
                self._version += 1
                self._rows |= dict.fromkeys(removed, _Row(self._version, 0, None))
                self._changes.notify()
            queue = self._changed_runs(times)
            with DigestCache() as cache:
                while queue:
                    self._update(await trio.to_thread.run_sync(_read_some, cache, queue))
            if is_first:
                self._is_complete = True
                self._update([])
            pause = 0 if is_first else _PAUSE_RATIO * (time.perf_counter() - start_time)
            await trio.sleep(max(UPDATE_INTERVAL, pause))

    def _changed_runs(self, times: Mapping[Path, int]) -> _Queue:
        """Return the runs that were written since they were read, or are running, the last written first."""
        rows = {path: row for path, row in self._rows.items() if row.data is not None and row.data["status"] != "running"}
        changed = [path for path, written_at in times.items() if path not in rows or rows[path].time != written_at]
        changed.sort(key=lambda path: (times[path], path), reverse=True)
        return deque((path, times[path], False) for path in changed)

    def _update(self, runs: list[tuple[Path, int, RunDigest]]) -> None:
        self._version += 1
        for path, written_at, run in runs:
            name = str(path).removeprefix(os.path.join(self.path, ""))  # `relpath` takes as long as to read a digest.
            address = quote(os.fsencode(name.replace(os.sep, "/")), safe="/")
            data = run_row(str(path), f"run/{address}/", run)
            if (row := self._rows.get(path)) is None or row.data != data:
                self._addresses[address] = path
                self._rows[path] = _Row(self._version, written_at, data)
            elif row.time != written_at:
                self._rows[path] = row._replace(time=written_at)
        self._changes.notify()

    def messages(self) -> AsyncGenerator[bytes, None]:
        """Return server-sent events: all rows that have been read, then those that change."""
        sent_version = -1

        def message() -> bytes:
            nonlocal sent_version
            rows = [(path, row.data) for path, row in self._rows.items() if row.version > sent_version]
            data = {
                "is_first": sent_version < 0,
                "is_complete": self._is_complete,
                "rows": [row for _, row in rows if row is not None],
                "removed": [escape_controls(str(path)) for path, row in rows if row is None],
            }
            sent_version = self._version
            return b"retry: 1000\nevent: runs\ndata: %b\n\n" % orjson.dumps(data)

        return self._changes.messages(message)


def _read_some(cache: DigestCache, queue: _Queue) -> list[tuple[Path, int, RunDigest]]:
    """Read runs for half a second; a large one, of which only the counts are known quickly, is read in full later."""
    end_time, runs = time.perf_counter() + UPDATE_INTERVAL, list[tuple[Path, int, RunDigest]]()
    while queue and time.perf_counter() < end_time:
        path, written_at, is_full = queue.popleft()
        run, _ = cache.read(path) if is_full else (cache.run(path), ())
        if run.is_usable and not run.has_results and not is_full:
            queue.append((path, written_at, True))
        runs.append((path, written_at, run))
    return runs


class DirectoryServer(TokenServer):
    command = "view"
    policy = runs_policy()

    def __init__(
        self, directory: FollowedDirectory, nursery: trio.Nursery, port: int, token: str | None = None, host: str = HOST
    ) -> None:
        super().__init__(port, token, host)
        self._directory = directory
        self._nursery = nursery
        self._followed: dict[Path, tuple[FollowedRun, trio.CancelScope]] = {}
        self._open_pages = dict[Path, int]()
        self._comparing = trio.Semaphore(1)
        """One comparison at a time: it reads both runs."""

    async def _route(self, connection: ClientConnection, request: RequestHead, path: str) -> None:
        address, _, last = path.removeprefix("run/").rpartition("/")
        run = self._directory.find(address) if path.startswith("run/") else None
        if path == "":
            await send_page(connection, runs_page(escape_controls(str(self._directory.path))))
        elif path == "events":
            await send_events(connection, request, self._directory.messages())
        elif path == "compare":
            await self._compare(connection, request)
        elif run is not None and last == "":
            await send_page(connection, live_page(run.name))
        elif run is not None and last == "events":
            async with self._follow(run) as followed_run:
                await send_events(connection, request, followed_run.messages(cursor_of(request)))
        else:
            await connection.reject(404, "not found; if it is a run, it was removed")

    async def _compare(self, connection: ClientConnection, request: RequestHead) -> None:
        query = parse_qs(request.target.partition("?")[2])
        a, b = (self._directory.find(query.get(name, [""])[0].removeprefix("run/").rstrip("/")) for name in "ab")
        if a is None or b is None:
            await connection.reject(404, "not found; pass the addresses of two runs as a and b")
            return
        async with self._comparing:
            page = await trio.to_thread.run_sync(_comparison, a, b)
        await send_page(connection, page)

    @asynccontextmanager
    async def _follow(self, path: Path) -> AsyncGenerator[FollowedRun]:
        if path not in self._followed:
            self._followed[path] = FollowedRun(path, total_size(path)), trio.CancelScope()
            self._nursery.start_soon(self._read, *self._followed[path])
        self._open_pages[path] = self._open_pages.get(path, 0) + 1
        try:
            yield self._followed[path][0]
        finally:
            self._open_pages[path] -= 1
            if not self._open_pages[path]:
                self._followed.pop(path)[1].cancel()

    async def _read(self, followed_run: FollowedRun, scope: trio.CancelScope) -> None:
        try:
            with scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(followed_run.follow)
                    nursery.start_soon(followed_run.watch_lock)
        except Exception as exc:  # noqa: BLE001  # one run must not end the server
            echo(printable(f"{followed_run.run.path} cannot be followed: {exc!r}", 400), err=True)


def _comparison(a: Path, b: Path) -> bytes:
    return b"".join(side_by_side([(read_page_run(path), None) for path in (a, b)]))


async def serve_directory(
    path: Path, port: int, *, on_ready: Callable[[str], object], token: str | None = None, host: str = HOST
) -> None:
    """Serve the runs of a directory until cancelled; `on_ready` is called with the address."""
    directory = FollowedDirectory(path)
    listener = await open_listener(port, host)
    async with trio.open_nursery() as nursery:
        server = DirectoryServer(directory, nursery, listener.socket.getsockname()[1], token, host)
        nursery.start_soon(directory.follow)
        on_ready(server.address)
        await server.serve(listener)
