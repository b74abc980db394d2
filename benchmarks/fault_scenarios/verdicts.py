"""Valid runs must verify: `verify` reports nothing about a run in which nothing went wrong."""

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import trio

from benchmarks._figures import Figures
from evaljournal import Case, RateLimited, Retry, evaluation, run
from evaljournal.runner.runs.verification import verify

RUNS = 1000


def verified_runs(figures: Figures, directory: Path, runs: int = RUNS) -> None:
    """Real runs in forked children: `verify` must report no finding about any of them."""
    findings = list(false_findings(directory, runs))
    for finding in findings[:10]:
        print(f"  {finding}")
    figures.show(f"findings of `verify` about {runs:,} valid runs", len(findings), maximum=0)


def false_findings(directory: Path, runs: int) -> Iterator[str]:
    """Make runs, each in a forked child, whose first accesses to memory are slow; yield what `verify` reports."""
    for number in range(runs):
        path = directory / f"run-{number}"
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            code = 70
            try:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                run(_evaluation(number), path, durability="os", policy=("fixed", "adaptive")[number % 2])
                code = 0
            finally:
                os._exit(code)  # The parent's clean-up must not run in the child.
        _, status = os.waitpid(child, 0)
        if status:
            yield f"run {number}: exit status {status}"
            continue
        verification = verify(path)
        yield from (f"run {number}, record {finding.seq}: {finding.message}" for finding in verification.audit.findings)
        if verification.journal.problem is not None:
            yield f"run {number}: {verification.journal.problem}"


def _evaluation(number: int) -> Any:
    """Return an evaluation with retries, timeouts and scores."""
    rng = random.Random(number)

    @evaluation(
        cases=[Case(name=f"case-{case}", input=case) for case in range(20)],
        slots=4,
        loop="trio",
        timeout=0.05,
        retry=Retry(errors=3, base_delay=0.001, max_delay=0.002),
    )
    async def task(case: int) -> int:
        await trio.sleep(rng.choice([0, 0, 0.001, 0.002] if case else [0.001, 0.1]))
        if rng.random() < 0.1:
            raise rng.choice([ConnectionError("lost"), RateLimited(0.001)])
        return case

    @task.score
    def same(output: int, case: Any) -> bool:
        return bool(output == case.input)

    return task
