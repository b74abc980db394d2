"""A session with an agent that speaks the Agent Client Protocol: its prompts, and what it reports meanwhile.

`initialize`, `session/new` with the workspace, then `session/prompt` for each turn. Replies of the model, tool calls and plans
are steps; a tool call is named after its kind, such as `read`, `edit` or `execute`. The agent may ask for permissions, which
the policy answers at once, so that it never waits for a person; each answer is a step, too. It may read and write files below
the workspace. Terminals are not offered: agents have their own.
"""

from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, Literal

import attrs

from evaljournal.journal.threads import run_in_thread
from evaljournal.replay.provider.reports import fields_of, objects_of, text_field
from evaljournal.runner.calls.agents.files import FileRejected, read_text, write_text
from evaljournal.runner.calls.agents.reported import AgentSteps, text_blocks
from evaljournal.runner.calls.agents.rpc import METHOD_NOT_FOUND, Message, RpcError, RpcProgram
from evaljournal.runner.calls.agents.transcripts import AgentFailed
from evaljournal.runner.calls.http.reply import InvalidReply
from evaljournal.runner.calls.usage import priced_usage
from evaljournal.runner.retries.classify import Fatal
from evaljournal.runner.secrets.masking import excerpt
from evaljournal.version import installed_version

Allow = Literal["read", "all", "none"]
PROTOCOL: Final = 1
_AUTH_REQUIRED: Final = -32000
_READING: Final = ("read", "search", "think")
"""Kinds of tool calls that change nothing."""
_ENDED: Final = ("completed", "failed")
_CALL_FIELDS: Final = ("title", "kind", "status", "rawInput", "rawOutput", "content", "locations")
_COUNTS: Final = {
    "inputTokens": "input_tokens",
    "outputTokens": "output_tokens",
    "cachedReadTokens": "cache_read_input_tokens",
    "cachedWriteTokens": "cache_creation_input_tokens",
}
"""Count in the usage of a turn → its name in Anthropic's API, which also counts caches apart."""


@attrs.define
class AgentSession:
    steps: AgentSteps
    workspace: Path
    """Its working directory."""
    allow: Allow
    has_files: bool
    """Whether it may read and write files through us; not in a directory of the user."""
    name: str
    """What stands for the model, which the protocol does not name."""
    text: str = attrs.field(init=False, default="")
    """The last message."""
    _pieces: list[str] = attrs.field(init=False, factory=list[str])
    _thoughts: list[str] = attrs.field(init=False, factory=list[str])
    _prompt: str = attrs.field(init=False, default="")
    """The prompt that no message has answered so far."""
    _calls: dict[str, dict[str, Any]] = attrs.field(init=False, factory=dict[str, dict[str, Any]])
    """Id → tool call that has not ended."""
    _counts: dict[str, float] = attrs.field(init=False, factory=dict[str, float])
    """Tokens, and the `cost` in dollars."""
    _logins: list[str] = attrs.field(init=False, factory=list[str])
    _session: str = attrs.field(init=False, default="")

    async def open(self, program: RpcProgram) -> None:
        files = {"readTextFile": self.has_files, "writeTextFile": self.has_files}
        info = {"name": "evaljournal", "title": "evaljournal", "version": installed_version() or "0"}
        capabilities = {"fs": files, "terminal": False}

        greeting = await program.request(
            "initialize", {"protocolVersion": PROTOCOL, "clientCapabilities": capabilities, "clientInfo": info}
        )
        if (version := greeting.get("protocolVersion")) != PROTOCOL:
            raise Fatal(f"the agent speaks version {excerpt(str(version), 40)} of the Agent Client Protocol, not {PROTOCOL}")
        self.name = text_field(fields_of(greeting.get("agentInfo")), "name")[:100] or self.name
        self._logins = [
            text_field(login, "name") or text_field(login, "id") for login in objects_of(greeting.get("authMethods"))
        ]

        reply = await self._request(program, "session/new", {"cwd": str(self.workspace), "mcpServers": []})
        self._session = text_field(reply, "sessionId")
        if not self._session:
            raise InvalidReply("the agent has opened a session without an id")

    async def prompt(self, program: RpcProgram, text: str) -> str:
        """Send a prompt, and return why the agent has stopped."""
        self._prompt, self.text = text, ""
        params = {"sessionId": self._session, "prompt": [{"type": "text", "text": text}]}
        reply = await self._request(program, "session/prompt", params)
        self._end_message()
        for name, count in fields_of(reply.get("usage")).items():
            if (unit := _COUNTS.get(name)) is not None and isinstance(count, int):
                self._counts[unit] = self._counts.get(unit, 0) + count
        reason = text_field(reply, "stopReason")
        if not reason:
            raise InvalidReply("the agent has ended a turn without a reason")
        return reason

    async def _request(self, program: RpcProgram, method: str, params: Message) -> Message:
        try:
            return await program.request(method, params)
        except RpcError as exc:
            if exc.code != _AUTH_REQUIRED:
                raise
            logins = f" ({excerpt(', '.join(self._logins), 300)})" if self._logins else ""
            raise AgentFailed(
                f"the agent asks for a login{logins}: start it once in a terminal and log in, then pass --agent-home own if "
                f"the run has a workspace, or set its API key in the environment. Its reason: {excerpt(str(exc), 300)}",
                HTTPStatus.UNAUTHORIZED,  # Every other attempt would fail, too.
            ) from exc

    def close(self) -> None:
        """Record what has not ended, and the usage that the agent has stated; an unknown cost is one call without a price."""
        unknown_cost: dict[str, float | str] = (
            {} if "cost" in self._counts else {"unpriced_calls": 1, "unpriced_model": self.name}
        )
        usage = {**priced_usage(self._counts, self.name, {}), **unknown_cost}
        self.steps.close(usage if self._session else {})  # Without a session, it cannot have called a model.

    async def answer(self, method: str, params: Message) -> Any:
        """Answer a request of the agent, or handle a notification."""
        match method:
            case "session/update":
                self._update(fields_of(params.get("update")))
                return None
            case "session/request_permission":
                return self._decide(params)
            case "fs/read_text_file" | "fs/write_text_file" if self.has_files:
                return await self._use_file(method, params)
            case _:
                raise RpcError(f"{method[:100]} is not offered", METHOD_NOT_FOUND)

    async def _use_file(self, method: str, params: Message) -> dict[str, Any]:
        path = text_field(params, "path")
        try:
            if method == "fs/write_text_file":
                await run_in_thread(partial(write_text, self.workspace, path, text_field(params, "content")))
                return {}
            line, limit = (value if isinstance(value := params.get(name), int) else None for name in ("line", "limit"))
            return {"content": await run_in_thread(partial(read_text, self.workspace, path, line, limit))}
        except FileRejected as exc:
            raise RpcError(f"{excerpt(path, 500)}: {exc}") from exc

    def _decide(self, params: Message) -> dict[str, Any]:
        """Return the answer of the policy to a request for a permission."""
        call = fields_of(params.get("toolCall"))
        earlier = self._calls.get(text_field(call, "toolCallId"), {})
        kind = text_field(call, "kind") or text_field(earlier, "kind")
        is_allowed = self.allow == "all" or (self.allow == "read" and kind in _READING)

        options = {text_field(option, "kind"): text_field(option, "optionId") for option in objects_of(params.get("options"))}
        verb = "allow" if is_allowed else "reject"
        option = options.get(f"{verb}_once") or options.get(f"{verb}_always")
        title = text_field(call, "title") or text_field(earlier, "title")

        self._end_message()
        answer = "allowed" if is_allowed and option else "rejected"
        self.steps.add("permission", "other", {"title": title, "kind": kind}, {"answer": answer, "policy": self.allow})
        return {"outcome": {"outcome": "selected", "optionId": option} if option else {"outcome": "cancelled"}}

    def _update(self, update: Message) -> None:
        match update.get("sessionUpdate"):
            case "agent_message_chunk":
                self._pieces.append(text_field(fields_of(update.get("content")), "text"))
            case "agent_thought_chunk":
                self._thoughts.append(text_field(fields_of(update.get("content")), "text"))
            case "tool_call" | "tool_call_update":
                self._update_call(text_field(update, "toolCallId"), update)
            case "plan":
                self.steps.add("plan", "other", None, update.get("entries"))
            case "usage_update":
                cost = fields_of(update.get("cost"))
                if cost.get("currency") == "USD" and isinstance(cost.get("amount"), int | float):
                    self._counts["cost"] = float(cost["amount"])
            case _:
                pass

    def _update_call(self, call_id: str, update: Mapping[str, Any]) -> None:
        self._end_message()
        fields = {name: update[name] for name in _CALL_FIELDS if update.get(name) is not None}
        call = self._calls.setdefault(call_id, {}) | fields
        self._calls[call_id] = call
        value = {name: call[name] for name in ("title", "rawInput", "locations") if name in call}
        self.steps.start(call_id, text_field(call, "kind") or "other", value)
        if call.get("status") in _ENDED:
            del self._calls[call_id]
            self.steps.end(call_id, {name: call[name] for name in ("status", "content", "rawOutput") if name in call})

    def _end_message(self) -> None:
        """Record the message so far as a reply of the model."""
        text, thoughts = "".join(self._pieces), "".join(self._thoughts)
        if not text and not thoughts:
            return
        self._pieces.clear()
        self._thoughts.clear()
        self.text = text or self.text
        output = text_blocks(text, *([{"type": "thinking", "thinking": thoughts}] if thoughts else []))
        messages = [{"role": "user", "content": self._prompt}] if self._prompt else []
        self._prompt = ""
        self.steps.add(self.name, "model", {"model": self.name, "messages": messages}, output)
