"""Calls that other threads make in the loop of a run."""

import threading

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


def test_a_call_in_the_thread_of_the_loop_is_made_immediately() -> None:
    """A call in the thread of the loop does not wait for a tick."""
    calls: list[int] = []

    async def main() -> None:
        RunLoop().call(calls.append, 1)
        assert calls == [1]
        await trio.lowlevel.checkpoint()

    trio.run(main)
