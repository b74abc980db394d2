"""The output files of `nat eval`, kept up to date while a run is in progress.

They are derived from the journal alone and rewritten when a run is resumed, so nothing is lost or duplicated. If they cannot be
written, the run continues. During the run, files are read and written in a thread.
"""

import contextlib
import logging
import os
import tempfile
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

import trio

from evaljournal.integrations.nat.files import LINES_FILE, LIST_FILE, STEP_FILTER, line, nat, parse_step_filter
from evaljournal.journal.disk import segments
from evaljournal.journal.errors import JournalError
from evaljournal.journal.events import Record, TrialCompleted, TrialFailed
from evaljournal.journal.readers.follow import POLL_INTERVAL, follow
from evaljournal.replay.export import Source
from evaljournal.replay.state.trial import DONE_STAGES
from evaljournal.replay.text import printable
from evaljournal.runner.errors import UsageError, command
from evaljournal.runner.runs.atomic_write import write_atomically, write_directory
from evaljournal.runner.sessions.options import LiveRun
from evaljournal.runner.sessions.outputs import RunOutput

OWNER: Final = ".evaljournal-run"
"""A file in the directory that holds the id of its run."""
_BUFFER: Final = 100
"""Records that may wait to be applied."""
_FILTER: Final = "?workflow_output_step_filter="
_OTHER_DIRECTORY: Final = "pass another directory"

_log = logging.getLogger("evaljournal")


class NatOutput(RunOutput):
    def __init__(self, directory: Path, *, retry_failed: bool = False, step_filter: Collection[str] = STEP_FILTER) -> None:
        self.directory = directory
        self._step_filter = step_filter
        self._lines = directory / LINES_FILE
        self._stages = ("completed",) if retry_failed else DONE_STAGES
        """Stages of trials that are written when the session starts; failed ones are not if they are retried."""
        self._size: int | None = None
        """Valid bytes of the file with one line per trial; None if it has to be rewritten."""
        self._due_trials: list[str] = []
        self._retried_trials: set[str] = set()
        """Failed trials of earlier sessions that are retried and have not ended again."""
        self._is_failing = False
        """Whether the last write failed: a failure is logged once, until a write succeeds."""

    def check(self, run: Path | None = None) -> None:
        if outer_run := segments.enclosing_run(self.directory):
            raise UsageError(f"{self.directory} is inside the run {outer_run}", hint=_OTHER_DIRECTORY)
        if self.directory.exists() and not self.directory.is_dir():
            raise UsageError(f"{self.directory} is not a directory", hint=_OTHER_DIRECTORY)
        self._check_owner("" if run is None else Source(run, at=1).run_id)

    def prepare(self, run: Path | None = None) -> None:
        self.check(run)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self.directory).close()
        except OSError as exc:
            raise UsageError(f"{self.directory} cannot be written: {exc.strerror}", hint=_OTHER_DIRECTORY) from exc

    def _check_owner(self, run: str) -> None:
        """Raise a `UsageError` if the directory holds output, unless it is that of this run; empty: a new run."""
        owner = self.directory / OWNER
        has_output = any((self.directory / name).exists() for name in (LINES_FILE, LIST_FILE))
        if has_output and not (run and owner.is_file() and owner.read_text().strip() == run):
            raise UsageError(f"{self.directory} holds the output of another run", hint=_OTHER_DIRECTORY)

    async def update(self, live_run: LiveRun) -> None:
        """Append each trial that is done, until cancelled."""
        run = live_run.journal.path
        limiter = trio.CapacityLimiter(1)  # The user's threads must not delay it.
        try:
            while not await trio.Path(run, segments.name(1)).exists():  # noqa: ASYNC110  # there is no event for a new file
                await trio.sleep(POLL_INTERVAL)

            source = await trio.to_thread.run_sync(self._start, run, limiter=limiter)
            send, receive = trio.open_memory_channel[Record](_BUFFER)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_forward, run, send)
                while True:
                    records = [await receive.receive()]
                    with contextlib.suppress(trio.WouldBlock):
                        while True:
                            records.append(receive.receive_nowait())
                    await trio.to_thread.run_sync(self._apply, source, records, limiter=limiter)
        except Exception as exc:  # noqa: BLE001  # the run continues
            self._log_failure("is no longer updated", run, exc)

    def finish(self, run: Path) -> str:
        """Rewrite all files at the end of a session; return what is missing and why, empty if nothing is."""
        source = Source(run)
        try:
            self._claim(source.run_id)
            write_directory(self.directory, nat(source, self._step_filter))
        except Exception as exc:  # noqa: BLE001  # what the run has recorded does not depend on it
            item = next(iter(self._due_trials), source.trial_name)
            place = f" at item {printable(item)!r}" if item else ""
            return self._log_failure(f"could not be written{place}", run, exc)
        if source.problem is None:
            return ""

        part = f"a value of item {printable(source.damaged_trial)!r}" if source.damaged_trial else "a part of the run"
        message = f"{self.directory} is incomplete: {part} is damaged: {source.problem}"
        _log.error("%s", message)
        return message

    def _log_failure(self, problem: str, run: Path, exc: Exception) -> str:
        """Log an error, with its traceback if its message is not enough; return its message."""
        rewrite_command = command("export", run, f" --format nat -o {self.directory} --force")
        exc_info = None if isinstance(exc, OSError | JournalError | UsageError) else exc
        message = f"{self.directory} {problem}: {exc}; {rewrite_command} rewrites it"
        _log.error("%s", message, exc_info=exc_info)
        return message

    def _claim(self, run: str) -> None:
        self._check_owner(run)
        self.directory.mkdir(parents=True, exist_ok=True)
        write_atomically(self.directory / OWNER, [f"{run}\n".encode()])

    def _start(self, run: Path) -> Source:
        source = Source(run)
        self._claim(source.run_id)
        trials = source.state.trials
        self._retried_trials = {trial for trial in source.ended_trials() if trials[trial].stage not in self._stages}
        self._write(source)
        return source

    def _apply(self, source: Source, records: list[Record]) -> None:
        for record in records:
            if record.seq > source.state.seq:
                source.apply(record)
                if isinstance(record.event, TrialCompleted | TrialFailed):
                    self._due_trials.append(record.event.trial)
                    self._retried_trials.discard(record.event.trial)
        if self._due_trials:
            self._write(source)

    def _write(self, source: Source) -> None:
        """Append the trials that are due, or rewrite the file; after an error, try again with the next trial."""
        try:
            if self._size is None:
                ended_trials = (trial for trial in source.ended_trials() if trial not in self._retried_trials)
                write_atomically(self._lines, self._encode(source, ended_trials))
                self._size = self._lines.stat().st_size
            else:
                self._append(b"".join(self._encode(source, self._due_trials)))
            self._due_trials.clear()
        except OSError as exc:
            if not self._is_failing:
                _log.error("%s cannot be written (%s); it is retried with each trial", self._lines, exc.strerror or exc)
            self._is_failing = True
            return
        if self._is_failing:
            _log.warning("%s is written again; nothing is missing", self._lines)
        self._is_failing = False

    def _append(self, data: bytes) -> None:
        assert self._size is not None
        try:
            with open(self._lines, "r+b", buffering=0) as file:
                if file.seek(0, os.SEEK_END) != self._size:  # A partial write, or another process.
                    file.seek(file.truncate(self._size))
                file.write(data)
                self._size = file.tell()
        except FileNotFoundError:
            self._size = None  # It was removed.
            raise

    def _encode(self, source: Source, trials: Iterable[str]) -> Iterable[bytes]:
        """Yield the lines of trials, without those that cannot be read."""
        for trial in trials:
            try:
                yield line(source.trial(trial), self._step_filter)
            except (JournalError, OSError) as exc:
                _log.error("%s: the output of %s could not be read: %s", self._lines, trial, exc)


async def _forward(run: Path, send: "trio.MemorySendChannel[Record]") -> None:
    async with contextlib.aclosing(follow(run, load_blobs=False)) as records:
        async for record in records:
            await send.send(record)


def nat_output(directory: str | None, *, retry_failed: bool = False) -> NatOutput:
    """Return the output of `--export nat:DIR` or `--export nat:DIR?workflow_output_step_filter=LLM_END,…`."""
    path, is_filtered, types = (directory or "").partition(_FILTER)
    if not path:
        raise UsageError("nat needs a directory: --export nat:DIR")
    step_filter = parse_step_filter(types) if is_filtered else STEP_FILTER
    return NatOutput(Path(path), retry_failed=retry_failed, step_filter=step_filter)
