"""The key that signs a user's own runs, and signatures in lines."""

import os
import re
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from evaljournal.journal.errors import KeyUnavailable
from evaljournal.journal.format import chain
from evaljournal.journal.ownership import is_signed, sign, start_events, state_directory, user_key
from tests.journal.samples import RUN, lines_of, overwrite, segment, session, started, trial, write_sync

KEY = bytes(range(32))
BODY = b'{"seq":2,"at":"now","t":0.5,"type":"run_started","task":"a","d":1'


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use a state directory without a key; return the path of the key."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state" / "of" / "user"))
    return tmp_path / "state" / "of" / "user" / "evaljournal" / "key"


posix = pytest.mark.skipif(os.name != "posix", reason="needs POSIX permissions")


def test_the_first_use_creates_the_key(state: Path) -> None:
    """The key is created once; no other file is left."""
    key = user_key()

    assert (32, key) == (len(key), user_key())
    assert [state] == list(state.parent.iterdir())
    assert f"{key.hex()}\n" == state.read_text()


@posix
def test_the_key_is_private(state: Path) -> None:
    """Only its owner may access the key, the directory and the parents that were created, whatever the umask is."""
    umask = os.umask(0)
    try:
        user_key()
    finally:
        os.umask(umask)

    assert 0o600 == stat.S_IMODE(state.stat().st_mode)
    assert {0o700} == {stat.S_IMODE(directory.stat().st_mode) for directory in list(state.parents)[:3]}


def test_processes_that_create_the_key_at_once_get_the_same(state: Path) -> None:
    """If several processes create the key at the same time, all of them use the first one."""
    with ThreadPoolExecutor(8) as pool:
        keys = list(pool.map(lambda _: user_key(), range(32)))

    assert 1 == len(set(keys))
    assert [state] == list(state.parent.iterdir())


@posix
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o610, 0o777])
def test_a_key_that_others_may_access_is_rejected(state: Path, mode: int) -> None:
    """A key that others can read or write is not used."""
    user_key()
    state.chmod(mode)

    with pytest.raises(KeyUnavailable, match="accessible to other users"):
        user_key()


@posix
def test_a_key_of_another_user_is_rejected(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that belongs to another user is not used."""
    user_key()
    monkeypatch.setattr(os, "geteuid", lambda: state.stat().st_uid + 1)

    with pytest.raises(KeyUnavailable, match="belongs to another user"):
        user_key()


@posix
@pytest.mark.parametrize("is_dangling", [True, False])
def test_a_link_is_rejected(state: Path, tmp_path: Path, *, is_dangling: bool) -> None:
    """A symlink is neither followed nor replaced."""
    state.parent.mkdir(parents=True)
    if not is_dangling:
        (tmp_path / "target").write_text("0" * 64 + "\n")
        (tmp_path / "target").chmod(0o600)
    state.symlink_to(tmp_path / "target")

    with pytest.raises(KeyUnavailable, match="a symlink"):
        user_key()
    assert is_dangling != (tmp_path / "target").exists()


@posix
@pytest.mark.parametrize("kind", ["link", "writable by the group", "writable by all", "of another user"])
def test_a_state_directory_that_others_may_change_is_rejected(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A state directory that is a symlink, or that another user can write to or owns, is not used; nothing is created in it."""
    directory = tmp_path / "target" if kind == "link" else state.parent
    directory.mkdir(parents=True)
    directory.chmod({"writable by the group": 0o770, "writable by all": 0o707}.get(kind, 0o755))
    if kind == "link":
        state.parent.parent.mkdir(parents=True)
        state.parent.symlink_to(directory)
    if kind == "of another user":
        monkeypatch.setattr(os, "geteuid", lambda: directory.stat().st_uid + 1)

    with pytest.raises(KeyUnavailable, match=re.escape(str(state.parent))):
        user_key()
    assert [] == list(directory.iterdir())


@pytest.mark.parametrize("content", [b"", b"0" * 63 + b"\n", b"0" * 64, b"0" * 65 + b"\n", b"G" * 64 + b"\n", bytes(65)])
def test_a_file_that_is_not_a_key_is_rejected(state: Path, content: bytes) -> None:
    """A file with other content is neither used nor overwritten."""
    state.parent.mkdir(parents=True)
    state.write_bytes(content)
    state.chmod(0o600)

    with pytest.raises(KeyUnavailable, match="is not a key of evaljournal"):
        user_key()
    assert content == state.read_bytes()


@posix
def test_a_pipe_or_a_directory_is_rejected(state: Path) -> None:
    """A pipe or a directory in place of the key is an error and does not block."""
    state.parent.mkdir(parents=True)
    os.mkfifo(state, 0o600)
    with pytest.raises(KeyUnavailable, match="not a regular file"):
        user_key()

    state.unlink()
    state.mkdir()
    with pytest.raises(KeyUnavailable):
        user_key()


def test_a_state_directory_that_cannot_be_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the state directory cannot be created, the error names the key."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))

    with pytest.raises(KeyUnavailable, match=re.escape(str(tmp_path / "file" / "evaljournal" / "key"))):
        user_key()


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
    with pytest.raises(KeyUnavailable, match="not an absolute path"):
        state_directory()

    def unknown() -> Path:
        raise RuntimeError

    monkeypatch.setattr(Path, "home", unknown)
    with pytest.raises(KeyUnavailable, match="no home directory"):
        state_directory()


def line_of(body: bytes) -> bytes:
    """Return a line; its hash does not matter here."""
    return chain.add_hash(body, chain.GENESIS)


def test_a_signature_covers_the_run_the_previous_hash_and_every_byte() -> None:
    """A signature is invalid with another run, previous hash, body or key."""
    run, previous = RUN.encode(), b"1" * 32
    signed = sign(BODY, KEY, run, previous)

    assert is_signed(line_of(signed), KEY, run, previous)
    assert BODY == re.sub(rb',"mac":"[0-9a-f]{32}"', b"", signed)
    assert not is_signed(line_of(signed), KEY[::-1], run, previous)
    assert not is_signed(line_of(signed), None, run, previous)
    assert not is_signed(line_of(signed), KEY, run[::-1], previous)
    assert not is_signed(line_of(signed), KEY, run, previous[:-1] + b"0")
    assert not is_signed(line_of(BODY), KEY, run, previous)
    for position in range(len(signed)):
        changed = signed[:position] + bytes([signed[position] ^ 1]) + signed[position + 1 :]
        assert not is_signed(line_of(changed), KEY, run, previous), position
    assert not is_signed(line_of(signed.replace(b',"d"', b',"mac":"' + b"0" * 32 + b'","d"')), KEY, run, previous)


def test_lines_that_look_like_starts(tmp_path: Path) -> None:
    """User data with the same text, and lines with a wrong hash, are not mistaken for starts of sessions."""
    data = {"type": "session_started", "session": 9, "adopted": {"task": "evil.py"}}
    write_sync(tmp_path, [started(), session(), *trial("a", output=[data] * 1_000)])
    assert [session(), started()] == [event for event, _ in start_events(tmp_path, KEY)]

    lines = lines_of(tmp_path)
    overwrite(segment(tmp_path), b"".join([*lines, lines[2].replace(b"4711", b"4712")]))
    assert [session(), started()] == [event for event, _ in start_events(tmp_path, KEY)]


def test_starts_are_found_in_every_segment(tmp_path: Path) -> None:
    """Sessions are returned newest first, then the start of the run."""
    write_sync(tmp_path, [started(), session(), *trial("a")], roll_at=300)
    write_sync(tmp_path, [session(2), *trial("b")], roll_at=300, new=False)

    assert len(list(tmp_path.glob("journal-*.jsonl"))) > 2
    assert [session(2), session(), started()] == [event for event, _ in start_events(tmp_path, KEY)]
