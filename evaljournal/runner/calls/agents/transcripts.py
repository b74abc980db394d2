"""What coding agents print as JSON lines: replies of their model and tool calls, as steps; the final text, as the output.

| output format | printed by |
|---|---|
| `claude-stream-json` | `claude -p --output-format stream-json --verbose` |
| `codex-jsonl` | `codex exec --json` |
| `gemini-stream-json` | `gemini -p --output-format stream-json` |

Tokens and cost are those of the whole attempt, which each of them states at its end: Claude Code prints a message before its
last token was counted. Codex states no cost. Everything printed is untrusted: a line that is not JSON, or of an unknown type,
is ignored, because all three print warnings, and add types; without the line that ends a transcript, the attempt fails.
"""

from collections.abc import Mapping
from contextlib import aclosing
from typing import Any, Final

import attrs
import orjson
import trio

from evaljournal.replay.provider.reports import fields_of, objects_of, text_field
from evaljournal.replay.text import as_text
from evaljournal.runner.calls.agents.reported import AgentSteps, read_lines, text_blocks
from evaljournal.runner.calls.http.reply import InvalidReply
from evaljournal.runner.calls.usage import priced_usage
from evaljournal.runner.secrets.masking import excerpt

_MAX_SHOWN: Final = 300
_NO_CALLS: Final = ("agent_message", "reasoning", "error")
"""Items of Codex that are no tool calls; an error is a warning, because the failure of a turn is an event."""
_INPUTS: Final = ("command", "server", "tool", "arguments", "query", "changes", "items")
"""What a tool of Codex is asked; the other fields of an item are what it has returned."""


class AgentFailed(Exception):
    def __init__(self, message: str, status_code: int | None = None) -> None:
        super().__init__(message)
        self.status_code = status_code
        """The status of the reply that it failed with; None if it is unknown."""


class Transcript:
    """What an agent has printed so far."""

    program: str
    """Stands for a model whose name is unknown."""

    def __init__(self) -> None:
        self.steps = AgentSteps()
        self.failure: Exception | None = None
        self.text: str | None = None
        """The final text; None before the end of the transcript."""
        self.usage: dict[str, float | str] = {}
        """Tokens and cost of the attempt; empty if they are unknown."""
        self._first_line = b""

    async def read(self, stdout: trio.abc.ReceiveStream) -> None:
        async with aclosing(read_lines(stdout)) as lines:
            async for line in lines:
                self._first_line = self._first_line or line[:_MAX_SHOWN]
                try:
                    event = orjson.loads(line)
                except ValueError:
                    continue
                if isinstance(event, dict):
                    self.read_event(event)

    def read_event(self, event: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def output(self) -> str:
        """Return the final text; raise the failure of the agent, or an `InvalidReply` if the transcript has no end."""
        if self.failure is not None:
            raise self.failure
        if self.text is None:
            printed = excerpt(self._first_line.decode("utf-8", "replace"), _MAX_SHOWN)
            raise InvalidReply(f"stdout is no complete transcript of {self.program}; it begins with {printed!r}")
        return self.text

    def end(self) -> None:
        """Record what has not ended, and the usage."""
        self.steps.close(self.usage)

    def fail(self, message: object, status_code: object = None) -> None:
        text = excerpt(as_text(message), 2_000) or "no reason stated"
        self.failure = AgentFailed(text, status_code if isinstance(status_code, int) else None)


@attrs.define
class _Message:
    id: str
    model: str
    parts: list[Any]
    printed_at: float


class ClaudeTranscript(Transcript):
    """A transcript of Claude Code. A message is printed in several lines, one for each part of it."""

    program = "claude"

    def __init__(self) -> None:
        super().__init__()
        self._messages: dict[str, _Message] = {}
        """Tool call of a subagent, or nothing for the agent → its last message, until it is recorded."""

    def end(self) -> None:
        for parent in list(self._messages):
            self._end_message(parent)
        super().end()

    def read_event(self, event: Mapping[str, Any]) -> None:
        parent, message = text_field(event, "parent_tool_use_id"), fields_of(event.get("message"))
        match event.get("type"):
            case "assistant":
                self._add_message(parent, message)
            case "user":
                self._end_message(parent)
                for part in objects_of(message.get("content")):
                    if part.get("type") == "tool_result":
                        output, is_error = part.get("content"), part.get("is_error") is True
                        value = {"content": output, "is_error": True} if is_error else output
                        self.steps.end(text_field(part, "tool_use_id"), value)
            case "result":
                self._end(event)
            case _:
                pass

    def _add_message(self, parent: str, message: Mapping[str, Any]) -> None:
        message_id, last_message = text_field(message, "id"), self._messages.get(parent)
        if last_message is None or last_message.id != message_id:
            self._end_message(parent)
            self.steps.count()
            last_message = self._messages[parent] = _Message(message_id, text_field(message, "model"), [], 0.0)
        last_message.printed_at = trio.current_time()
        for part in objects_of(message.get("content")):
            last_message.parts.append(part)
            if part.get("type") == "tool_use":
                self.steps.start(text_field(part, "id"), text_field(part, "name"), part.get("input"), parent)

    def _end_message(self, parent: str) -> None:
        if (message := self._messages.pop(parent, None)) is not None:
            name, output = message.model or self.program, {"role": "assistant", "content": message.parts}
            self.steps.add(name, "model", {"model": name}, output, parent, ended_at=message.printed_at)

    def _end(self, result: Mapping[str, Any]) -> None:
        self.text = text_field(result, "result")
        if counts := fields_of(result.get("usage")):
            cost = {"cost": result["total_cost_usd"]} if "total_cost_usd" in result else {}
            models = fields_of(result.get("modelUsage"))
            self.usage = priced_usage({**counts, **cost}, next(iter(models), "") or self.program, {})
        if result.get("is_error") is True:
            reason = self.text or as_text(result.get("errors") or result.get("subtype") or "")
            self.fail(reason, result.get("api_error_status"))


class CodexTranscript(Transcript):
    program = "codex"
    _message = ""

    def read_event(self, event: Mapping[str, Any]) -> None:
        item = dict(fields_of(event.get("item")))
        item_id, kind = text_field(item, "id"), text_field(item, "type")
        match event.get("type"):
            case "item.completed" if kind == "agent_message":
                self._message = text_field(item, "text")
                self.steps.add(self.program, "model", {"model": self.program}, text_blocks(self._message))
            case "item.started" | "item.completed" as event_type if kind not in _NO_CALLS:
                self.steps.start(item_id, kind, {name: item[name] for name in _INPUTS if name in item})
                if event_type == "item.completed":
                    self.steps.end(item_id, {name: value for name, value in item.items() if name not in ("id", "type")})
            case "turn.completed":
                self.text = self._message
                counts = fields_of(event.get("usage"))
                self.usage = priced_usage(_with_cached(counts, "cached_input_tokens"), self.program, {})
            case "turn.failed" | "error":
                self.fail(fields_of(event.get("error")).get("message") or event.get("message"))
            case _:
                pass


class GeminiTranscript(Transcript):
    """A transcript of Gemini CLI, which prints the replies of its model in pieces."""

    program = "gemini"

    def __init__(self) -> None:
        super().__init__()
        self._model = ""
        self._pieces: list[str] = []
        self._message = ""

    def read_event(self, event: Mapping[str, Any]) -> None:
        call_id = text_field(event, "tool_id")
        match event.get("type"):
            case "init":
                self._model = text_field(event, "model")
            case "message" if event.get("role") == "assistant":
                self._pieces.append(text_field(event, "content"))
            case "tool_use":
                self._end_message()
                self.steps.start(call_id, text_field(event, "tool_name"), event.get("parameters"))
            case "tool_result":
                self.steps.end(call_id, event.get("error") or event.get("output"))
            case "result":
                self._end_message()
                self.text = self._message
                if stats := fields_of(event.get("stats")):
                    self.usage = priced_usage(_with_cached(stats, "cached"), self._model or self.program, {})
                if event.get("status") != "success":
                    self.fail(fields_of(event.get("error")).get("message") or event.get("status"))
            case _:
                pass

    def _end_message(self) -> None:
        if text := "".join(self._pieces):
            self._message = text
            self._pieces.clear()
            self.steps.add(self._model or self.program, "model", {"model": self._model}, text_blocks(text))


def _with_cached(counts: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return counts of tokens with that of the cached ones, which the others include, where OpenAI's API has it."""
    return {**counts, "input_tokens_details": {"cached_tokens": counts.get(name, 0)}}


TRANSCRIPTS: Final[Mapping[str, type[Transcript]]] = {
    "claude-stream-json": ClaudeTranscript,
    "codex-jsonl": CodexTranscript,
    "gemini-stream-json": GeminiTranscript,
}
