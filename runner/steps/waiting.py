"""Waiting until the steps of an attempt are on disk, in an async function or a thread; see `Settings.write_ahead`."""

import asyncio
from contextlib import suppress

import trio

from evaljournal.journal.errors import JournalError
from evaljournal.runner.steps.attempt_steps import AttemptSteps


async def wait_in_loop(steps: AttemptSteps) -> None:
    """Wait in an async function, of trio or asyncio."""
    if steps.wait_durable is None:
        return
    if trio.lowlevel.in_trio_task():
        await steps.wait_durable()
        return
    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def finish() -> None:
        if not done.done():
            done.set_result(None)

    async def wait() -> None:
        try:
            with suppress(JournalError):  # The journal has failed, which ends the run.
                assert steps.wait_durable is not None
                await steps.wait_durable()
        finally:
            with suppress(RuntimeError):  # The loop may be closed.
                loop.call_soon_threadsafe(finish)

    with suppress(trio.RunFinishedError):
        steps.token.run_sync_soon(trio.lowlevel.spawn_system_task, wait)
        await done


def wait_in_thread(steps: AttemptSteps) -> None:
    """Wait in a thread of a plain function; a plain function that was called in an event loop cannot wait."""
    if steps.wait_durable is None or trio.lowlevel.in_trio_run() or asyncio._get_running_loop() is not None:  # noqa: SLF001  # `get_running_loop` raises instead
        return
    with suppress(trio.RunFinishedError, JournalError):
        trio.from_thread.run(steps.wait_durable, trio_token=steps.token)
