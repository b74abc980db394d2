"""Durable steps: CPU and bytes per step, calls that are repeated after kills, and the cost for runs without steps.

The gateway is measured by `python -m benchmarks gateway`.
"""

import argparse
import asyncio
import gc
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import attrs
import trio
import trio.lowlevel

from benchmarks._figures import Figures, machine
from benchmarks._killed_agent import SECONDS, STEPS
from benchmarks._server import ROOT, ModelServer, serving
from evaljournal import Case, durable, evaluation, run, verify

KINDS: Final = ("trio", "asyncio", "threads")
REQUIRED: Final = {"trio": 30, "asyncio": 40, "threads": 40}
"""Microseconds of CPU per step."""
ROUNDS: Final = 5
TRIALS: Final = 10
SLOTS: Final = 4
_WORDS: Final = ("the", "of", "and", "to", "in", "is", "you", "that", "it", "for", "which", "about", "other", "their", "many")
BEFORE: Final = "f5d3e67"
"""The last revision without steps."""


def main(argv: list[str]) -> int:
    """Print the figures; return 1 if a required one is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks steps", description=__doc__)
    parser.add_argument("--steps", type=int, default=500, help="steps of each of ten trials (default: 500)")
    parser.add_argument("--kills", type=int, default=12, help="kills for each kind of agent and setting (default: 12)")
    parser.add_argument("--before", default=BEFORE, help=f"revision without steps to compare with (default: {BEFORE})")
    options = parser.parse_args(argv)
    print(machine())
    figures = Figures()
    with tempfile.TemporaryDirectory() as directory:
        _cpu(figures, Path(directory), options.steps)
        _conversation(figures, Path(directory))
        _without_steps(figures, Path(directory), options.before)
        _kills(figures, Path(directory), options.kills)
    return 1 if figures.missed else 0


def _cpu(figures: Figures, directory: Path, steps: int) -> None:
    print(f"\nCPU per step, {TRIALS} trials of {steps:,} steps at {SLOTS} slots, least of {ROUNDS} rounds")
    small, prompt = "What next?", [{"role": "user", "content": _text(random.Random(number), 990)} for number in range(50)]
    for kind in KINDS:
        figures.show(f"small reply, {kind}", _per_step(directory, kind, steps, small, "yes"), maximum=REQUIRED[kind], unit="µs")
    figures.show("4 kB reply, trio", _per_step(directory, "trio", steps, small, "y" * 4_000), maximum=60, unit="µs")
    figures.show("50 kB prompt, trio", _per_step(directory, "trio", steps, prompt, "yes"), maximum=100, unit="µs")


def _text(rng: random.Random, length: int) -> str:
    """Return common words, in which nothing resembles a key."""
    return " ".join(rng.choices(_WORDS, k=length // 4))[:length]


def _per_step(directory: Path, kind: str, steps: int, prompt: Any, reply: str) -> float:
    """Return the microseconds of CPU that a recorded step takes beyond the same call without one."""
    plain, recorded = (
        min(_cpu_of(directory, agent, kind) for _ in range(ROUNDS)) for agent in _agents(kind, steps, prompt, reply)
    )
    return (recorded - plain) / (steps * TRIALS) * 1e6


def _agents(kind: str, steps: int, prompt: Any, reply: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return an agent without steps, and the same one with steps."""

    async def ask_trio(prompt: Any, number: int) -> str:  # noqa: ARG001  # recorded
        await trio.lowlevel.checkpoint()
        return reply

    async def ask_asyncio(prompt: Any, number: int) -> str:  # noqa: ARG001  # recorded
        await asyncio.sleep(0)
        return reply

    def ask_plainly(prompt: Any, number: int) -> str:  # noqa: ARG001  # recorded
        return reply

    def agent_of(call: Callable[..., Any]) -> Callable[..., Any]:
        async def agent(_: int) -> int:
            for number in range(steps):
                await call(prompt, number)
            return steps

        def plain_agent(_: int) -> int:
            for number in range(steps):
                call(prompt, number)
            return steps

        return plain_agent if kind == "threads" else agent

    calls: dict[str, Callable[..., Any]] = {"trio": ask_trio, "asyncio": ask_asyncio, "threads": ask_plainly}
    return agent_of(calls[kind]), agent_of(durable(calls[kind]))


def _cpu_of(directory: Path, agent: Callable[..., Any], kind: str) -> float:
    """Return the CPU seconds of a run."""
    cases = [Case(name=f"c{number}", input=number) for number in range(TRIALS)]
    loop: Any = None if kind == "threads" else kind
    definition: Any = evaluation(cases=cases, slots=SLOTS, loop=loop, timeout=None, name="agent")(agent)
    path = directory / "run"
    shutil.rmtree(path, ignore_errors=True)
    gc.collect()
    start = time.process_time()
    run(definition, path, policy="fixed", quiet=True)
    return time.process_time() - start


def _conversation(figures: Figures, directory: Path) -> None:
    print("\n30-turn conversation, 3 kB per turn, 1.4 kB of it the reply")
    rng = random.Random(1)

    @durable(kind="model")
    def ask(messages: list[dict[str, str]]) -> dict[str, str]:  # noqa: ARG001  # recorded
        return {"role": "assistant", "content": _text(rng, 1_400)}

    def agent(_: int) -> int:
        messages: list[dict[str, str]] = []
        for _ in range(STEPS):
            messages += [{"role": "user", "content": _text(rng, 1_550)}]
            messages += [ask(messages)]
        return len(messages)

    trials = 20
    definition: Any = evaluation(cases=[Case(name=f"c{number}", input=number) for number in range(trials)], name="talk")(agent)
    path = directory / "talk"
    run(definition, path, quiet=True)
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    figures.show("bytes per trial", size / trials / 1_000, maximum=150, unit="kB")


_PLAIN: Final = """
import sys, time
from evaljournal import Case, evaluation, run
import trio.lowlevel
async def task(number):
    await trio.lowlevel.checkpoint()
    return number
cases = [Case(name=f"c{number}", input=number) for number in range(5_000)]
plain = evaluation(cases=cases, slots=20, loop="trio", timeout=None, name="plain")(task)
start = time.process_time()
run(plain, sys.argv[1], policy="fixed")
print(time.process_time() - start)
"""


def _without_steps(figures: Figures, directory: Path, revision: str) -> None:
    before = directory / "before"
    added = _git("worktree", "add", "--detach", str(before), revision)
    print(f"\n5,000 trials without steps, compared with {revision}")
    if added.returncode:
        print(f"  not measured: {added.stderr.decode().strip()}")
        return
    try:
        pairs = [(_plain(before, directory), _plain(ROOT, directory)) for _ in range(ROUNDS)]
    finally:
        _git("worktree", "remove", "--force", str(before))
    cpu = min(now for _, (now, _) in pairs) / min(then for (then, _), _ in pairs)
    size = min(now for _, (_, now) in pairs) / min(then for (_, then), _ in pairs)
    figures.show("CPU, as a share of that revision's", cpu, maximum=1.05)
    figures.show("bytes, as a share of that revision's", size, maximum=1.01)


def _git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False)  # noqa: S603, S607  # our own tree


def _plain(tree: Path, directory: Path) -> tuple[float, int]:
    """Return the CPU seconds and the bytes of a run in its own process, with the code of a tree."""
    path = directory / "plain"
    shutil.rmtree(path, ignore_errors=True)
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    command = [sys.executable, "-c", _PLAIN, str(path)]
    process = subprocess.run(command, env=environment, cwd=tree, capture_output=True, text=True, check=True)  # noqa: S603  # our own program
    return float(process.stdout.split()[-1]), sum(file.stat().st_size for file in path.glob("journal-*"))


@attrs.frozen
class Repeated:
    """Calls of an agent that was killed."""

    kills: int
    calls: int
    per_kill: tuple[int, ...]
    """Calls that were repeated because of each kill."""


def _kills(figures: Figures, directory: Path, kills: int) -> None:
    total = 0
    with serving() as server:
        for kind in (*KINDS, "sdk", "gateway"):
            print(f"\n{STEPS}-step agent, {kind}, {SLOTS} slots, {kills} kills with SIGKILL, with and without write_ahead")
            for write_ahead in (True, False):
                repeated = killed_runs(directory, kind, kills, server=server, write_ahead=write_ahead)
                total += repeated.kills
                bound = SLOTS if write_ahead else 2 * SLOTS
                name = f"calls repeated per kill{', write_ahead' if write_ahead else ''}"
                figures.show(f"{name}: most", max(repeated.per_kill), maximum=bound)
                figures.show(f"{name}: mean of {repeated.calls:,} calls", sum(repeated.per_kill) / repeated.kills)
    print()
    figures.show("kills", total, minimum=100 if kills >= 10 else None)


def killed_runs(
    directory: Path, kind: str, kills: int, *, server: ModelServer, write_ahead: bool, seed: int = 0, cases: int = 12
) -> Repeated:
    """Run agents in processes that are killed at random moments, resume each run to its end, and count the calls."""
    rng = random.Random(seed)
    calls: dict[str, list[int]] = defaultdict(list)
    """Call → the kills before each time it was made."""
    kill_count = number = 0
    while kill_count < kills:
        number += 1
        name = f"{kind}-{write_ahead}-{number}"
        path, log = directory / name, directory / f"{name}.txt"
        options = json.dumps({"write_ahead": write_ahead, "slots": SLOTS})
        arguments = [kind, str(path), str(log), str(cases), options]
        url = f"{server.root}/{name}/{SECONDS}/v1"
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OPENAI_BASE_URL": url, "OPENAI_API_KEY": "test"}
        while True:
            command = [sys.executable, "-m", "benchmarks._killed_agent", *arguments]
            process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)  # noqa: S603  # our own program
            before, exit_code = _calls_so_far(server, name, log), None
            while kill_count < kills and (exit_code := process.poll()) is None and _calls_so_far(server, name, log) == before:
                time.sleep(0.005)
            if kill_count < kills and exit_code is None:
                time.sleep(rng.uniform(0.0, 0.3))
                process.kill()
            exit_code = process.wait(120)
            for call in _all_calls(server, name, log)[before:]:
                calls[f"{name}/{call}"].append(kill_count)
            if exit_code >= 0:
                break
            kill_count += 1
        assert exit_code == 0, f"the run ended with {exit_code}"
        assert verify(path).ok
    per_kill = [0] * kill_count
    for when in calls.values():
        for kill in when[:-1]:
            per_kill[kill] += 1
    assert len(calls) == number * cases * STEPS
    return Repeated(kill_count, sum(map(len, calls.values())), tuple(per_kill))


def _calls_so_far(server: ModelServer, name: str, log: Path) -> int:
    return len(_all_calls(server, name, log))


def _all_calls(server: ModelServer, name: str, log: Path) -> list[str]:
    """Return the calls that were made, from the file of a function, or from the server."""
    if name.startswith(KINDS):
        return log.read_text().split() if log.exists() else []
    return server.messages(name)
