"""A run directory from another user: what is in it can neither control the terminal nor reach files outside it."""

import ast
import contextlib
import os
import pty
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unicodedata import category

import orjson
import pytest
from click.testing import Result

from evaljournal.journal import JournalError, read, verify
from evaljournal.journal.disk.files import DISK
from evaljournal.journal.errors import JournalDamaged, WriteFailed
from evaljournal.journal.events import Noted
from evaljournal.journal.readers.follow import _Follower
from evaljournal.replay import load
from evaljournal.replay.text import escape_controls
from tests.journal.samples import (
    content,
    event_fields,
    finished,
    flip,
    forge,
    opened,
    overwrite,
    segment,
    session,
    started,
    trial,
    write_sync,
)
from tests.processes import ROOT
from tests.replay.test_page import data_of
from tests.runner_cli.commands import COMMAND, evaljournal

EVIL = "\x1b]52;c;aGk=\x07\x1b]8;;http://x\x07\x9b31m\x1b[2J\r\u202e\u2066\u2028"
"""OSC 52 and 8, CSI in both forms, a carriage return, and characters that change the direction or the line."""


def controls(text: str) -> set[str]:
    """Return the characters in a text that must not reach a terminal."""
    return {char for char in text if char not in "\n\t" and category(char) in {"Cc", "Cf", "Cs", "Zl", "Zp"}}


def terminal_output(*arguments: object) -> str:
    """Run a command whose standard output is a terminal; return what it prints there."""
    terminal, child_end = pty.openpty()
    with open(terminal, "rb", buffering=0) as stream:
        try:
            subprocess.run([*COMMAND, *map(str, arguments)], stdout=child_end, stderr=subprocess.PIPE, check=False, timeout=60)
        finally:
            os.close(child_end)
        pieces: list[bytes] = []
        try:
            while piece := stream.read(65_536):
                pieces.append(piece)
        except OSError:  # Linux reports the closed end of a terminal as an error.
            pass
    return b"".join(pieces).decode().replace("\r\n", "\n")  # The terminal itself adds carriage returns.


def test_what_is_escaped() -> None:
    """Controls of both tables and of text direction are escaped; letters, spaces, line feeds and tabs are not."""
    assert r"\x1b]52;c;aGk=\x07\x1b]8;;http://x\x07\x9b31m\x1b[2J\r\u202e\u2066\u2028" == escape_controls(EVIL)
    assert r"\x7f\x85\ud800" == escape_controls("\x7f\x85\ud800")
    for text in ("Lima 東京\u3000é 👍 −×·…", "a\n\tb", "95\u202f%\u00a0"):
        assert text == escape_controls(text)


@pytest.mark.parametrize("command", ["status", "log", "verify", "show", "watch", "replay"])
def test_the_name_of_a_directory_is_escaped(tmp_path: Path, command: str) -> None:
    """A directory whose name contains escapes is shown with them escaped, in results and in errors."""
    write_sync(tmp_path / EVIL / "run", [started(), session(), *trial("a")])
    (tmp_path / EVIL / "none").mkdir()
    for name in ("run", "none", "missing"):
        result = evaljournal(command, tmp_path / EVIL / name)

        assert set() == controls(result.output), name


def test_a_name_that_is_not_text(tmp_path: Path) -> None:
    """The name of a directory need not be valid UTF-8; every command shows it with escapes."""
    run = tmp_path / os.fsdecode(b"\xff run")
    write_sync(run, [started(), session(), *trial("a")])
    for arguments in (["status"], ["status", "--json"], ["ls", "--json"], ["verify", "--json"], ["show", "--json"], ["report"]):
        result = evaljournal(arguments[0], run, *arguments[1:])

        assert result.exit_code in {0, 4}, (arguments, result.exception)
        assert r"\udcff run" in result.output, arguments


def test_blob_keys_and_types_are_escaped(tmp_path: Path) -> None:
    """Fields of a foreign record that an error message quotes are escaped."""
    reference = {"sha256": EVIL, "bytes": 1}
    note = {"type": "noted", "name": "a", "value": 1}
    lines: list[dict[str, Any]] = [
        {**note, "blobs": {EVIL: reference}},
        {**note, "blobs": {"value": reference}},
        {**note, "name": [EVIL]},
        {**note, "seq": EVIL},
        {"type": "trial_withdrawn", "trial": "a", "reason": EVIL},
    ]
    for number, fields in enumerate(lines):
        run = forge(tmp_path / f"{number}", [opened(), started(), session(), *trial("a"), fields])
        for command in ("status", "log", "verify", "show", "ls", "watch"):
            result = evaljournal(command, run)

            assert set() == controls(result.output), (number, command)


@pytest.mark.parametrize("arguments", [["export", "-f", "csv"], ["log", "--json"]])
def test_data_is_escaped_on_a_terminal_only(tmp_path: Path, arguments: list[str]) -> None:
    """A terminal gets data with controls escaped; a pipe gets it unchanged."""
    evil = "\x9b31m\u202e"  # JSON itself escapes the characters below U+0020.
    write_sync(tmp_path / "run", [started(), session(), *trial(f"a{evil}", output=evil), Noted(name=evil, value=evil)])
    command, *options = arguments

    assert evil in evaljournal(command, tmp_path / "run", *options).stdout
    shown = terminal_output(command, tmp_path / "run", *options)
    assert (set(), True) == (controls(shown), r"\x9b31m\u202e" in shown)


SECRET = "-----BEGIN OPENSSH PRIVATE KEY-----"  # noqa: S105  # not a real one
LARGE = "Lima " * 60_000
"""An output that is stored as a blob."""


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory with the files of the user; nothing may change in it."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "id_rsa").write_text(SECRET)
    return tmp_path / "home"


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A run that was interrupted, with one blob."""
    write_sync(tmp_path / "run", [started(), session(), *trial("a", output=LARGE)])
    return tmp_path / "run"


def is_unchanged(outside: Path) -> bool:
    """Whether the user's files are unchanged."""
    return {"id_rsa": SECRET.encode()} == content(outside)


def blob_of(run: Path) -> Path:
    """Return the path of the only blob."""
    return next(run.glob("blobs/*/*.json"))


def tear(run: Path) -> None:
    """Add an incomplete line, as a crash does."""
    overwrite(segment(run), segment(run).read_bytes() + b'{"seq":')


def continue_run(run: Path) -> None:
    """Continue a run in the same journal, with another blob."""
    write_sync(run, [session(2), *trial("b", output=f"{LARGE}{LARGE}")], new=False)


def reading_results(run: Path, target: Path) -> Iterator[tuple[str, Result]]:
    """Yield the results of all commands that read a run; those that write a file write it to the target."""
    yield from (
        (command, evaljournal(command, run)) for command in ("ls", "status", "log", "verify", "show", "watch", "replay")
    )
    yield "show a", evaljournal("show", run, "a", "--json")
    yield "compare", evaljournal("compare", run, run)
    yield "export", evaljournal("export", run, "-o", target / "export.jsonl")
    yield "report", evaljournal("report", run, "-o", target / "report.html")
    yield "salvage", evaljournal("salvage", run, "-o", target / "salvaged")


@pytest.mark.parametrize("link", [os.symlink, os.link], ids=["symlink", "hard link"])
@pytest.mark.parametrize("name", [".journal-000001.jsonl.new", ".journal-000002.jsonl.new"])
def test_a_link_in_place_of_a_new_file(foreign: Path, outside: Path, link: Callable[[Path, Path], None], name: str) -> None:
    """A link in place of a new file is removed; the file that it points to is not overwritten."""
    link(outside / "id_rsa", foreign / name)
    continue_run(foreign)

    assert is_unchanged(outside)
    assert verify(foreign).ok


@pytest.mark.parametrize("link", [os.symlink, os.link], ids=["symlink", "hard link"])
def test_a_link_in_place_of_the_lock(foreign: Path, outside: Path, link: Callable[[Path, Path], None]) -> None:
    """A lock that is a symlink is rejected; nothing is written to a lock that has a second name."""
    (foreign / "LOCK").unlink()
    link(outside / "id_rsa", foreign / "LOCK")
    with pytest.raises(JournalError, match="a symlink") if link is os.symlink else nullcontext():
        continue_run(foreign)

    assert is_unchanged(outside)
    assert 0 == evaljournal("status", foreign).exit_code


def test_a_torn_tail_stays_in_the_run(foreign: Path, outside: Path) -> None:
    """If `torn/` is a symlink, nothing is written there and the journal is not changed."""
    tear(foreign)
    (foreign / "torn").symlink_to(outside)
    before = segment(foreign).read_bytes()
    with pytest.raises(JournalError):
        continue_run(foreign)

    assert is_unchanged(outside)
    assert before == segment(foreign).read_bytes()


def test_new_blobs_stay_in_the_run(tmp_path: Path, outside: Path) -> None:
    """A run without blobs whose directory for them is a symlink fails when it writes the first one."""
    write_sync(tmp_path / "run", [started(), session(), *trial("a")])
    (tmp_path / "run" / "blobs").symlink_to(outside)
    with pytest.raises(WriteFailed):
        continue_run(tmp_path / "run")

    assert is_unchanged(outside)


@pytest.mark.parametrize("place", ["file", "directory", "blobs"])
def test_a_blob_outside_the_run_is_not_read(foreign: Path, tmp_path: Path, outside: Path, place: str) -> None:
    """A symlink to a private key, or to a directory with it, neither shows it nor copies it into a report."""
    blob = blob_of(foreign)
    linked = {"file": blob, "directory": blob.parent, "blobs": blob.parent.parent}[place]
    target = outside / "id_rsa" if place == "file" else outside
    if place != "file":
        other = outside / (blob.name if place == "directory" else f"{blob.parent.name}/{blob.name}")
        other.parent.mkdir(exist_ok=True)
        other.write_text(SECRET)
    shutil.rmtree(linked) if linked.is_dir() else linked.unlink()
    linked.symlink_to(target)
    for command, result in reading_results(foreign, tmp_path):
        expected = {4} if command in {"verify", "export", "show a"} else {0, 2, 3, 4}

        assert (True, False) == (result.exit_code in expected, SECRET in result.output), (command, result.output)
    assert SECRET not in str(data_of(tmp_path / "report.html"))
    assert SECRET not in (tmp_path / "export.jsonl").read_text()
    assert not [file for file in (tmp_path / "salvaged").rglob("*.json*") if SECRET.encode() in file.read_bytes()]


def make_socket(file: Path) -> None:
    """Create a socket, which stays after it is closed."""
    with contextlib.chdir(file.parent), socket.socket(socket.AF_UNIX) as end:  # The length of its address is limited.
        end.bind(file.name)


SPECIAL: dict[str, Callable[[Path], object]] = {
    "symlink": lambda file: file.symlink_to("/etc/passwd"),
    "device": lambda file: file.symlink_to("/dev/zero"),
    "dangling": lambda file: file.symlink_to("nothing"),
    "loop": lambda file: file.symlink_to(file.name),
    "pipe": os.mkfifo,
    "socket": make_socket,
    "directory": Path.mkdir,
}


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("name", ["journal-000001.jsonl", "LOCK", "blob"])
def test_a_file_that_is_not_regular(foreign: Path, tmp_path: Path, name: str, kind: str) -> None:
    """A pipe, a device, a socket, a directory or a symlink is never waited for or read; as a segment or blob it is damage."""
    file = blob_of(foreign) if name == "blob" else foreign / name
    file.unlink()
    SPECIAL[kind](file)
    codes = {command: result.exit_code for command, result in reading_results(foreign, tmp_path)}

    if name != "LOCK":
        assert 4 == codes["verify"]
    assert {0, 2, 3, 4} >= set(codes.values())


def test_a_wrong_type_is_damage(tmp_path: Path) -> None:
    """Every command that reads a field of a wrong type exits with 4, up to the record before it, without a traceback."""
    fields: dict[str, Any] = {"type": "noted", "name": ["a"], "value": 1}
    run = forge(tmp_path / "run", [opened(), started(), session(), *trial("a"), fields, finished()])
    codes = {
        command: result.exit_code for command, result in reading_results(run, tmp_path) if command not in {"ls", "salvage"}
    }

    assert {4} == set(codes.values()), codes


@pytest.mark.parametrize("blobs", [["x"], "x", {"value": 1}, {"value": {"sha256": "a" * 64, "bytes": "1"}}])
def test_invalid_records_after_damage_are_not_salvaged(tmp_path: Path, blobs: Any) -> None:
    """An intact record with invalid values after the damage is excluded; the others are copied."""
    fields: dict[str, Any] = {"type": "noted", "name": "a", "value": 1, "blobs": blobs}
    run = forge(tmp_path / "run", [opened(), started(), session(), *trial("a"), fields, Noted(name="b", value=1)])
    forge(run, [Noted(name="c", value=1)], d=9)
    flip(segment(run), segment(run).read_bytes().index(b'"attempt_started"'))
    result = evaljournal("salvage", run, "-o", tmp_path / "saved")

    assert 0 == result.exit_code, result.output
    assert ["b", "c"] == [record.event.name for record in read(tmp_path / "saved") if isinstance(record.event, Noted)]


@pytest.mark.parametrize("data", [b"", b'{"seq":1'])
def test_following_a_segment_without_a_first_line(tmp_path: Path, data: bytes) -> None:
    """A follower, such as `view`, reports a segment without a first line as damage; it does not wait for one."""
    segment(tmp_path).write_bytes(data)
    with pytest.raises(JournalDamaged):
        _Follower(tmp_path, DISK, load_blobs=False).new_records()


def test_everything_printed_is_escaped_in_one_place() -> None:
    """No command prints except through `runner.cli.terminal.output` and the screen."""
    for file in (ROOT / "evaljournal" / "runner" / "cli").rglob("*.py"):
        calls = [ast.unparse(node.func) for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
        direct_prints = [
            call
            for call in calls
            if call in {"print", "click.echo", "click.secho"} or call.endswith((".buffer.write", "stderr.write"))
        ]

        assert direct_prints == (["click.echo"] if file.name == "output.py" else []), file.name


@pytest.mark.parametrize("gates", [["exact=half"], [f"exact={'9' * 400_000}x"], [5], "exact=0.5", 5], ids=range(5))
def test_an_invalid_gate_is_damage(tmp_path: Path, gates: Any) -> None:
    """A recorded gate that no run can have exits with 4, and a finished run is not changed."""
    run = tmp_path / "run"
    settings = {"slots": 1, "fail_under": gates}
    forge(run, [opened(), {**event_fields(started()), "settings": settings}, session(), *trial("case-0"), finished()])
    before = content(run)
    commands = [["watch"], ["watch", "--json"], ["resume"], ["rescore", "--score", "contains"]]
    results = {" ".join(command): evaljournal(*command, run) for command in commands}

    assert dict.fromkeys(results, 4) == {command: result.exit_code for command, result in results.items()}
    assert not [result.output for result in results.values() if len(result.stderr) > 1_000]
    assert before == content(run)


@pytest.mark.parametrize(("gates", "code"), [(["exact=0.5"], 0), (["exact=half"], 4), (5, 4)])
def test_verify_reports_an_invalid_gate(tmp_path: Path, gates: Any, code: int) -> None:
    """An invalid gate is the only finding; the records are valid otherwise."""
    start = {**event_fields(started()), "settings": {"slots": 1, "fail_under": gates}}
    result = evaljournal("verify", forge(tmp_path / "run", [opened(), start, session()]), "--json")

    assert (code, ["settings"] * (code == 4)) == (
        result.exit_code,
        [finding["check"] for finding in orjson.loads(result.stdout)["findings"]],
    )


@pytest.mark.parametrize("name", ["case-\x1b[31m1", " "], ids=["control character", "blank"])
def test_a_run_with_an_invalid_name_is_not_rescored(tmp_path: Path, name: str) -> None:
    """A case that no dataset can have is found before a session is recorded in a finished run."""
    run = tmp_path / "run"
    write_sync(run, [started(), session(), *trial("case-0"), *trial(name), finished(2)])
    before = content(run)
    result = evaljournal("rescore", run, "--score", "contains")

    assert 2 == result.exit_code, result.output
    assert before == content(run)
    assert "finished" == load(run).state.outcome
