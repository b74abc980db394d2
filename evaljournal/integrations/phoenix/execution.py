"""One call of `run` or `execute`: the function and the inputs become an evaluation, which runs like any other.

The progress is on stderr: a tqdm bar if tqdm is installed, otherwise a line of text.
"""

import asyncio
import logging
import re
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from evaljournal.integrations.phoenix.aimd import Aimd
from evaljournal.integrations.phoenix.caller_thread import InputTask, await_value
from evaljournal.integrations.phoenix.inputs import Inputs, variable_digests
from evaljournal.integrations.phoenix.results import ExecutionDetails, ResultCollector
from evaljournal.journal import read
from evaljournal.journal.disk import segments
from evaljournal.journal.disk.files import DISK, Files
from evaljournal.journal.errors import JournalError
from evaljournal.journal.events import RunStarted
from evaljournal.journal.threads import InThread, run_in_thread
from evaljournal.replay import fold
from evaljournal.replay.render.screen import line
from evaljournal.replay.state.definition import load_definition
from evaljournal.runner.calls import Task
from evaljournal.runner.calls.function import LOOPS, FunctionTask, Loop
from evaljournal.runner.calls.hand_over import FunctionThreads
from evaljournal.runner.data.fingerprint import definition_of, digest, fingerprint_function, unwrap_partial
from evaljournal.runner.data.from_json import from_json, return_annotation
from evaljournal.runner.definition.evaluation import Evaluation
from evaljournal.runner.definition.settings import Settings
from evaljournal.runner.errors import RunChanged
from evaljournal.runner.sessions.environment import Environment
from evaljournal.runner.sessions.null_files import NULL_FILES
from evaljournal.runner.sessions.options import LiveRun
from evaljournal.runner.sessions.session import Session

_INTERVAL: Final = 0.2
"""Seconds between two updates of the progress."""

Results = tuple[list[Any], list[ExecutionDetails]]

_INVALID_CHARACTERS: Final = re.compile(r"[^\w.-]")

_log = logging.getLogger("evaljournal")


def _bar(live_run: LiveRun, bar_format: str) -> Any:
    try:
        from tqdm.auto import tqdm  # type: ignore[import-untyped,unused-ignore]  # noqa: PLC0415  # optional
    except ImportError:
        return _Line(live_run)
    return tqdm(total=live_run.total, initial=live_run.state.totals.done, bar_format=bar_format or None, file=sys.stderr)


class _Line:
    """The part of tqdm's interface that is used, as a line of text."""

    n = 0

    def __init__(self, live_run: LiveRun) -> None:
        self._live_run = live_run
        self._last_text = ""

    def update(self, _: int) -> None:
        text = line(self._live_run.state, now=self._live_run.now(), total=self._live_run.total)
        self._write(f"\r{text.ljust(len(self._last_text))}")
        self._last_text = text

    def close(self) -> None:
        self._write("\n")

    @staticmethod
    def _write(text: str) -> None:
        with suppress(AttributeError, OSError, ValueError):  # A task may have closed or removed it.
            sys.stderr.write(text)
            sys.stderr.flush()


class Incomplete(Exception):
    """The run could not continue, for a reason other than the function; `outputs` and `details` are the results so far."""

    def __init__(self, reason: str, outputs: list[Any], details: list[ExecutionDetails]) -> None:
        super().__init__(reason)
        self.outputs = outputs
        self.details = details


@attrs.frozen(kw_only=True)
class ExecutorSettings(Settings):
    aimd: Mapping[str, Any] | None = None


@attrs.frozen(kw_only=True)
class ExecutorConfig:
    function: Callable[[Any], Any]
    settings: ExecutorSettings
    options: Mapping[str, Any]
    journal: Path | None
    output_type: Any
    """Type of the outputs; None: the return annotation of the function."""
    fallback: Any
    bar_format: str | None

    @property
    def name(self) -> str:
        name = getattr(self.function, "__name__", None) or type(self.function).__name__
        return _INVALID_CHARACTERS.sub("", name) or "function"


def _recorded_variables(run_started: RunStarted) -> dict[str, str]:
    """Return the recorded digests of the variables; empty if there are none."""
    definition = load_definition(run_started.definition)
    task = definition.get("task") if isinstance(definition, dict) else None
    variables = task.get("variables") if isinstance(task, dict) else None
    return variables if isinstance(variables, dict) else {}


class StopHandle:
    """Stops a run: the first request gracefully, the second immediately. Requests may come from any thread, at any time."""

    def __init__(self) -> None:
        self._request_queue: deque[None] = deque()
        self._stop: Callable[[], None] | None = None
        self.requests = 0

    def request(self) -> None:
        """Stop the run, now or as soon as it starts."""
        self.requests += 1
        self._request_queue.append(None)
        self._forward()

    def attach(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._forward()

    def _forward(self) -> None:
        while self._stop is not None:
            try:
                self._request_queue.popleft()  # Atomic, so that each request counts once.
            except IndexError:
                return
            self._stop()


class Execution:
    def __init__(
        self,
        config: ExecutorConfig,
        inputs: Iterable[Any],
        *,
        loop: asyncio.AbstractEventLoop | None = None,
        task: Task | None = None,
    ) -> None:
        self._config = config
        self._loop = loop
        """The asyncio loop for functions of asyncio; None: a new one."""
        self._task = task
        """Calls the function; None: in its event loop, or in a thread."""
        self._inputs = Inputs(inputs, journaled=config.journal is not None)
        self._results = ResultCollector(self._inputs.by_name, self._restore)
        self._output_type = return_annotation(config.function) if config.output_type is None else config.output_type
        self._is_restored = True
        """Whether all recorded outputs could be converted to the output type."""
        self._is_resumed = False
        """Whether the journal has records of an earlier session."""
        self.stop_handle = StopHandle()
        self._function_fingerprint = ""
        self._variables: dict[str, str] = {}
        """Variable that the function reads → digest of its value when the run starts."""
        self.__name__ = config.name

    @property
    def fingerprint(self) -> str:
        """Digest of the function and of the variables that it reads."""
        return self._fingerprint(self._variables)

    def _fingerprint(self, variables: Mapping[str, str]) -> str:
        function = self._function_fingerprint
        return digest(f"{function} {sorted(variables.items())}".encode()) if variables else function

    @property
    def definition(self) -> Mapping[str, Any]:
        """The recorded definition of the function: its source, and digests of the variables that it reads."""
        return {**definition_of(unwrap_partial(self._config.function)), "variables": self._variables}

    def __call__(self, value: Any, /) -> Any:
        return self._config.function(value)

    @property
    def _in_thread(self) -> InThread:
        in_thread: InThread = self._config.options.get("in_thread", run_in_thread)
        return in_thread

    @property
    def _files(self) -> Files:
        return self._config.options.get("files", DISK) if self._config.journal is not None else NULL_FILES

    async def run(self) -> Results:
        """Run the function over the inputs, or resume from the journal."""
        config, aimd = self._config, self._config.settings.aimd
        if not await self._in_thread(self._inputs.read_ahead):
            return [], []
        options = {
            **config.options,
            "policy_factory": None if aimd is None else partial(Aimd, **aimd),
            "listener": self._results.apply,
            "observer": self._show_progress,
        }

        path = config.journal
        if path is None:
            path = Path("unrecorded")
            environment = partial(Environment, pid=0, host="", boot_id="", versions={})
            options = {"environment": environment, **options, "files": NULL_FILES, "durability": "os"}
        else:
            await self._in_thread(self._identify)
            self._is_resumed = await self._in_thread(partial(segments.is_run, path, self._files))
        if self._is_resumed:
            if await self._in_thread(self._is_complete):
                await self._in_thread(self._load_results)
                return self._result_lists()
            # The recorded results of other inputs stay valid when inputs are added, changed or removed.
            options |= {"resume": True, "adopt": True, "retry_failed": True}

        evaluation: Evaluation[Any, Any, Any] = Evaluation(self, cases=self._inputs, settings=config.settings, name=config.name)
        try:
            session = Session(evaluation, path, **options)
            self.stop_handle.attach(session.interrupt)
            outcome = await session.run()
        except JournalError as exc:
            if not self._results.details:
                raise
            raise Incomplete(str(exc), *self._result_lists()) from exc
        if outcome.stop_reason in ("disk_full", "dataset_failed"):
            raise Incomplete(outcome.detail, *self._result_lists()) from self._inputs.failure
        return self._result_lists()

    def _identify(self) -> None:
        """Compute the digests of the function and of the variables that it reads, before the function can change them."""
        self._function_fingerprint = fingerprint_function(unwrap_partial(self._config.function))
        self._variables = variable_digests(self._config.function)

    def _is_complete(self) -> bool:
        """Return whether every input has an output already; raises RunChanged if the function has changed."""
        path = self._config.journal
        assert path is not None
        state = fold(read(path, load_blobs=False, files=self._files))
        if state.started is not None:
            self._check_unchanged(path, state.started)
        names = self._inputs.names
        is_completed = all(name in state.trials and state.trials[name].stage == "completed" for name in names)
        return state.outcome == "finished" and is_completed and len(names) == state.totals.total

    def _check_unchanged(self, path: Path, run_started: RunStarted) -> None:
        """Raise RunChanged if the function, or a variable that it reads, has changed since the run was started."""
        recorded_variables = _recorded_variables(run_started)
        # A variable that was empty at the start is one that the function itself fills.
        self._variables = {name: value for name, value in self._variables.items() if name in recorded_variables}
        if run_started.task_fingerprint == self.fingerprint or self._config.options.get("adopt"):
            return
        name, origin = self._config.name, "of another function, or of an earlier version of"
        if run_started.task_fingerprint == self._fingerprint(recorded_variables):
            names = [key for key, value in recorded_variables.items() if self._variables.get(key) != value]
            origin = f"for other values of {', '.join(map(repr, names))}, read by"
        raise RunChanged(f"{path} has outputs {origin} {name!r}; use another path, or keep them: options={{'adopt': True}}")

    def _restore(self, output: Any) -> Any:
        try:
            return from_json(output, self._output_type)
        except ValueError as exc:
            if self._is_restored:
                self._is_restored = False
                kind = getattr(self._output_type, "__qualname__", self._output_type)
                _log.warning("%s: outputs that are not %s are returned as JSON (%s)", self._config.journal, kind, exc)
            return output

    def _load_results(self) -> None:
        path = self._config.journal if self._is_resumed else None
        self._results.load(() if path is None else read(path, files=self._files))

    @asynccontextmanager
    async def open_session(self, _: str) -> AsyncGenerator[Task]:
        """Read the results of earlier sessions, now that the journal is locked, and prepare the calls."""
        await self._in_thread(self._load_results)
        in_thread = self._config.options.get("in_thread")
        async with FunctionThreads(grace=self._config.options.get("grace", 5.0), loop=self._loop) as threads:
            new_task = partial(FunctionTask, threads=threads, in_thread=in_thread)
            function = self._task or new_task(self._config.function, loop=None)
            awaiters: dict[Loop, Task] = {loop: new_task(await_value, loop=loop) for loop in LOOPS}
            is_journaled = self._config.journal is not None
            yield InputTask(function, awaiters, self._inputs.by_name, self._results, is_journaled)

    async def _show_progress(self, live_run: LiveRun) -> None:
        if self._config.bar_format is None:
            return
        bar = _bar(live_run, self._config.bar_format)
        try:
            while True:
                done = live_run.state.totals.done
                await self._in_thread(lambda: bar.update(done - bar.n))  # noqa: B023  # called immediately
                await trio.sleep(_INTERVAL)
        finally:
            bar.update(live_run.state.totals.done - bar.n)
            bar.close()

    def _result_lists(self) -> Results:
        """Return outputs and details in the order of the inputs: of all if their number is known, otherwise of those read."""
        results, inputs, fallback = self._results, self._inputs, self._config.fallback
        outputs = [results.outputs.get(name, fallback) for name in inputs.names]
        details = [results.details[name] for name in inputs.names]
        unread_count = (inputs.count or 0) - len(details)
        return outputs + [fallback] * unread_count, details + [ExecutionDetails() for _ in range(unread_count)]
