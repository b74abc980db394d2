"""A command as a task: one process per attempt, with the input on stdin or in its arguments and the output on stdout.

Each process leads its own process group. At its end, at its timeout and when the run stops, the whole group is killed; child
processes that have left it keep running.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, get_args

import attrs
import orjson
import trio

from evaljournal.runner.calls import Task, TrialInput, WrappedTask
from evaljournal.runner.calls.endpoint import BuiltinTask, idempotency_key
from evaljournal.runner.calls.gateway_env import gateway_env
from evaljournal.runner.calls.http.reply import InvalidReply, OutputMissing, ReplyMemory
from evaljournal.runner.calls.workspaces import FIELD as WORKSPACE
from evaljournal.runner.calls.workspaces import Workspace, open_workspace
from evaljournal.runner.calls.workspaces.programs import RUN
from evaljournal.runner.calls.workspaces.variant_files import files_definition
from evaljournal.runner.data.case import Case
from evaljournal.runner.data.exact_json import read_json
from evaljournal.runner.data.fingerprint import digest
from evaljournal.runner.data.templates import Fields, MissingField, Template, value_at
from evaljournal.runner.errors import UsageError
from evaljournal.runner.retries.classify import Fatal
from evaljournal.runner.secrets.masking import add_secret, excerpt, is_secret_variable, mask, mask_definition
from evaljournal.runner.secrets.shapes import mask_shapes

GRACE: Final = 0.4
"""Seconds between SIGTERM and SIGKILL; shorter than the time that the executor waits for a cancelled call."""

_MAX_STDERR: Final = 16 * 1024
"""Maximum bytes kept from the end of stderr, which usually states the reason."""

_MAX_SHOWN: Final = 2_000
"""Maximum bytes shown from the end of stdout, where some agents print why they fail."""

OutputFormat = Literal["text", "json", "claude-stream-json", "codex-jsonl", "gemini-stream-json"]
OUTPUT_FORMATS: Final[tuple[OutputFormat, ...]] = get_args(OutputFormat)

_MAX_SCRIPT: Final = 1024 * 1024
"""Maximum bytes of a file that is considered a script."""

CANNOT_RUN: Final = (126, 127)
"""Exit codes of a shell for a command that is not executable or does not exist."""
_SHELL_VARIABLE: Final = re.compile(r"\$\{?([A-Za-z_]\w*)")
_SPLIT_FIELD: Final = re.compile(r"\{[^{}\s][^{}]*\s[^{}]*\}")
"""A field with a space in its name, at which a command is split unless it is quoted."""


class CommandFailed(Exception):
    """The command exited with a code other than 0."""


class CommandMissing(Fatal):
    """The command does not exist or is not executable."""


def _arguments(command: "Command") -> tuple[Template, ...]:
    line = command.command
    if command.shell:
        if not isinstance(line, str):
            raise UsageError("with shell=True, the command must be a string")
        _add_secrets(line)
        return ()

    try:
        words = shlex.split(line) if isinstance(line, str) else list(line)
    except ValueError as exc:
        raise UsageError(f"cannot parse the command {mask(str(line))!r}: {exc}; check its quotes") from exc
    if not words:
        raise UsageError("the command is empty")

    try:
        arguments = tuple(Template.parse(word, f"the argument {word!r}") for word in words)
    except UsageError as exc:
        field = _SPLIT_FIELD.search(line) if isinstance(line, str) else None
        raise UsageError(exc.message, hint="" if field is None else f"put quotes around the argument: '{field[0]}'") from exc

    if arguments[0].fields:
        raise UsageError(f"the program {words[0]!r} must not contain fields; its arguments may")
    if shutil.which(words[0]) is None:
        if Path(words[0]).is_file():
            raise UsageError(f"{words[0]!r} is not executable; run chmod +x {words[0]}")
        hint = "pipes and redirections need a shell: shell=True or --shell" if set(str(line)) & set("|<>;&") else ""
        raise UsageError(f"command {words[0]!r} not found", hint=hint)
    return arguments


def _add_secrets(line: str) -> None:
    """Mask the values of the secret variables that a shell expands in a command."""
    for name in _SHELL_VARIABLE.findall(line):
        if is_secret_variable(name, os.environ.get(name, "")):
            add_secret(os.environ.get(name, ""))


def _is_script(word: str) -> bool:
    try:
        return Path(word).is_file() and Path(word).stat().st_size <= _MAX_SCRIPT
    except (OSError, ValueError):
        return False


def _file_content(file: bytes) -> str:
    """Return the text of a script, or the digest of a binary."""
    try:
        return file.decode()
    except ValueError:
        return f"sha256 {digest(file)}"


class ProcessTask:
    """What tasks and scorers that start a process for each call have in common: nothing is kept open between calls."""

    __slots__ = ()
    takes_trial: ClassVar[bool] = True

    @property
    def default_slots(self) -> int:
        return max(4, os.cpu_count() or 1)

    @asynccontextmanager
    async def open_session(self, run: str, /) -> AsyncGenerator[Task]:
        await trio.lowlevel.checkpoint()
        task: Any = self
        yield WrappedTask(task, lambda _, value, __: self.execute(value, run), takes_trial=self.takes_trial)

    async def execute(self, value: Any, run: str) -> Any:
        """Return the output for a trial of a run, or the score for the input of a scorer."""
        raise NotImplementedError


@attrs.frozen(kw_only=True)
class Command(ProcessTask, BuiltinTask):
    """A command and how its output is read.

    `evaluation(cases="qa.jsonl")(Command("./answer.sh"))` is an evaluation. `Command("answer -q {question}")` passes a field.
    """

    __name__ = "command"
    starts_processes = True

    command: str | Sequence[str] = attrs.field(kw_only=False, repr=lambda command: repr(mask(str(command))))
    """A string is split like a shell command, but no shell is used. Arguments may contain `{fields}` of the case, and stdin
    is then empty; without fields, the input is written to stdin as JSON."""
    shell: bool = False
    """Whether to run it in a shell. It must then contain no fields, because a case could inject commands."""
    output: OutputFormat = attrs.field(default="text", validator=attrs.validators.in_(OUTPUT_FORMATS))
    """How stdout is read; text without the final line break. The JSON lines of a coding agent are read for its steps, its
    tokens and its final text; see `agents.transcripts`."""
    output_path: str | None = None
    """Path of the output in the printed JSON, such as `answer.text`."""
    variant_files: str | None = None
    """Directory whose files each workspace gets: a skill, with a `SKILL.md`, where agents look for skills; the content of any
    other at the top. The files are compared when a run is resumed."""
    _arguments: tuple[Template, ...] = attrs.field(init=False, repr=False, default=attrs.Factory(_arguments, takes_self=True))

    @property
    def reports_steps(self) -> bool:
        """Whether it is an agent that reports its calls as steps after they were made, so that none can be answered."""
        return self.output not in {"text", "json"}

    @property
    def definition(self) -> dict[str, Any]:
        line = self.command if isinstance(self.command, str) else list(self.command)
        words = line if isinstance(line, list) else line.split()
        return {
            "command": mask_shapes(line) if isinstance(line, str) else mask_definition(line),
            "files": {word: mask_definition(_file_content(Path(word).read_bytes())) for word in words if _is_script(word)},
            "shell": self.shell,
            "output": self.output,
            "output_path": self.output_path,
            **files_definition(self.variant_files),
        }

    def check(self, case: Case) -> None:
        """Raise a UsageError if the case lacks a field, contains a NUL byte, or would be read as an option."""
        may_be_option = True
        for template, argument in zip(self._arguments, self.arguments(case), strict=False):  # A shell has no templates.
            if "\0" in argument:
                raise UsageError("an argument cannot contain a NUL byte; pass the input on stdin")
            if argument == "--" and not template.fields:
                may_be_option = False
            if may_be_option and argument.startswith("-") and isinstance(template.pieces[0], tuple):
                raise UsageError(
                    f"the program could read {argument[:60]!r}, of the case {case.name!r}, as an option",
                    hint=f"put -- before {{{template.pieces[0][0]}}} if the program supports it, write --option={{…}}, "
                    "or pass the input on stdin",
                )

    def arguments(self, case: Case) -> list[str]:
        if self.shell:
            assert isinstance(self.command, str)
            return ["/bin/sh", "-c", self.command] if os.name == "posix" else ["cmd", "/c", self.command]
        workspace = open_workspace()
        place = f"{{{WORKSPACE}}}" if workspace is None else str(workspace.path)
        fields = Fields(case, {WORKSPACE: place} if self.uses_workspace else {})
        arguments = [argument.fill(fields) for argument in self._arguments]
        return arguments if workspace is None else [*map(partial(_own_file, workspace), arguments)]

    @property
    def uses_workspace(self) -> bool:
        return any(WORKSPACE in argument.fields for argument in self._arguments)

    @property
    def fields(self) -> list[str]:
        return [name for argument in self._arguments for name in argument.fields if name != WORKSPACE]

    def stdin(self, case: Case) -> bytes:
        if self.fields:
            return b""
        return orjson.dumps(case.input) + b"\n"

    def request(self, case: Case) -> dict[str, Any]:
        """Return the command line and the input for a case, as they are recorded."""
        stdin = {} if self.stdin(case) == b"" else {"stdin": case.input}
        return {"command": self.arguments(case), **stdin}

    async def execute(self, value: TrialInput, run: str) -> Any:
        arguments = self.arguments(value.case)
        stdin = self.stdin(value.case)
        process = await start_process(arguments, value, run)
        if self.reports_steps:
            from evaljournal.runner.calls.agents.transcripts import TRANSCRIPTS  # noqa: PLC0415  # few commands need it

            transcript = TRANSCRIPTS[self.output]()
            try:
                code, stderr = await _communicate(process, stdin, transcript.read)
            finally:
                transcript.end()
            if code != 0 and transcript.failure is None:
                raise exit_error(arguments[0], code, stderr)
            return transcript.output()
        with ReplyMemory("the command's output") as memory:
            code, stdout, stderr = await read_program(process, stdin, memory)
            if code != 0:
                raise exit_error(arguments[0], code, stderr, stdout)
            return await memory.parse(lambda: self._read(stdout))

    def _read(self, stdout: bytes) -> Any:
        try:
            text = stdout.decode()
        except ValueError as exc:
            raise InvalidReply(f"stdout is not UTF-8: {exc}") from exc

        if self.output == "text" and self.output_path is None:
            return text.removesuffix("\n").removesuffix("\r")
        if not text.strip():
            return ""

        try:
            value = read_json(stdout)
            return value if self.output_path is None else value_at(value, self.output_path)
        except ValueError as exc:
            option = "-s output-format=json" if self.output_path is None else "--output-path"
            fix = f"print one JSON value, and logs to stderr, or omit {option} to use the text"
            raise InvalidReply(f"stdout is not JSON ({exc}): {excerpt(text, 300)!r}; {fix}") from exc
        except MissingField as exc:
            raise OutputMissing(f"the JSON on stdout has no {self.output_path!r}: {exc}") from exc


def _own_file(workspace: Workspace, word: str) -> str:
    """Return the path of a script beside the user, such as `./agent.sh`; one in the workspace takes precedence."""
    if not word or word.startswith("-") or os.path.isabs(word) or os.path.lexists(workspace.path / word):
        return word
    return os.path.abspath(word) if _is_script(word) else word


async def start_process(arguments: Sequence[str], trial: TrialInput, run: str) -> trio.Process:
    workspace = open_workspace()
    environment = {**os.environ} if workspace is None else workspace.environment()
    own = {"EVALJOURNAL_TRIAL": trial.trial, RUN: run, "EVALJOURNAL_IDEMPOTENCY_KEY": idempotency_key(run, trial.trial)}
    directory = None if workspace is None else workspace.path
    return await open_program(arguments, {**environment, **gateway_env(), **own}, directory)


def exit_error(program: str, code: int, stderr: bytes, stdout: bytes = b"") -> Exception:
    reason = stderr.decode("utf-8", "replace").strip() or stdout[-_MAX_SHOWN:].decode("utf-8", "replace").strip()
    error = CommandMissing if code in CANNOT_RUN else CommandFailed
    return error(f"{Path(program).name!r} {exit_text(code)}: {reason or 'nothing on stderr'}")


def exit_text(code: int) -> str:
    if code > 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


async def open_program(arguments: Sequence[str], environment: Mapping[str, str], directory: Path | None) -> trio.Process:
    """Start a program in a process group of its own, which `end_process` ends."""
    try:
        return await trio.lowlevel.open_process(
            arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            cwd=directory,
            start_new_session=True,
        )
    except (FileNotFoundError, PermissionError) as exc:
        raise CommandMissing(f"cannot run {arguments[0]!r}: {exc.strerror}") from exc


async def read_program(process: trio.Process, stdin: bytes, memory: ReplyMemory) -> tuple[int, bytes, bytes]:
    """Return the exit code of a program, its stdout, and the end of its stderr."""
    stdout: list[bytes | bytearray] = []
    code, stderr = await _communicate(process, stdin, lambda stream: _read_all(stream, stdout, memory))
    return code, b"".join(stdout), stderr


async def _communicate(
    process: trio.Process, stdin: bytes, read_stdout: Callable[[trio.abc.ReceiveStream], Awaitable[None]]
) -> tuple[int, bytes]:
    """Return the exit code of a process, and the end of its stderr.

    Its process group is killed when it exits, when it prints too much, and on cancellation.
    """
    stderr = bytearray()
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_write, process.stdin, stdin)
            nursery.start_soon(read_stdout, process.stdout)
            nursery.start_soon(read_tail, process.stderr, stderr)
            code = await process.wait()
            _signal(process, _KILL)  # Its children would keep the pipes open.
            nursery.cancel_scope.deadline = trio.current_time() + GRACE  # Children that left the group keep them open.
    except BaseExceptionGroup as group:
        raise next((exc for exc in group.exceptions if not isinstance(exc, trio.Cancelled)), group) from None
    finally:
        await end_process(process)
    return code, bytes(stderr)


async def _write(stdin: trio.abc.SendStream, content: bytes) -> None:
    with suppress(trio.BrokenResourceError):  # The command need not read its input.
        async with stdin:
            await stdin.send_all(content)


async def _read_all(stream: trio.abc.ReceiveStream, chunks: list[bytes | bytearray], memory: ReplyMemory) -> None:
    async for chunk in stream:
        await memory.add(len(chunk))
        chunks.append(chunk)


async def read_tail(stream: trio.abc.ReceiveStream, content: bytearray) -> None:
    """Read a stream, and keep its end."""
    async for chunk in stream:
        content += chunk
        del content[:-_MAX_STDERR]


_KILL: Final = getattr(signal, "SIGKILL", signal.SIGTERM)


def _signal(process: trio.Process, number: int) -> None:
    if sys.platform == "win32":
        process.kill()  # There are no process groups.
        return
    with suppress(ProcessLookupError, PermissionError):  # The group is gone, or (on macOS) a zombie.
        os.killpg(process.pid, number)


async def end_process(process: trio.Process) -> None:
    """End a process group: SIGTERM, then SIGKILL after `GRACE` seconds."""
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
