"""Calls that other threads make in the loop of a run."""

import threading
from typing import cast

import trio

from evaljournal.runner.engine.recorder import RunLoop
from tests.processes import TIMEOUT

THREADS, CALLS = 4, 500


def test_calls_from_threads_are_all_made_in_order() -> None:
    """One wake-up serves many calls; none is lost or overtakes an earlier one of its thread."""
    calls: list[tuple[int, int]] = []

    async def main() -> None:
        loop, all_made = RunLoop(), trio.Event()

        def make(thread: int, number: int) -> None:
            calls.append((thread, number))
            if len(calls) == THREADS * CALLS:
                all_made.set()

        def call(thread: int) -> None:
            for number in range(CALLS):
                loop.call(make, thread, number)

        threads = [threading.Thread(target=call, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        with trio.fail_after(TIMEOUT):
            await all_made.wait()
        for thread in threads:
            await trio.to_thread.run_sync(thread.join, TIMEOUT)

    trio.run(main)

    for thread in range(THREADS):
        assert [number for origin, number in calls if origin == thread] == list(range(CALLS))


class _SlowToken:
    """A token whose first `run_sync_soon` takes until it is told to continue; later ones are only listed."""

    def __init__(self) -> None:
        self.is_waking, self.may_continue = threading.Event(), threading.Event()
        self.queue: list[object] = []

    def run_sync_soon(self, function: object) -> None:
        if not self.is_waking.is_set():
            self.is_waking.set()
            assert self.may_continue.wait(TIMEOUT)
        self.queue.append(function)


def test_a_call_is_queued_before_its_thread_continues() -> None:
    """A step is recorded before the attempt of its thread ends, even if another thread is just waking the loop."""
    token = _SlowToken()

    async def main() -> None:
        loop = RunLoop()
        loop.token = cast("trio.lowlevel.TrioToken", token)

        def record_and_return() -> None:
            loop.call(print)
            token.run_sync_soon("result")

        first_thread = threading.Thread(target=loop.call, args=(print,))
        first_thread.start()
        assert token.is_waking.wait(TIMEOUT)
        second_thread = threading.Thread(target=record_and_return)
        second_thread.start()
        second_thread.join(0.2)  # Without the lock, it ends in less than that.
        token.may_continue.set()
        for thread in (first_thread, second_thread):
            await trio.to_thread.run_sync(thread.join, TIMEOUT)

    trio.run(main)

    assert "result" == token.queue[-1]


def test_a_call_in_the_thread_of_the_loop_is_made_immediately() -> None:
    """A call in the thread of the loop does not wait for a tick."""
    calls: list[int] = []

    async def main() -> None:
        RunLoop().call(calls.append, 1)
        assert calls == [1]
        await trio.lowlevel.checkpoint()

    trio.run(main)
