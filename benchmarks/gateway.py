"""Latency that the gateway adds to a model call, and how many calls one core forwards and records.

An agent in a process of its own makes the calls; the provider is a local server in another one.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks._figures import Figures, machine
from benchmarks._server import serving
from evaljournal import Case, Command, evaluation, run
from evaljournal.journal.events import AttemptSucceeded
from evaljournal.runner.testing import events_of

MAX_ADDED: float = 1.0
"""Milliseconds at the median."""
MIN_RATE: float = 1_000


def main(argv: list[str]) -> int:
    """Print the figures; return 1 if a required one is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks gateway", description=__doc__)
    parser.add_argument("--calls", type=int, default=3_000, help="calls of each measurement (default: 3,000)")
    options = parser.parse_args(argv)
    print(machine())
    figures = Figures()
    measure(figures, options.calls)
    return 1 if figures.missed else 0


def measure(figures: Figures, calls: int) -> None:
    """Measure latency and throughput of the gateway."""
    before = os.environ.copy()
    with tempfile.TemporaryDirectory() as directory, serving() as server:
        provider = f"{server.root}/fast"
        os.environ.update(OPENAI_BASE_URL=provider, DIRECT_BASE_URL=provider, OPENAI_API_KEY="sk-benchmark-0123456789")
        try:
            latency, _ = _run_agent(Path(directory, "latency"), "latency", calls)
            rate, cpu = _run_agent(Path(directory, "rate"), "rate", calls)
        finally:
            os.environ.clear()
            os.environ.update(before)
    figures.show("a call without the gateway, median", latency["direct"] * 1e3, unit="ms")
    figures.show("… added by the gateway", (latency["gateway"] - latency["direct"]) * 1e3, maximum=MAX_ADDED, unit="ms")
    figures.show("… at the 5th percentile, for a busy machine", latency["quiet"] * 1e3, unit="ms")
    figures.show("CPU per call, recorded and synced", cpu / calls * 1e6, unit="µs")
    figures.show("… calls per second of one core", calls / cpu, minimum=MIN_RATE, unit="calls/s")
    figures.show("calls per second by the clock, 32 connections", rate["rate"], unit="calls/s")


def _run_agent(path: Path, measurement: str, calls: int) -> tuple[dict[str, float], float]:
    """Run the agent; return its figures and the CPU seconds of this process."""
    command = Command([sys.executable, "-m", "benchmarks._gateway_load", measurement, str(calls)], output="json")
    definition: Any = evaluation(cases=[Case(name="agent", input="")], gateway=True, name="benchmark")(command)
    cpu = time.process_time()
    run(definition, path)
    cpu = time.process_time() - cpu
    (success,) = (event for event in events_of(path) if isinstance(event, AttemptSucceeded))
    return dict(success.output), cpu
