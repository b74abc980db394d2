"""An agent that speaks the Agent Client Protocol, as a task: one process and one session per attempt.

An attempt that was interrupted starts again, with a new session: what the agent has reported is recorded as steps, but never
reused. The protocol names no model, so the cost is unknown unless the agent states it.
"""

from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from evaljournal.replay.text import as_text
from evaljournal.runner.calls import TrialInput
from evaljournal.runner.calls.agents.reported import AgentSteps, read_lines
from evaljournal.runner.calls.agents.rpc import ProgramEnded, RpcError, RpcProgram
from evaljournal.runner.calls.agents.session import AgentSession, Allow
from evaljournal.runner.calls.agents.transcripts import AgentFailed
from evaljournal.runner.calls.command import (
    GRACE,
    Command,
    CommandFailed,
    ProcessTask,
    end_process,
    exit_error,
    read_tail,
    start_process,
)
from evaljournal.runner.calls.endpoint import BuiltinTask
from evaljournal.runner.calls.notes import engine_note
from evaljournal.runner.calls.turns import turns_of
from evaljournal.runner.calls.workspaces import open_workspace
from evaljournal.runner.calls.workspaces.variant_files import files_definition
from evaljournal.runner.data.case import Case
from evaljournal.runner.data.templates import Fields, Template

_OUTCOMES: Final = {"max_tokens": "truncated", "max_turn_requests": "truncated", "refusal": "declined"}
"""Why an agent has stopped → the outcome of its answer; any other reason than `end_turn` is an error."""


@attrs.frozen(kw_only=True)
class Acp(ProcessTask, BuiltinTask):
    """An agent, and which permissions it gets.

    `evaluation(cases="tasks.jsonl")(Acp("npx @zed-industries/claude-code-acp"))` is an evaluation.
    """

    __name__ = "acp"
    starts_processes = True
    reports_steps = True

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
    _program: Command = attrs.field(
        init=False, repr=False, default=attrs.Factory(lambda agent: Command(agent.acp), takes_self=True)
    )
    _template: Template | None = attrs.field(
        init=False,
        repr=False,
        default=attrs.Factory(
            lambda agent: None if agent.prompt is None else Template.parse(agent.prompt, "the prompt"), takes_self=True
        ),
    )

    @property
    def definition(self) -> dict[str, Any]:
        program = self._program.definition
        fields = {"acp": program["command"], "files": program["files"], "allow": self.allow}
        return {**fields, "prompt": self.prompt, "turns": self.turns, **files_definition(self.variant_files)}

    def check(self, case: Case) -> None:
        """Raise a UsageError if the case lacks a field."""
        self._program.check(case)
        self.prompts(case)

    def prompts(self, case: Case) -> list[str]:
        if self.turns is not None:
            return turns_of(case, self.turns)
        return [as_text(case.input) if self._template is None else self._template.fill(Fields(case))]

    def request(self, case: Case) -> dict[str, Any]:
        return {"acp": self._program.arguments(case), "prompts": self.prompts(case)}

    async def execute(self, value: TrialInput, run: str) -> str:
        arguments, workspace = self._program.arguments(value.case), open_workspace()
        directory, name = Path.cwd() if workspace is None else workspace.path, Path(arguments[0]).name
        session = AgentSession(AgentSteps(), directory, self.allow, has_files=workspace is not None, name=name)

        process = await start_process(arguments, value, run)
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        output, stderr, method, code = "", bytearray(), "", 0
        try:
            async with trio.open_nursery() as nursery, aclosing(read_lines(process.stdout)) as lines:
                nursery.start_soon(read_tail, process.stderr, stderr)
                try:
                    output = await self._converse(RpcProgram(process.stdin, lines, session.answer), session, value.case)
                    nursery.cancel_scope.cancel()
                except ProgramEnded as exc:
                    method = str(exc)
                    nursery.cancel_scope.deadline = trio.current_time() + GRACE
                    code = await process.wait()
        except BaseExceptionGroup as group:
            raise next((exc for exc in group.exceptions if not isinstance(exc, trio.Cancelled)), group) from None
        finally:
            await end_process(process)
            session.close()

        if method and code:
            raise exit_error(arguments[0], code, bytes(stderr))
        if method:
            reason = stderr.decode("utf-8", "replace").strip() or "nothing on stderr"
            raise CommandFailed(f"{name!r} has ended before it has answered {method}: {reason}")
        return output

    async def _converse(self, program: RpcProgram, session: AgentSession, case: Case) -> str:
        try:
            await session.open(program)
            reason = "end_turn"
            for prompt in self.prompts(case):
                reason = await session.prompt(program, prompt)
                if reason != "end_turn":
                    break
        except RpcError as exc:
            raise AgentFailed(f"the agent has answered with an error: {str(exc)[:2_000]} (code {exc.code})") from exc

        if reason in _OUTCOMES:
            engine_note(answer={"outcome": _OUTCOMES[reason], "finish_reason": reason})
        elif reason != "end_turn":
            raise AgentFailed(f"the agent has stopped with the reason {reason[:100]!r}")
        return session.text
