"""One session of a suite: a session of each run that is not finished, all in one loop.

Nothing is written before all of them are prepared, so that a mistake in one evaluation is reported before anything starts. An
error that ends one run later does not end the others.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path

import trio

from evaljournal.runner.errors import UsageError
from evaljournal.runner.sessions.options import LiveRun
from evaljournal.runner.sessions.session import Outcome, Session


class SuiteSession:
    """Runs several sessions at the same time."""

    def __init__(
        self,
        sessions: Mapping[str, Callable[..., Session]],
        *,
        start: Callable[[], Awaitable[None]],
        show: Callable[["SuiteSession"], Awaitable[None]],
        on_unresponsive: Callable[["SuiteSession"], object],
    ) -> None:
        """`sessions` creates the session of each run from further options.

        `start` is awaited when all are prepared; `show` runs from then to the end. `on_unresponsive` is called if all other
        runs have ended, and the calls of those that are left do not respond to cancellation.
        """
        self.outcomes: dict[str, Outcome] = {}
        """Name → how its session ended."""
        self.errors: dict[str, BaseException] = {}
        """Name → the exception that ended its session."""
        self.live_runs: dict[str, LiveRun] = {}
        """Name → its run, once it has started."""
        self._start = start
        self._show = show
        self._on_unresponsive = on_unresponsive
        self._unprepared = set(sessions)
        self._unended = set(sessions)
        self._is_unresponsive = False
        self._start_event = trio.Event()
        self._sessions = {
            name: session(observer=partial(self._observe, name), wait_ready=partial(self._wait_start, name))
            for name, session in sessions.items()
        }
        for name, session in self._sessions.items():
            session.on_unresponsive = partial(self._abandon, name)

    @property
    def is_started(self) -> bool:
        """Whether all runs were prepared, so that some may have started."""
        return self._start_event.is_set()

    def interrupt(self) -> None:
        """Stop all runs gracefully; the second time, cancel calls in flight. It may be called by a signal handler."""
        for name, session in self._sessions.items():
            if name in self._unended:
                session.interrupt()

    def move(self, paths: Mapping[str, Path]) -> None:
        """Change where the runs are written, before they start."""
        for name, session in self._sessions.items():
            session.path = paths[name]

    async def run(self) -> None:
        """Run all sessions to their ends."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._show_runs)
            async with trio.open_nursery() as sessions:
                for name, session in self._sessions.items():
                    sessions.start_soon(self._run_session, name, session)
            nursery.cancel_scope.cancel()

    async def _run_session(self, name: str, session: Session) -> None:
        try:
            self.outcomes[name] = await session.run()
        except (Exception, KeyboardInterrupt) as exc:  # The other runs continue.
            if isinstance(exc, UsageError):
                exc.message = f"{name}: {exc.message}"
            if not self.is_started:
                raise
            self.errors[name] = exc
        self._end(name)
        await self._prepare(name)

    async def _show_runs(self) -> None:
        await self._start_event.wait()
        await self._show(self)

    async def _observe(self, name: str, live_run: LiveRun) -> None:
        self.live_runs[name] = live_run
        await trio.sleep_forever()

    async def _wait_start(self, name: str) -> None:
        await self._prepare(name)
        await self._start_event.wait()

    async def _prepare(self, name: str) -> None:
        """Count a run that is prepared, or needs no preparation; the last one starts all."""
        if name in self._unprepared:
            self._unprepared.discard(name)
            if not self._unprepared:
                await self._start()
                self._start_event.set()

    def _abandon(self, name: str, outcome: Outcome) -> None:
        """Keep the outcome of a run whose calls do not end; the session waits for them if other runs do not."""
        self.outcomes[name] = outcome
        self._is_unresponsive = True
        self._end(name)

    def _end(self, name: str) -> None:
        self._unended.discard(name)
        if not self._unended and self._is_unresponsive:
            self._on_unresponsive(self)
