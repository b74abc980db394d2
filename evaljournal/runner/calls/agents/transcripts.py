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

from collections.abc import Iterable, Mapping
from contextlib import aclosing
from typing import Any, Final

import attrs
import orjson
import trio

from evaljournal.replay.provider.reports import fields_of, text_field
from evaljournal.replay.text import as_text
from evaljournal.runner.calls.agents.lines import read_lines
from evaljournal.runner.calls.agents.reported import AgentSteps, text_blocks
from evaljournal.runner.calls.attached import record_steps
from evaljournal.runner.calls.gateway_env import gateway_env
from evaljournal.runner.calls.http.reply import InvalidReply
from evaljournal.runner.calls.notes import note
from evaljournal.runner.calls.usage import priced_usage
from evaljournal.runner.secrets.masking import excerpt

_MAX_SHOWN: Final = 300


class AgentFailed(Exception):
    """The agent reports that it has failed."""

    def __init__(self, message: str, status_code: int | None = None) -> None:
        super().__init__(message)
        self.status_code = status_code
        """The status of the reply that it failed with; None if it is unknown."""


class Transcript:
    """What an agent has printed so far."""

    program: str
    """Stands for a model whose name is unknown."""

    def __init__(self, steps: AgentSteps) -> None:
        self.steps = steps
        self.failure: Exception | None = None
        """Why the agent has failed; None if it has not."""
        self.usage: dict[str, float | str] = {}
        """Tokens and cost of the attempt; empty if they are unknown."""
        self._text: str | None = None
        """The final text; None before the end of the transcript."""
        self._first_line = b""

    async def read(self, stdout: trio.abc.ReceiveStream) -> None:
        """Read the transcript to its end."""
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
        """Read a line."""
        raise NotImplementedError

    def output(self) -> str:
        """Return the final text; raise the failure of the agent, or an `InvalidReply` if the transcript has no end."""
        if self.failure is not None:
            raise self.failure
        if self._text is None:
            printed = excerpt(self._first_line.decode("utf-8", "replace"), _MAX_SHOWN)
            raise InvalidReply(f"stdout is no complete transcript of {self.program}; it begins with {printed!r}")
        return self._text

    def end(self) -> None:
        """Record what has not ended, and the usage."""
        self.steps.close()
        if self.usage and self.steps.is_recorded:
            note(usage=self.usage)

    def _fail(self, message: object, status_code: object = None) -> None:
        text = excerpt(as_text(message), 2_000) or "no reason stated"
        self.failure = AgentFailed(text, status_code if isinstance(status_code, int) else None)

    def _add_usage(self, counts: Mapping[str, Any], model: str, cached: object = None) -> None:
        if cached is not None:
            counts = {**counts, "input_tokens_details": {"cached_tokens": cached}}
        self.usage = priced_usage(counts, model or self.program, {})


@attrs.define
class _Message:
    id: str
    model: str
    parts: list[Any]
    printed_at: float


class ClaudeTranscript(Transcript):
    """A transcript of Claude Code. A message is printed in several lines, one for each part of it."""

    program = "claude"

    def __init__(self, steps: AgentSteps) -> None:
        super().__init__(steps)
        self._messages: dict[str, _Message] = {}
        """Tool call of a subagent, or nothing for the agent → its last message, until it is recorded."""

    def end(self) -> None:
        """Record what has not ended, and the usage."""
        for parent in list(self._messages):
            self._end_message(parent)
        super().end()

    def read_event(self, event: Mapping[str, Any]) -> None:
        """Read a line."""
        parent, message = text_field(event, "parent_tool_use_id"), fields_of(event.get("message"))
        match event.get("type"):
            case "assistant":
                self._add_message(parent, message)
            case "user":
                self._end_message(parent)
                for part in _objects(message.get("content")):
                    if part.get("type") == "tool_result":
                        error = {"is_error": True} if part.get("is_error") is True else {}
                        output = part.get("content")
                        self.steps.end(text_field(part, "tool_use_id"), {"content": output, **error} if error else output)
            case "result":
                self._end(event)
            case _:
                pass

    def _add_message(self, parent: str, message: Mapping[str, Any]) -> None:
        message_id = text_field(message, "id")
        if parent in self._messages and self._messages[parent].id != message_id:
            self._end_message(parent)
        if parent not in self._messages:
            self.steps.count()
            self._messages[parent] = _Message(message_id, text_field(message, "model"), [], 0.0)
        self._messages[parent].printed_at = trio.current_time()
        for part in _objects(message.get("content")):
            self._messages[parent].parts.append(part)
            if part.get("type") == "tool_use":
                self.steps.start(text_field(part, "id"), text_field(part, "name"), part.get("input"), parent)

    def _end_message(self, parent: str) -> None:
        if (message := self._messages.pop(parent, None)) is not None:
            name, output = message.model or self.program, {"role": "assistant", "content": message.parts}
            self.steps.add(name, "model", {"model": name}, output, parent, ended_at=message.printed_at)

    def _end(self, result: Mapping[str, Any]) -> None:
        for parent in list(self._messages):
            self._end_message(parent)
        self._text = text_field(result, "result")
        counts, models = fields_of(result.get("usage")), fields_of(result.get("modelUsage"))
        if counts:
            cost = {"cost": result["total_cost_usd"]} if "total_cost_usd" in result else {}
            self._add_usage({**counts, **cost}, next(iter(models), ""))
        if result.get("is_error") is True:
            reason = self._text or as_text(result.get("errors") or result.get("subtype") or "")
            self._fail(reason, result.get("api_error_status"))


class CodexTranscript(Transcript):
    """A transcript of Codex."""

    program = "codex"

    def __init__(self, steps: AgentSteps) -> None:
        super().__init__(steps)
        self._message = ""

    def read_event(self, event: Mapping[str, Any]) -> None:
        """Read a line."""
        item = dict(fields_of(event.get("item")))
        item_id, kind = text_field(item, "id"), text_field(item, "type")
        match event.get("type"):
            case "item.started" if kind not in ("agent_message", "reasoning"):
                self.steps.start(item_id, kind, _input_of(item))
            case "item.completed":
                self._end_item(item_id, kind, item)
            case "turn.completed":
                self._text = self._message
                counts = fields_of(event.get("usage"))
                self._add_usage(counts, "", counts.get("cached_input_tokens", 0))
            case "turn.failed" | "error":
                self._fail(fields_of(event.get("error")).get("message") or event.get("message"))
            case _:
                pass

    def _end_item(self, item_id: str, kind: str, item: dict[str, Any]) -> None:
        match kind:
            case "agent_message":
                self._message = text_field(item, "text")
                self.steps.add(self.program, "model", {"model": self.program}, text_blocks(self._message))
            case "reasoning" | "error":  # A warning; the failure of a turn is an event.
                pass
            case _:
                if not self.steps.has_started(item_id):
                    self.steps.start(item_id, kind, _input_of(item))
                self.steps.end(item_id, {name: value for name, value in item.items() if name not in ("id", "type")})


def _input_of(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a tool was asked, without what it has returned."""
    names = ("command", "server", "tool", "arguments", "query", "changes", "items")
    return {name: item[name] for name in names if name in item}


class GeminiTranscript(Transcript):
    """A transcript of Gemini CLI, which prints the replies of its model in pieces."""

    program = "gemini"

    def __init__(self, steps: AgentSteps) -> None:
        super().__init__(steps)
        self._model = ""
        self._pieces: list[str] = []
        self._message = ""

    def read_event(self, event: Mapping[str, Any]) -> None:
        """Read a line."""
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
                self._text, stats = self._message, fields_of(event.get("stats"))
                if stats:
                    self._add_usage(stats, self._model, stats.get("cached", 0))
                if event.get("status") != "success":
                    self._fail(fields_of(event.get("error")).get("message") or event.get("status"))
            case _:
                pass

    def _end_message(self) -> None:
        if text := "".join(self._pieces):
            self._message = text
            self._pieces.clear()
            self.steps.add(self._model or self.program, "model", {"model": self._model}, text_blocks(text))


def _objects(value: object) -> Iterable[Mapping[str, Any]]:
    return [part for part in value if isinstance(part, dict)] if isinstance(value, list) else []


TRANSCRIPTS: Final[Mapping[str, type[Transcript]]] = {
    "claude-stream-json": ClaudeTranscript,
    "codex-jsonl": CodexTranscript,
    "gemini-stream-json": GeminiTranscript,
}
"""Output format → its reader."""


def new_transcript(output_format: str) -> Transcript:
    """Return the reader of a transcript, whose steps are recorded unless the calls of the agent go through the gateway."""
    return TRANSCRIPTS[output_format](AgentSteps(None if gateway_env() else record_steps))
