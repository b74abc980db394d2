"""Overhead of running an evaluation, compared with bare task pools that record nothing.

If `arize-phoenix-evals` is installed, its executor is compared too.
"""

import argparse
import asyncio
import functools
import gc
import importlib.util
import itertools
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import trio

from benchmarks import phoenix
from benchmarks._figures import Figures, machine, peak_memory
from evaljournal import Case, evaluation, run

CONCURRENCIES = (10, 100, 1000)
REQUIRED_OVER_PHOENIX = {10: 300, 100: 30, 1000: 4}


def main(argv: list[str]) -> int:
    """Print the figures; return 1 if a required one is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks executor", description=__doc__)
    parser.add_argument("--trials", type=int, default=10_000, help="no-op trials at each concurrency (default: 10,000)")
    parser.add_argument("--long", type=int, default=200_000, help="trials of the long run (default: 200,000)")
    options = parser.parse_args(argv)
    print(machine())
    figures = Figures()
    with tempfile.TemporaryDirectory() as directory:
        for slots in CONCURRENCIES:
            _no_op(figures, Path(directory), slots, options.trials)
        for slots in CONCURRENCIES:
            _ten_ms(figures, Path(directory), slots)
        _kinds(figures, Path(directory))
        _single_item(figures, Path(directory))
        _long(figures, Path(directory), options.long)
    return 1 if figures.missed else 0


def _measure(directory: Path, task: Callable[[int], Any], count: int, slots: int, loop: Any) -> tuple[float, float]:
    """Run an evaluation; return wall-clock and CPU seconds."""

    def cases() -> Iterator[Case[int, None]]:
        for number in range(count):
            yield Case(name=f"c{number}", input=number)

    definition: Any = evaluation(cases=cases, slots=slots, loop=loop, timeout=None, name="benchmark")(task)
    path = directory / "run"
    shutil.rmtree(path, ignore_errors=True)
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    outcome = run(definition, path, policy="fixed")
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    assert outcome.state.completed == count
    return wall, cpu


async def _trio_pool(task: Callable[[int], Awaitable[Any]], count: int, slots: int) -> None:
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            await task(number)

    async with trio.open_nursery() as nursery:
        for _ in range(slots):
            nursery.start_soon(worker)


async def _asyncio_pool(task: Callable[[int], Awaitable[Any]], count: int, slots: int) -> None:
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            await task(number)

    await asyncio.gather(*(worker() for _ in range(slots)))


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


async def _instant(number: int) -> int:
    await trio.lowlevel.checkpoint()
    return number


async def _instant_asyncio(number: int) -> int:
    await asyncio.sleep(0)
    return number


async def _sleep(number: int) -> int:
    await trio.sleep(0.01)
    return number


def _instant_plain(number: int) -> int:
    return number


def _no_op(figures: Figures, directory: Path, slots: int, count: int) -> None:
    print(f"\nno-op tasks, {slots} slots")
    wall, cpu = min(_measure(directory, _instant, count, slots, "trio") for _ in range(3))
    figures.show("ours, journaled and synced", count / wall, unit="trials/s")
    figures.show("… CPU per trial (four events)", cpu / count * 1e6, maximum=120, unit="µs")
    native = functools.partial(_measure, directory, _instant, count, slots, "trio")
    phoenix.overhead(figures, directory, _instant, native, count=count, slots=slots)
    pool = count / _timed(lambda: trio.run(_trio_pool, _instant, count, slots))
    figures.show("bare trio pool, no journal", pool, unit="tasks/s")
    figures.show(
        "bare asyncio pool, no journal",
        count / _timed(lambda: asyncio.run(_asyncio_pool(_instant_asyncio, count, slots))),
        unit="tasks/s",
    )
    phoenix_rate = _phoenix(slots)
    if phoenix_rate is not None:
        figures.show("Phoenix's AsyncExecutor, no journal", phoenix_rate, unit="tasks/s")
        figures.show("… ours / theirs", count / wall / phoenix_rate, minimum=REQUIRED_OVER_PHOENIX[slots])


def _ten_ms(figures: Figures, directory: Path, slots: int) -> None:
    count = min(20_000, slots * 100)
    print(f"\ntasks of 10 ms, {slots} slots")
    wall, _ = min(_measure(directory, _sleep, count, slots, "trio") for _ in range(2))
    pool = _timed(lambda: trio.run(_trio_pool, _sleep, count, slots))
    figures.show("ours", count / wall, unit="trials/s")
    if slots == CONCURRENCIES[0]:
        figures.show("… share of the ideal rate", count / wall / (slots / 0.01), minimum=0.85)
    else:
        figures.show("… share of the bare trio pool's rate", pool / wall, minimum=0.75)


def _kinds(figures: Figures, directory: Path) -> None:
    print("\nCPU per trial by kind of task, 100 slots")
    for kind, task, loop in (
        ("async def for trio", _instant, "trio"),
        ("async def for asyncio", _instant_asyncio, "asyncio"),
        ("plain def, in a thread", _instant_plain, None),
    ):
        _, cpu = _measure(directory, task, 3000, 100, loop)
        figures.show(kind, cpu / 3000 * 1e6, unit="µs")


def _single_item(figures: Figures, directory: Path) -> None:
    print("\none item, end to end")
    wall, _ = min(_measure(directory, _instant, 1, 1, "trio") for _ in range(5))
    figures.show("from the call of run() to its return", wall * 1000, maximum=50, unit="ms")


def _long(figures: Figures, directory: Path, count: int) -> None:
    """Measure a long run in its own process, so that the peak memory is its own."""
    print(f"\na long run: {count:,} no-op trials from a generator, 10 slots")
    program = "import sys; from benchmarks import executor; executor.long_run(sys.argv[1], int(sys.argv[2]))"
    child = subprocess.run(  # noqa: S603  # our own program
        [sys.executable, "-c", program, str(directory), str(count)], check=True, capture_output=True, text=True
    )
    peak, first, second = map(float, child.stdout.split())
    figures.show("peak memory", peak, maximum=150, unit="MB")
    figures.show("CPU per trial in the first half", first, unit="µs")
    figures.show("… second half / first half", second / first, maximum=1.2)


def long_run(directory: str, count: int) -> None:
    """Print the peak memory in MB, and the CPU time per trial in each half of the run in µs."""
    marks: list[float] = []

    def cases() -> Iterator[Case[int, None]]:
        for number in range(count):
            if number in (0, count // 2):
                marks.append(time.process_time())
            yield Case(name=f"c{number}", input=number)

    definition: Any = evaluation(cases=cases, slots=10, loop="trio", timeout=None, name="benchmark")(_instant)
    outcome = run(definition, Path(directory) / "long", policy="fixed")
    marks.append(time.process_time())
    assert outcome.state.completed == count
    halves = [(end - start) / (count // 2) * 1e6 for start, end in itertools.pairwise(marks)]
    print(peak_memory(), *halves)


@functools.cache
def _phoenix_executor() -> Any:
    if importlib.util.find_spec("phoenix") is None or importlib.util.find_spec("phoenix.evals") is None:
        print("  (arize-phoenix-evals is not installed, its executor is not measured: pip install arize-phoenix-evals)")
        return None
    from phoenix.evals.executors import AsyncExecutor  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415

    return AsyncExecutor


def _phoenix(slots: int) -> float | None:
    executor = _phoenix_executor()
    if executor is None:
        return None
    count = slots * 6
    phoenix_executor = executor(_instant_asyncio, concurrency=slots, tqdm_bar_format=None)
    return count / _timed(lambda: phoenix_executor.run(list(range(count))))
