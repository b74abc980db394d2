"""Ownership of a run: a signature (HMAC) in the records that start the run and each of its sessions.

The key is in the user's state directory, so a valid signature means: this user wrote this record, on this machine, in this run
and at this position. The code that the record names may then be executed without `--trust`.
"""

import contextlib
import hmac
import os
import re
import secrets
import shlex
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Final

from evaljournal.journal.disk.files import CREATE_NEW, DISK, Files, make_directory, write_all
from evaljournal.journal.errors import KeyUnavailable
from evaljournal.journal.events import Record, RunStarted, SegmentOpened, SessionStarted
from evaljournal.journal.format import chain
from evaljournal.journal.readers.reader import Finder, read

_DOMAIN: Final = b"evaljournal ownership 1"
_KEY: Final = re.compile(rb"([0-9a-f]{64})\n")
_D: Final = b',"d":'
"""Start of the last member of a body."""
_SIGNATURE: Final = re.compile(rb',"mac":"([0-9a-f]{32})"(?=%b[0-9]{1,18}$)' % _D)
_SIGNATURE_LENGTH: Final = 80
"""Bytes at the end of a body that contain the signature, if there is one."""


def state_directory() -> Path:
    """Return the directory of the user's key: `$XDG_STATE_HOME/evaljournal`, or where the platform keeps such files."""
    state_home = Path(os.environ.get("XDG_STATE_HOME", ""))
    if state_home.is_absolute():  # A relative path would be a directory that another user may have prepared.
        return state_home / "evaljournal"
    try:
        home = Path.home()
    except RuntimeError as exc:
        raise KeyUnavailable("the user has no home directory") from exc
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = home / "Library" / "Application Support"
    else:
        base = home / ".local" / "state"
    if not base.is_absolute():
        raise KeyUnavailable(f"the home directory {home} is not an absolute path")
    return base / "evaljournal"


def user_key() -> bytes:
    """Return the user's key; the first call on a machine creates it. Raises `KeyUnavailable`."""
    file = state_directory() / "key"
    try:
        private_directory(file.parent)
        try:
            return _read_key(file)
        except FileNotFoundError:
            _create_key(file)
            return _read_key(file)
    except OSError as exc:
        raise KeyUnavailable(f"the key {file} cannot be used ({exc.strerror})") from exc


def available_key() -> bytes | None:
    """Return the user's key, or None if it cannot be used."""
    try:
        return user_key()
    except KeyUnavailable:
        return None


def _read_key(file: Path) -> bytes:
    with DISK.read(str(file)) as stream:  # Symlinks are not followed.
        problem = "is accessible to other users; remove it, and a new one is created"
        _check_owner(f"the key {file}", os.fstat(stream.fileno()), stat.S_IRWXG | stat.S_IRWXO, problem)
        match = _KEY.fullmatch(stream.read(66))  # One byte more than a key has.
    if match is None:
        raise KeyUnavailable(f"the file {file} is not a key of evaljournal; remove it, and a new one is created")
    return bytes.fromhex(match[1].decode())


def private_directory(path: Path) -> Path:
    """Return a directory of the user's state, created if needed; raise if it is a symlink or another user can write to it."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        make_directory(DISK, str(path))
        status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode):
        raise KeyUnavailable(f"{path} is not a directory, or is a symlink; remove it")
    problem = f"is writable by other users; run `chmod go-w {shlex.quote(str(path))}`"
    _check_owner(f"the directory {path}", status, stat.S_IWGRP | stat.S_IWOTH, problem)
    return path


def _check_owner(name: str, status: os.stat_result, mode: int, problem: str) -> None:
    """Raise if a file or directory belongs to another user, or has one of these permissions, which is the `problem`."""
    if os.name == "posix" and status.st_uid != os.geteuid():
        raise KeyUnavailable(f"{name} belongs to another user; remove it")
    if os.name == "posix" and status.st_mode & mode:
        raise KeyUnavailable(f"{name} {problem}")


def _create_key(file: Path) -> None:
    """Create the key atomically; if another process was first, its key is kept."""
    temporary = file.with_name(f".key-{secrets.token_hex(8)}")
    fd = DISK.open(str(temporary), CREATE_NEW)
    try:
        try:
            write_all(DISK, fd, f"{secrets.token_hex(32)}\n".encode())
            DISK.fsync(fd)
        finally:
            DISK.close(fd)
        with contextlib.suppress(FileExistsError):
            (os.rename if os.name == "nt" else os.link)(temporary, file)  # Neither replaces an existing file.
    finally:
        temporary.unlink(missing_ok=True)
    DISK.sync_directory(str(file.parent))


def sign(body: bytes, key: bytes, run: bytes, previous_h: bytes) -> bytes:
    """Return the body of a line with a signature, before `d`."""
    content, _, d = body.rpartition(_D)
    return b'%b,"mac":"%b"%b%b' % (content, _signature(body, key, run, previous_h), _D, d)


def is_signed(line: bytes, key: bytes | None, run: bytes, previous_h: bytes) -> bool:
    """Whether a line has a valid signature; always False without a key."""
    parts = chain.split(line.removesuffix(b"\n"))
    if key is None or parts is None:
        return False
    body = parts[0]
    signature = _SIGNATURE.search(body, max(0, len(body) - _SIGNATURE_LENGTH))
    if signature is None:
        return False
    unsigned_body = body[: signature.start()] + body[signature.end() :]
    return hmac.compare_digest(signature[1], _signature(unsigned_body, key, run, previous_h))


def _signature(body: bytes, key: bytes, run: bytes, previous_h: bytes) -> bytes:
    digest = hmac.digest(key, b"\n".join([_DOMAIN, run, previous_h, body]), sha256)
    return digest.hex()[: chain.HASH_LENGTH].encode()


def with_signatures(
    path: Path, records: Iterable[Record], key: bytes | None, files: Files = DISK
) -> Iterator[tuple[Record, bytes | None]]:
    """Yield each record of a run, all of them in order, with the key if it is a start that is signed with it, otherwise None.

    Only what a reader has verified and parsed counts as a start, so what is checked here is what other readers use.
    """
    run, previous_h = b"", chain.GENESIS
    with Finder(path, files=files) as finder:
        for record in records:
            event, signature_key = record.event, None
            if isinstance(event, SegmentOpened):
                run = event.run.encode()
            elif isinstance(event, RunStarted | SessionStarted) and record.segment:  # Salvage has records without a position.
                signature_key = key if is_signed(finder.line_of(record), key, run, previous_h) else None
            yield record, signature_key
            previous_h = record.h.encode()


def start_events(
    path: Path, key: bytes | None, on_record: Callable[[Record], object] | None = None
) -> list[tuple[RunStarted | SessionStarted, bool]]:
    """Return the start of each session, newest first, then that of the run, each with whether it is signed with the key.

    This reads the whole journal; `on_record` is called with each record.
    """
    starts: list[tuple[RunStarted | SessionStarted, bool]] = []
    for record, signature_key in with_signatures(path, read(path, load_blobs=False), key):
        if isinstance(record.event, RunStarted | SessionStarted):
            starts.insert(0, (record.event, signature_key is not None))
        if on_record is not None:
            on_record(record)
    return starts
