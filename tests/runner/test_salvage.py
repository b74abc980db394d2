"""Salvaged runs of every kind: one flipped bit loses at most one output, one deleted record at most two.

A seeded slice of the damages runs in every test run; `pytest -m exhaustive` tries every record.
"""

import random
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import trio

from evaljournal import Outcome, RateLimited, step
from evaljournal.journal import read, salvage, verify
from evaljournal.journal.events import BatchPrepared
from evaljournal.replay.auditing.auditor import audit
from evaljournal.runner.calls.chat import Chat
from evaljournal.runner.retries.rules import retry_rules
from evaljournal.runner.sessions.session import Session
from evaljournal.runner.testing import deterministic_options, inline
from tests.batches import Answer, MemoryBatches, answer, define_batches, prompt_of
from tests.journal.samples import lines_of, overwrite, segment
from tests.runner.test_fork import FastDisk
from tests.runs import AnyEvaluation, define, numbered_cases

FILES = FastDisk()
CASES = 6
EVERY_RECORD = pytest.param(1, marks=pytest.mark.exhaustive)


def respond(body: Mapping[str, Any], submissions: int) -> Answer:
    """Rate-limit a line, or return no result for it, when it is submitted first; so does the judge."""
    prompt = prompt_of(body)
    if submissions == 1 and ("case-2" in prompt or "case-5" in prompt):
        return 429, {"error": {"message": "later"}}
    if submissions == 1 and "case-3" in prompt:
        return None
    return answer("verdict: correct" if body["model"] == "large" else f"answer to {prompt}")


def agent_evaluation() -> AnyEvaluation:
    """Return an evaluation with steps, retries and a scorer; some attempts end between their steps."""
    calls: dict[str, int] = {}

    async def ask(name: str) -> str:
        first = await step("first", trio.sleep, 0.1)
        calls[name] = calls.get(name, 0) + 1
        if calls[name] == 1 and name in {"case-2", "case-5"}:
            raise RateLimited(1.0)
        if calls[name] == 1 and name == "case-3":
            raise ConnectionError("down")
        return f"{first} {step('second', lambda: name)}"

    evaluation = define(ask, numbered_cases(CASES), slots=3)

    @evaluation.score
    async def length(output: str) -> float:
        await trio.lowlevel.checkpoint()
        return float(len(output))

    return evaluation


def evaluation_of(kind: str) -> AnyEvaluation:
    """Return the evaluation of a kind of run."""
    return agent_evaluation() if kind == "agents" else define_batches(numbered_cases(CASES), judge=kind == "judged batches")


async def run_it(evaluation: AnyEvaluation, path: Path, **options: Any) -> Outcome:
    """Run or resume an evaluation in virtual time."""
    with trio.fail_after(1_000_000):
        return await Session(evaluation, path, **{**deterministic_options(), "files": FILES, **options}).run()


def damages(path: Path, stride: int) -> Iterator[tuple[int, bytes, int]]:
    """Yield the record, the damaged content, and the outputs that may be lost, for one record in `stride`."""
    lines, seeded = lines_of(path), random.Random(stride)
    for number in range(seeded.randrange(stride), len(lines), stride):
        line = bytearray(lines[number])
        line[seeded.randrange(len(line) - 1)] ^= 1 << seeded.randrange(8)
        yield number, b"".join([*lines[:number], line, *lines[number + 1 :]]), 1
        yield number, b"".join([*lines[:number], *lines[number + 1 :]]), 2


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> MemoryBatches:
    provider = MemoryBatches(respond)
    monkeypatch.setattr(Chat, "batch_api", lambda _: provider)
    return provider


@pytest.mark.parametrize("stride", [29, EVERY_RECORD])
@pytest.mark.parametrize("kind", ["agents", "batches", "judged batches"])
async def test_one_damage_loses_one_output(tmp_path: Path, provider: MemoryBatches, kind: str, stride: int) -> None:
    """Wherever a bit is flipped or a record is deleted, the outputs of the other trials are kept, and the copy verifies."""
    outcome = await run_it(evaluation_of(kind), tmp_path / "run")
    assert CASES == outcome.state.completed
    for number, content, max_lost in damages(tmp_path / "run", stride):
        source, target = tmp_path / "source", tmp_path / "target"
        shutil.copytree(tmp_path / "run", source)
        overwrite(segment(source), content)
        if verify(source, files=FILES).problem is not None:
            await salvage(source, target, files=FILES, in_thread=inline)
            audited = audit(read(target), rules=retry_rules)

            assert (number, True) == (number, audited.totals.completed >= CASES - max_lost)
            assert (number, True, ()) == (number, verify(target, files=FILES).ok, audited.findings)
            shutil.rmtree(target)
        shutil.rmtree(source)


@pytest.mark.parametrize("stride", [8, EVERY_RECORD])
async def test_an_open_batch_keeps_its_other_lines(tmp_path: Path, provider: MemoryBatches, stride: int) -> None:
    """Resumed after one damage to a run that waits for a batch, only the lost trials are submitted again; it verifies."""
    provider.respond = MemoryBatches().respond
    waiting = await run_it(evaluation_of("batches"), tmp_path / "run", leave=True)
    batches, submitted = dict(provider.batches), provider.submitted.copy()
    prepared = [type(record.event) for record in read(tmp_path / "run")].index(BatchPrepared)

    assert "batches" == waiting.stop_reason
    for number, content, max_lost in damages(tmp_path / "run", stride):
        source, target = tmp_path / f"{number}-{max_lost}", tmp_path / f"{number}-{max_lost}-new"
        shutil.copytree(tmp_path / "run", source)
        overwrite(segment(source), content)
        if verify(source, files=FILES).problem is not None:
            await salvage(source, target, files=FILES, in_thread=inline)
            provider.batches, provider.submitted = dict(batches), submitted.copy()
            outcome = await run_it(evaluation_of("batches"), target, resume=True)

            assert (number, CASES, ()) == (number, outcome.state.completed, audit(read(target), rules=retry_rules).findings)
            if prepared not in range(number, number + max_lost):  # The hash of a record depends on the previous one.
                assert (number, True) == (number, provider.submitted.total() <= CASES + max_lost)
