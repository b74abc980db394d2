"""Salvage: intact records are copied to a new run, the others are counted, and the source is only read."""

from collections.abc import Callable, Iterable
from pathlib import Path

import orjson
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from evaljournal.journal import Event, SalvageResult, read, salvage, verify
from evaljournal.journal.errors import JournalDamaged, JournalError, JournalExists, NotSalvageable
from evaljournal.journal.events import (
    AttemptSucceeded,
    FileEvent,
    JournalSalvaged,
    Noted,
    RunFinished,
    RunStarted,
    RunStopped,
    SessionStarted,
    TrialEvent,
)
from evaljournal.runner.testing import events_of
from tests.journal.samples import (
    RUN,
    UNSYNCED_DISK,
    complete_run,
    content,
    cut_tail,
    examples,
    flip,
    lines_of,
    overwrite,
    segment,
    session,
    started,
    trial,
    write,
)
from tests.runs import events

LONG = "v" * (300 << 10)


async def salvage_run(source: Path, target: Path) -> SalvageResult:
    """Salvage a run, without syncs."""
    return await salvage(source, target, files=UNSYNCED_DISK)


def corrupt(path: Path, event: Event) -> None:
    """Change one byte in the record of an event."""
    record = next(record for record in read(path) if record.event == event)
    flip(segment(path, record.segment), record.offset + 60)


def of_trial(events: Iterable[Event], name: str) -> list[Event]:
    """Return the events of one trial."""
    return [event for event in events if isinstance(event, TrialEvent) and event.trial == name]


async def test_intact_records_are_kept(tmp_path: Path) -> None:
    """Every record before the damage, and every valid one after it, is in the new run, with its times."""
    events = [*complete_run(3)[:-1], RunStopped(reason="interrupted")]
    await write(tmp_path / "run", events)
    before = list(read(tmp_path / "run"))
    lost = Noted(name="a", value=1)
    await write(tmp_path / "run", [session(2), lost, *trial("b")], new=False)
    corrupt(tmp_path / "run", lost)
    result = await salvage_run(tmp_path / "run", tmp_path / "new")
    kept = [*events, session(2), *trial("b")]

    assert SalvageResult(path=tmp_path / "new", kept=len(kept), lost=1, excluded=0) == result
    assert [*kept, JournalSalvaged(run=RUN, kept=len(kept), lost=1, excluded=0)] == events_of(tmp_path / "new")
    assert [(record.at, record.t) for record in before[1:-1]] == [
        (record.at, record.t) for record in list(read(tmp_path / "new"))[1 : len(events) + 1]
    ]
    assert not (tmp_path / "new" / "excluded.jsonl").exists()
    assert (True, False) == ((verified := verify(tmp_path / "new")).ok, verified.run == RUN)


async def test_records_without_their_predecessors_are_excluded(tmp_path: Path) -> None:
    """Records of a trial without its first event, and the final record, are written to a file in the new run."""
    await write(tmp_path / "run", complete_run(3))
    second = trial("case-2")
    corrupt(tmp_path / "run", second[0])
    lines = [orjson.loads(line) for line in (*lines_of(tmp_path / "run")[9:13], lines_of(tmp_path / "run")[-2])]
    result = await salvage(str(tmp_path / "run"), str(tmp_path / "new"))

    assert (len(complete_run(3)) - 6, 1, 5) == (result.kept, result.lost, result.excluded)
    assert [event for event in complete_run(3)[:-1] if event not in second] == events_of(tmp_path / "new")[:-1]
    assert [{name: value for name, value in line.items() if name not in ("d", "h")} for line in lines] == [
        orjson.loads(line) for line in (tmp_path / "new" / "excluded.jsonl").read_bytes().splitlines()
    ]
    types = ["attempt_started", "attempt_succeeded", "trial_scored", "trial_completed", "run_finished"]
    assert types == [line["type"] for line in lines]


async def test_a_run_that_lost_no_trial_stays_finished(tmp_path: Path) -> None:
    """If no trial is lost, the new run is finished, with its own head."""
    lost = Noted(name="a", value=1)
    final = RunFinished(completed=1, failed=0, withdrawn=0, head="0" * 32)
    await write(tmp_path / "run", [started(), session(), *trial("a"), lost, final])
    corrupt(tmp_path / "run", lost)
    result = await salvage_run(tmp_path / "run", tmp_path / "new")
    *_, previous, last = [record for record in read(tmp_path / "new") if not isinstance(record.event, FileEvent)][:-1]

    assert (1, 0) == (result.lost, result.excluded)
    assert RunFinished(completed=1, failed=0, withdrawn=0, head=previous.h) == last.event


@pytest.mark.parametrize("byte", range(0, 2000, 97))
async def test_counts_add_up(tmp_path: Path, byte: int) -> None:
    """Every record is kept, lost, excluded or about files, wherever the damage is."""
    events = [started(), session(), *(Noted(name="n", value=n) for n in range(3)), *complete_run(3)[2:]]
    await write(tmp_path / "run", events)
    total, start = len(lines_of(tmp_path / "run")), len(b"".join(lines_of(tmp_path / "run")[:3]))
    flip(segment(tmp_path / "run"), start + byte)
    result = await salvage_run(tmp_path / "run", tmp_path / "new")

    assert total == result.kept + result.lost + result.excluded + 2
    assert verify(tmp_path / "new").ok
    assert result.lost <= 1  # None if the LF was changed: both lines are intact.


async def test_undamaged_journal_is_not_salvaged(tmp_path: Path) -> None:
    """Salvage of an intact or interrupted journal is rejected; nothing is created."""
    await write(tmp_path / "run", complete_run())

    with pytest.raises(JournalError, match="/run is not damaged; there is nothing to salvage"):
        await salvage_run(tmp_path / "run", tmp_path / "new")
    cut_tail(segment(tmp_path / "run"), 3)
    with segment(tmp_path / "run").open("ab") as file:
        file.write(b"torn")
    with pytest.raises(JournalError, match="is not damaged"):
        await salvage_run(tmp_path / "run", tmp_path / "new")
    assert not (tmp_path / "new").exists()


async def test_existing_run_is_not_overwritten(tmp_path: Path) -> None:
    """An existing run, including the damaged one, is not overwritten."""
    await write(tmp_path / "run", complete_run())
    await write(tmp_path / "other", complete_run())
    corrupt(tmp_path / "run", trial("case-2")[0])
    before = content(tmp_path)
    for target in ("other", "run"):
        with pytest.raises(JournalExists, match="already exists; choose another path"):
            await salvage_run(tmp_path / "run", tmp_path / target)

    assert before == content(tmp_path)


@pytest.mark.parametrize("percent", range(0, 101, 5))
async def test_damaged_later_header_loses_only_itself(tmp_path: Path, percent: int) -> None:
    """If the first line of a later segment is damaged, all other records are kept."""
    await write(tmp_path / "run", complete_run(4), roll_at=1000)
    header = segment(tmp_path / "run", 2).read_bytes().splitlines()[0]
    flip(segment(tmp_path / "run", 2), len(header) * percent // 100)
    result = await salvage_run(tmp_path / "run", tmp_path / "new")

    assert (len(complete_run(4)), 0) == (result.kept, result.excluded)
    assert complete_run(4) == events_of(tmp_path / "new")[:-1]


async def test_missing_segment_loses_only_its_records(tmp_path: Path) -> None:
    """Complete trials before and after a missing segment are kept."""
    await write(tmp_path / "run", complete_run(6), roll_at=1500)
    lost_records = [record for record in read(tmp_path / "run") if record.segment == 2]
    segment(tmp_path / "run", 2).unlink()
    result = await salvage_run(tmp_path / "run", tmp_path / "new")
    affected = {record.event.trial for record in lost_records if isinstance(record.event, TrialEvent)}
    complete = [event for event in complete_run(6)[2:-1] if isinstance(event, TrialEvent) and event.trial not in affected]

    assert len(lost_records) == result.lost
    assert complete == [
        event for event in events_of(tmp_path / "new") if isinstance(event, TrialEvent) and event.trial not in affected
    ]
    assert len(complete) > 0


@pytest.mark.parametrize("line_end", [b"\r\n", b"\r", b""])
async def test_converted_line_ends_lose_nothing(tmp_path: Path, line_end: bytes) -> None:
    """Every record is kept if the line ends of all files were converted or removed."""
    events = [*complete_run(30)[:-1], RunStopped(reason="interrupted")]
    await write(tmp_path / "run", events, roll_at=3_000)
    for file in sorted((tmp_path / "run").glob("*.jsonl")):
        overwrite(file, file.read_bytes().replace(b"\n", line_end))
    result = await salvage_run(tmp_path / "run", tmp_path / "new")

    assert (len(events), 0, 0) == (result.kept, result.lost, result.excluded)
    assert events == events_of(tmp_path / "new")[:-1]
    assert isinstance(result.problem, JournalDamaged)
    assert ("CR LF" in result.problem.check) == (line_end == b"\r\n")


def flip_line(line: bytes, percent: int) -> bytes:
    """Flip a bit of a line; at every second position, the result is not UTF-8."""
    position = (len(line) - 1) * percent // 100
    return line[:position] + bytes([line[position] ^ (0x80 if percent % 2 else 4)]) + line[position + 1 :]


DAMAGES: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    **{f"line 1 at {n} %": lambda lines, n=n: [flip_line(lines[0], n), *lines[1:]] for n in range(0, 101, 5)},  # type: ignore[misc]  # mypy cannot infer it
    **{f"line 2 at {n} %": lambda lines, n=n: [lines[0], flip_line(lines[1], n), *lines[2:]] for n in range(0, 101, 5)},  # type: ignore[misc]  # mypy cannot infer it
    "no line 1": lambda lines: lines[1:],
    "no line 2": lambda lines: [lines[0], *lines[2:]],
    "no lines 1 and 2": lambda lines: lines[2:],
}
"""Changes to the first records: `segment_opened`, `run_started` and `session_started`."""


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", ["sealed", "killed", "several files"])
async def test_a_lost_definition_loses_no_trial(tmp_path: Path, kind: str, damage: str) -> None:
    """If the first records are lost, the start of the run is replaced, and every record of a trial is kept, with its blobs."""
    trials = [*trial("a", output=LONG), *trial("b")]
    await write(tmp_path / "run", [started(), session(), *trials], roll_at=1_000 if kind == "several files" else 1 << 20)
    first_lines = segment(tmp_path / "run").read_bytes().splitlines(keepends=True)
    if kind == "killed":
        first_lines = first_lines[:-1]
    overwrite(segment(tmp_path / "run"), b"".join(DAMAGES[damage](first_lines)))
    if kind == "killed" and damage.startswith(("no line 1", "no lines")):
        with pytest.raises(NotSalvageable):  # The id of the run was in the first line only.
            await salvage_run(tmp_path / "run", tmp_path / "new")
        return
    result = await salvage_run(tmp_path / "run", tmp_path / "new")
    start, *events = events_of(tmp_path / "new")

    assert isinstance(start, RunStarted)
    assert (start == started()) != start.is_replacement
    assert {"exact": "v1"} == start.scorers
    assert trials == [event for event in events if isinstance(event, TrialEvent)]
    assert (0, True, 1) == (result.excluded, verify(tmp_path / "new").ok, verify(tmp_path / "new").blobs)


async def test_zeroed_run_is_an_error(tmp_path: Path) -> None:
    """A file of zeros cannot be salvaged."""
    await write(tmp_path / "run", complete_run())
    overwrite(segment(tmp_path / "run"), b"\0" * 4096)

    with pytest.raises(NotSalvageable):
        await salvage_run(tmp_path / "run", tmp_path / "new")


@pytest.mark.parametrize("sessions", [1, 2])
async def test_lost_session_does_not_lose_its_trials(tmp_path: Path, sessions: int) -> None:
    """If the record that starts a session is damaged, the outputs of its trials are kept."""
    await write(tmp_path / "run", [started(), session(), *trial("a")])
    await write(tmp_path / "run", [session(2), *trial("b")], new=False)
    corrupt(tmp_path / "run", session(sessions))
    result = await salvage_run(tmp_path / "run", tmp_path / "new")
    outputs = [event.trial for event in events(tmp_path / "new", AttemptSucceeded)]

    assert (["a", "b"], 1, 0) == (outputs, result.lost, result.excluded)
    assert verify(tmp_path / "new").ok


async def test_excluded_record_keeps_its_large_value(tmp_path: Path) -> None:
    """An excluded record is saved with its value instead of the reference."""
    events = trial("a", output=LONG)
    await write(tmp_path / "run", [started(), session(), *events])
    corrupt(tmp_path / "run", events[0])
    await salvage_run(tmp_path / "run", tmp_path / "new")
    lines = [orjson.loads(line) for line in (tmp_path / "new" / "excluded.jsonl").read_bytes().splitlines()]

    assert [LONG] == [line["output"] for line in lines if "output" in line]


@pytest.mark.parametrize("second_lost", [True, False])
async def test_lost_blob_loses_its_record(tmp_path: Path, *, second_lost: bool) -> None:
    """A record whose blob is missing is lost, and the others are kept."""
    note, other = Noted(name="a", value=LONG), Noted(name="b", value=1)
    await write(tmp_path / "run", [started(), session(), note, other, *trial("a")])
    if second_lost:
        corrupt(tmp_path / "run", other)
    next((tmp_path / "run" / "blobs").rglob("*.json")).unlink()
    result = await salvage_run(tmp_path / "run", tmp_path / "new")
    kept = [started(), session(), *([] if second_lost else [other]), *trial("a")]

    assert (len(kept), 1 + second_lost) == (result.kept, result.lost)
    assert kept == events_of(tmp_path / "new")[:-1]


async def test_salvaged_run_can_be_salvaged(tmp_path: Path) -> None:
    """A salvaged run that is damaged can be salvaged again."""
    notes = [Noted(name="n", value=n) for n in range(5)]
    await write(tmp_path / "run", [started(), session(), *notes])
    corrupt(tmp_path / "run", notes[1])
    await salvage_run(tmp_path / "run", tmp_path / "new")
    corrupt(tmp_path / "new", notes[3])
    result = await salvage_run(tmp_path / "new", tmp_path / "newer")

    assert (5, 1) == (result.kept, result.lost)
    assert [started(), session(), notes[0], notes[2], notes[4]] == events_of(tmp_path / "newer")[:-1]


async def test_swapped_and_repeated_lines_are_sorted(tmp_path: Path) -> None:
    """Valid lines in the wrong order, or repeated, are written once and in order."""
    await write(tmp_path / "run", complete_run())
    lines = lines_of(tmp_path / "run")
    lines[4], lines[5] = lines[5], lines[4]
    overwrite(segment(tmp_path / "run"), b"".join([*lines[:8], lines[7], *lines[8:]]))
    result = await salvage_run(tmp_path / "run", tmp_path / "new")

    assert (len(complete_run()), 0, 0) == (result.kept, result.lost, result.excluded)
    assert complete_run() == events_of(tmp_path / "new")[:-1]


def is_subsequence(subset: Iterable[Event], events: Iterable[Event]) -> bool:
    """Return whether the subset is in the events, in the same order."""
    remaining = iter(events)
    return all(event in remaining for event in subset)


@examples(40)
@given(damage=st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 255)), min_size=1, max_size=6))
def test_nothing_is_invented(tmp_path_factory: pytest.TempPathFactory, damage: list[tuple[int, int]]) -> None:
    """Whatever is damaged, salvaged events are a subsequence of the original ones and verify, or salvage fails."""
    path = tmp_path_factory.mktemp("salvage")

    async def main() -> SalvageResult | None:
        await write(path / "run", complete_run(3), roll_at=1500)
        files = sorted((path / "run").glob("journal-*.jsonl"))
        for position, mask in damage:
            file = files[position % len(files)]
            flip(file, position % file.stat().st_size, mask)
        before = content(path / "run")
        try:
            return await salvage_run(path / "run", path / "new")
        except JournalError:
            return None
        finally:
            assert before == content(path / "run")

    result = trio.run(main)
    if result is not None:
        replaced = (SessionStarted, RunStarted)
        new = [event for event in events_of(path / "new")[:-1] if event == started() or not isinstance(event, replaced)]

        assert is_subsequence(new, complete_run(3))
        assert result.kept - len(new) in (0, 1)  # Whether the session's own record survived.
        assert verify(path / "new").ok
    else:
        assert not (path / "new").exists()
