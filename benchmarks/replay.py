"""Cost of reading a run: folding compared with bare JSON parsing, `status` of a large run, watching a live one.

Ratios are of CPU time, measured in pairs; memory is measured in a separate process.
"""

import argparse
import gc
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import orjson
import trio

from benchmarks import journal as journals
from benchmarks._figures import Figures, machine, peak_memory
from evaljournal import Case, evaluation
from evaljournal.journal import follow, read
from evaljournal.journal.events import RunFinished
from evaljournal.replay import RunState, fold
from evaljournal.replay.results.summary import summarize
from evaljournal.runner.sessions.api import arun
from evaljournal.runner.sessions.options import LiveRun

ROUNDS = 5


def main(argv: list[str]) -> int:
    """Print the figures; return 1 if a required one is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks replay", description=__doc__)
    parser.add_argument("--trials", type=int, default=250_000, help="trials of the large run (default: 250,000)")
    options = parser.parse_args(argv)
    print(machine())
    figures = Figures()
    with tempfile.TemporaryDirectory() as directory:
        small, large = Path(directory) / "small", Path(directory) / "large"
        trio.run(journals.journaled, small, 20_000)
        _folding(figures, small)
        trio.run(journals.journaled, large, options.trials)
        _status(figures, large, options.trials)
        _summary(figures, small, large)
        _watching(figures, Path(directory))
    return 1 if figures.missed else 0


def _parse(lines: list[bytes]) -> None:
    for line in lines:
        orjson.loads(line)


def _cpu(call: Callable[[], object]) -> float:
    gc.collect()
    start = time.process_time()
    call()
    return time.process_time() - start


def _folding(figures: Figures, path: Path) -> None:
    lines = journals.lines_of(path)
    rounds = [
        (_cpu(lambda: _parse(lines)) / len(lines), _cpu(lambda: fold(read(path, load_blobs=False))) / len(lines))
        for _ in range(ROUNDS)
    ]
    parsing, folding = (min(column) for column in zip(*rounds, strict=True))
    print(f"\nfolding: {len(lines):,} records, {folding * 1e6:.2f} µs each, of which orjson.loads alone {parsing * 1e6:.2f} µs")
    ratio = statistics.median(bare / folding_time for bare, folding_time in rounds)
    figures.show("read + verify + fold: share of orjson.loads' rate, median of pairs", ratio, minimum=0.25)


def _status(figures: Figures, path: Path, trials: int) -> None:
    """Measure `status` of a large run, in a separate process."""
    program = "import sys; from benchmarks import replay; replay.status(sys.argv[1])"
    child = subprocess.run(  # noqa: S603  # our own program
        [sys.executable, "-c", program, str(path)], check=True, capture_output=True, text=True
    )
    parsing, status_time, peak = map(float, child.stdout.split())
    print(f"\nstatus of a run of {trials:,} trials, {4 * trials:,} events")
    figures.show("CPU time of status", status_time, unit="s")
    figures.show("… relative to bare orjson.loads of the same lines", status_time / parsing, maximum=6)
    figures.show("peak memory", peak, maximum=400, unit="MB")


def status(path: str) -> None:
    """Print the CPU seconds of bare parsing and of `status`, and the peak memory in MB."""
    start = time.process_time()
    attrs.asdict(summarize(fold(read(path, load_blobs=False))))
    status_time = time.process_time() - start
    peak = peak_memory()
    parsing = 0.0
    for file in sorted(Path(path).glob("journal-*.jsonl")):
        lines = file.read_bytes().splitlines(keepends=True)
        parsing += _cpu(partial(_parse, lines))
    print(parsing, status_time, peak)


def _summary(figures: Figures, small: Path, large: Path) -> None:
    """Summarize a short and a long run: the cost per trial must be the same."""
    per_trial: list[float] = []
    for path in (small, large):
        state: RunState = fold(read(path, load_blobs=False))
        per_trial.append(min(_cpu(partial(summarize, state)) for _ in range(ROUNDS)) / state.totals.total)
    print("\nsummary of a folded run")
    figures.show("CPU per trial in the large run", per_trial[1] * 1e6, unit="µs")
    figures.show("… relative to the small run", per_trial[1] / per_trial[0], maximum=2)


def _watching(figures: Figures, directory: Path) -> None:
    """Run the same evaluation with and without another process that watches it."""
    rounds: list[tuple[float, float]] = []
    for number in range(ROUNDS):
        alone = _run(directory / f"alone-{number}", watched=False)
        rounds.append((alone, _run(directory / f"watched-{number}", watched=True)))
    print("\nwatching a live run of 3,000 trials of 10 ms in 20 slots, from another process")
    ratio = statistics.median(watched / alone for alone, watched in rounds)
    figures.show("the runner's CPU: watched / not watched, median of pairs", ratio, maximum=1.05)


def _run(path: Path, *, watched: bool) -> float:
    async def sleep(number: int) -> int:
        await trio.sleep(0.01)
        return number

    cases = [Case(name=f"c{number}", input=number) for number in range(3000)]
    definition: Any = evaluation(cases=cases, slots=20, loop="trio", timeout=None, name="benchmark")(sleep)
    watchers: list[subprocess.Popen[bytes]] = []

    async def start_watcher(_: LiveRun) -> None:
        if watched:
            program = "import sys, trio; from benchmarks import replay; trio.run(replay.watch, sys.argv[1])"
            watchers.append(await trio.to_thread.run_sync(subprocess.Popen, [sys.executable, "-c", program, str(path)]))

    start = time.process_time()
    trio.run(partial(arun, definition, path, policy="fixed", observer=start_watcher))
    seconds = time.process_time() - start
    for watcher in watchers:
        assert watcher.wait(60) == 0
    return seconds


async def watch(path: str) -> None:
    """Follow a run until it is finished, as `evaljournal watch` does."""
    state = RunState()
    async for record in follow(path, load_blobs=False):
        state.apply(record)
        if isinstance(record.event, RunFinished):
            return
