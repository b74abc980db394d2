"""Blocking calls, made beside the event loop and not in it: to the disk, mostly.

How a call gets into a thread and what it returns back out is here; what is called, and who must wait for it, is not.
"""

import contextlib
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import outcome
import trio

T = TypeVar("T")


class InThread(Protocol):
    """What makes a blocking call without blocking the event loop."""

    def __call__(self, call: Callable[[], T], /) -> Awaitable[T]:
        """Make the call, and wait for it."""
        ...


@trio.lowlevel.enable_ki_protection
async def run_in_thread(call: Callable[[], T], /, *, abandon_on_cancel: bool = False) -> T:
    """Make a blocking call in a thread, for half the price of `trio.to_thread.run_sync`.

    It never waits for a limiter that other tasks may have used up. A call to the disk is never abandoned; one that changes
    nothing `abandon_on_cancel` behind by whoever is cancelled.
    """
    task, token = trio.lowlevel.current_task(), trio.lowlevel.current_trio_token()
    is_awaited = True

    def bring(result: outcome.Outcome[T]) -> None:
        if is_awaited:
            trio.lowlevel.reschedule(task, result)

    def deliver(result: outcome.Outcome[T]) -> None:
        with contextlib.suppress(trio.RunFinishedError):  # Left behind, and long after its run.
            token.run_sync_soon(bring, result)

    def leave(_: object) -> trio.lowlevel.Abort:
        nonlocal is_awaited
        is_awaited = not abandon_on_cancel
        return trio.lowlevel.Abort.SUCCEEDED if abandon_on_cancel else trio.lowlevel.Abort.FAILED

    trio.lowlevel.start_thread_soon(call, deliver, name="evaljournal")
    result: T = await trio.lowlevel.wait_task_rescheduled(leave)
    return result
