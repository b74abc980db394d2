"""A run directory from someone else: what is in it can neither control the terminal nor reach files outside it."""

import ast
import os
import pty
import subprocess
from pathlib import Path
from typing import Any
from unicodedata import category

import pytest
from click.testing import CliRunner, Result

from journal.events import Noted
from replay.text import escape_controls
from runner.cli import cli
from tests.journal.samples import forge, opened, session, started, trial, written
from tests.processes import ROOT
from tests.runner_cli.test_commands import COMMAND

EVIL = "\x1b]52;c;aGk=\x07\x1b]8;;http://x\x07\x9b31m\x1b[2J\r\u202e\u2066\u2028"
"""OSC 52 and 8, CSI in both forms, a carriage return, and characters that change the direction or the line."""


def evaljournal(*arguments: object) -> Result:
    """Invoke a command; click leaves control characters in the output."""
    return CliRunner().invoke(cli, [str(argument) for argument in arguments], color=True)


def controls(text: str) -> set[str]:
    """Return the characters in a text that must not reach a terminal."""
    return {char for char in text if char not in "\n\t" and category(char) in {"Cc", "Cf", "Cs", "Zl", "Zp"}}


def printed_on_a_terminal(*arguments: object) -> str:
    """Run a command whose standard output is a terminal; return what it prints there."""
    ours, theirs = pty.openpty()
    with open(ours, "rb", buffering=0) as stream:
        try:
            subprocess.run([*COMMAND, *map(str, arguments)], stdout=theirs, stderr=subprocess.PIPE, check=False, timeout=60)
        finally:
            os.close(theirs)
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


@pytest.mark.parametrize("command", ["status", "log", "verify", "show", "watch", "simulate", "replay"])
def test_the_name_of_a_directory_is_escaped(tmp_path: Path, command: str) -> None:
    """A directory whose name contains escapes is shown with them escaped, in results and in errors."""
    written(tmp_path / EVIL / "run", [started(), session(), *trial("a")])
    (tmp_path / EVIL / "none").mkdir()
    for name in ("run", "none", "missing"):
        result = evaljournal(command, tmp_path / EVIL / name)

        assert set() == controls(result.output), name


def test_blob_keys_and_types_are_escaped(tmp_path: Path) -> None:
    """Members of a foreign record that an error message quotes are escaped."""
    reference = {"sha256": EVIL, "bytes": 1}
    note = {"type": "noted", "name": "a", "value": 1}
    lines: list[dict[str, Any]] = [
        {**note, "blobs": {EVIL: reference}},
        {**note, "blobs": {"value": reference}},
        {**note, "name": [EVIL]},
        {**note, "seq": EVIL},
        {"type": "trial_withdrawn", "trial": "a", "reason": EVIL},
    ]
    for number, members in enumerate(lines):
        run = forge(tmp_path / f"{number}", [opened(), started(), session(), *trial("a"), members])
        for command in ("status", "log", "verify", "show", "ls", "watch"):
            result = evaljournal(command, run)

            assert set() == controls(result.output), (number, command)


@pytest.mark.parametrize("arguments", [["export", "-f", "csv"], ["log", "--json"]])
def test_data_is_escaped_on_a_terminal_only(tmp_path: Path, arguments: list[str]) -> None:
    """A terminal gets data with controls escaped; a pipe gets it unchanged."""
    evil = "\x9b31m\u202e"  # JSON itself escapes the characters below U+0020.
    written(tmp_path / "run", [started(), session(), *trial(f"a{evil}", output=evil), Noted(name=evil, value=evil)])
    command, *options = arguments

    assert evil in evaljournal(command, tmp_path / "run", *options).stdout
    shown = printed_on_a_terminal(command, tmp_path / "run", *options)
    assert (set(), True) == (controls(shown), r"\x9b31m\u202e" in shown)


def test_everything_printed_is_escaped_in_one_place() -> None:
    """No command prints except through `runner.cli._output` and the screen."""
    for file in (ROOT / "runner" / "cli").glob("*.py"):
        calls = [ast.unparse(node.func) for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
        direct = [
            call
            for call in calls
            if call in {"print", "click.echo", "click.secho"} or call.endswith((".buffer.write", "stderr.write"))
        ]

        assert direct == (["click.echo"] if file.name == "_output.py" else []), file.name
