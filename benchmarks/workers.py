"""Cost of workers: trials per second and CPU of the process of the run, without workers, in processes and on Ray.

A run is measured from the first case that it reads, when its workers are ready; their start is measured by itself.
"""

import argparse
import gc
import importlib.util
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from benchmarks import _worker_tasks as tasks
from benchmarks._figures import Figures, machine
from benchmarks._ray_cluster import ENVIRONMENT, ray_cluster
from evaljournal import ProcessWorkers, RayWorkers, run
from evaljournal.journal import read
from evaljournal.journal.events import AttemptInterrupted, AttemptStarted
from evaljournal.runner.sessions.workers import new_workers
from evaljournal.runner.workers.pool import WorkerPool

IN_FLIGHT: Final = (4, 64, 1000)
MAX_IN_PROCESS: Final = 120
"""CPU per trial in µs, as `python -m benchmarks executor` requires it of a run without workers."""
WORKERS: Final = 2
ROUNDS: Final = 3


@attrs.frozen(kw_only=True)
class Required:
    """What a kind of workers must reach on an idle machine with 2 cores."""

    rate: dict[int, float]
    """Attempts in flight → trials per second."""
    cpu: dict[int, float]
    """Attempts in flight → CPU of the process of the run per trial in µs."""
    megabytes: float
    """MB of large outputs per second."""
    first_worker: float | None = 1.0
    """Seconds until it is ready; None: not limited."""
    replacement: float | None = 1.5
    """Seconds from the end of a worker to the next attempt if no spare is ready; None: not limited."""


POOLS: Final[dict[str, tuple[Callable[[int, int], WorkerPool], Required]]] = {
    "processes": (
        lambda workers, concurrency: ProcessWorkers(workers, concurrency=concurrency),
        Required(rate={64: 2_000}, cpu={64: 250}, megabytes=50),
    ),
    "ray": (
        lambda workers, concurrency: RayWorkers(workers=workers, concurrency=concurrency),
        Required(rate={64: 1_000, 1000: 2_000}, cpu={}, megabytes=30, first_worker=None, replacement=None),
    ),
}
"""Name → a pool with a number of workers and attempts per worker, and what it must reach."""


def main(argv: list[str]) -> int:
    """Print the figures; return 1 if a required one is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks workers", description=__doc__)
    parser.add_argument("--trials", type=int, default=10_000, help="no-op trials of each measurement (default: 10,000)")
    parser.add_argument("--large", type=int, default=8, help=f"outputs of {tasks.MEGABYTES} MB (default: 8)")
    parser.add_argument("--pool", choices=sorted(POOLS), action="append", help="repeatable (default: all)")
    options = parser.parse_args(argv)
    print(machine())
    figures = Figures()
    names = options.pool or [name for name in POOLS if name != "ray" or importlib.util.find_spec("ray")]
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        path = Path(directory, "run")
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = str(Path(directory, "bytecode"))  # Installed modules are compiled, too.
        if "ray" in names:
            os.environ |= ENVIRONMENT
            os.environ["RAY_ADDRESS"] = stack.enter_context(ray_cluster()).address
        for in_flight in IN_FLIGHT:
            _no_op(figures, path, names, in_flight, options.trials)
        _large(figures, path, names, options.large)
        for name in names:
            _starts(figures, path, name)
    return 1 if figures.missed else 0


def _measure(path: Path, definition: Any, pool: WorkerPool | None, count: int, **settings: Any) -> tuple[float, float]:
    """Run an evaluation; return wall-clock and CPU seconds of this process from its first case on."""
    shutil.rmtree(path, ignore_errors=True)
    gc.collect()
    tasks.count = count
    outcome = run(definition, path, workers=pool, quiet=True, **settings)
    wall, cpu = tasks.marks[-1]
    assert outcome.state.completed == count
    return time.perf_counter() - wall, time.process_time() - cpu


def _no_op(figures: Figures, path: Path, names: list[str], in_flight: int, count: int) -> None:
    print(f"\nno-op tasks, {in_flight:,} in flight, {WORKERS} workers")
    wall, cpu = min(_measure(path, tasks.instant, None, count, slots=in_flight) for _ in range(ROUNDS))
    figures.show("in process", count / wall, unit="trials/s")
    figures.show("… CPU per trial", cpu / count * 1e6, maximum=MAX_IN_PROCESS, unit="µs")
    for name in names:
        new_pool, required = POOLS[name]
        pool = new_pool(WORKERS, -(-in_flight // WORKERS))
        pool_wall, pool_cpu = min(_measure(path, tasks.instant, pool, count, slots=in_flight) for _ in range(ROUNDS))
        figures.show(name, count / pool_wall, minimum=required.rate.get(in_flight), unit="trials/s")
        figures.show("… CPU of the run per trial", pool_cpu / count * 1e6, maximum=required.cpu.get(in_flight), unit="µs")
        figures.show("… relative to in process", pool_cpu / cpu, unit="×")


def _large(figures: Figures, path: Path, names: list[str], count: int) -> None:
    print(f"\n{count} outputs of {tasks.MEGABYTES} MB, {WORKERS} at once")
    size = count * tasks.MEGABYTES
    wall, cpu = min(_measure(path, tasks.large, None, count) for _ in range(ROUNDS))
    figures.show("in process", size / wall, unit="MB/s")
    figures.show("… CPU per MB", cpu / size * 1e3, unit="ms")
    for name in names:
        new_pool, required = POOLS[name]
        wall, cpu = min(_measure(path, tasks.large, new_pool(WORKERS, 1), count) for _ in range(ROUNDS))
        figures.show(name, size / wall, minimum=required.megabytes, unit="MB/s")
        figures.show("… CPU of the run per MB", cpu / size * 1e3, unit="ms")


def _starts(figures: Figures, path: Path, name: str) -> None:
    print(f"\n{name}: start and replacement of a worker")
    new_pool, required = POOLS[name]
    pool = new_pool(1, 1)
    first = min(trio.run(_first_worker, pool) for _ in range(ROUNDS))
    figures.show("from the start of the first worker until it is ready", first, maximum=required.first_worker, unit="s")
    with_spare, without_spare = _replacements(path, pool)
    figures.show("from the end of a worker to the next attempt, a spare is ready", with_spare, maximum=0.1, unit="s")
    figures.show(
        "… if no spare is ready: the end of two workers in a row", without_spare, maximum=required.replacement, unit="s"
    )


async def _first_worker(pool: WorkerPool) -> float:
    workers = new_workers(pool, tasks.instant, tasks.instant.settings, ("",), "")
    started_at = time.perf_counter()
    async with workers.open():
        await workers.wait_ready()
        return time.perf_counter() - started_at


def _replacements(path: Path, pool: WorkerPool) -> tuple[float, float]:
    """Return the seconds from the end of a worker to the next attempt, with and without a spare."""
    shutil.rmtree(path, ignore_errors=True)
    tasks.count = 3
    run(tasks.deadly, path, workers=pool, quiet=True)
    times = [record.t for record in read(path) if isinstance(record.event, AttemptStarted | AttemptInterrupted)]
    _, first_end, second_start, second_end, third_start = times
    return second_start - first_end, third_start - second_end
