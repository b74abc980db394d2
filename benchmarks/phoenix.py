"""The same scenarios with Phoenix's executors and with ours: where they agree, and where they differ on purpose.

Each runs in its own process; a scenario that hangs is killed, and "hangs" is its result.
"""

import argparse
import asyncio
import contextlib
import gc
import importlib.util
import io
import json
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs

from benchmarks._figures import Figures, machine

HANG_TIMEOUT = 15.0
"""Seconds after which a scenario counts as hanging."""


@attrs.frozen
class Side:
    """One of the two modules, with its exceptions that are never retried (`bypass`) and always (`rate_limited`)."""

    module: Any
    bypass: type[Exception]
    rate_limited: type[Exception]

    def run(self, function: Any, inputs: Any, concurrency: int = 3, **options: Any) -> tuple[list[Any], list[Any]]:
        """Run an AsyncExecutor."""
        results: tuple[list[Any], list[Any]] = self.module.AsyncExecutor(function, concurrency, **options).run(inputs)
        return results


@attrs.frozen
class Scenario:
    """A scenario, and whether both must give the same result."""

    description: str
    play: Callable[[Side], str]
    differs: str = ""
    """Why they differ on purpose; empty if they must agree."""


_SCENARIOS: list[Scenario] = []


def _scenario(description: str, differs: str = "") -> Callable[[Callable[[Side], str]], Callable[[Side], str]]:
    def add(play: Callable[[Side], str]) -> Callable[[Side], str]:
        _SCENARIOS.append(Scenario(description, play, differs))
        return play

    return add


class Fails:
    """An asyncio function whose first calls for certain inputs raise."""

    def __init__(self, exc: Any, times: float, *inputs: Any) -> None:
        self.exc, self.times, self.inputs = exc, times, inputs
        self.calls: list[Any] = []

    async def __call__(self, value: Any) -> Any:
        """Return the input, or raise."""
        self.calls.append(value)
        await asyncio.sleep(0)
        if value in self.inputs and self.calls.count(value) <= self.times:
            raise self.exc
        return value


def _statuses(details: list[Any]) -> str:
    return ", ".join(detail.status.value.lower() for detail in details)


def _completed(details: list[Any]) -> int:
    return sum(detail.status.value.startswith("COMPLETED") for detail in details)


async def _echo(value: Any) -> Any:
    await asyncio.sleep(0)
    return value


@_scenario("outputs are in the order of inputs")
def _order(side: Side) -> str:
    async def late(value: int) -> int:
        await asyncio.sleep((6 - value) / 100)
        return value

    return str(side.run(late, [0, 1, 2, 3, 4, 5], 6)[0])


@_scenario("a failure becomes the fallback")
def _fallback(side: Side) -> str:
    fails = Fails(ValueError("no"), 99, 1)
    outputs, details = side.run(fails, [0, 1, 2], max_retries=0, exit_on_error=False, fallback_return_value="?")
    return f"{outputs}: {_statuses(details)}"


@_scenario("two failures, then an output")
def _retried(side: Side) -> str:
    fails = Fails(ValueError("no"), 2, 0)
    outputs, details = side.run(fails, [0])
    return f"{outputs}: {_statuses(details)}, {len(details[0].exceptions)} exceptions, {len(fails.calls)} calls"


@_scenario("max_retries=2, and it never works")
def _exhausted(side: Side) -> str:
    fails = Fails(ValueError("no"), 99, 0)
    details = side.run(fails, [0], max_retries=2)[1]
    return f"{_statuses(details)}, {len(details[0].exceptions)} exceptions, {len(fails.calls)} calls"


@_scenario("a timeout counts as a retry")
def _timeout(side: Side) -> str:
    async def hangs(_: Any) -> None:
        await asyncio.sleep(60)

    details = side.run(hangs, [0], timeout=1, max_retries=1, enable_dynamic_concurrency=False)[1]
    return f"{_statuses(details)}: {[type(exc).__name__ for exc in details[0].exceptions]}"


@_scenario("exit_on_error, one at a time")
def _exits(side: Side) -> str:
    def fails(value: int) -> int:
        if value == 1:
            raise side.bypass("no")
        return value

    details = side.module.SyncExecutor(fails).run([0, 1, 2, 3])[1]
    return _statuses(details)


@_scenario("exit_on_error, many at a time: the last of 200")
def _exits_soon(side: Side) -> str:
    return _statuses(side.run(Fails(side.bypass("no"), 99, 0), list(range(200)))[1][-1:])


@_scenario("an exception that bypasses retries")
def _bypass(side: Side) -> str:
    fails = Fails(side.bypass("no"), 99, 0)
    return f"{_statuses(side.run(fails, [0])[1])}, {len(fails.calls)} call"


@_scenario("a rate limit of the library's own is retried")
def _rate_limited(side: Side) -> str:
    fails = Fails(side.rate_limited("later"), 1, 0)
    return f"{_statuses(side.run(fails, [0])[1])}, {len(fails.calls)} calls"


@_scenario("no inputs")
def _empty(side: Side) -> str:
    return str(side.run(_echo, []))


@_scenario("inputs and outputs may be any object")
def _any_object(side: Side) -> str:
    inputs = [object(), threading.Lock(), {1, 2}]
    outputs = side.run(_echo, inputs)[0]
    return f"the same: {all(expected is actual for expected, actual in zip(inputs, outputs, strict=True))}"


@_scenario("sync, in the thread of the caller")
def _sync(side: Side) -> str:
    outputs, details = side.module.SyncExecutor(lambda value: (value, threading.current_thread().name)).run([1, 2])
    return f"{outputs}: {_statuses(details)}"


@_scenario("which executor on a sync context")
def _chosen(side: Side) -> str:
    def choose(**options: Any) -> str:
        return type(side.module.get_executor_on_sync_context(print, _echo, **options)).__name__

    executors = [choose(), choose(run_sync=True)]
    thread = threading.Thread(target=lambda: executors.append(choose()))
    thread.start()
    thread.join()
    return ", ".join(executors)


@_scenario("controller: two errors, then calm windows")
def _controller(side: Side) -> str:
    controller = side.module.ConcurrencyController(max_concurrency=10, initial_target=6, window_seconds=0.05, increase_step=1)
    targets = [controller.target_concurrency]
    controller.record_error()
    controller.record_error()
    targets.append(controller.target_concurrency)
    for _ in range(4):
        time.sleep(0.06)
        controller.record_success(0.01)
    return f"{targets}, then climbing: {controller.target_concurrency > 1}"


@_scenario("one item, start to end", "nothing polls")
def _single_item(side: Side) -> str:
    start = time.perf_counter()
    side.run(_echo, [1])
    return f"{time.perf_counter() - start:.2f} s"


@_scenario("300 no-ops at concurrency 10", "nothing polls")
def _rate(side: Side) -> str:
    start = time.perf_counter()
    side.run(_echo, list(range(300)), 10, enable_dynamic_concurrency=False)
    return f"{300 / (time.perf_counter() - start):,.0f}/s"


@_scenario("a generator of inputs", "it is read lazily")
def _generator(side: Side) -> str:
    return str(side.run(_echo, (n for n in range(3)))[0])


@_scenario("a TypeError in the function is retried")
def _mistake(side: Side) -> str:
    fails = Fails(TypeError("no"), 99, 0)
    side.run(fails, [0], max_retries=1)
    return f"{len(fails.calls)} calls"


@_scenario("lines on standard output, one failure", "messages go to stderr")
def _printed(side: Side) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        side.run(Fails(ValueError("no"), 1, 0), [0])
    return f"{out.getvalue().count(chr(10))} lines"


@_scenario("an outage of 1 s, 100 items", "a wait before each retry")
def _outage(side: Side) -> str:
    until = time.monotonic() + 1

    async def down(value: int) -> int:
        await asyncio.sleep(0)
        if time.monotonic() < until:
            raise ConnectionError("down")
        return value

    return f"{_completed(side.run(down, list(range(100)), exit_on_error=False)[1])} completed"


@_scenario("a leaked CancelledError among 5", "only that attempt fails")
def _leaked(side: Side) -> str:
    try:
        details = side.run(Fails(asyncio.CancelledError(), 1, 2), list(range(5)))[1]
    except BaseException as exc:  # noqa: BLE001  # what it raises is the result
        return f"raises {type(exc).__name__}"
    return f"{_completed(details)} completed"


@_scenario("a straggler, then 20 items, defaults", "slots are not gated")
def _slow_item(side: Side) -> str:
    calls: list[int] = []

    async def one_hangs(value: int) -> int:
        calls.append(value)
        await asyncio.sleep(60 if value == 19 and calls.count(19) == 1 else 0.01)
        return value

    return f"{_completed(side.run(one_hangs, list(range(20)), timeout=1)[1])} completed"


@_scenario("two rate limits on the last of 20, defaults", "slots are not gated")
def _tail(side: Side) -> str:
    return f"{_completed(side.run(Fails(side.rate_limited('later'), 1, 18, 19), list(range(20)))[1])} completed"


@_scenario("concurrency=0", "rejected immediately")
def _none(side: Side) -> str:
    side.run(_echo, [1], 0)
    return "accepted"


@_scenario("run() inside a running loop", "a thread of its own")
def _in_a_loop(side: Side) -> str:
    async def cell() -> str:
        return str(side.run(_echo, [1, 2])[0])

    return asyncio.run(cell())


@_scenario("which executor inside a running loop", "async works there")
def _chosen_in_a_loop(side: Side) -> str:
    async def cell() -> str:
        return type(side.module.get_executor_on_sync_context(print, _echo)).__name__

    return asyncio.run(cell())


@_scenario("Ctrl-C while 3 wait in I/O for 60 s", "grace of 5 s; interrupted attempts are marked")
def _interrupted(side: Side) -> str:
    async def waits(value: int) -> int:
        if value == 2:
            signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(60)
        return value

    start = time.perf_counter()
    details = side.run(waits, list(range(10)), enable_dynamic_concurrency=False)[1]
    interrupted = sum(getattr(detail, "interrupted", False) for detail in details)
    return f"{time.perf_counter() - start:.0f} s, {interrupted} interrupted"


@_scenario("prompts kept alive by 100 failures", "exceptions without their frames")
def _pinned(side: Side) -> str:
    class Prompt:
        """An object that can be weakly referenced."""

    watched: list[weakref.ref[Prompt]] = []

    async def fails(_: int) -> None:
        prompt = Prompt()
        watched.append(weakref.ref(prompt))
        await asyncio.sleep(0)
        raise ValueError("no")

    results = side.run(fails, list(range(100)), max_retries=0, exit_on_error=False)
    gc.collect()
    return f"{sum(reference() is not None for reference in watched)} of {len(results[0])}"


@_scenario("the same inputs a second time, with a journal", "recorded results are not called again")
def _again(side: Side) -> str:
    with tempfile.TemporaryDirectory() as directory:
        fails = Fails(side.bypass("no"), 1, 7)
        for _ in range(2):
            side.run(fails, list(range(10)), 1, journal=f"{directory}/run")
        return f"{len(fails.calls)} calls in all, one of 10 having failed"


def _side(name: str) -> Side:
    if name == "ours":
        from evaljournal import executors  # noqa: PLC0415  # only one of the two is imported in a process

        return Side(executors, executors.Fatal, executors.RateLimited)
    theirs: Any = importlib.import_module("phoenix.evals.executors")
    rate_limited = type("RateLimited", (theirs.RateLimitError,), {})
    return Side(theirs, theirs.PhoenixException, rate_limited)


def _play(name: str, first: int, results: Path) -> int:
    """Run the scenarios from number `first` on, and write each result immediately."""
    side = _side(name)
    with results.open("a") as stream:
        for number, scenario in enumerate(_SCENARIOS[first:], first):
            stream.write(json.dumps([number, None]) + "\n")
            stream.flush()
            try:
                result = scenario.play(side)
            except Exception as exc:  # noqa: BLE001  # what it raises is the result
                result = f"raises {type(exc).__name__}"
            stream.write(json.dumps([number, result]) + "\n")
            stream.flush()
    return 0


def _played(name: str) -> list[str]:
    """Run all scenarios in a child process, and in a new one after each that hangs."""
    results_by_number: dict[int, str | None] = {}
    with tempfile.TemporaryDirectory() as directory:
        results = Path(directory) / "results"
        while len(results_by_number) < len(_SCENARIOS) or None in results_by_number.values():
            results.write_text("")
            command = [sys.executable, "-m", "benchmarks", "phoenix", "--play", name, "--results", str(results)]
            first = max(results_by_number, default=-1) + 1
            with subprocess.Popen(  # noqa: S603  # our own module
                [*command, "--first", str(first)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            ) as child:
                results_by_number.update(_lines(results, child))
            results_by_number = {number: "hangs" if result is None else result for number, result in results_by_number.items()}
            if max(results_by_number, default=-1) < first:
                raise RuntimeError(f"no scenario starts with {name}: python -m benchmarks phoenix --play {name}")
    return [results_by_number[number] or "" for number in range(len(_SCENARIOS))]


def _lines(results: Path, child: "subprocess.Popen[bytes]") -> Iterator[tuple[int, str | None]]:
    """Yield results as they are written; kill a child that writes none for too long."""
    count, since = 0, time.monotonic()
    while True:
        ended = child.poll() is not None
        lines = results.read_text().splitlines()
        for line in lines[count:]:
            count, since = count + 1, time.monotonic()
            yield tuple(json.loads(line))
        if ended:
            return
        if count and time.monotonic() - since > HANG_TIMEOUT:
            child.kill()
        time.sleep(0.05)


def overhead(
    figures: Figures, directory: Path, task: Any, native: Callable[[], tuple[float, float]], *, count: int, slots: int
) -> None:
    """Show the overhead of the Phoenix interface over `native`, which makes a run and returns wall-clock and CPU seconds.

    Both are journaled and synced, and run in turn; the median of the ratios counts, because the load of a machine varies.
    """
    from evaljournal.integrations.phoenix import AsyncExecutor  # noqa: PLC0415  # must not be imported when Phoenix is measured

    walls, ratios = [], []
    for _ in range(5):
        _, cpu = native()
        path = directory / "through"
        shutil.rmtree(path, ignore_errors=True)
        gc.collect()
        executor = AsyncExecutor(task, slots, enable_dynamic_concurrency=False, journal=path)
        start, busy = time.perf_counter(), time.process_time()
        executor.run(range(count))
        walls.append(time.perf_counter() - start)
        ratios.append((time.process_time() - busy) / cpu)
    figures.show("through integrations.phoenix, journaled and synced", count / min(walls), unit="trials/s")
    figures.show("… CPU overhead over the native interface", (statistics.median(ratios) - 1) * 100, maximum=15, unit="%")


def main(argv: list[str]) -> int:
    """Run the scenarios with both, and print the results; return 1 if they differ unexpectedly."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks phoenix", description=__doc__)
    parser.add_argument("--play", choices=["ours", "theirs"], help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--results", type=Path, default=Path("/dev/stdout"), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.play:
        return _play(options.play, options.first, options.results)
    if importlib.util.find_spec("phoenix") is None or importlib.util.find_spec("phoenix.evals") is None:
        print("arize-phoenix-evals is not installed, nothing to compare with: pip install 'evaljournal[bench]'")
        return 0
    print(machine())
    unexpected = 0
    print(f"\n{'scenario':<48} {'theirs':<44} {'ours':<44} verdict")
    for scenario, theirs, ours in zip(_SCENARIOS, _played("theirs"), _played("ours"), strict=True):
        verdict = "same" if theirs == ours else f"on purpose: {scenario.differs}" if scenario.differs else "UNEXPECTED"
        unexpected += verdict == "UNEXPECTED"
        print(f"{scenario.description:<48} {theirs:<44} {ours:<44} {verdict}")
    return 1 if unexpected else 0
