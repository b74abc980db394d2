"""Frames from workers, which may have run code that a model wrote: what is invalid ends the worker, and nothing else."""

import itertools
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
import trio

from evaljournal import note, step
from evaljournal.journal.events import AttemptFailed, AttemptInterrupted, AttemptSucceeded, Noted, StepCompleted, StepFailed
from evaljournal.runner.calls.http.reply import MAX_VALUES
from evaljournal.runner.calls.notes import REPLY_NOTE
from evaljournal.runner.sessions.worker.calls import Calls
from evaljournal.runner.workers import driver, streams
from evaljournal.runner.workers.driver import RemoteCall, Workers
from evaljournal.runner.workers.frames import MAX_FRAME, MAX_NOTE, InvalidFrame
from evaljournal.runner.workers.streams import FrameSplitter
from tests import runs
from tests.journal.disk import SimulatedDisk
from tests.runner.test_workers_properties import Call, ScriptedPipe
from tests.runs import define, numbered_cases
from tests.workers import RETRY, MemoryWorkers, run_in, send

MEBIBYTE = "x" * (1 << 20)
MANY = 21
MANY_VALUES = b"[0%b]" % (b",0" * MAX_VALUES)


def completed(number: int, **fields: Any) -> dict[str, Any]:
    """Return the fields of a step frame."""
    event = {"type": "step_completed", "step": number, "name": "model", "kind": "model", "fingerprint": "f", "elapsed": 0.0}
    return {"event": event | {"input": {}, "output": 1} | fields}


def failure(**texts: str) -> dict[str, Any]:
    error = {"type": "E", "message": "", "traceback": "", "location": ""} | texts
    return {"failure": {"category": "error", "retry_after": None, "stop_reason": None, "resets": ""}, "error": error}


INVALID: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "number 0": [("step", completed(0))],
    "a negative number": [("step", completed(-1, parent=-2))],
    "a huge number": [("step", completed(1 << 40))],
    "the same number twice": [("step", completed(1)), ("step", completed(1))],
    "inside itself": [("step", completed(2, parent=2))],
    "a negative parent": [("step", completed(2, parent=-1))],
    "continues an unknown step": [("step", completed(2, continues=1))],
    "a negative time": [("step", completed(1, elapsed=-1.0))],
    "a record that is too large": [("step", completed(1, name=MEBIBYTE))],
    "reuses a record": [("step", {"event": {"type": "step_reused", "step": 1, "completed_seq": 1}})],
    "another event": [("step", {"event": {"type": "attempt_succeeded", "output": 1, "elapsed": 0.0}})],
    "an unknown event": [("step", {"event": {"type": MEBIBYTE}})],
    "a long error": [("end", failure(message=MEBIBYTE))],
    "many notes at once": [("note", {"values": dict.fromkeys(map(str, range(MANY)), 1)})],
    "many notes": [("note", {"values": {"a": 1}})] * MANY,
    "a nested question": [("sync", {"question": orjson.Fragment(b"[" * 300 + b"]" * 300)})],
    "many syncs": [("sync", {"question": 1})] * MANY,
    "a large note": [("note", {"values": {"a": MEBIBYTE}})],
    "notes that are none": [("note", {"values": [1]})],
    "a reply that is none": [("note", {"values": {REPLY_NOTE: {"status": 200}}})],
    "many values": [("end", {"output": orjson.Fragment(MANY_VALUES)})],
    "an unknown kind": [("x" * 100_000, {})],
}


@pytest.mark.parametrize("name", INVALID)
async def test_an_invalid_frame_ends_its_worker(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attempt is recorded as one whose worker died; the other trial completes, and the audit has no findings."""
    monkeypatch.setattr(driver, "MAX_PER_CALL", MANY - 1)
    disk, numbers = SimulatedDisk(), itertools.count(1)

    async def forge(value: str) -> str:
        number = next(numbers)
        if value == "case-1":
            return value
        for kind, fields in INVALID[name]:
            send(orjson.dumps({kind: number, **fields}))
        await trio.sleep_forever()
        return ""

    await run_in(MemoryWorkers(workers=1, concurrency=1), define(forge, numbered_cases(2), retry=RETRY, slots=1), disk)

    interruptions = runs.events(disk, AttemptInterrupted)
    assert [("case-0", "worker_died")] * 3 == [(event.trial, event.reason) for event in interruptions]
    assert all(event.detail.startswith("killed: ") and len(event.detail) <= 1_000 for event in interruptions)
    assert ["case-1"] == [event.trial for event in runs.events(disk, AttemptSucceeded)]


async def test_questions_have_different_numbers() -> None:
    """The late answer to a question that was cancelled cannot be taken for the answer to another."""
    frames: list[bytes] = []
    connection: Any = SimpleNamespace(send=frames.append)
    calls = Calls(connection, define(trio.sleep, numbered_cases(1)), {"durable": None})
    for _ in range(20):
        with trio.move_on_after(0):
            await calls._wait_durable(1)

    assert [*range(1, 21)] == [orjson.loads(frame)["question"] for frame in frames]


async def test_a_step_takes_no_longer_than_its_call(disk: SimulatedDisk) -> None:
    """A forged duration of a step is limited to the time since the call started."""

    async def forge(value: str) -> str:
        await trio.sleep(2)
        send(orjson.dumps({"step": 1, **completed(1, elapsed=1e9)}))
        return value

    await run_in(MemoryWorkers(), define(forge, numbered_cases(1), retry=RETRY), disk)

    assert [2.0] == [round(event.elapsed, 3) for event in runs.events(disk, StepCompleted)]


async def test_a_result_that_is_too_large_for_a_worker_fails_its_attempt(disk: SimulatedDisk) -> None:
    """An output, a step and a note that do not fit into a frame are reported as such, and the worker continues."""

    async def large(value: str) -> Any:
        note(large=MEBIBYTE, small=1)
        if value == "case-1":
            await step("large", read_large)
        if value == "case-2":
            return [0] * (MAX_VALUES + 1)
        return [MEBIBYTE] * (MAX_FRAME // len(MEBIBYTE)) if value == "case-0" else value

    async def read_large() -> list[str]:
        return [MEBIBYTE] * (MAX_FRAME // len(MEBIBYTE))

    await run_in(MemoryWorkers(workers=1), define(large, numbered_cases(3), retry=RETRY, slots=1), disk)

    assert [] == runs.events(disk, AttemptInterrupted)
    maximum = "67,108,864 bytes or 1,000,000 values as JSON, the maximum in a worker"
    message = f"the result has more than {maximum}; write it to a file"
    assert [(trial, "Unserializable", message, "fatal") for trial in ("case-0", "case-2")] == [
        (failed.trial, failed.error, failed.message, failed.category) for failed in runs.events(disk, AttemptFailed)
    ]
    assert ["case-1"] == [event.trial for event in runs.events(disk, AttemptSucceeded)]
    assert ["case-1"] == [event.trial for event in runs.events(disk, StepFailed)]
    text = f"omitted: more than {MAX_NOTE:,} bytes as JSON, the maximum for a note from a worker"
    assert [("large", text), ("small", 1)] * 3 == [(event.name, event.value) for event in runs.events(disk, Noted)]


@pytest.mark.parametrize("chunk", [7, 1_000, 10_000])
def test_the_size_of_a_frame_is_limited(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame of the maximum size is accepted, and a longer one rejected, however it arrives."""
    monkeypatch.setattr(streams, "MAX_FRAME", 1_000)

    def split(data: bytes) -> list[bytes]:
        splitter = FrameSplitter()
        return [frame for start in range(0, len(data), chunk) for frame in splitter.split(data[start : start + chunk])]

    assert [b"a" * 1_000, b"b"] == split(b"a" * 1_000 + b"\nb\n")
    for data in (b"a" * 1_001 + b"\n", b"a" * 1_001):
        with pytest.raises(InvalidFrame):
            split(data)


async def test_others_get_a_turn_between_frames() -> None:
    """Frames that arrive together are handled in several turns of the loop, and large ones are parsed."""
    notes: list[Any] = []
    counts: list[int] = []
    frames = [{"note": 1, "values": {"a": 1}}] * 1_000 + [{"end": 1, "output": 3 * MEBIBYTE}]

    is_called = trio.Event()

    class Batch(ScriptedPipe):
        def send(self, frame: bytes, /) -> None:
            super().send(frame)
            if self.numbers:
                is_called.set()

        async def frames(self) -> AsyncGenerator[list[bytes]]:
            yield [orjson.dumps({"ready": {}})]
            await is_called.wait()
            yield [orjson.dumps(fields) for fields in frames]
            await trio.sleep_forever()

    async def watch() -> None:
        while True:
            counts.append(len(notes))
            await trio.lowlevel.checkpoint()

    workers = Workers(MemoryWorkers(workers=1, spares=0, new_pipe=Batch), {}, places=1, grace=1.0)
    async with workers.open():
        await workers.wait_ready()
        workers.begin("run")
        call = Call()
        workers.reserve(call)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            output = await workers.call(call, {"call": {}}, RemoteCall(notes.append, None, frozenset()))
            nursery.cancel_scope.cancel()

    assert 3 * MEBIBYTE == output
    assert 1_000 == len(notes)
    assert len({count for count in counts if 0 < count < len(notes)}) > 5
