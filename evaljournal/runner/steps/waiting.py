"""Waiting in the loop of the run for a step of an attempt, from an async function or a thread.

Steps wait until they are on disk (see `Settings.write_ahead`), and model calls until known rate limits allow them.
"""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TypeVar

import trio

from evaljournal.journal.errors import JournalError
from evaljournal.runner.steps.attempt_steps import AttemptSteps, Step

T = TypeVar("T")


async def wait_in_loop(steps: AttemptSteps) -> None:
    """Wait until the steps are on disk, in an async function of trio or asyncio."""
    if steps.wait_durable is None:
        return
    if trio.lowlevel.in_trio_task():
        await steps.wait_durable()
        return
    with suppress(JournalError):  # The journal has failed, which ends the run.
        await _wait_in_asyncio(steps, steps.wait_durable)


def wait_in_thread(steps: AttemptSteps) -> None:
    """Wait in a thread of a plain function; a plain function that was called in an event loop cannot wait."""
    if steps.wait_durable is None or trio.lowlevel.in_trio_run() or asyncio._get_running_loop() is not None:  # noqa: SLF001  # `get_running_loop` raises instead
        return
    with suppress(trio.RunFinishedError, JournalError):
        trio.from_thread.run(steps.wait_durable, trio_token=steps.token)


async def admit_in_loop(steps: AttemptSteps, step: Step) -> None:
    """Wait until the model call of a step may start, in an async function of trio or asyncio; see `CallGate.admit`."""
    if steps.admit_now(step):
        return
    if trio.lowlevel.in_trio_task():
        await steps.admit(step)
    else:
        await _wait_in_asyncio(steps, partial(steps.admit, step))


def admit_in_thread(steps: AttemptSteps, step: Step) -> None:
    """Wait in a plain function until the model call of a step may start; in the loop of the run it cannot wait."""
    if not steps.admit_now(step, can_wait=not trio.lowlevel.in_trio_run()):
        with suppress(trio.RunFinishedError):
            trio.from_thread.run(steps.admit, step, trio_token=steps.token)


async def wait_again_in_loop(steps: AttemptSteps, step: Step, exc: Exception) -> float | None:
    """Wait until the rejected call of a step may be sent again, in an async function; see `AttemptSteps.wait_again`."""
    if trio.lowlevel.in_trio_task():
        return await steps.wait_again(step, exc)
    return await _wait_in_asyncio(steps, partial(steps.wait_again, step, exc))


def wait_again_in_thread(steps: AttemptSteps, step: Step, exc: Exception) -> float | None:
    """Wait in a plain function until the rejected call of a step may be sent again; in an event loop it cannot wait."""
    if trio.lowlevel.in_trio_run() or asyncio._get_running_loop() is not None:  # noqa: SLF001  # `get_running_loop` raises instead
        return None
    with suppress(trio.RunFinishedError):
        return trio.from_thread.run(steps.wait_again, step, exc, trio_token=steps.token)
    return None


async def _wait_in_asyncio(steps: AttemptSteps, function: Callable[[], Awaitable[T]]) -> T | None:
    """Call a function in the loop of the run, from another event loop, until it returns or the caller is cancelled."""
    done: Future[T | None] = Future()
    scope = trio.CancelScope()

    async def call() -> None:
        if not done.set_running_or_notify_cancel():
            return
        try:
            with scope:
                result = await function()
                done.set_result(result)
        except Exception as exc:  # noqa: BLE001  # raised in the other loop
            done.set_exception(exc)
        finally:
            if not done.done():
                done.set_result(None)

    with suppress(trio.RunFinishedError):
        steps.token.run_sync_soon(trio.lowlevel.spawn_system_task, call)
        try:
            return await asyncio.wrap_future(done)
        except asyncio.CancelledError:
            steps.token.run_sync_soon(scope.cancel)
            raise
    return None
