"""The user's own shard, changed on another machine: `merge` lists nothing, and `resume` executes nothing, that was added."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaljournal.journal import Event, Record, read
from evaljournal.journal.errors import JournalError
from evaljournal.journal.events import RunStarted, SessionStarted
from evaljournal.journal.fact import evolve_fact
from evaljournal.journal.ownership import start_events
from evaljournal.runner.runs.paths import last_record
from tests.journal.samples import examples, lines_of, overwrite, segment, session, write_sync
from tests.runner_cli.commands import evaljournal
from tests.security.test_foreign_run import EVIL, STOPPED, rewrite, run_started, write_run

EVIL_TASK = b"evil.py:evil"
CANARY = "from pathlib import Path\nPath('executed').touch()\n"


def own_shard(path: Path, number: int) -> Path:
    """Write an interrupted shard that the user has started."""
    start = evolve_fact(run_started("own.py:own"), shard=f"{number}/2", settings={"gateway": True})
    return write_run(path, [start, session(), STOPPED], signed=True)


def with_blank(body: bytes) -> bytes:
    """Write the type of a record as another program may."""
    return body.replace(b'"type":', b'"type": ', 1)


def with_escape(body: bytes) -> bytes:
    """Write a letter of the type as an escape."""
    return body.replace(b'"type":"', rb'"\u0074ype":"', 1).replace(b"_started", rb"_st\u0061rted", 1)


def with_second_type(body: bytes) -> bytes:
    """Write the type twice; JSON readers use the last one."""
    fields = json.loads(body + b"}")
    return json.dumps({"type": "noted", **fields, "\0": fields["type"]}).replace('"\\u0000"', '"type"').encode()[:-1]


SPELLINGS = [with_blank, with_escape, with_second_type]


def resume_merged() -> tuple[int, str]:
    """Merge the two shards and resume the result without `--trust`; return the last exit code and all output."""
    merged = evaljournal("merge", "1", "2", "-o", "new")
    resumed = evaljournal("resume", "new", "--adopt", "--plain")
    return resumed.exit_code, merged.output + resumed.output


@pytest.fixture(autouse=True)
def shards(tmp_path: Path) -> None:
    """Create the two shards and a file that the user did not name, in the working directory."""
    (tmp_path / "evil.py").write_text(CANARY + EVIL)
    (tmp_path / "own.py").write_text(EVIL.replace("evil", "own"))
    for number in (1, 2):
        own_shard(tmp_path / str(number), number)


@pytest.mark.parametrize("spell", SPELLINGS)
def test_a_hidden_start_of_the_run_is_not_signed(tmp_path: Path, spell: Callable[[bytes], bytes]) -> None:
    """A changed `run_started` in another spelling, with the signed one in the torn tail, leaves the merged run foreign."""
    original_lines = lines_of(tmp_path / "2")
    rewrite(
        tmp_path / "2",
        lambda own: [own[0], *(spell(body.replace(b"own.py:own", EVIL_TASK)) for body in own[1:3]), own[3]],
        tail=b"".join(original_lines[:3]),
    )
    code, output = resume_merged()

    assert (2, True, False) == (code, "add --trust" in output, (tmp_path / "executed").exists()), output


@pytest.mark.parametrize("spell", SPELLINGS)
@pytest.mark.parametrize("is_merged", [True, False])
def test_a_hidden_session_is_not_signed(tmp_path: Path, spell: Callable[[bytes], bytes], *, is_merged: bool) -> None:
    """A session in another spelling, which changes settings, makes a shard foreign; so does one that is merged."""
    start = {"type": "session_started", "session": 2, "pid": 1, "host": "", "boot_id": "", "settings": {"gateway": False}}
    body = json.dumps({"seq": 5, "at": "2026-11-15T00:00:00.000000Z", "t": 0.5, **start, "d": 0}, separators=(",", ":"))
    rewrite(tmp_path / "1", lambda own: [*own, spell(body.encode()[:-1])], tail=b"".join(lines_of(tmp_path / "1")[:3]))
    if is_merged:
        code, output = resume_merged()
    else:
        result = evaljournal("resume", "1", "--adopt", "--plain")
        code, output = result.exit_code, result.output

    assert (2, True) == (code, "add --trust" in output), output


@pytest.mark.parametrize("number", ["1", "2"])
def test_the_copied_records_decide_whose_a_shard_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: str) -> None:
    """A shard that is replaced after its starts were read leaves the merged run foreign."""

    def replace(path: Path) -> Record | None:
        if path.name == number:
            rewrite(path, lambda own: [own[0], *(body.replace(b"own.py:own", EVIL_TASK) for body in own[1:])])
        return last_record(path)

    monkeypatch.setattr("evaljournal.runner.runs.merge.last_record", replace)
    code, output = resume_merged()

    assert (2, True, False) == (code, "add --trust" in output, (tmp_path / "executed").exists()), output


def test_a_torn_tail_names_no_evaluation(tmp_path: Path) -> None:
    """A signed start in the torn tail, or after the seal, is not used: the records before it are those of another user."""
    original_lines = lines_of(tmp_path / "1")
    rewrite(
        tmp_path / "1", lambda own: [own[0], own[1].replace(b"own.py:own", EVIL_TASK), *own[2:]], tail=b"".join(original_lines)
    )
    result = evaljournal("resume", "1", "--adopt", "--plain")
    assert (2, True) == (result.exit_code, "add --trust" in result.output), result.output

    overwrite(segment(tmp_path / "2"), b"".join([*lines_of(tmp_path / "2"), lines_of(tmp_path / "2")[2]]))
    assert [True, True] == [is_listed for _, is_listed in start_events(tmp_path / "2")]


def readable_starts(path: Path) -> list[Event]:
    """Return the starts that the reader yields, newest first."""
    starts: list[Event] = []
    try:
        starts.extend(record.event for record in read(path) if isinstance(record.event, RunStarted | SessionStarted))
    except JournalError:
        return []
    return starts[::-1]


CHANGES = st.lists(
    st.tuples(st.integers(0, 9_999), st.binary(max_size=3) | st.sampled_from([b" ", b"\n", b'"type":'])), max_size=4
)


@given(changes=CHANGES, line=st.integers(0, 4), keeps_hashes=st.booleans(), tail=st.binary(max_size=200) | st.just(b""))
@examples(300)
def test_every_reader_sees_the_same_starts(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, bytes]], line: int, tail: bytes, *, keeps_hashes: bool
) -> None:
    """However a journal was changed, with or without recomputed hashes, the checked starts are those that are read."""
    path = tmp_path_factory.mktemp("run")
    write_sync(path, [run_started("own.py:own"), session(), STOPPED, session(2), STOPPED])

    def change(bodies: list[bytes]) -> list[bytes]:
        body = bytearray(bodies[line])
        for position, replacement in changes:
            start = position % len(body)
            body[start : start + len(replacement)] = replacement
        return [*bodies[:line], bytes(body), *bodies[line + 1 :]]

    if keeps_hashes:
        lines = lines_of(path)
        overwrite(segment(path), b"".join(change(lines)) + tail)
    else:
        try:
            rewrite(path, change, tail=tail)
        except (ValueError, KeyError, AttributeError, TypeError):
            return  # The first line names no run.
    expected_starts = readable_starts(path)
    try:
        starts = [event for event, _ in start_events(path)]
    except JournalError:
        starts = []

    assert expected_starts == starts
