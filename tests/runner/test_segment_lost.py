"""A journal that another process deletes or truncates during the run: what is in flight gets the grace period."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from evaljournal.journal.errors import SegmentLost
from evaljournal.runner.sessions.session import Session
from evaljournal.runner.testing import deterministic_options
from tests.journal.samples import UNSYNCED_DISK, segment
from tests.journal.test_segment_lost import move_the_directory
from tests.runs import define, numbered_cases

pytestmark = pytest.mark.usefixtures("frequent_checks")
GRACE = 5.0


async def run_and_change(path: Path, change: Callable[[Path], None], **options: object) -> list[tuple[str, str]]:
    """Run cases of which the first one changes the journal; return each call's case and end."""
    seconds = {"case-0": 1.0, "case-1": 3.0, "case-2": 60.0}
    ends: list[tuple[str, str]] = []

    async def task(name: str) -> str:
        end = "interrupted"
        try:
            await trio.sleep(seconds.get(name, 1.0))
            if name == "case-0":
                change(segment(path))
            end = "returned"
        finally:
            ends.append((name, f"{end} at {trio.current_time() - start:.0f} s"))
        return name

    start = trio.current_time()
    defined = define(task, numbered_cases(20), slots=3, policy="fixed", grace=GRACE)
    with pytest.raises(SegmentLost) as caught:
        await Session(defined, path, **{**deterministic_options(), "files": UNSYNCED_DISK, **options}).run()
    assert segment(path).name == caught.value.file
    return ends


@pytest.mark.parametrize("durability", ["sync", "os"])
@pytest.mark.parametrize("change", [Path.unlink, lambda file: os.truncate(file, 0), move_the_directory])
async def test_calls_in_flight_get_the_grace(path: Path, change: Callable[[Path], None], durability: str) -> None:
    """No attempt starts; calls in flight may end within the grace period and are then cancelled. Nothing more is written."""
    ends = await run_and_change(path, change, durability=durability)
    before = ("case-3", "returned at 2 s")  # It took the slot of the first one, before the change was detected.

    assert [("case-0", "returned at 1 s"), before, ("case-1", "returned at 3 s"), ("case-2", "interrupted at 6 s")] == ends
    assert not segment(path).exists() or not segment(path).stat().st_size


async def test_a_start_that_is_not_on_disk(path: Path) -> None:
    """With write-ahead, an attempt whose start could not be written makes no call; the others still have their grace period."""
    ends = await run_and_change(path, Path.unlink, write_ahead=True)

    assert [("case-0", "returned at 1 s"), ("case-1", "returned at 3 s"), ("case-2", "interrupted at 6 s")] == ends
