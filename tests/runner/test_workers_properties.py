"""Properties of a session's workers over a scripted pipe, for any order of frames, deaths and cancellations."""

from typing import Any

import attrs
import orjson
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from evaljournal.runner.calls import WorkerEnded
from evaljournal.runner.retries.classify import RemoteError
from evaljournal.runner.workers.driver import MAX_FAILED_STARTS, RemoteCall, Workers
from evaljournal.runner.workers.pool import WorkerDied
from tests.workers import MemoryPipe, MemoryWorkers

GRACE = 2.0
PLACES = 2
FAILURE = {
    "failure": {"category": "error", "retry_after": None, "stop_reason": None, "resets": ""},
    "error": {"type": "E", "message": "", "traceback": "", "location": ""},
}
ENDS: dict[str, dict[str, Any]] = {"output": {"output": 1}, "failure": FAILURE, "cancelled": {"cancelled": True}, "invalid": {}}

actions = st.lists(
    st.tuples(st.sampled_from(["call", "call", "alone", *ENDS, "note", "die", "lose", "cancel", "wait"]), st.integers(0, 7)),
    max_size=60,
)


class ScriptedPipe(MemoryPipe):
    """A pipe to a worker that does only what the script contains."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.numbers: list[int] = []
        """The calls that were sent."""

    def send(self, frame: bytes, /) -> None:
        fields = orjson.loads(frame)
        if "open" in fields:
            self.reply(orjson.dumps({"ready": {}}))
        elif "call" in fields:
            self.numbers.append(fields["call"])


@attrs.define(eq=False)
class Call:
    """A call, and how often it has ended."""

    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    needs_own_worker: bool = False
    ends: list[str] = attrs.field(factory=list[str])

    async def run(self, workers: Workers) -> None:
        with self.scope:
            try:
                assert 1 == await workers.call(self, {"call": {}}, RemoteCall(lambda _: None, None, frozenset()))
                self.ends.append("returned")
            except RemoteError:
                self.ends.append("failed")
            except WorkerEnded as exc:
                self.ends.append(exc.reason)
        if self.scope.cancelled_caught:
            self.ends.append("cancelled")


class Script:
    """Carries out a script, and checks the places after each action."""

    def __init__(self, pool: MemoryWorkers, workers: Workers, nursery: trio.Nursery) -> None:
        self.pool, self.workers, self.nursery = pool, workers, nursery
        self.calls: list[Call] = []
        self.started: list[Call] = []
        self.unused = 0
        """Workers that died before they ran anything."""
        self.problems: list[str] = []
        workers.on_problem = self.problems.append

    def start(self, call: Call) -> None:
        self.started.append(call)
        self.nursery.start_soon(call.run, self.workers)

    async def act(self, kind: str, index: int) -> None:
        pipes = [pipe for pipe in self.pool.pipes if not pipe.is_killed]
        numbers = [(pipe, number) for pipe in pipes for number in pipe.numbers]
        if kind == "call" and self.workers.has_room:
            self.calls.append(Call())
            self.workers.reserve(self.calls[-1])
            self.start(self.calls[-1])
        elif kind == "alone":
            call = Call(needs_own_worker=True)
            self.calls.append(call)
            self.workers.reserve_own_worker(call, lambda: self.start(call))
        elif kind in ENDS and numbers:
            pipe, number = numbers[index % len(numbers)]
            pipe.reply(orjson.dumps({"end": number, **ENDS[kind]}))  # Perhaps a second end.
        elif kind == "note" and numbers:
            pipe, number = numbers[index % len(numbers)]
            pipe.reply(orjson.dumps({"note": number, "values": {"a": 1}}))
        elif kind in {"die", "lose"} and pipes:
            pipe = pipes[index % len(pipes)]
            self.unused += not pipe.numbers
            pipe.end(WorkerDied("exit code 3", is_external=kind == "lose"))
        elif kind == "cancel" and self.calls:
            self.calls[index % len(self.calls)].scope.cancel()
        elif kind == "wait":
            await trio.sleep(index * 0.3)
        await trio.testing.wait_all_tasks_blocked()
        self.check()

    def check(self) -> None:
        places = self.workers.places
        for place in {id(place): place for place in places.values()}.values():
            held = [call for call in self.calls if places.get(call) is place]
            assert place.is_alive  # What runs in a worker ends with it.
            assert place.places_used == len(held) <= place.places
            assert len(held) == 1 or not any(call.needs_own_worker for call in held)
        assert all(len(call.ends) <= 1 for call in self.calls)

    async def finish(self) -> None:
        """Cancel what is in flight; then every call has ended once, and every place is free."""
        for _ in range(len(self.calls) + 1):  # Those that must be alone follow one another.
            for call in self.calls:
                call.scope.cancel()
            await trio.sleep(GRACE + 0.1)
        await trio.testing.wait_all_tasks_blocked()
        self.check()
        assert [1] * len(self.started) == [len(call.ends) for call in self.started]
        free = 0
        while self.workers.has_room:
            self.workers.reserve(Call())
            free += 1
        alive = sum(not pipe.is_killed for pipe in self.pool.pipes)
        assert free == PLACES * min(alive, self.pool.workers)
        assert alive == self.pool.workers + self.pool.spares or self.unused >= MAX_FAILED_STARTS
        assert len(self.started) == len(self.calls) or (self.problems and not alive)


@pytest.mark.parametrize("examples", [25, pytest.param(2_000, marks=pytest.mark.exhaustive)])
def test_every_call_ends_exactly_once(examples: int) -> None:
    """Whatever workers send and whenever they die, each call has one outcome, and its place is free afterwards."""

    @settings(max_examples=examples, deadline=None, derandomize=True, database=None)
    @given(script=actions)
    def check(script: list[tuple[str, int]]) -> None:
        async def main() -> None:
            pool = MemoryWorkers(workers=3, new_pipe=ScriptedPipe)
            workers = Workers(pool, {}, places=PLACES, grace=GRACE)
            async with workers.open():
                await workers.wait_ready()
                workers.begin("run")
                async with trio.open_nursery() as nursery:
                    running = Script(pool, workers, nursery)
                    for kind, index in script:
                        await running.act(kind, index)
                    await running.finish()

        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))

    check()
