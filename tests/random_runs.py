"""The events of random runs, for `python -m benchmarks events`: `random_runs.py FIRST COUNT [plain]` prints them.

A run is made by a seed alone: its cases, settings, failures, delays, interruptions and the order of trio's tasks. Time is
virtual and the disk is in memory, so the same code writes the same events each time. It is started with the packages of a
checkout on the path, which may be an older one.
"""

import gc
import json
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import trio
import trio.testing
from trio._core import _run as scheduler

from evaljournal import Case, Chat, Fatal, RateLimited, Retry, note, scorers, step
from evaljournal.journal import read
from evaljournal.journal.events import FileEvent, RunStarted, SessionStarted
from evaljournal.journal.fact import non_default_fields
from evaljournal.runner.definition.evaluation import INHERITED
from tests.batches import MemoryBatches, answer, define_batches, prompt_of
from tests.journal.disk import SimulatedDisk
from tests.runs import PATH, AnyEvaluation, define, run_killed, run_virtual, signal_after

try:
    from evaljournal.runner.calls.notes import engine_note, note_reply
except ImportError:  # A checkout from before the rooms of `runner` were joined.
    from evaljournal.runner.calls.notes import engine_note, note_reply

_IGNORED: Final = {"head", "traceback", "location"}
"""Fields that depend on the files of a checkout."""
_MAX_SESSIONS: Final = 4


class RandomTask:
    """A task whose calls fail, hang, wait, note and make steps at random, the same ones in every execution."""

    __name__ = "random_task"

    def __init__(self, seed: int, *, ills: float, has_steps: bool, has_usage: bool, outage: tuple[float, float]) -> None:
        self._seed = seed
        self.has_replies = False
        self.ills = ills
        self._has_steps = has_steps
        self.has_usage = has_usage
        self._outage = outage
        self._calls = Counter[Any]()

    async def __call__(self, value: Any) -> Any:
        """Return an output, or fail."""
        self._calls[value] += 1
        chance = random.Random(f"{self._seed} {value} {self._calls[value]}")
        if chance.random() < 0.8:
            await trio.sleep(chance.choice([0.0, 0.1, 0.5, 1.0, chance.random()]))
        start, end = self._outage
        if start <= trio.current_time() < end:
            raise ConnectionError("unavailable")
        if self.has_usage:
            note(usage={"input_tokens": chance.randint(1, 50), "output_tokens": chance.randint(1, 50)})
        if self.has_replies and chance.random() < 0.2:
            note_reply(200, {"x-ratelimit-limit-requests": "100", "x-ratelimit-remaining-requests": "50"})
        if self._has_steps:
            for number in range(chance.randint(0, 3)):
                await step(f"step{number}", self._step, chance.random())
        if chance.random() < self.ills:
            await self._fail(chance)
        if chance.random() < 0.1:
            engine_note(answer={"finish_reason": chance.choice(["length", "content_filter", "stop"])})
        return chance.choice([f"answer to {value}", "yes", "", {"a": [1, 2]}, None])

    async def _step(self, number: float) -> float:
        await trio.sleep(number / 10)
        if number < self.ills / 4:
            raise ConnectionError("a step")
        return number

    async def _fail(self, chance: random.Random) -> None:
        match chance.randrange(9):
            case 0 | 1:
                raise RateLimited(chance.choice([None, 0.5, 3.0]))
            case 2 | 3:
                raise ConnectionError("no")
            case 4:
                await trio.sleep_forever()
            case 5:
                raise ValueError(f"parsing {chance.random()}")
            case 6:
                raise Fatal("never")
            case 7:
                raise KeyError("missing")
            case _:
                with trio.CancelScope(shield=True):  # Does not respond to its cancellation.
                    await trio.sleep(60)


def _add_scorers(defined: AnyEvaluation, seed: int, chance: random.Random) -> None:
    task = RandomTask(seed + 1, ills=chance.choice([0.0, 0.1, 0.4]), has_steps=False, has_usage=False, outage=(0.0, 0.0))

    async def waits(output: Any, case: Any) -> Any:
        result = await task(f"{case.name} {output}")
        return chance.choice([result == "yes", 0.5, {"one": True, "two": 2.0}]) if result != "" else result

    def plain(output: Any) -> bool:
        if output is None:
            raise ValueError("no output")
        return bool(output == "yes")

    for name, function in (("exact", scorers.exact), ("waits", waits), ("plain", plain)):
        if chance.random() < 0.4 and (function is not plain or "plain" in sys.argv):
            # Its task may hang, also in a run whose own task does not, which may have no timeout.
            defined.score(name=name, timeout=5.0 if function is waits else INHERITED)(function)


def _evaluation(seed: int, chance: random.Random) -> AnyEvaluation:
    count, keys = chance.randint(1, 25), chance.choice([1, 1, 2, 3])
    cases: list[Case[Any, Any]] = [
        Case(name=f"c{number}", input=f"i{number}", expected="yes", metadata={"group": f"k{number % keys}"})
        for number in range(count)
    ]
    outage = chance.random() * 3
    task = RandomTask(
        seed,
        ills=chance.choice([0.0, 0.05, 0.2, 0.6]),
        has_steps=chance.random() < 0.3,
        has_usage=chance.random() < 0.4,
        outage=(outage, outage + chance.choice([0.0, 0.0, 5.0, 60.0])),
    )
    options: dict[str, Any] = {
        "slots": chance.choice([1, 2, 5, 20]),
        "policy": chance.choice(["fixed", "adaptive"]),
        "timeout": chance.choice([None, 5.0, 30.0]) if task.ills == 0 else 5.0,
        "retry": Retry(errors=chance.choice([0, 1, 4]), timeouts=chance.choice([0, 2]), rate_limits=chance.choice([0, 600])),
        "repeats": chance.choice([1, 1, 1, 3]),
        "write_ahead": chance.random() < 0.2,
        "stop_on_same_error": chance.choice([None, 2, 20]),
        "max_failures": chance.choice([None, None, None, 2, 0.3]),
        "grace": chance.choice([0.0, 1.0, 5.0]),
        "on_declined": chance.choice(["score", "error", "exclude"]),
        "on_truncated": chance.choice(["score", "error", "exclude"]),
        "reuse_steps": chance.choice(["transient", "interrupted", "always", "never"]),
    }
    if keys > 1 and chance.random() < 0.7:
        options["limit_key"] = "group"
    if chance.random() < 0.2:
        options["limits"] = {"rpm": chance.choice([20, 120, 1_000])}
        task.has_replies = True
    if chance.random() < 0.15:
        options["deadline"] = chance.choice([2.0, 10.0])
    if task.has_usage and chance.random() < 0.6:
        options["budget"] = {"output_tokens": chance.choice([100, 1_000, 100_000])}
    if task.has_usage and chance.random() < 0.3:
        options["budget_per_trial"] = {"output_tokens": chance.choice([30, 200])}
    defined = define(task, cases, **options)
    _add_scorers(defined, seed, chance)
    return defined


def _batched(seed: int, chance: random.Random) -> AnyEvaluation:
    def respond(body: Any, number: int) -> Any:
        reply = random.Random(f"{seed} {prompt_of(body)} {number}").random()
        if reply < 0.1:
            return None
        if reply < 0.2:
            return 429, {"error": {"message": "slow down"}}
        if reply < 0.3:
            return 500, {"error": {"message": "down"}}
        return answer(f"yes {prompt_of(body)[:5]}")

    provider = MemoryBatches(respond=respond, seconds=chance.choice([10.0, 600.0]), max_lines=chance.choice([3, 50_000]))
    Chat.batch_api = lambda _: provider  # type: ignore[assignment,method-assign,return-value]
    cases: list[Case[Any, Any]] = [Case(name=f"c{number}", input=f"i{number}") for number in range(chance.randint(1, 12))]
    budget = {"budget": {"output_tokens": chance.choice([20, 1_000])}} if chance.random() < 0.3 else {}
    return define_batches(cases, judge=chance.random() < 0.4, slots=3, retry=Retry(errors=chance.choice([0, 2])), **budget)


async def _run(seed: int) -> list[Any]:
    """Run a random evaluation in several sessions, which are interrupted or killed; return its events."""
    chance = random.Random(seed)
    defined = _batched(seed, chance) if seed % 10 == 9 else _evaluation(seed, chance)  # Every tenth run.
    disk = SimulatedDisk()
    for number in range(_MAX_SESSIONS):
        options: dict[str, Any] = {"resume": number > 0, "on_ambiguous": chance.choice(["retry", "retry", "fail"])}
        ending, seconds = chance.choice(["end", "end", "kill", "signal"]), chance.choice([0.05, 0.6, 2.0, 7.0])
        if ending == "kill":
            try:
                disk = await run_killed(defined, disk, after=seconds, **options)
            except IndexError:  # It ended before.
                break
        elif ending == "signal":
            times = chance.choice([1, 2])
            await run_virtual(defined, disk, **signal_after(seconds, times=times, number=signal.SIGINT), **options)
        else:
            await run_virtual(defined, disk, **options)
        if not disk.is_directory(str(PATH)):
            break
        gc.collect()  # Runs share known limits as long as one of them uses them.
    return [_comparable(record.event) for record in read(PATH, files=disk) if not isinstance(record.event, FileEvent)]


def _comparable(event: Any) -> Any:
    """Return the type and the fields of an event; settings that a session records depend on the version."""
    name = type(event).__name__
    if isinstance(event, RunStarted | SessionStarted):
        return [name]
    return [name, {key: value for key, value in non_default_fields(event).items() if key not in _IGNORED}]


def _deterministic(main: Callable[[], Any], seed: int) -> Any:
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]  # trio's own switch for tests, declared Final
    scheduler._r.seed(seed)
    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def main(first: int, count: int) -> None:
    """Print the events of each run."""
    for seed in range(first, first + count):
        try:
            events = _deterministic(lambda seed=seed: _run(seed), seed)  # type: ignore[misc]
        except Exception as exc:  # noqa: BLE001  # compared, too
            events = [f"{type(exc).__name__}: {exc}"]
        sys.stdout.write(f"{json.dumps(events, default=str)}\n")


main(*map(int, sys.argv[1:3]))
