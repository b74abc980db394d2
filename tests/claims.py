"""Runs that claims are made about, and keys that sign them."""

import subprocess
from base64 import b64decode
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import orjson
import trio

from evaljournal import Case
from evaljournal.replay import load
from evaljournal.replay.claims.checking import Line, check_bundle
from evaljournal.replay.claims.merkle import Root, leaf_hash
from evaljournal.replay.claims.statement import Statement, canonical, envelope
from evaljournal.runner.review.journal import Annotation, annotate
from evaljournal.runner.sessions.claims.claim import UNNAMED, attest, disclose
from evaljournal.runner.sessions.claims.files import read_statement
from evaljournal.runner.sessions.claims.recompute import Recomputation
from evaljournal.scorers import close_to, contains, exact, f1, regex
from tests.processes import TIMEOUT
from tests.programs import find_program
from tests.runs import define_real, run_real

SCORERS: Final = (exact, contains, f1, regex("^it"), close_to(0.1))


def claimed_run(path: Path, cases: int = 7, *, scorers: Iterable[Any] = SCORERS, resume: bool = False, **options: Any) -> Path:
    """Run cases of which every third is answered wrongly, with several built-in scorers."""

    def answer(number: int) -> str:
        return "wrong, 3" if number % 3 == 2 else f"it is {number}"

    items = [Case(name=f"case-{number}", input=number, expected=f"it is {number}") for number in range(cases)]
    definition = define_real(answer, items, **options)
    for scorer in scorers:
        definition.score(scorer)
    run_real(definition, path, resume=resume)
    return path


def claim(path: Path, *texts: str, key: Path | None = None, plan: Statement | None = None) -> Statement:
    """Attest claims about a run."""
    return attest(path, texts, plan, evaluator=UNNAMED, key=key)


def bundle(path: Path, statement: Statement, *, trials: Any = None, sample: Any = None, reveal: Any = ()) -> list[bytes]:
    """Return the lines of a bundle."""
    return list(disclose(path, statement, trials, sample, reveal)[1])


def forged(lines: list[bytes], change: Callable[[list[Any]], object], **header_fields: Any) -> list[bytes]:
    """Return a bundle of all trials with other leaves, and an unsigned statement with their root."""
    header, *items = map(orjson.loads, lines)
    leaves, root = [orjson.loads(item["leaf"]) for item in items], Root()
    change(leaves)
    for item, leaf in zip(items, leaves, strict=True):
        item["leaf"] = canonical(leaf).decode()
        root.add(leaf_hash(bytes.fromhex(item["salt"]) + item["leaf"].encode()))
    content = orjson.loads(b64decode(header["statement"]["payload"]))
    content["predicate"]["evaljournal"]["tree"]["root"] = root.digest().hex()
    header |= {"statement": envelope(canonical(content), []), **header_fields}
    return [canonical(item) + b"\n" for item in (header, *items)]


def checked(directory: Path, lines: list[bytes]) -> list[Line]:
    """Check the lines of a bundle."""
    file = directory / "bundle.jsonl"
    file.write_bytes(b"".join(lines))
    statement = read_statement(file)
    with file.open("rb") as stream:
        return list(check_bundle(stream, statement, Recomputation))


def failures(lines: list[Line]) -> list[str]:
    """Return what is not as stated."""
    return [line.text for line in lines if line.status == "failed"]


def label(path: Path, name: str, *, value: bool, reviewer: str = "ada.lovelace") -> None:
    """Record a label of the score `exact`."""
    trio.run(annotate, load(path), [Annotation(trial=name, name="exact", value=value, reviewer=reviewer)])


def make_key(directory: Path, *arguments: str, kind: str = "ed25519", passphrase: str = "") -> Path:
    """Return the file of a new SSH key; without ssh-keygen, the test is skipped."""
    program = find_program("ssh-keygen", package="openssh-client")
    file = directory / f"key-{kind}-{len(list(directory.iterdir()))}"
    subprocess.run([program, "-q", "-t", kind, "-N", passphrase, "-f", str(file), *arguments], check=True, timeout=TIMEOUT)
    return file
