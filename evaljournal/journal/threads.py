"""Blocking calls in threads."""

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import outcome
import trio

T = TypeVar("T")


class InThread(Protocol):
    """A function that makes a blocking call without blocking the event loop."""

    def __call__(self, call: Callable[[], T], /) -> Awaitable[T]: ...


@trio.lowlevel.enable_ki_protection
async def run_in_thread(call: Callable[[], T], /, *, abandon_on_cancel: bool = False) -> T:
    """Make a blocking call in a thread, in half the time of `trio.to_thread.run_sync`.

    It uses no limiter, so it never waits for other tasks. Use `abandon_on_cancel` only for calls that change nothing. The call
    is always made, also if it is cancelled; where the system allows no more threads, it is made here and blocks the event loop.
    """
    task, token = trio.lowlevel.current_task(), trio.lowlevel.current_trio_token()
    is_awaited = True
    results: list[outcome.Outcome[T]] = []
    """The result, until it is delivered. In a variable of trio's thread, an exception would be part of a reference cycle: the
    frames of its traceback refer to those that called them, and keep all they hold in memory until a collection."""

    def run() -> None:
        results.append(outcome.capture(call))

    def reschedule() -> None:
        result = results.pop()
        if is_awaited:
            trio.lowlevel.reschedule(task, result)

    def deliver(_: object) -> None:
        try:
            token.run_sync_soon(reschedule)
        except trio.RunFinishedError:  # Abandoned, and returned after the event loop had ended.
            results.clear()

    def abort(_: object) -> trio.lowlevel.Abort:
        nonlocal is_awaited
        is_awaited = not abandon_on_cancel
        return trio.lowlevel.Abort.SUCCEEDED if abandon_on_cancel else trio.lowlevel.Abort.FAILED

    try:
        trio.lowlevel.start_thread_soon(run, deliver, name="evaljournal")
    except RuntimeError:
        await trio.lowlevel.cancel_shielded_checkpoint()
        return call()
    result: T = await trio.lowlevel.wait_task_rescheduled(abort)
    return result
