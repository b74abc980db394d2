"""Columns of which all but the last entries are in a temporary file, compared with lists."""

import random
from pathlib import Path

import pytest

from evaljournal.replay import Timeline, load
from evaljournal.replay.page.page import page
from evaljournal.replay.runs import scratch
from evaljournal.replay.runs.scratch import Column, Scratch, Values
from evaljournal.replay.runs.timeline_columns import TrialNumbers
from evaljournal.runner.cli.commands.report import read_page_run
from tests.journal.samples import started, write_sync
from tests.replay.eventful_run import eventful_run
from tests.replay.random_runs import random_records


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep only a few entries in memory, so that short runs use the file."""
    for name, number in {"_BLOCK": 4, "_IN_MEMORY": 8, "_BUFFER": 64, "_RECENT": 4}.items():
        monkeypatch.setattr(scratch, name, number)
    monkeypatch.setattr("evaljournal.replay.runs.timeline._TRIM_INTERVAL", 8)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("seed", range(5))
def test_columns_are_lists(seed: int) -> None:
    """A column and values have the content of lists after the same changes, wherever an entry is."""
    rng = random.Random(seed)
    file = Scratch()
    column, values = Column[int]("q", file), Values(file)
    numbers: list[int] = []
    texts: dict[int, str | None] = {}
    for _ in range(400):
        numbers.append(rng.randrange(-(1 << 40), 1 << 40))
        column.append(numbers[-1])
        index = rng.randrange(len(numbers))
        numbers[index] = column[index] = rng.randrange(1_000)
        texts[index] = values[index] = rng.choice([None, "x" * rng.randrange(200), "\n"])
        file.trim()

        position = rng.randrange(len(numbers))
        assert (numbers[position], texts.get(position)) == (column[position], values[position])
    first, last = sorted(rng.sample(range(len(numbers)), 2))
    chosen = rng.sample(range(len(numbers)), 50)
    assert (numbers, numbers[first:last]) == (list(column.values()), list(column.select(range(first, last))))
    assert [numbers[index] for index in chosen] == list(column.select(chosen))
    assert file._file_size > 0


def test_negative_index() -> None:
    """A column in the file has no entry before the first."""
    file = Scratch()
    column = Column[int]("q", file)
    for number in range(3 * scratch._IN_MEMORY):
        column.append(number)
    file.trim()

    with pytest.raises(IndexError):
        column[-1]


def test_trial_numbers() -> None:
    """Every trial has its number, and an unknown one has none."""
    numbers = TrialNumbers()
    for number in range(10_000):
        assert number == numbers.add(f"trial {number}")

    assert [0, 9_999, None] == [numbers.get(name) for name in ("trial 0", "trial 9999", "trial 10000")]
    with pytest.raises(KeyError):
        numbers["trial 10000"]


@pytest.mark.parametrize("seed", [3, 4])
def test_timeline_on_disk(seed: int, request: pytest.FixtureRequest) -> None:
    """A timeline in the file is the same as one in memory."""

    def build() -> tuple[object, ...]:
        timeline = Timeline()
        for record in random_records(seed, 300):
            timeline.apply(record)
        return list(timeline.spans), dict(timeline.times), timeline.points("in_flight"), timeline.points("queued")

    in_memory = build()
    request.getfixturevalue("small_blocks")
    assert in_memory == build()


def test_page_on_disk(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """A page whose columns are in the file has the same bytes."""
    run = eventful_run(tmp_path / "run")
    in_memory = b"".join(page([read_page_run(run).data()]))
    request.getfixturevalue("small_blocks")

    assert in_memory == b"".join(page([read_page_run(run).data()]))


def test_short_run_creates_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short run needs no temporary file."""
    monkeypatch.setattr("tempfile.TemporaryFile", None)
    write_sync(tmp_path / "run", [started()])

    assert b"".join(page([read_page_run(tmp_path / "run").data()]))
    assert 0 == len(load(tmp_path / "run").timeline().spans)
