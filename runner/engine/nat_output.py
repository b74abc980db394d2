"""The files of `nat eval`, kept beside a run while it goes on.

They are made of the journal, and of nothing else: whoever takes the run up again has them made anew, so nothing is lost in them
and nothing is doubled. A run that cannot write them goes on all the same. Files are read and written in a thread.
"""

import contextlib
import logging
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import trio

from journal import Record, follow, segments
from journal.errors import JournalError, command
from journal.events import TrialCompleted, TrialFailed
from journal.reader import POLL_INTERVAL
from replay import load
from replay.export import Source
from replay.export.nat import LINES, LIST, line, nat
from replay.export.story import Story
from replay.state import DONE
from runner.atomic_write import write_atomically, write_directory
from runner.errors import UsageError

OWNER: Final = ".evaljournal-run"
"""A file in the directory that says which run the others are of."""
_AT_ONCE: Final = 100
"""Records that may wait to be taken in."""

_log = logging.getLogger("evaljournal")


class NatOutput:
    """The directory, how far its growing file has got, and which trials are still to be written to it."""

    def __init__(self, directory: Path, *, retry_failed: bool = False) -> None:
        self.directory = directory
        self._lines = directory / LINES
        self._stages = ("completed",) if retry_failed else DONE
        """What counts as the end of a trial when the session begins: one that is about to be tried again has none yet."""
        self._size: int | None = None
        """Bytes of the growing file that are as they should be; None if it has to be made anew."""
        self._due: list[str] = []
        self._story: Story | None = None

    def prepare(self, run: Path | None = None) -> None:
        """Make the directory; refuse one that cannot be written, or holds something else's output.

        Two runs in one file would be worth nothing, and a run should not take hours to find nothing kept.
        """
        if inside := segments.enclosing_run(self.directory):
            raise UsageError(f"{self.directory} is in {inside}, which is a run, and holds nothing but its journal")
        if self.directory.exists() and not self.directory.is_dir():
            raise UsageError(f"{self.directory} is not a directory; give another --nat-output")
        if self._is_taken(None if run is None else Source(load(run, at=1)).run):
            raise UsageError(f"{self.directory} holds the output of something else; give another --nat-output")
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self.directory).close()
        except OSError as exc:
            raise UsageError(f"{self.directory} cannot be written: {exc.strerror}; give another --nat-output") from exc

    def _is_taken(self, run: str | None) -> bool:
        if not any((self.directory / name).exists() for name in (LINES, LIST)):
            return False
        owner = self.directory / OWNER
        return not run or not owner.is_file() or owner.read_text().strip() != run

    async def keep(self, run: Path) -> None:
        """Let the file grow with the run, until cancelled."""
        # The user's own threads must not hold it up.
        own = trio.CapacityLimiter(1)
        try:
            while not await trio.Path(run, segments.name(1)).exists():  # noqa: ASYNC110  # a file tells nobody that it is there
                await trio.sleep(POLL_INTERVAL)
            await trio.to_thread.run_sync(self._begin, run, limiter=own)
            send, receive = trio.open_memory_channel[Record](_AT_ONCE)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_pass_on, run, send)
                while True:
                    batch = [await receive.receive()]
                    with contextlib.suppress(trio.WouldBlock):
                        while True:
                            batch.append(receive.receive_nowait())
                    await trio.to_thread.run_sync(self._take, batch, limiter=own)
        except Exception:  # noqa: BLE001  # whatever is wrong with it, the run goes on
            _log.exception("%s is no longer kept up with the run; %s makes it anew", self.directory, _anew(run, self.directory))

    def finish(self, run: Path) -> None:
        """Make all files anew, when the run has come to its end or is stopped."""
        try:
            with Source(load(run)) as source:
                self._claim(source.run)
                write_directory(self.directory, nat(source))
        except Exception:  # noqa: BLE001  # the same
            _log.exception("%s could not be written; %s makes it anew", self.directory, _anew(run, self.directory))

    def _claim(self, run: str) -> None:
        """Make the directory this run's own."""
        if self._is_taken(run):
            raise UsageError(f"{self.directory} was taken meanwhile: it holds the output of something else")
        self.directory.mkdir(parents=True, exist_ok=True)
        write_atomically(self.directory / OWNER, [f"{run}\n".encode()])

    def _begin(self, run: Path) -> None:
        """Take in what the run has come to before, and make the file of it."""
        source = Source(load(run))
        self._claim(source.run)
        self._story = story = Story.of(source)
        for trial in [trial for trial in story.ended if story.state.trials[trial].stage not in self._stages]:
            del story.ended[trial]
        self._write()

    def _take(self, records: list[Record]) -> None:
        """Take in what has happened since, and write down which trials have come to their end."""
        story = self._story
        assert story is not None
        for record in records:
            if record.seq > story.state.seq:
                story.state.apply(record)
                story.take(record)
                if isinstance(record.event, TrialCompleted | TrialFailed):
                    self._due.append(record.event.trial)
        if self._due:
            self._write()

    def _write(self) -> None:
        """Add what is due to the file, or make it anew; what does not work now is tried again with the next trial."""
        assert self._story is not None
        try:
            with self._story.source:
                if self._size is None:
                    write_atomically(self._lines, self._encoded(self._story.ended))
                    self._size = self._lines.stat().st_size
                else:
                    self._append(b"".join(self._encoded(self._due)))
            self._due.clear()
        except OSError:
            _log.exception("%s: %s could not be written, and will be tried again", self._lines, ", ".join(self._due) or "it")

    def _append(self, data: bytes) -> None:
        assert self._size is not None
        try:
            with open(self._lines, "r+b", buffering=0) as file:
                if file.seek(0, os.SEEK_END) != self._size:  # A write that failed half-way, or somebody else's hand.
                    file.seek(file.truncate(self._size))
                file.write(data)
                self._size = file.tell()
        except FileNotFoundError:
            self._size = None  # Somebody has taken it away.
            raise

    def _encoded(self, trials: Iterable[str]) -> Iterable[bytes]:
        """Make the lines; a trial that cannot be told costs nobody else's line."""
        assert self._story is not None
        for trial in trials:
            try:
                yield line(self._story.result(trial))
            except (JournalError, OSError):
                _log.exception("%s: the output of %s could not be told", self._lines, trial)


async def _pass_on(run: Path, send: "trio.MemorySendChannel[Record]") -> None:
    async with contextlib.aclosing(follow(run, load_blobs=False)) as records:
        async for record in records:
            await send.send(record)


def _anew(run: Path, directory: Path) -> str:
    return command("export", run, f" --format nat -o {directory} --force")
