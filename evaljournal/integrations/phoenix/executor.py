"""The two executors of Phoenix's interface, and the function that chooses between them."""

import asyncio
import contextlib
import contextvars
import logging
import math
import os
import signal
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import attrs
import trio

from evaljournal.integrations.phoenix.caller_thread import CallerThreadTask
from evaljournal.integrations.phoenix.execution import Execution, ExecutorConfig, ExecutorSettings, Results
from evaljournal.journal.events import FailureCategory
from evaljournal.runner.definition.settings import DURATION_PROBLEM
from evaljournal.runner.errors import UsageError, is_whole_number
from evaljournal.runner.retries.classify import PROGRAMMING_ERRORS, Failure
from evaljournal.runner.retries.retry import OneBudget
from evaljournal.runner.sessions.api import run_async, run_from_asyncio, run_in_trio
from evaljournal.runner.signals import handle_signals

JournalPath = str | os.PathLike[str] | None

_RESERVED_OPTIONS: Final = ("resume", "listener", "policy_factory", "observer")
"""Options of `arun` that the executor sets itself."""
_AIMD_DEFAULTS: Final = (5.0, 1, 0.5)
"""Phoenix's defaults: window, step and ratio."""
_DEFAULT_TIMEOUT: Final = 60
"""Phoenix's default, in seconds. Phoenix passes None and relies on it."""

_log = logging.getLogger("evaljournal")


class Executor(Protocol):
    def run(self, inputs: Sequence[Any]) -> Results:
        """Return outputs and details in the order of the inputs."""
        ...


def _phoenix_category(exc: BaseException) -> FailureCategory | None:
    """Treat Phoenix's own exceptions as fatal, except that of its rate limiter."""
    names = {cls.__name__ for cls in type(exc).__mro__}
    return "fatal" if "PhoenixException" in names and "RateLimitError" not in names else None


@attrs.frozen(kw_only=True)
class _MaxRetries(OneBudget):
    """One budget for all kinds of failure, as in Phoenix; `exit_on_error` decides whether a failure stops the run."""

    def failure(self, exc: BaseException, *, now: float) -> Failure:
        """Classify an exception; programming errors are retried, and nothing stops the run."""
        failure = super().failure(exc, now=now)
        category = "error" if failure.category == "fatal" and isinstance(exc, PROGRAMMING_ERRORS) else failure.category
        return attrs.evolve(failure, category=category, stop_reason=None)


def _check_integer(name: str, value: object, minimum: int) -> None:
    if not is_whole_number(value, minimum):
        raise UsageError(f"expected an integer, {minimum} or more", setting=name, value=value)


class _Executor:
    """Base class of both executors. The public attributes may be changed between runs."""

    concurrency: int = 1
    timeout: float = math.inf
    """Seconds for one attempt; `math.inf`: no timeout."""
    _policy: str = "fixed"
    _aimd: Mapping[str, Any] | None = None

    def __init__(
        self,
        generation_fn: Callable[[Any], Any],
        tqdm_bar_format: str | None = None,
        max_retries: int = 10,
        exit_on_error: bool = True,
        fallback_return_value: Any = None,
        termination_signal: int | None = signal.SIGINT,
        *,
        journal: JournalPath = None,
        output_type: Any = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.generate = generation_fn
        self.tqdm_bar_format = tqdm_bar_format
        """Format of the progress bar; None: no progress is shown."""
        self.max_retries = max_retries
        """Retries of one input."""
        self.exit_on_error = exit_on_error
        """Whether the first input that fails stops the run."""
        self.fallback_return_value = fallback_return_value
        """Output of inputs that failed or did not run."""
        self.termination_signal = termination_signal
        """Signal that stops the run; None: no signal does."""
        self._journal = None if journal is None else Path(journal)
        self._output_type = output_type
        self._options = {"policy": self._policy, **(options or {})}
        self._configure()  # Rejects invalid arguments.

    def _configure(self) -> ExecutorConfig:
        """Return the parameters of a run from the attributes; raise a `UsageError` if one is invalid."""
        if not callable(self.generate):
            raise UsageError("expected a function of one input", setting="generation_fn", value=self.generate)
        _check_integer("concurrency", self.concurrency, 1)
        _check_integer("max_retries", self.max_retries, 0)
        seconds: Any = self.timeout
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
            raise UsageError(DURATION_PROBLEM, setting="timeout", value=seconds, hint="math.inf turns it off")
        for name in self._options:
            if name in _RESERVED_OPTIONS:
                raise UsageError(f"the option {name!r} is set by the executor; remove it from options")

        timeout = None if math.isinf(self.timeout) else self.timeout
        retry = _MaxRetries(total=self.max_retries, classify=_phoenix_category)
        return ExecutorConfig(
            function=self.generate,
            settings=ExecutorSettings(slots=self.concurrency, timeout=timeout, retry=retry, aimd=self._aimd),
            options={"fail_fast": self.exit_on_error, "stop_on_same_error": None, **self._options},
            journal=self._journal,
            output_type=self._output_type,
            fallback=self.fallback_return_value,
            bar_format=self.tqdm_bar_format,
        )

    @property
    def _signals(self) -> tuple[int, ...]:
        return () if self.termination_signal is None else (self.termination_signal,)

    def _stop_on_signal(self, stop: Callable[[], None]) -> contextlib.AbstractContextManager[bool]:
        """Call `stop` on the signal; yields whether a handler could be installed."""
        return handle_signals(lambda _, __: stop(), *self._signals, chain=True)


class AsyncExecutor(_Executor):
    """Calls a function for every input, concurrently, with retries.

    The function is an `async def` for asyncio or trio, or a plain function, which runs in threads. With `journal`, every
    attempt is recorded there; running the same inputs again calls the function only for those that have no output yet.
    Recorded outputs are converted to `output_type` (default: the return annotation of the function).
    """

    base_priority: int = 0
    """Kept for compatibility; inputs are processed in order."""

    def __init__(
        self,
        generation_fn: Callable[[Any], Any],
        concurrency: int = 3,
        tqdm_bar_format: str | None = None,
        max_retries: int = 10,
        exit_on_error: bool = True,
        fallback_return_value: Any = None,
        termination_signal: int | None = signal.SIGINT,
        timeout: float | None = None,
        *,
        enable_dynamic_concurrency: bool = True,
        dynamic_initial_target: float | None = None,
        dynamic_window_seconds: float = _AIMD_DEFAULTS[0],
        dynamic_increase_step: float = _AIMD_DEFAULTS[1],
        dynamic_decrease_ratio: float = _AIMD_DEFAULTS[2],
        dynamic_inactive_check_interval: float = 1.0,  # noqa: ARG002  # only for compatibility
        journal: JournalPath = None,
        output_type: Any = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Configure the calls; `options` are passed to `arun`, such as `{"grace": 30}`.

        By default, the adaptive policy finds the number of concurrent calls, at most `concurrency`. Setting any parameter of
        Phoenix's AIMD selects an AIMD with these parameters. `timeout` is in seconds for one attempt (default: 60);
        `math.inf` turns it off.
        """
        self.concurrency = concurrency
        self.timeout = _DEFAULT_TIMEOUT if timeout is None else timeout

        numbers = (dynamic_window_seconds, dynamic_increase_step, dynamic_decrease_ratio)
        is_aimd = enable_dynamic_concurrency and (dynamic_initial_target is not None or numbers != _AIMD_DEFAULTS)
        aimd = {
            "initial": float(concurrency if dynamic_initial_target is None else dynamic_initial_target),
            "window_seconds": dynamic_window_seconds,
            "increase_step": dynamic_increase_step,
            "decrease_ratio": dynamic_decrease_ratio,
        }

        self._policy = "adaptive" if enable_dynamic_concurrency else "fixed"
        self._aimd = aimd if is_aimd else None
        common_arguments = tqdm_bar_format, max_retries, exit_on_error, fallback_return_value, termination_signal
        super().__init__(generation_fn, *common_arguments, journal=journal, output_type=output_type, options=options)

    def run(self, inputs: Iterable[Any]) -> Results:
        """Call the function for all inputs: from a script, a thread or a notebook cell."""
        execution = Execution(self._configure(), inputs)
        with self._stop_on_signal(execution.stop_handle.request):
            return run_async(execution.run)

    async def execute(self, inputs: Iterable[Any]) -> Results:
        """Call the function for all inputs inside asyncio, in the caller's loop, or inside trio."""
        if trio.lowlevel.in_trio_run():
            execution = Execution(self._configure(), inputs)
            with self._stop_on_signal(execution.stop_handle.request):
                return await execution.run()
        execution = Execution(self._configure(), inputs, loop=asyncio.get_running_loop())

        def stop_now() -> None:
            with contextlib.suppress(KeyboardInterrupt):  # The third request raises it.
                execution.stop_handle.request()
                execution.stop_handle.request()

        with self._stop_on_signal(execution.stop_handle.request):
            return await run_from_asyncio(lambda _: run_in_trio(execution.run), stop_now)


class SyncExecutor(_Executor):
    """Calls a plain function for every input, one at a time, in the caller's thread."""

    def run(self, inputs: Iterable[Any]) -> Results:
        """Call the function for all inputs. The run itself has its own thread, so that a call cannot block it."""
        caller = CallerThreadTask(self.generate)
        execution = Execution(self._configure(), inputs, task=caller)
        stop_handle, context = execution.stop_handle, contextvars.copy_context()

        def stop() -> None:
            stop_handle.request()
            if stop_handle.requests > 1 or caller.is_abandoned:
                caller.abort_call()

        with self._stop_on_signal(stop) as is_handled, ThreadPoolExecutor(1, "evaljournal") as pool:
            if is_handled and hasattr(signal, "pthread_kill"):
                caller.on_abandon = partial(signal.pthread_kill, threading.get_ident(), *self._signals)
            future = pool.submit(lambda: context.run(run_in_trio, execution.run))
            future.add_done_callback(lambda _: caller.close())
            try:
                caller.serve()
            except BaseException:
                stop_handle.request()
                stop_handle.request()
                raise
            return future.result()


def get_executor_on_sync_context(
    sync_fn: Callable[[Any], Any],
    async_fn: Callable[[Any], Any],
    run_sync: bool = False,
    concurrency: int = 3,
    tqdm_bar_format: str | None = None,
    max_retries: int = 10,
    exit_on_error: bool = True,
    fallback_return_value: Any = None,
    timeout: float | None = None,
    *,
    journal: JournalPath = None,
    output_type: Any = None,
    options: Mapping[str, Any] | None = None,
) -> AsyncExecutor | SyncExecutor:
    """Return a SyncExecutor for `run_sync`, or, with a warning, outside the main thread; otherwise an AsyncExecutor."""
    common_arguments = tqdm_bar_format, max_retries, exit_on_error, fallback_return_value
    journal_options: dict[str, Any] = {"journal": journal, "output_type": output_type, "options": options}
    if threading.current_thread() is not threading.main_thread():
        if not run_sync:
            _log.warning("not in the main thread: calls are made one at a time; use an AsyncExecutor for concurrent calls")
        return SyncExecutor(sync_fn, *common_arguments, None, **journal_options)
    if run_sync:
        return SyncExecutor(sync_fn, *common_arguments, **journal_options)
    return AsyncExecutor(async_fn, concurrency, *common_arguments, timeout=timeout, **journal_options)
