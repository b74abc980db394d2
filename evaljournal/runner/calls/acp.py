"""An agent that speaks the Agent Client Protocol, as a task: one process and one session per attempt.

An attempt that was interrupted starts again, with a new session: what the agent has reported is recorded as steps, but never
reused. The protocol names no model, so the cost is unknown unless the agent states it.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from evaljournal.replay.text import as_text
from evaljournal.runner.calls import TrialInput
from evaljournal.runner.calls.agents.lines import read_lines
from evaljournal.runner.calls.agents.reported import AgentSteps
from evaljournal.runner.calls.agents.rpc import ProgramEnded, RpcError, RpcProgram
from evaljournal.runner.calls.agents.session import AgentSession, Allow
from evaljournal.runner.calls.agents.transcripts import AgentFailed
from evaljournal.runner.calls.attached import record_steps
from evaljournal.runner.calls.command import GRACE, Command, CommandFailed, end_process, exit_error, read_tail, start_process
from evaljournal.runner.calls.endpoint import BuiltinTask
from evaljournal.runner.calls.gateway_env import gateway_env
from evaljournal.runner.calls.notes import engine_note, note
from evaljournal.runner.calls.turns import turns_of
from evaljournal.runner.calls.workspaces import open_workspace
from evaljournal.runner.calls.workspaces.variant_files import files_definition
from evaljournal.runner.data.case import Case
from evaljournal.runner.data.templates import Fields, Template

_OUTCOMES: Final = {"max_tokens": "truncated", "max_turn_requests": "truncated", "refusal": "declined"}
"""Why an agent has stopped → the outcome of its answer; any other reason than `end_turn` is an error."""


def _program(agent: "Acp") -> Command:
    return Command(agent.acp)


def _template(agent: "Acp") -> Template | None:
    return None if agent.prompt is None else Template.parse(agent.prompt, "the prompt")


@attrs.frozen(kw_only=True)
class Acp(BuiltinTask):
    """An agent, and which permissions it gets.

    `evaluation(cases="tasks.jsonl")(Acp("npx @zed-industries/claude-code-acp"))` is an evaluation.
    """

    __name__ = "acp"
    starts_processes = True

    acp: str = attrs.field(kw_only=False)
    """The command that starts the agent; no shell is used. It may contain `{fields}` of the case."""
    allow: Allow = attrs.field(default="read", validator=attrs.validators.in_(("read", "all", "none")))
    """Which permissions the agent gets when it asks: for reading and searching, all, or none."""
    prompt: str | None = None
    """The prompt with `{fields}` of the case. None: the input."""
    turns: str | None = None
    """Column with a list of prompts, sent one after the other in the same session."""
    variant_files: str | None = None
    """Directory whose files each workspace gets: a skill, with a `SKILL.md`, where agents look for skills; the content of any
    other at the top. The files are compared when a run is resumed."""
    _program: Command = attrs.field(init=False, repr=False, default=attrs.Factory(_program, takes_self=True))
    _template: Template | None = attrs.field(init=False, repr=False, default=attrs.Factory(_template, takes_self=True))

    @property
    def default_slots(self) -> int:
        """As many as for a command."""
        return self._program.default_slots

    @property
    def definition(self) -> dict[str, Any]:
        """The command line, the files it names, the permissions and the prompts."""
        program = self._program.definition
        fields = {"acp": program["command"], "files": program["files"], "allow": self.allow}
        return {**fields, "prompt": self.prompt, "turns": self.turns, **files_definition(self.variant_files)}

    def check(self, case: Case) -> None:
        """Raise a UsageError if the case lacks a field."""
        self._program.check(case)
        self.prompts(case)

    def prompts(self, case: Case) -> list[str]:
        """Return the prompts for a case."""
        if self.turns is not None:
            return turns_of(case, self.turns)
        return [as_text(case.input) if self._template is None else self._template.fill(Fields(case))]

    def request(self, case: Case) -> dict[str, Any]:
        """Return the command line and the prompts for a case, as they are recorded."""
        return {"acp": self._program.arguments(case), "prompts": self.prompts(case)}

    @asynccontextmanager
    async def open_session(self, run: str, /) -> "AsyncGenerator[_OpenAcp]":
        """Open the task for a session of the run; nothing is kept open between attempts."""
        await trio.lowlevel.checkpoint()
        yield _OpenAcp(self, self._program, run)


@attrs.frozen
class _OpenAcp:
    takes_trial = True

    _agent: Acp
    _program: Command
    _run: str

    def request(self, case: Case) -> dict[str, Any]:
        return self._agent.request(case)

    async def call(self, trial: TrialInput, _: object, /) -> str:
        arguments = self._program.arguments(trial.case)
        steps = AgentSteps(None if gateway_env() else record_steps)
        workspace = open_workspace()
        directory = Path.cwd() if workspace is None else workspace.path
        name, has_files = Path(arguments[0]).name, workspace is not None
        session = AgentSession(steps, directory, self._agent.allow, has_files=has_files, name=name)
        process = await start_process(arguments, trial, self._run)
        stderr, stderr_ended = bytearray(), trio.Event()
        assert process.stdin is not None
        assert process.stdout is not None
        program_stderr = process.stderr
        assert program_stderr is not None

        async def read_stderr() -> None:
            await read_tail(program_stderr, stderr)
            stderr_ended.set()

        try:
            async with trio.open_nursery() as nursery, aclosing(read_lines(process.stdout)) as lines:
                nursery.start_soon(read_stderr)
                try:
                    output = await self._converse(RpcProgram(process.stdin, lines, session.answer), session, trial.case)
                except ProgramEnded as exc:
                    with trio.move_on_after(GRACE):
                        await process.wait()
                        await stderr_ended.wait()
                    raise _end_error(process, arguments[0], str(exc), bytes(stderr)) from None
                nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise next((exc for exc in group.exceptions if not isinstance(exc, trio.Cancelled)), group) from None
        else:
            return output
        finally:
            await end_process(process)
            steps.close()
            if steps.is_recorded and session.is_open:
                note(usage=session.usage)

    async def _converse(self, program: RpcProgram, session: AgentSession, case: Case) -> str:
        try:
            await session.open(program)
            reason = "end_turn"
            for prompt in self._agent.prompts(case):
                reason = await session.prompt(program, prompt)
                if reason != "end_turn":
                    break
        except RpcError as exc:
            raise AgentFailed(f"the agent has answered with an error: {exc.message[:2_000]} (code {exc.code})") from exc
        if reason in _OUTCOMES:
            engine_note(answer={"outcome": _OUTCOMES[reason], "finish_reason": reason})
        elif reason != "end_turn":
            raise AgentFailed(f"the agent has stopped with the reason {reason[:100]!r}")
        return session.text


def _end_error(process: trio.Process, program: str, method: str, stderr: bytes) -> Exception:
    """Return the error of an agent that has ended before it has answered."""
    if process.returncode:
        return exit_error(program, process.returncode, stderr)
    reason = stderr.decode("utf-8", "replace").strip() or "nothing on stderr"
    return CommandFailed(f"{Path(program).name!r} has ended before it has answered {method}: {reason}")
