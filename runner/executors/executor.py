"""The two executors of Phoenix's interface, and the choice between them."""

import asyncio
import contextlib
import contextvars
import os
import signal
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio

from runner.api import in_trio, is_in_a_loop
from runner.errors import UsageError
from runner.executors.execution import Execution, ExecutorConfig, ExecutorSettings, Results
from runner.executors.main_thread import MainThreadCaller
from runner.executors.retrying import MaxRetries
from runner.signals import POLL_INTERVAL, handle_signals

Where = str | os.PathLike[str] | None

_OURS: Final = ("resume", "listener", "limits", "observer")
"""Options of a run that an executor sets itself."""
_AIMD: Final = (5.0, 1, 0.5)
"""Window, step and ratio of Phoenix's AIMD, if nobody says otherwise."""


def _whole(name: str, given: object, least: int) -> None:
    if isinstance(given, bool) or not isinstance(given, int) or given < least:
        raise UsageError(f"{name}={given!r}: give a whole number from {least} up")


class _Executor:
    """What both have in common."""

    def __init__(
        self,
        function: Callable[[Any], Any],
        *,
        concurrency: int,
        timeout: float | None,
        bar_format: str | None,
        max_retries: int,
        exit_on_error: bool,
        fallback: Any,
        termination_signal: int | None,
        policy: str,
        aimd: Mapping[str, Any] | None,
        journal: Where,
        options: Mapping[str, Any] | None,
    ) -> None:
        if not callable(function):
            raise UsageError(f"generation_fn={function!r}: give a function of one input")
        _whole("concurrency", concurrency, 1)
        _whole("max_retries", max_retries, 0)
        for name in options or ():
            if name in _OURS:
                raise UsageError(f"options has {name!r}, which the executor sees to itself; leave it out")
        self._signals = () if termination_signal is None else (termination_signal,)
        self._orders = ExecutorConfig(
            function=function,
            settings=ExecutorSettings(slots=concurrency, timeout=timeout, retry=MaxRetries.of(max_retries), aimd=aimd),
            options={"policy": policy, "fail_fast": exit_on_error, **(options or {})},
            journal=None if journal is None else Path(journal),
            fallback=fallback,
            bar_format=bar_format,
        )

    def _heeding(self, stop: Callable[[], None]) -> contextlib.AbstractContextManager[bool]:
        """Stop when the signal comes, if it can be heard; so do others that are being waited for."""
        return handle_signals(lambda _, __: stop(), *self._signals, shares=True)


class AsyncExecutor(_Executor):
    """Calls a function for every input, many at a time, and tries again what fails.

    The function is an `async def` for asyncio or trio; a plain one is called in threads. With `journal`, every step is recorded
    there, and to run the same inputs again goes on from what is recorded: only what has no output yet is asked.
    """

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
        dynamic_window_seconds: float = _AIMD[0],
        dynamic_increase_step: float = _AIMD[1],
        dynamic_decrease_ratio: float = _AIMD[2],
        dynamic_inactive_check_interval: float = 1.0,  # noqa: ARG002  # nothing is checked at intervals here
        journal: Where = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Say how the function is to be called; `options` are further ones of `runner.arun`, such as `{"grace": 30}`.

        Left to itself, our adaptive policy finds out how many calls may be made at once, never more than `concurrency`. Whoever
        sets one of the numbers of Phoenix's AIMD gets an AIMD with these numbers.
        """
        numbers = (dynamic_window_seconds, dynamic_increase_step, dynamic_decrease_ratio)
        is_aimd = enable_dynamic_concurrency and (dynamic_initial_target is not None or numbers != _AIMD)
        aimd = {
            "initial": float(concurrency if dynamic_initial_target is None else dynamic_initial_target),
            "window_seconds": dynamic_window_seconds,
            "increase_step": dynamic_increase_step,
            "decrease_ratio": dynamic_decrease_ratio,
        }
        super().__init__(
            generation_fn,
            concurrency=concurrency,
            timeout=timeout,
            bar_format=tqdm_bar_format,
            max_retries=max_retries,
            exit_on_error=exit_on_error,
            fallback=fallback_return_value,
            termination_signal=termination_signal,
            policy="fixed" if not enable_dynamic_concurrency else "aimd" if is_aimd else "adaptive",
            aimd=aimd if is_aimd else None,
            journal=journal,
            options=options,
        )

    def run(self, inputs: Iterable[Any]) -> Results:
        """Call the function for all inputs: from a script, a thread, or a notebook's cell in which a loop is running."""
        execution = Execution(self._orders, inputs)
        with self._heeding(execution.reins.pull):
            if not is_in_a_loop():
                return in_trio(execution.live)
            with ThreadPoolExecutor(1, "evaljournal") as pool:
                return _awaited(pool.submit(contextvars.copy_context().run, in_trio, execution.live))

    async def execute(self, inputs: Iterable[Any]) -> Results:
        """Do the same from inside asyncio, with the function in the caller's loop, or from inside trio."""
        if trio.lowlevel.in_trio_run():
            execution = Execution(self._orders, inputs)
            with self._heeding(execution.reins.pull):
                return await execution.live()
        loop = asyncio.get_running_loop()
        execution = Execution(self._orders, inputs, loop=loop)
        context = contextvars.copy_context()
        with self._heeding(execution.reins.pull), ThreadPoolExecutor(1, "evaljournal") as pool:
            running = loop.run_in_executor(pool, lambda: context.run(in_trio, execution.live))
            try:
                return await asyncio.shield(running)
            except asyncio.CancelledError:
                with contextlib.suppress(KeyboardInterrupt):  # Asked so often already that it would rather be broken into.
                    execution.reins.pull()
                    execution.reins.pull()
                await _ended(running)
                raise


async def _ended(running: "asyncio.Future[Results]") -> None:
    """Wait for a run that was stopped, however often we are cancelled meanwhile: nothing of it may be left running."""
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError:
            continue
    running.exception()


class SyncExecutor(_Executor):
    """Calls a plain function for every input, one at a time, in the thread of the caller."""

    def __init__(
        self,
        generation_fn: Callable[[Any], Any],
        tqdm_bar_format: str | None = None,
        max_retries: int = 10,
        exit_on_error: bool = True,
        fallback_return_value: Any = None,
        termination_signal: int | None = signal.SIGINT,
        *,
        journal: Where = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Say how the function is to be called; see `AsyncExecutor`."""
        super().__init__(
            generation_fn,
            concurrency=1,
            timeout=None,
            bar_format=tqdm_bar_format,
            max_retries=max_retries,
            exit_on_error=exit_on_error,
            fallback=fallback_return_value,
            termination_signal=termination_signal,
            policy="fixed",
            aimd=None,
            journal=journal,
            options=options,
        )

    def run(self, inputs: Iterable[Any]) -> Results:
        """Call the function for all inputs. The run itself lives in a thread of its own, and is awake while a call blocks."""
        desk = MainThreadCaller(self._orders.function)
        execution = Execution(self._orders, inputs, door=desk)
        reins, context = execution.reins, contextvars.copy_context()

        def stop() -> None:
            reins.pull()
            if reins.pulled > 1 or desk.is_left:
                desk.cut_off()

        with self._heeding(stop) as is_heard, ThreadPoolExecutor(1, "evaljournal") as pool:
            if is_heard and hasattr(signal, "pthread_kill"):
                desk.leave = partial(signal.pthread_kill, threading.get_ident(), *self._signals)
            running = pool.submit(lambda: context.run(in_trio, execution.live))
            running.add_done_callback(lambda _: desk.close())
            try:
                desk.serve()
            except BaseException:
                reins.pull()
                reins.pull()
                raise
            return running.result()


def _awaited(running: Future[Results]) -> Results:
    while not running.done():
        wait([running], POLL_INTERVAL)
    return running.result()


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
    journal: Where = None,
    options: Mapping[str, Any] | None = None,
) -> AsyncExecutor | SyncExecutor:
    """Choose: one at a time where that is asked for, or off the main thread; else many at a time, in a running loop too."""
    common: dict[str, Any] = {
        "tqdm_bar_format": tqdm_bar_format,
        "max_retries": max_retries,
        "exit_on_error": exit_on_error,
        "fallback_return_value": fallback_return_value,
        "journal": journal,
        "options": options,
    }
    if run_sync or threading.current_thread() is not threading.main_thread():
        return SyncExecutor(sync_fn, **common)
    return AsyncExecutor(async_fn, concurrency, timeout=timeout, **common)
