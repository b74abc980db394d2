"""One call of `run` or `execute`: inputs in, outputs and details out.

Everything between is the engine's: an evaluation is made of the function and the inputs, and run as any other.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs

from journal import read, segments
from journal.errors import JournalError, NotAJournal
from journal.files import DISK, Files
from journal.threads import InThread, run_in_thread
from replay import fold
from runner.concurrency import Aimd, Policy
from runner.data.fingerprint import fingerprint_function
from runner.definition.evaluation import Evaluation
from runner.definition.settings import Settings
from runner.engine.environment import Environment
from runner.engine.live_run import LiveRun
from runner.engine.null_files import NULL_FILES
from runner.engine.session import Session
from runner.errors import RunChanged, UsageError
from runner.executors.details import ExecutionDetails
from runner.executors.inputs import Inputs
from runner.executors.main_thread import InputTask, awaited
from runner.executors.progress import show
from runner.executors.results import ResultCollector
from runner.executors.stop_handle import StopHandle
from runner.tasks import Task
from runner.tasks.function import AsyncioThread, FunctionTask

Results = tuple[list[Any], list[ExecutionDetails]]

_NOT_IN_NAMES: Final = re.compile(r"[^\w.-]")


class Incomplete(Exception):
    """The run could not go on, and not because of the function; what it had come to by then is here."""

    def __init__(self, why: str, outputs: list[Any], details: list[ExecutionDetails]) -> None:
        super().__init__(why)
        self.outputs = outputs
        self.details = details


@attrs.frozen(kw_only=True)
class ExecutorSettings(Settings):
    """Settings, and the numbers of the AIMD where one was asked for: with them, its decisions can be made again."""

    aimd: Mapping[str, Any] | None = None

    @property
    def limits(self) -> Callable[[int], Policy] | None:
        """What makes the policy; None for the one that is named."""
        return None if self.aimd is None else partial(Aimd, **self.aimd)


@attrs.frozen(kw_only=True)
class ExecutorConfig:
    """What an executor was told when it was made."""

    function: Callable[[Any], Any]
    settings: ExecutorSettings
    options: Mapping[str, Any]
    """For `runner.arun`."""
    journal: Path | None
    fallback: Any
    bar_format: str | None

    @property
    def name(self) -> str:
        """What the run is called."""
        name = getattr(self.function, "__name__", None) or type(self.function).__name__
        return _NOT_IN_NAMES.sub("", name) or "function"

    def fingerprint(self) -> str:
        """Tell this function from another; what a partial binds counts where it is JSON."""
        if self.journal is None:
            return ""
        try:
            return fingerprint_function(self.function)
        except UsageError:
            return fingerprint_function(self.function.func)  # type: ignore[attr-defined]  # only a partial is refused


class Execution:
    """One run of an executor's function over some inputs."""

    def __init__(
        self,
        orders: ExecutorConfig,
        inputs: Iterable[Any],
        *,
        loop: asyncio.AbstractEventLoop | None = None,
        door: Task | None = None,
    ) -> None:
        self._orders = orders
        self._loop = loop
        """The asyncio loop that functions for asyncio are called in; None for one of our own."""
        self._door = door
        """Through which the function is called; None to call it in the loop that it is written for, or in a thread."""
        self._inputs = Inputs(inputs, journaled=orders.journal is not None)
        self._ledger = ResultCollector(self._inputs.given)
        self._goes_on = False
        """Whether the journal has been begun by an earlier session."""
        self.reins = StopHandle()
        self.fingerprint = orders.fingerprint()
        self.__name__ = orders.name

    def __call__(self, value: Any, /) -> Any:
        """Call the function itself."""
        return self._orders.function(value)

    @property
    def _in_thread(self) -> InThread:
        given: InThread = self._orders.options.get("in_thread", run_in_thread)
        return given

    @property
    def _files(self) -> Files:
        return self._orders.options.get("files", DISK) if self._orders.journal is not None else NULL_FILES

    async def live(self) -> Results:
        """Run it, or go on with it where the journal has been begun."""
        orders = self._orders
        if not await self._in_thread(self._inputs.look):
            return [], []
        options = {**orders.options, "limits": orders.settings.limits, "listener": self._ledger.hear, "observer": self._attend}
        path = orders.journal
        if path is None:
            path = Path("nowhere")
            here = partial(Environment, pid=0, host="", boot_id="", versions={})
            options = {"environment": here, **options, "files": NULL_FILES, "durability": "os"}
        elif await self._in_thread(self._is_begun):
            self._goes_on = True
            if await self._in_thread(self._is_done):
                await self._in_thread(self._recall)
                return self._results()
            # An input that is new, changed or gone is just that: what is recorded of the others is still true of them.
            options |= {"resume": True, "adopt": True, "retry_failed": True}
        evaluation: Evaluation[Any, Any, Any] = Evaluation(self, cases=self._inputs, settings=orders.settings, name=orders.name)
        try:
            session = Session(evaluation, path, **options)
            self.reins.hold(session.interrupt)
            outcome = await session.run()
        except JournalError as exc:
            if not self._ledger.details:
                raise
            raise Incomplete(str(exc), *self._results()) from exc
        if outcome.stopped in ("disk_full", "dataset_failed"):
            raise Incomplete(outcome.why, *self._results()) from self._inputs.failure
        return self._results()

    def _is_begun(self) -> bool:
        assert self._orders.journal is not None
        try:
            segments.numbers(self._orders.journal, self._files)
        except NotAJournal:
            return False
        return True

    def _is_done(self) -> bool:
        """Say whether every input has been answered already; refuse to go on with another function."""
        path = self._orders.journal
        assert path is not None
        state = fold(read(path, load_blobs=False, files=self._files))
        begun = state.started
        if begun is not None and begun.task_fingerprint != self.fingerprint and not self._orders.options.get("adopt"):
            raise RunChanged(
                f"{path} was begun with another function than {self._orders.name!r}, or with an earlier version of it, and its "
                "outputs would be mixed with those of this one; give another path, or say options={'adopt': True}"
            )
        names = self._inputs.names
        answered = all(name in state.trials and state.trials[name].stage == "completed" for name in names)
        return state.ending == "finished" and answered and len(names) == state.total

    def _recall(self) -> None:
        path = self._orders.journal
        self._ledger.recall(read(path, files=self._files) if path is not None and self._goes_on else ())

    @asynccontextmanager
    async def open_session(self, _: str) -> AsyncGenerator[Task]:
        """Get ready to be asked, now that the journal is ours: first of all, read what it says already."""
        await self._in_thread(self._recall)
        instead = self._orders.options.get("in_thread")
        async with AsyncioThread(grace=self._orders.options.get("grace", 5.0), loop=self._loop) as thread:
            make = partial(FunctionTask, loop=None, asyncio_thread=thread, in_thread=instead)
            function = self._door or make(self._orders.function)
            journaled = self._orders.journal is not None
            yield InputTask(function, make(awaited), self._inputs.given, self._ledger, journaled=journaled)

    async def _attend(self, live: LiveRun) -> None:
        if self._orders.bar_format is not None:
            await show(live, self._orders.bar_format, self._in_thread)

    def _results(self) -> Results:
        """Put together what became of every input, in order: of those that were read, or of all if their number is known."""
        ledger, inputs, fallback = self._ledger, self._inputs, self._orders.fallback
        outputs = [ledger.outputs.get(name, fallback) for name in inputs.names]
        details = [ledger.details[name] for name in inputs.names]
        unread = (inputs.count or 0) - len(details)
        return outputs + [fallback] * unread, details + [ExecutionDetails() for _ in range(unread)]
