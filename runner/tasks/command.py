"""A command as a task: one process for each attempt, the input on its standard input, the output on its standard output.

Each process leads a group of its own. When its time is over, when the run is stopped, or when it ends and leaves others behind,
the whole group is ended: nothing that was started here goes on without us.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, Literal

import attrs
import orjson
import trio

from runner.data.case import Case
from runner.data.exact_json import read_json
from runner.data.fingerprint import canonical, digest
from runner.data.templates import Fields, MissingField, Text, find
from runner.errors import UsageError
from runner.retries.classify import Fatal
from runner.secrets import mask
from runner.tasks import TrialInput
from runner.tasks.client import InvalidReply
from runner.tasks.endpoint import call_once, idempotency_key

LARGEST: Final = 64 * 1024 * 1024
"""Bytes of output that are taken in; a command that prints for ever must not fill the memory."""

GRACE: Final = 0.4
"""Seconds that a process gets to end by itself when it is told to, before it is killed; shorter than the run's own patience."""

_TAIL: Final = 16 * 1024
"""Bytes of standard error that are kept: its end, where the reason stands."""

_SCRIPT: Final = 1024 * 1024
"""Bytes; a file that is longer is hardly a script, and takes long to read."""

_NOT_THERE: Final = (126, 127)
"""How a shell says that there is no such command, or that it may not be run."""


class CommandFailed(Exception):
    """The command ended with a code that is no success."""


class CommandMissing(Fatal):
    """There is no such command, so the next attempt would end the same way."""


def _arguments(command: "Command") -> tuple[Text, ...]:
    """Read the command as a list of arguments, each with `{fields}`."""
    given = command.command
    if command.shell:
        if not isinstance(given, str):
            raise UsageError("a command for the shell is one text")
        return ()
    try:
        words = shlex.split(given) if isinstance(given, str) else list(given)
    except ValueError as exc:
        raise UsageError(f"the command {mask(str(given))!r} cannot be read ({exc}); quotes come in pairs") from exc
    if not words:
        raise UsageError("the command is empty")
    arguments = tuple(Text.parse(word, f"the argument {word!r}") for word in words)
    if arguments[0].fields:
        raise UsageError(f"the command itself, {words[0]!r}, may not come from a case; its arguments may")
    if shutil.which(words[0]) is None:
        hint = "; it may not be run: chmod +x" if Path(words[0]).is_file() else ""
        shell = "; for pipes and variables, ask for a shell" if set(str(given)) & set("|<>;&") else ""
        raise UsageError(f"there is no command {words[0]!r}{hint}{shell}")
    return arguments


def _is_script(word: str) -> bool:
    try:
        return Path(word).is_file() and Path(word).stat().st_size <= _SCRIPT
    except (OSError, ValueError):  # no name of a file at all
        return False


@attrs.frozen(kw_only=True)
class Command:
    """Which command is run, and how its output is read.

    `evaluation(cases="qa.jsonl")(Command("./answer.sh"))` is an evaluation; `Command("./answer.sh -q {question}")` makes one.
    """

    __name__ = "command"

    command: str | Sequence[str] = attrs.field(kw_only=False, repr=lambda command: repr(mask(str(command))))
    """A text is split as a shell would, but no shell sees it. With `{fields}` in its arguments the case is given there, and
    standard input is empty; without any, the input is given on standard input, as JSON."""
    shell: bool = False
    """Whether a shell runs it. It may then hold no fields, since a case could bring commands along."""
    output: Literal["text", "json"] = attrs.field(default="text", validator=attrs.validators.in_(("text", "json")))
    """How standard output is read; as text, without the line break at its end."""
    output_path: str | None = None
    """Where the output stands in the JSON that was printed, such as `answer.text`."""
    _arguments: tuple[Text, ...] = attrs.field(init=False, repr=False, default=attrs.Factory(_arguments, takes_self=True))

    @property
    def default_slots(self) -> int:
        """As many processes at one time as there are CPUs, and at least 4."""
        return max(4, os.cpu_count() or 1)

    @property
    def fingerprint(self) -> str:
        """Digest of the command line, of the files that it names (its script, say), and of how its output is read."""
        given = self.command if isinstance(self.command, str) else list(self.command)
        words = given if isinstance(given, list) else given.split()
        facts = {
            "command": given,
            "files": {word: digest(Path(word).read_bytes()) for word in words if _is_script(word)},
            "shell": self.shell,
            "output": self.output,
            "output_path": self.output_path,
        }
        return digest(canonical(facts, "the command"))

    def check(self, case: Case) -> None:
        """Refuse a case that lacks a field, or whose text no argument can hold."""
        for argument in self.line(case):
            if "\0" in argument:
                raise UsageError("an argument cannot hold a zero byte; give the input on standard input")

    def line(self, case: Case) -> list[str]:
        """Say which words are run for a case."""
        if self.shell:
            assert isinstance(self.command, str)
            return ["/bin/sh", "-c", self.command] if os.name == "posix" else ["cmd", "/c", self.command]
        fields = Fields(case)
        return [argument.fill(fields) for argument in self._arguments]

    def given(self, case: Case) -> bytes:
        """Say what is on standard input for a case."""
        if any(argument.fields for argument in self._arguments):
            return b""
        return orjson.dumps(case.input) + b"\n"

    @asynccontextmanager
    async def open_session(self, run: str, /) -> "AsyncGenerator[_Live]":
        """Nothing is kept between two attempts."""
        await trio.lowlevel.checkpoint()
        yield _Live(self, run)

    async def __call__(self, value: Any, /) -> Any:
        """Run it once, by hand, inside trio."""
        return await call_once(self, value)


class _Live:
    """A command while a session lasts."""

    takes_trial: bool = True

    def __init__(self, command: Command, run: str) -> None:
        self._command = command
        self._run = run

    async def call(self, asked: TrialInput, _: object) -> Any:
        """Run the command, and read what it printed."""
        line = self._command.line(asked.case)
        more = {"EVALJOURNAL_TRIAL": asked.trial, "EVALJOURNAL_IDEMPOTENCY_KEY": idempotency_key(self._run, asked.trial)}
        try:
            process = await trio.lowlevel.open_process(
                line,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, **more},
                start_new_session=True,
            )
        except (FileNotFoundError, PermissionError) as exc:
            raise CommandMissing(f"{line[0]!r} cannot be run: {exc.strerror}") from exc
        code, printed, said = await _attended(process, self._command.given(asked.case))
        if code != 0:
            reason = said.decode("utf-8", "replace").strip() or "it said nothing on standard error"
            kind = CommandMissing if code in _NOT_THERE else CommandFailed
            raise kind(f"{Path(line[0]).name!r} {_ended(code)}: {reason}")
        return self._read(printed)

    def _read(self, printed: bytes) -> Any:
        command = self._command
        try:
            text = printed.decode()
        except ValueError as exc:
            raise InvalidReply(f"what the command printed is not text in UTF-8: {exc}") from exc
        if command.output == "text" and command.output_path is None:
            return text.removesuffix("\n").removesuffix("\r")
        if not text.strip():
            return ""
        try:
            value = read_json(printed)
            return value if command.output_path is None else find(value, command.output_path)
        except ValueError as exc:
            raise InvalidReply(f"what the command printed is not JSON ({exc}): {text[:300]!r}") from exc
        except MissingField as exc:
            raise InvalidReply(f"what the command printed has no {command.output_path!r}: {exc}") from exc


def _ended(code: int) -> str:
    if code > 0:
        return f"ended with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


async def _attended(process: trio.Process, given: bytes) -> tuple[int, bytes, bytes]:
    """See a process to its end: its code, what it printed, and the end of what it said on standard error.

    There are three ways out: it ends, it prints too much, or we are cancelled. Its group is gone after each of them.
    """
    printed: list[bytes | bytearray] = []
    said = bytearray()
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_give, process.stdin, given)
            nursery.start_soon(_take_all, process.stdout, printed)
            nursery.start_soon(_take_end, process.stderr, said)
            code = await process.wait()
            _signal(process, _KILL)  # What it has left behind would hold the pipes open.
            nursery.cancel_scope.deadline = trio.current_time() + GRACE  # And so would what has left the group.
    except BaseExceptionGroup as group:
        raise next((exc for exc in group.exceptions if not isinstance(exc, trio.Cancelled)), group) from None
    finally:
        await _end(process)
    return code, b"".join(printed), bytes(said)


async def _give(stdin: trio.abc.SendStream, given: bytes) -> None:
    with suppress(trio.BrokenResourceError):  # It need not read what it is given.
        async with stdin:
            await stdin.send_all(given)


async def _take_all(stdout: trio.abc.ReceiveStream, printed: list[bytes | bytearray]) -> None:
    size = 0
    async for chunk in stdout:
        size += len(chunk)
        if size > LARGEST:
            raise Fatal(f"the command printed more than {LARGEST // 1024 // 1024} MiB")
        printed.append(chunk)


async def _take_end(stderr: trio.abc.ReceiveStream, said: bytearray) -> None:
    async for chunk in stderr:
        said += chunk
        del said[:-_TAIL]


_KILL: Final = getattr(signal, "SIGKILL", signal.SIGTERM)


def _signal(process: trio.Process, number: int) -> None:
    if sys.platform == "win32":
        process.kill()  # There are no groups.
        return
    with suppress(ProcessLookupError, PermissionError):  # All gone; or (on macOS) gone and not yet buried.
        os.killpg(process.pid, number)


async def _end(process: trio.Process) -> None:
    """End a process and all that it started: politely, for a moment, then not."""
    with trio.CancelScope(shield=True):
        if process.returncode is None:
            _signal(process, signal.SIGTERM)
            with trio.move_on_after(GRACE):
                await process.wait()
        _signal(process, _KILL)
        await process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                await pipe.aclose()
