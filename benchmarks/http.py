"""Overhead of evaluating an HTTP endpoint, compared with a bare loop over the same HTTP client.

Both call the same local server. The bare loop has one connection per slot, sends the same request and parses the reply.
"""

import argparse
import gc
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpcore2
import orjson
import trio

from benchmarks._figures import Figures, machine
from benchmarks._server import serving
from evaljournal import Case, evaluation, run
from evaljournal.runner.calls.endpoint import Endpoint

CONCURRENCIES = (10, 100, 500)
REQUIRED = {10: 0.7, 100: 0.7}
ROUNDS = 5


def main(argv: list[str]) -> int:
    """Print the figures; return 1 if a required one is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks http", description=__doc__)
    parser.add_argument(
        "--calls", type=int, default=2_000, help="calls at each concurrency, in each of five rounds (default: 2,000)"
    )
    options = parser.parse_args(argv)
    print(machine())
    figures = Figures()
    with tempfile.TemporaryDirectory() as directory, serving() as server:
        url = f"{server.root}/fast"
        for slots in CONCURRENCIES:
            _compare(figures, Path(directory), url, slots, options.calls)
    return 1 if figures.missed else 0


def _compare(figures: Figures, directory: Path, url: str, slots: int, count: int) -> None:
    print(f"\n{slots} slots")
    rates = [(_bare(url, slots, count), _measure(directory, url, slots, count)) for _ in range(ROUNDS)]
    bare, bare_cpu = max(rate for (rate, _), _ in rates), min(cpu for (_, cpu), _ in rates)
    our_rate, our_cpu = max(rate for _, (rate, _) in rates), min(cpu for _, (_, cpu) in rates)
    figures.show("bare loop over the same client, nothing recorded", bare, unit="calls/s")
    figures.show("… CPU per call", bare_cpu * 1e6, unit="µs")
    figures.show("ours, journaled and synced", our_rate, unit="calls/s")
    figures.show("… CPU per call", our_cpu * 1e6, unit="µs")
    pairs = [rate / bare_rate for (bare_rate, _), (rate, _) in rates]  # Pairs: other load affects both.
    figures.show("… share of the bare loop's rate, median of five pairs", statistics.median(pairs), minimum=REQUIRED.get(slots))
    figures.show("… share of the bare loop's rate, by CPU time", bare_cpu / our_cpu)


def _measure(directory: Path, url: str, slots: int, count: int) -> tuple[float, float]:
    """Run an evaluation; return calls per second and CPU seconds per call."""

    def cases() -> Iterator[Case[str, None]]:
        for number in range(count):
            yield Case(name=f"c{number}", input=f"The capital of country {number}?")

    definition: Any = evaluation(cases=cases, slots=slots, timeout=30, name="benchmark")(Endpoint(url, output_path="output"))
    path = directory / "run"
    shutil.rmtree(path, ignore_errors=True)
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    outcome = run(definition, path, policy="fixed")
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    assert outcome.state.completed == count
    return count / wall, cpu / count


def _bare(url: str, slots: int, count: int) -> tuple[float, float]:
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    trio.run(_pool, httpcore2.URL(url), slots, count)
    return count / (time.perf_counter() - wall), (time.process_time() - cpu) / count


async def _pool(url: httpcore2.URL, slots: int, count: int) -> None:
    numbers = iter(range(count))
    host = b"%b:%d" % (url.host, url.port or 80)

    async def worker() -> None:
        async with httpcore2.AsyncHTTPConnection(url.origin, network_backend=httpcore2.TrioBackend()) as connection:
            for number in numbers:
                body = orjson.dumps({"input": f"The capital of country {number}?"})
                headers = [
                    (b"Host", host),
                    (b"Content-Type", b"application/json"),
                    (b"Accept", b"application/json"),
                    (b"Content-Length", b"%d" % len(body)),
                ]
                with trio.fail_after(30):
                    response = await connection.handle_async_request(
                        httpcore2.Request("POST", url, headers=headers, content=body)
                    )
                    answer = orjson.loads(await response.aread())
                    await response.aclose()
                assert answer["output"] == "LIMA"

    async with trio.open_nursery() as nursery:
        for _ in range(slots):
            nursery.start_soon(worker)
