"""The list of a user's own runs."""

import os
import re
import stat
import sys
from pathlib import Path

import pytest

from evaljournal.journal.errors import StateUnavailable
from evaljournal.journal.ownership import add_own_hashes, own_hashes, own_runs_problem, start_events, state_directory
from tests.journal.samples import RUN, lines_of, overwrite, segment, session, started, trial, write_sync

HASH, OTHER = "a" * 32, "b" * 32


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use a state directory that does not exist yet; return its path."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state" / "of" / "user"))
    return tmp_path / "state" / "of" / "user" / "evaljournal"


posix = pytest.mark.skipif(os.name != "posix", reason="needs POSIX permissions")


def test_hashes_are_added(state: Path) -> None:
    """A file per run has the hashes of all its sessions; no other file is left."""
    add_own_hashes(RUN, [HASH])
    add_own_hashes(RUN, [OTHER])
    add_own_hashes(OTHER, [HASH])

    assert [{HASH, OTHER}, {HASH}, set()] == [set(own_hashes(run)) for run in (RUN, OTHER, HASH)]
    assert {RUN, OTHER} == {file.name for file in (state / "own-runs").iterdir()}


@posix
def test_the_list_is_private(state: Path) -> None:
    """Only its owner may access the files, the directory and the parents that were created, whatever the umask is."""
    umask = os.umask(0)
    try:
        add_own_hashes(RUN, [HASH])
    finally:
        os.umask(umask)

    assert 0o600 == stat.S_IMODE((state / "own-runs" / RUN).stat().st_mode)
    assert {0o700} == {stat.S_IMODE(directory.stat().st_mode) for directory in (state / "own-runs", state, state.parent)}


@pytest.mark.parametrize("run", ["", "..", "../key", "A" * 32, "a" * 31, f"{RUN}/x", f"{RUN}\n"])
def test_an_id_that_is_none_is_not_a_file_name(state: Path, run: str) -> None:
    """A foreign journal may have any text as its id; only 32 hexadecimal digits are looked up."""
    add_own_hashes(RUN, [HASH])
    (state / "key").write_text(f"{HASH}\n")

    assert set() == own_hashes(run)


@posix
def test_a_link_is_not_followed(state: Path, tmp_path: Path) -> None:
    """A symlink in place of a file lists nothing, and is replaced."""
    add_own_hashes(RUN, [HASH])
    (tmp_path / "target").write_text(f"{OTHER}\n")
    (state / "own-runs" / RUN).unlink()
    (state / "own-runs" / RUN).symlink_to(tmp_path / "target")
    assert set() == own_hashes(RUN)

    add_own_hashes(RUN, [HASH])
    assert {HASH} == own_hashes(RUN)
    assert f"{OTHER}\n" == (tmp_path / "target").read_text()


@pytest.mark.parametrize("content", [b"", bytes(65), b"\xff" * 33, b"a" * 31 + b"\n", b"a" * 33 + b"\n", b"G" * 32])
def test_other_content_lists_nothing(state: Path, content: bytes) -> None:
    """A file with other content lists no record."""
    add_own_hashes(RUN, [HASH])
    (state / "own-runs" / RUN).write_bytes(content)

    assert set() == own_hashes(RUN)


@posix
@pytest.mark.parametrize("kind", ["link", "writable by the group", "writable by all", "of another user"])
def test_a_state_directory_that_others_may_change_is_rejected(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A state directory that is a symlink, or that another user can write to or owns, is not used; nothing is created in it."""
    directory = tmp_path / "target" if kind == "link" else state
    directory.mkdir(parents=True)
    directory.chmod({"writable by the group": 0o770, "writable by all": 0o707}.get(kind, 0o755))
    if kind == "link":
        state.parent.mkdir(parents=True)
        state.symlink_to(directory)
    if kind == "of another user":
        monkeypatch.setattr(os, "geteuid", lambda: directory.stat().st_uid + 1)

    with pytest.raises(StateUnavailable, match=re.escape(str(state))):
        add_own_hashes(RUN, [HASH])
    assert [] == list(directory.iterdir())


def test_a_state_directory_that_cannot_be_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the state directory cannot be created, the error names it, and no run is the user's own."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))

    with pytest.raises(StateUnavailable, match=re.escape(str(tmp_path / "file" / "evaljournal"))):
        add_own_hashes(RUN, [HASH])
    assert own_runs_problem().startswith("the list of your own runs")
    assert set() == own_hashes(RUN)


@pytest.mark.parametrize(
    ("platform", "expected"),
    [
        ("linux", ".local/state/evaljournal"),
        ("darwin", "Library/Application Support/evaljournal"),
        ("win32", "local/evaljournal"),
    ],
)
@pytest.mark.parametrize("configured", ["", "state", "./state"])
def test_the_default_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str, expected: str, configured: str
) -> None:
    """The state directory depends on the platform. A relative XDG_STATE_HOME is ignored: others may have prepared it."""
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", configured)
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))

    assert tmp_path / expected == state_directory()


def test_a_home_directory_that_is_relative_or_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an absolute home directory there is no key; none is created in the working directory."""
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr(Path, "home", lambda: Path("home"))
    with pytest.raises(StateUnavailable, match="not an absolute path"):
        state_directory()

    def unknown() -> Path:
        raise RuntimeError

    monkeypatch.setattr(Path, "home", unknown)
    with pytest.raises(StateUnavailable, match="no home directory"):
        state_directory()


def test_lines_that_look_like_starts(tmp_path: Path) -> None:
    """User data with the same text, and lines with a wrong hash, are not mistaken for starts of sessions."""
    data = {"type": "session_started", "session": 9, "adopted": {"task": "evil.py"}}
    write_sync(tmp_path, [started(), session(), *trial("a", output=[data] * 1_000)])
    assert [session(), started()] == [event for event, _ in start_events(tmp_path)]

    lines = lines_of(tmp_path)
    overwrite(segment(tmp_path), b"".join([*lines, lines[2].replace(b"4711", b"4712")]))
    assert [session(), started()] == [event for event, _ in start_events(tmp_path)]


def test_starts_are_found_in_every_segment(tmp_path: Path) -> None:
    """Sessions are returned newest first, then the start of the run."""
    write_sync(tmp_path, [started(), session(), *trial("a")], roll_at=300)
    write_sync(tmp_path, [session(2), *trial("b")], roll_at=300, new=False)

    assert len(list(tmp_path.glob("journal-*.jsonl"))) > 2
    assert [session(2), session(), started()] == [event for event, _ in start_events(tmp_path)]
