"""The directory `RUN/claims/`: the secret of the run, and the statements that were made about it.

The secret is made once and never replaced, because leaves can only be disclosed with the secret that hid them: of two commands
that make it at the same time, the one that links its file first wins. Commands that copy a run (`fork`, `merge`, `salvage`),
exports and reports read records only, so the secret is in none of them.
"""

import os
import secrets
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

import orjson

from evaljournal.journal import JournalError
from evaljournal.journal.disk.files import DISK
from evaljournal.replay.claims.checking import BUNDLE, MAX_LINE
from evaljournal.replay.claims.statement import HEAD, InvalidClaim, Statement, canonical, envelope, parse_envelope
from evaljournal.runner.errors import UsageError
from evaljournal.runner.runs.atomic_write import write_atomically

_SECRET: Final = "secret"  # noqa: S105  # the name of a file
_SECRET_BYTES: Final = 32
_MAX_STATEMENT: Final = 4 << 20
_MAX_SUMMARIES: Final = 100


def _directory(run: Path) -> Path:
    path = run / "claims"
    if path.is_symlink() or path.is_file():  # A symlink in a foreign run could point elsewhere.
        raise JournalError(f"{path} is not a directory; move it elsewhere", path=path)
    return path


def read_secret(run: Path) -> bytes | None:
    """Return the secret of a run; None if it has none."""
    file = _directory(run) / _SECRET
    try:
        with DISK.read(str(file)) as stream:
            secret = stream.read(_SECRET_BYTES + 1)
    except FileNotFoundError:
        return None
    if len(secret) != _SECRET_BYTES:
        raise JournalError(f"{file} has {len(secret)} bytes, expected {_SECRET_BYTES}; restore it from a copy of the run")
    return secret


def make_secret(run: Path) -> bytes:
    """Return the secret of a run, which only its owner can read; make it if there is none."""
    directory = _directory(run)
    directory.mkdir(exist_ok=True)
    if (secret := read_secret(run)) is None:
        temporary = directory / f".{_SECRET}.{secrets.token_hex(8)}"
        write_atomically(temporary, [secrets.token_bytes(_SECRET_BYTES)])
        with suppress(FileExistsError):
            os.link(temporary, directory / _SECRET)
        temporary.unlink()
        DISK.sync_directory(str(directory))
        secret = read_secret(run)
    assert secret is not None
    return secret


def write_statement(statement: Statement, file: Path) -> None:
    write_atomically(file, [canonical(envelope(statement.payload, statement.signatures)), b"\n"])


def keep_statement(run: Path, statement: Statement) -> Path:
    """Write a statement to the directory of its run; the same one has the same name."""
    file = _directory(run) / f"{sha256(statement.payload).hexdigest()[:16]}.json"
    write_statement(statement, file)
    return file


def read_statement(file: Path, *, is_plan: bool | None = None) -> Statement:
    """Read the statement in a file, which may be a bundle; raise `InvalidClaim` if it must, or must not, be a plan."""
    with DISK.read(str(file)) as stream:
        data = stream.read(_MAX_STATEMENT)
        if is_bundle := data.startswith(BUNDLE):
            stream.seek(0)
            data = stream.readline(MAX_LINE)

    try:
        fields = orjson.loads(data)
    except ValueError as exc:
        raise InvalidClaim(f"{file} is neither a statement nor a bundle ({exc})") from exc

    statement = parse_envelope(fields.get("statement") if is_bundle else fields)
    if (False if is_bundle else is_plan) not in {None, statement.is_plan}:
        problem = "not a plan" if is_plan else "a plan, which has no trials; pass the statement of a run"
        raise InvalidClaim(f"{file} is {problem}")
    return statement


def kept_statements(run: Path) -> list[Path]:
    """Return the files of the statements about a run, the newest last."""
    return sorted(_directory(run).glob("*.json"), key=lambda file: (file.lstat().st_mtime_ns, file.name))


def claim_summaries(run: Path, head: str) -> list[str]:
    """Return what each statement about a run claims and commits to; of one that cannot be read, why.

    Anyone can put a file into a directory, so nothing is shown as verified, and a statement about another head is marked.
    """
    summaries: list[str] = []
    for file in kept_statements(run)[-_MAX_SUMMARIES:]:
        try:
            statement = read_statement(file)
            is_current = statement.digest("run", HEAD) == head
            note = f"{'' if is_current else 'about another run, or earlier records; '}not verified here: evaljournal check"
            summaries.append("; ".join([*statement.claim_texts, *statement.commitment_texts, note]))
        except (JournalError, OSError) as exc:
            summaries.append(f"{file.name}: {exc}")
    return summaries


def newest_statement(run: Path) -> Path:
    if not (files := kept_statements(run)):
        raise UsageError(f"{run} has no claim", hint="make one with `evaljournal attest`")
    return files[-1]
