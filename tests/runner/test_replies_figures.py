"""Recorded replies in numbers: random agents, changed requests, packed files and altered sources.

Each proof has a seeded slice here, and runs completely under `exhaustive`.
"""

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import orjson
import pytest

from evaljournal import Case, durable, verify
from evaljournal.journal.events import AttemptSucceeded, StepCompleted, StepFailed, StepReplayed, TrialScored
from evaljournal.runner.runs.sources import verify_sources
from evaljournal.runner.steps.replies.packed import open_packed, pack
from evaljournal.runner.steps.replies.source import open_run
from tests.journal.samples import change_with_hashes
from tests.processes import TIMEOUT
from tests.programs import find_program
from tests.runner_cli.commands import COMMAND
from tests.runs import AnyEvaluation, define_real, events, run_real
from tests.server import Server

WORDS = ("plan", "search", "read", "write", "check", "sum up")


class RandomAgent:
    """A program of model and tool calls that a seed determines; some are nested, repeated or not reusable.

    `change` is the number of the call that asks something else; `reverses`: whether neighbours that do not depend on each
    other are called in the opposite order.
    """

    def __init__(self, seed: int, *, calls: int = 8, change: int = -1, reverses: bool = False) -> None:
        generator = random.Random(seed)
        self.program = [(generator.choice(WORDS), generator.choice(("model", "tool", "nested", "again"))) for _ in range(calls)]
        self.change, self.reverses = change, reverses
        self.executed = 0
        self.__name__ = "agent"

    def evaluation(self, cases: list[Any]) -> AnyEvaluation:
        """Return the evaluation."""

        @durable(kind="model")
        def ask(question: str) -> dict[str, Any]:
            self.executed += 1
            return {"text": f"{question} {self.executed}", "usage": {"input_tokens": 3, "cost": 0.25}}

        @durable(kind="tool")
        def nested(question: str) -> str:
            return str(ask(f"inside {question}")["text"])

        @durable(kind="tool", reuse=False)
        def again(question: str) -> str:
            return question.upper()

        def agent(name: str) -> list[str]:
            texts: dict[int, str] = {}
            order = list(range(len(self.program)))
            if self.reverses:
                order = [number for first in range(0, len(order), 2) for number in reversed(order[first : first + 2])]
            for number in order:
                word, kind = self.program[number]
                question = f"{word} {number} {name}{'!' if number == self.change else ''}"
                texts[number] = (
                    ask(question)["text"] if kind == "model" else nested(question) if kind != "again" else again(question)
                )
            return [texts[number] for number in range(len(texts))]

        defined = define_real(agent, cases)
        defined.score(_length)
        return defined

    def step_of(self, call: int) -> int:
        """Return the number of the step of a call."""
        return 1 + sum(1 if kind in {"model", "again"} else 2 for _, kind in self.program[:call])


def _length(output: list[str]) -> float:
    return float(len("".join(output)))


def cases(count: int) -> list[Any]:
    """Return cases."""
    return [Case(name=f"case-{number}", input=f"case-{number}") for number in range(count)]


def content(path: Path) -> list[Any]:
    """Return outputs, scores and steps, apart from times and whether a step was replayed."""
    fields = ("trial", "step", "name", "kind", "fingerprint", "input", "output", "parent", "continues")
    recorded = [
        tuple(map(repr, (getattr(event, field) for field in fields)))
        for kind in (StepCompleted,)
        for event in events(path, kind)
    ]
    scores = [(event.trial, event.scorer, event.value) for event in events(path, TrialScored)]
    return [sorted(recorded), sorted(scores), sorted((event.trial, event.output) for event in events(path, AttemptSucceeded))]


@pytest.mark.parametrize("count", [6, pytest.param(200, marks=pytest.mark.exhaustive)])
def test_an_offline_run_equals_the_recorded_one(count: int, tmp_path: Path) -> None:
    """Outputs, scores and steps are equal byte by byte, and nothing is called, also if trials wait for a slot."""
    source, replayed, agent = tmp_path / "a", tmp_path / "b", RandomAgent(7)
    run_real(RandomAgent(7).evaluation(cases(count)), source)
    run_real(agent.evaluation(cases(count)), replayed, replies=str(source), offline=True, slots=2)

    assert content(source) == content(replayed)
    assert 0 == agent.executed
    assert verify(replayed).ok
    assert verify_sources(replayed).ok


HTTP_AGENT = """
import httpx
from evaljournal import evaluation

@evaluation(cases=[f"case {number}" for number in range(COUNT)], slots=20, durable="http", loop="asyncio")
async def agent(name):
    messages = [{"role": "user", "content": name}]
    async with httpx.AsyncClient(base_url="URL", verify=False) as client:
        for number in range(8):
            reply = (await client.post("/chat/completions", json={"model": "m", "messages": messages})).json()
            messages += [reply["choices"][0]["message"], {"role": "user", "content": f"{number}"}]
    return messages[-2]["content"]

@agent.score
def length(output):
    return float(len(output))
"""


@pytest.mark.parametrize("count", [6, pytest.param(200, marks=pytest.mark.exhaustive)])
def test_the_operating_system_sees_no_connection(count: int, server: Server, name: str) -> None:
    """An offline run of an HTTP agent makes no connection, not even to this machine, and equals the recorded one.

    It takes at most 1.2 times the CPU of a live run, whose server is another process and answers at once.
    """
    Path("agent.py").write_text(HTTP_AGENT.replace("COUNT", str(count)).replace("URL", server.url(name, "ok", "v1")))
    strace = find_program("strace", package="strace")
    trace = [strace, "-f", "--seccomp-bpf", "-qq", "-e", "trace=connect,sendto,sendmsg,sendmmsg", "-o", "trace"]
    live = _cpu_of("run", "agent.py", "-o", "live")
    offline = _cpu_of("run", "agent.py", "--replies", "live", "--offline", "-o", "offline")
    subprocess.run(
        [*trace, *COMMAND, "run", "agent.py", "--replies", "live", "--offline", "--plain", "-o", "traced"],
        check=True,
        capture_output=True,
        timeout=TIMEOUT,
    )
    trace_lines = Path("trace").read_text().splitlines()

    assert [] == [line for line in trace_lines if "connect(" in line or "sin_addr" in line or "sin6_addr" in line]
    assert content(Path("live")) == content(Path("offline")) == content(Path("traced"))
    assert count * 8 == len(server.requests(name))
    sys.stdout.write(f"{count} trials: CPU of the offline run over the live one: {offline / live:.2f}\n")
    assert count < 200 or offline <= 1.2 * live


def _cpu_of(*arguments: str) -> float:
    """Run a command; return the seconds of CPU that it has used."""
    before = os.times()
    subprocess.run([*COMMAND, *arguments, "--plain"], check=True, capture_output=True, timeout=TIMEOUT)
    after = os.times()
    return sum(after[2:4]) - sum(before[2:4])


@pytest.mark.parametrize("count", [8, pytest.param(1_000, marks=pytest.mark.exhaustive)])
def test_a_change_is_a_miss_at_its_step(count: int, tmp_path: Path) -> None:
    """Of random single changes of a call, each is a miss at its step; the opposite order of independent calls is none."""
    wrong: list[Any] = []
    for seed in range(count):
        call, source = random.Random(seed).randrange(8), tmp_path / f"{seed}-a"
        run_real(RandomAgent(seed).evaluation(cases(1)), source, quiet=True)
        changed, reversed_ = (tmp_path / f"{seed}-{letter}" for letter in "bc")
        agent = RandomAgent(seed, change=call)
        run_real(agent.evaluation(cases(1)), changed, replies=str(source), offline=True, quiet=True)
        expected = [] if agent.program[call][1] == "again" else [agent.step_of(call)]  # It is executed again, in any case.
        run_real(
            RandomAgent(seed, reverses=True).evaluation(cases(1)), reversed_, replies=str(source), offline=True, quiet=True
        )
        actual = [event.step for event in events(changed, StepFailed)]
        if (expected, []) != (actual, events(reversed_, StepFailed)) or agent.executed:
            wrong.append((seed, call, expected, actual))
        for path in (source, changed, reversed_):
            shutil.rmtree(path)

    assert [] == wrong


def _content(source: Any) -> list[bytes]:
    """Return all trials of a source as JSON, without the requests, which a packed file omits."""
    trials = ([entry.key, entry.case, _without_requests(attrs.asdict(trial))] for entry, _, trial in source.trials())
    return sorted(orjson.dumps(trial, option=orjson.OPT_SORT_KEYS) for trial in trials)


def _without_requests(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return list(map(_without_requests, value))
    if isinstance(value, dict):
        return {name: _without_requests(item) for name, item in value.items() if name not in {"input", "request"}}
    return value


@pytest.mark.parametrize("count", [5, pytest.param(500, marks=pytest.mark.exhaustive)])
def test_a_packed_run_is_equal(count: int, tmp_path: Path) -> None:
    """Of random runs, packed and unpacked replies are the same, and the bytes are the same each time."""
    file = tmp_path / "replies.jsonl.gz"
    for seed in range(count):
        path = tmp_path / str(seed)
        run_real(RandomAgent(seed, calls=1 + seed % 9).evaluation(cases(1 + seed % 3)), path, quiet=True)
        run = open_run(str(path))
        packed, _ = pack(run)
        file.write_bytes(packed)

        assert packed == pack(open_run(str(path)))[0]
        assert _content(run) == _content(open_packed(str(file))), seed
        shutil.rmtree(path)


def _flip(path: Path, generator: random.Random) -> None:
    """Change one character of the second half of a source."""
    data = bytearray(path.read_bytes())
    position = generator.randrange(len(data) // 2, len(data) - 40)
    data[position] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(("count", "altered"), [(6, 4), pytest.param(500, 200, marks=pytest.mark.exhaustive)])
def test_altered_sources_are_found(count: int, altered: int, tmp_path: Path) -> None:
    """`verify --sources` accuses no random replayed run, and finds each source that was altered, packed or not."""
    accused: list[Any] = []
    missed: list[Any] = []
    for seed in range(count):
        generator = random.Random(seed)
        source, replayed, file = tmp_path / f"{seed}-a", tmp_path / f"{seed}-b", tmp_path / f"{seed}.gz"
        evaluation_ = RandomAgent(seed).evaluation(cases(1 + seed % 3))
        run_real(evaluation_, source, quiet=True)
        is_packed = seed % 3 == 0
        if is_packed:
            file.write_bytes(pack(open_run(str(source)))[0])
        replies = str(file if is_packed else source)
        run_real(evaluation_, replayed, replies=replies, offline=True, trust=True, quiet=True, slots=1)
        verification = verify_sources(replayed)
        if not verify(replayed).ok or not verification.ok or verification.checked != len(events(replayed, StepReplayed)):
            accused.append((seed, verification))
        if seed < altered:
            if is_packed or seed % 2:
                _flip(file if is_packed else source / "journal-000001.jsonl", generator)
            else:
                change_with_hashes(source, b'"text":"', b'"text":"_')
            if verify_sources(replayed).ok:
                missed.append(seed)
        shutil.rmtree(source)
        shutil.rmtree(replayed)

    assert ([], []) == (accused, missed)
