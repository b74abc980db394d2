"""The steps of a run on a page, and the calls of its judges.

A page has at most `MAX_STEPS` steps, and at most `MAX_CHARS` characters of their inputs and outputs, and of the prompts and
replies of judges; the fewer remain, the fewer a value gets. A step that continues a conversation has only the new messages. A
reused step has no content of its own; it names the record of the completed step.
"""

from typing import Any, Final

import orjson

from evaljournal.journal import Blob, events
from evaljournal.journal.errors import BlobDamaged
from evaljournal.journal.format import blobs
from evaljournal.replay.index import Index
from evaljournal.replay.page.page_text import Text, page_text, visible_text
from evaljournal.replay.provider.messages import Message, messages_of, reply_of
from evaljournal.replay.state.usage import is_amount
from evaljournal.replay.text import as_text, printable

MAX_STEPS: Final = 200_000
MAX_CHARS: Final = 32 << 20
KINDS: Final = ("model", "tool", "other")
_SHARE: Final = 128
"""One value gets at most 1/128 of the remaining characters."""
_MIN_CHARS: Final = 40
_MAX_MESSAGES: Final = 50
"""Maximum messages of a step, and tool calls of a message."""
_NAME_CHARS: Final = 200
_ERROR_CHARS: Final = 1_000
_MAX_UNITS: Final = 8
"""Maximum amounts of usage per step."""


class PageSteps:
    """The steps that have ended, one entry for each."""

    def __init__(self, index: Index) -> None:
        self._rows = index.add_table("page_steps", ("seq", "name_number", "content"))
        """Record of a step, number of its name, and its content as JSON; everything else is in the table `steps`."""
        self._judge_calls = index.add_table("page_judge_calls", ("seq", "span", "content"))
        self._count = self.judge_calls = 0
        self.names: dict[str, int] = {}
        self.omitted = 0
        self._remaining_chars = MAX_CHARS

    def __len__(self) -> int:
        return self._count

    def add(self, event: events.StepEvent, seq: int, length: int) -> None:
        """Add a step that the record `seq` ends; each of its values gets at most `length` characters."""
        if len(self) >= MAX_STEPS:
            self.omitted += 1
            return
        number, content = 0, None
        if not isinstance(event, events.StepReused):
            number = self.names.setdefault(printable(event.name, _NAME_CHARS), len(self.names))
            content = orjson.dumps(self._content(event, length))
        self._rows.append((seq, number, content))
        self._count += 1

    def _content(self, event: events.StepCompleted | events.StepFailed, length: int) -> dict[str, Any] | None:
        content: dict[str, Any] = {}
        if isinstance(event, events.StepReplayed):
            content["replayed"] = 1
        if event.continues:
            content["continues"] = event.continues
        if isinstance(event, events.StepFailed):
            content["error"] = f"{event.error}: {event.message}"[:_ERROR_CHARS]
        elif isinstance(event.usage, dict):
            amounts = {printable(name, 40): value for name, value in event.usage.items() if is_amount(value)}
            content["usage"] = dict(list(amounts.items())[:_MAX_UNITS])
        length = min(length, self._remaining_chars // _SHARE)
        if length < _MIN_CHARS:
            content["shortened"] = 1
            return content
        is_model = event.kind == "model"
        messages = messages_of(event.input) if is_model and isinstance(event.input, dict) else []
        if messages and isinstance(event.input, dict):
            has_prompt = event.continues and any(event.input.get(name) for name in ("system", "instructions"))
            content["messages"] = self._messages(messages[1:] if has_prompt else messages, length)  # The prompt is the same.
        else:
            content["input"] = self._text(event.input, length)
        if isinstance(event, events.StepCompleted):
            reply = reply_of(event.output) if is_model and not isinstance(event.output, Blob) else None
            name = "output" if reply is None else "reply"
            content[name] = self._text(event.output, length) if reply is None else self._message(reply, length)
        return content

    def add_judge_call(self, value: Any, span: int, seq: int, length: int) -> None:
        """Add the prompt and the reply of a judge."""
        if isinstance(value, Blob):
            try:
                value = orjson.loads(blobs.content(value))
            except (BlobDamaged, OSError, ValueError):
                value = None
        call = value if isinstance(value, dict) else {}
        length = min(length, self._remaining_chars // _SHARE)
        content: dict[str, Any] = {name: as_text(call.get(name, ""))[:_NAME_CHARS] for name in ("scorer", "model")}
        if call and length >= _MIN_CHARS:
            texts = {name: call[name] for name in ("prompt", "reminder", "reply") if name in call}
            content |= {name: self._text(text, length) for name, text in texts.items()}
        self._judge_calls.append((seq, span, orjson.dumps(content)))
        self.judge_calls += 1

    def _messages(self, messages: list[Message], length: int) -> list[Any]:
        """Return the last messages."""
        omitted_count = max(0, len(messages) - _MAX_MESSAGES)
        omission = [["", f"({omitted_count:,} earlier messages)"]] if omitted_count else []
        return omission + [self._message(message, length) for message in messages[omitted_count:]]

    def _message(self, message: Message, length: int) -> list[Any]:
        """Return the role and the text of a message, its tool calls (name, arguments and id), and the id that it answers."""
        calls = [
            (call.name[:_NAME_CHARS], self._text(call.arguments, length), call.id[:_NAME_CHARS])
            for call in message.tool_calls[:_MAX_MESSAGES]
        ]
        parts = [message.role[:_MIN_CHARS], self._text(message.text, length), calls, message.call_id[:_NAME_CHARS]]
        return parts if parts[3] else parts[:3] if calls else parts[:2]

    def _text(self, value: Any, length: int) -> Text:
        """Return a value after subtracting its length from the remaining characters; it gets no more than a share of them."""
        text = page_text(value, max(_MIN_CHARS, min(length, self._remaining_chars // _SHARE)))
        self._remaining_chars -= len(visible_text(text))
        return text
