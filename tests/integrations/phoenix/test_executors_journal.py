"""Executors with a journal: what is recorded, what a second run uses of it, and what is rejected."""

import math
import threading
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from evaljournal import UsageError
from evaljournal.integrations.phoenix import AsyncExecutor, ExecutionStatus, Incomplete, SyncExecutor
from evaljournal.integrations.phoenix.execution import Results
from evaljournal.integrations.phoenix.results import RecordedFailure
from evaljournal.journal import verify
from evaljournal.journal.errors import WriteFailed
from evaljournal.journal.events import RunStarted, TrialEnqueued, TrialWithdrawn
from evaljournal.runner.errors import RunChanged
from evaljournal.runner.testing import Fail, Hang, Return, Scripted, events_of
from tests.integrations.phoenix import test_executors
from tests.journal.disk import SimulatedDisk
from tests.runs import PATH, events

COMPLETED, FAILED = ExecutionStatus.COMPLETED, ExecutionStatus.FAILED


async def execute(function: Any, inputs: Iterable[Any], disk: SimulatedDisk, concurrency: int = 3, **arguments: Any) -> Results:
    options = {"files": disk, **arguments.pop("options", {})}
    return await test_executors.execute(function, inputs, concurrency, options, journal=PATH, **arguments)


def called_inputs(task: Scripted) -> list[Any]:
    return sorted(task.calls.elements())


async def test_a_journal_like_any_other(disk: SimulatedDisk) -> None:
    """Inputs, outputs and settings are recorded; the journal verifies and can be folded."""
    outputs, _ = await execute(Scripted(lambda value, _: Return(value.upper(), 1)), ["a", "b"], disk, timeout=30)

    assert ["A", "B"] == outputs
    assert ["a", "b"] == [event.input for event in events(disk, TrialEnqueued)]
    [run_started] = events(disk, RunStarted)
    assert ("scripted", 2, 3, 30.0, 10) == (
        run_started.evaluation,
        run_started.trials,
        run_started.settings["slots"],
        run_started.settings["timeout"],
        run_started.settings["retry"]["total"],
    )
    assert verify(PATH, files=disk).ok


def test_without_a_journal_no_files_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a journal no file is created, neither in the working nor in the temporary directory."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    outputs, _ = AsyncExecutor(lambda value: value * 400_000).run(["a", "b"])  # Large enough for blobs.

    assert [400_000, 400_000] == [len(output) for output in outputs]
    assert [] == list(tmp_path.iterdir())


async def test_a_finished_run_is_not_repeated() -> None:
    """A second run makes no calls, returns the same, and leaves the journal unchanged."""
    disk, task = SimulatedDisk(), Scripted(lambda value, _: Return({"got": value}, 1))
    first = await execute(task, ["a", "b", "a"], disk)
    records = len(events_of(PATH, files=disk))
    second = await execute(task, ["a", "b", "a"], disk)

    assert first == second
    assert ({"a": 2, "b": 1}, records) == (task.calls, len(events_of(PATH, files=disk)))


async def test_a_killed_run_is_resumed(disk: SimulatedDisk) -> None:
    """Calls in flight are repeated, completed ones are not; details have attempts and times of both runs."""
    first = Scripted(lambda value, _: Return(value, 10) if value < 20 else Hang())
    with trio.move_on_after(200):
        await execute(first, range(40), disk, timeout=math.inf)
    second = Scripted(lambda value, _: Return(value, 1))
    results = await execute(second, range(40), disk.after_kill())

    assert (list(range(40)), list(range(20, 40))) == (results[0], called_inputs(second))
    assert [COMPLETED] * 40 == [details.status for details in results[1]]
    assert [1] * 20 + [2] * 3 + [1] * 17 == [details.attempts for details in results[1]]
    assert 10.0 == pytest.approx(results[1][0].execution_seconds)


async def test_failed_items_are_repeated(disk: SimulatedDisk) -> None:
    """A second run repeats items that failed or did not run; earlier failures are read from the journal."""
    await execute(
        Scripted(lambda value, _: Fail(ValueError("no")) if value == 3 else Return(value)), range(5), disk, 1, max_retries=0
    )
    task = Scripted(lambda value, _: Return(value))
    outputs, details = await execute(task, range(5), disk, 1)

    assert ([0, 1, 2, 3, 4], [3, 4]) == (outputs, called_inputs(task))
    assert ExecutionStatus.COMPLETED_WITH_RETRIES == details[3].status
    assert ["ValueError: no"] == [str(exc) for exc in details[3].exceptions]
    assert isinstance(details[3].exceptions[0], RecordedFailure)


async def test_inputs_are_matched_by_content(disk: SimulatedDisk) -> None:
    """Reordered, added, repeated or removed inputs do not repeat completed calls."""
    await execute(Scripted(lambda value, _: Return(f"first {value}")), ["a", "b", "c", "c"], disk)
    task = Scripted(lambda value, _: Return(f"second {value}"))
    outputs, _ = await execute(task, ["new", "c", "a", "c", "c"], disk)

    assert ["second new", "first c", "first a", "first c", "second c"] == outputs
    assert ["c", "new"] == called_inputs(task)
    assert ["removed"] == [event.reason for event in events(disk, TrialWithdrawn)]


async def test_an_input_that_is_added_again_is_called_again() -> None:
    """An input that was removed and is added again counts as new."""
    disk, task = SimulatedDisk(), Scripted(lambda value, times: Return(f"{value} {times}"))
    for inputs in (["a", "b"], ["b"]):
        await execute(task, inputs, disk)
    outputs, _ = await execute(task, ["a", "b"], disk)

    assert ["a 2", "b 1"] == outputs


async def test_a_generator_can_be_resumed(disk: SimulatedDisk) -> None:
    """Inputs of a generator are matched one by one."""
    await execute(
        Scripted(lambda value, _: Fail(ValueError("no")) if value == 30 else Return(value)), range(100), disk, max_retries=0
    )
    task = Scripted(lambda value, _: Return(value))
    outputs, _ = await execute(task, iter(range(100)), disk)

    assert list(range(100)) == outputs
    assert 30 in task.calls
    assert task.calls.total() < 75


async def first_version(value: int) -> int:
    await trio.lowlevel.checkpoint()
    return value


async def second_version(value: int) -> int:
    await trio.lowlevel.checkpoint()
    return value + 1


async def test_another_function_is_rejected(disk: SimulatedDisk) -> None:
    """A journal of another function is rejected unless that is adopted; then completed calls are not repeated."""
    await execute(first_version, [1], disk)
    with pytest.raises(RunChanged, match="outputs of another function, or of an earlier version of 'second_version'"):
        await execute(second_version, [1, 2], disk)
    outputs, _ = await execute(second_version, [1, 2], disk, options={"adopt": True})

    assert [1, 3] == outputs


@attrs.frozen
class Question:
    """A class with a few fields, as inputs often are."""

    text: str
    level: int


@attrs.frozen
class Version:
    """A class with another field."""

    number: int


class Strange:
    """An object that is not JSON, but can be pickled."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "<strange>"


async def test_inputs_that_are_not_json(disk: SimulatedDisk) -> None:
    """Classes are recorded as their fields, other objects as repr and digest; the function gets the object itself."""
    inputs_received: list[Any] = []

    async def look(value: Any) -> str:
        await trio.lowlevel.checkpoint()
        inputs_received.append(value)
        return type(value).__name__

    inputs = [Question("why?", 3), Strange(1), Strange(2), {1, 2}, float("nan"), (1, 2), {1: "one"}]
    outputs, _ = await execute(look, inputs, disk, 1)
    recorded = [event.input for event in events(disk, TrialEnqueued)]

    assert ["Question", "Strange", "Strange", "set", "float", "tuple", "dict"] == outputs
    assert all(expected is actual for expected, actual in zip(inputs, inputs_received, strict=True))
    assert ({"text": "why?", "level": 3}, "<strange>") == (recorded[0], recorded[1]["repr"])
    assert recorded[1]["content"] != recorded[2]["content"]
    inputs_received.clear()
    await execute(look, [Question("why?", 3), Strange(2), Strange(3), (1, 2)], disk, 1)
    assert [3] == [strange.value for strange in inputs_received]


async def test_an_input_that_cannot_be_recorded_is_rejected() -> None:
    """An input that is neither JSON nor can be pickled is named before any call, and no journal is created."""
    disk, task = SimulatedDisk(), Scripted(lambda *_: Return(1))
    with pytest.raises(UsageError, match="input 1 cannot be journaled"):
        await execute(task, ["a", threading.Lock(), "b"], disk)

    assert (0, False) == (task.calls.total(), disk.is_directory(str(PATH)))


async def test_outputs_are_the_same_objects(disk: SimulatedDisk) -> None:
    """In the same process an output is the object itself; a later process reads it from the journal."""
    created = [Question("why?", 3), ("a", "tuple"), ["a list"]]
    outputs, _ = await execute(Scripted(lambda value, _: Return(created[value])), range(3), disk)
    restored, _ = await execute(Scripted({}), range(3), disk)

    assert all(expected is actual for expected, actual in zip(created, outputs, strict=True))
    assert [{"text": "why?", "level": 3}, ["a", "tuple"], ["a list"]] == restored


async def ask(level: int) -> list[Question]:
    await trio.lowlevel.checkpoint()
    return [Question("why?", level)]


async def ask_for_many(level: int) -> Any:
    return await ask(level)


@pytest.mark.parametrize(("function", "arguments"), [(ask, {}), (ask_for_many, {"output_type": list[Question]})])
async def test_outputs_are_read_as_the_classes_they_were(function: Any, arguments: dict[str, Any], disk: SimulatedDisk) -> None:
    """A later process returns objects of the annotated class, or of `output_type`, like the first one."""
    first, _ = await execute(function, range(3), disk, **arguments)
    restored, _ = await execute(function, range(3), disk, **arguments)

    assert [[Question("why?", level)] for level in range(3)] == first == restored


async def test_outputs_of_another_class_are_returned_as_json(caplog: pytest.LogCaptureFixture, disk: SimulatedDisk) -> None:
    """If the class has other fields by now, outputs are returned as recorded, with one warning."""
    await execute(ask, range(3), disk)
    restored, _ = await execute(ask, range(3), disk, output_type=list[Version])

    assert [[{"text": "why?", "level": level}] for level in range(3)] == restored
    assert ["required field missing @ $[0].number" in record.getMessage() for record in caplog.records] == [True]


async def test_changed_content_is_detected(disk: SimulatedDisk) -> None:
    """A table that the function reads by an index is compared; changed content is rejected, or adopted permanently."""

    def reading(text: str) -> Any:
        rows, read_indexes = {0: {"text": "a"}, 1: {"text": text}}, []

        async def read_row(index: int) -> str:
            await trio.lowlevel.checkpoint()
            read_indexes.append(index)
            return rows[index]["text"]

        return read_row

    function = reading("b")
    await execute(function, [0], disk)
    outputs, _ = await execute(function, [0, 1], disk)  # `read_indexes` is no longer empty.
    assert ["a", "b"] == outputs
    records = len(events_of(PATH, files=disk))
    with pytest.raises(RunChanged, match=r"outputs for other values of 'rows', read by 'read_row'"):
        await execute(reading("c"), [0, 1], disk)
    assert records == len(events_of(PATH, files=disk))

    await execute(reading("c"), [0, 1, 0], disk, options={"adopt": True})
    outputs, _ = await execute(reading("c"), [0, 1, 0, 1], disk)
    assert ["a", "b", "a", "c"] == outputs


async def test_the_definition_has_the_source_of_the_function(disk: SimulatedDisk) -> None:
    """What is recorded about the task is the user's function, not the executor."""
    await execute(partial(ask), [1], disk)
    [started] = events(disk, RunStarted)
    task = started.definition["task"]

    assert ("ask", True) == (task["name"], task["source"].startswith("async def ask(level: int)"))


async def test_a_disk_that_fails_loses_no_results(disk: SimulatedDisk) -> None:
    """If the disk fails, the exception has the results so far."""
    task = Scripted(lambda value, _: Return(value, 1))

    def fail(call: str) -> int | None:
        if call == "fdatasync" and task.calls.total() > 20:
            raise OSError(5, "Input/output error")
        return None

    disk.on_call = fail
    with pytest.raises(Incomplete, match=r"records up to \d+ are on disk") as raised:
        await execute(task, range(100), disk)

    assert isinstance(raised.value.__cause__, WriteFailed)
    assert list(range(10)) == raised.value.outputs[:10]
    assert (100, 100) == (len(raised.value.outputs), len(raised.value.details))


async def test_no_inputs_create_no_journal(disk: SimulatedDisk) -> None:
    """Without inputs no journal is created."""
    assert ([], [], False) == (*await execute(Scripted({}), [], disk), disk.is_directory(str(PATH)))


def test_a_sync_run_has_a_journal(tmp_path: Path) -> None:
    """A SyncExecutor records and resumes in the same way."""
    calls: list[int] = []

    def double(value: int) -> int:
        calls.append(value)
        if value == 2 and calls.count(2) == 1:
            raise ValueError("no")
        return 2 * value

    executor = SyncExecutor(double, max_retries=0, journal=tmp_path / "run")
    first, second = executor.run(range(4)), executor.run(range(4))

    assert ([0, 2, None, None], [0, 2, 4, 6]) == (first[0], second[0])
    assert [0, 1, 2, 2, 3] == calls
