"""OpenAI's Responses API. Nothing is stored at the provider: each call sends the whole conversation."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from evaljournal.replay.provider.reports import fields_of, text_field
from evaljournal.replay.text import as_text
from evaljournal.runner.calls.dialects import completions
from evaljournal.runner.calls.dialects.completions import Completions
from evaljournal.runner.calls.dialects.dialect import Answer, AnswerOutcome, ChatRequest, without_none
from evaljournal.runner.calls.endpoint import raise_error_in
from evaljournal.runner.calls.http.reply import EmptyReply, ErrorReply, IncompleteReply, InvalidReply
from evaljournal.runner.errors import UsageError
from evaljournal.runner.secrets.masking import excerpt

IDENTITY_FIELDS: Final = completions.IDENTITY_FIELDS | {"client_metadata"}
_CLIENT_ROLES: Final = frozenset({"developer", "system", "user"})
_LAST_EVENTS: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})


class Responses(Completions):
    """OpenAI's Responses API, which has the addresses and keys of its chat completions."""

    first_token = re.compile(rb'"response\.[\w.]{1,99}\.delta"')

    def path(self, _model: str, *, stream: bool) -> str:
        del stream
        return "/responses"

    def body(self, request: ChatRequest) -> dict[str, Any]:
        if request.seed is not None:
            raise UsageError("the Responses API has no seed; remove model-seed (seed)")

        json_schema = {"type": "json_schema", "name": "output", "strict": True, "schema": request.schema}
        parameters = {
            "temperature": request.temperature,
            "max_output_tokens": request.max_tokens,
            "reasoning": None if request.effort is None else {"effort": request.effort},
            "text": None if request.schema is None else {"format": json_schema},
            "stream": request.stream or None,
        }

        return {
            "model": request.model,
            "input": [item for message in request.messages for item in _items(message)],
            "store": False,
            **without_none(parameters),
        }

    def read(self, reply: Any) -> Answer:
        if not isinstance(reply, Mapping) or not isinstance(reply.get("output"), list):
            raise InvalidReply(f"the reply is not a response: {excerpt(as_text(reply), 200)!r}")
        status, items = str(reply.get("status", "completed")), [item for item in reply["output"] if isinstance(item, Mapping)]
        if status == "failed":
            raise ErrorReply("the response has failed, and names no error")

        messages = [item for item in items if item.get("type") == "message"]
        calls = [_tool_call(item) for item in items if item.get("type") == "function_call"]
        parts = [part for message in messages for part in _parts(message)]
        texts, refusals = _texts(parts, "output_text", "text"), _texts(parts, "refusal", "refusal")
        if status not in {"completed", "incomplete"} or (status == "completed" and not texts and not refusals and not calls):
            types = ", ".join(sorted({str(item.get("type")) for item in items})) or "none"
            raise EmptyReply(f"the response has no answer: its status is {status!r}, its items: {excerpt(types, 200)}")

        reason = text_field(fields_of(reply.get("incomplete_details")), "reason")
        incomplete: AnswerOutcome = "declined" if reason == "content_filter" else "truncated"
        return Answer(
            text="".join(texts) or "".join(refusals),
            tool_calls=calls,
            outcome="declined" if refusals else "complete" if status == "completed" else incomplete,
            finish_reason=reason,
            model=text_field(reply, "model"),
            service_tier=text_field(reply, "service_tier"),
            usage=reply.get("usage"),
        )

    def read_stream(self, chunks: Iterable[Any]) -> Answer:
        """Return the answer in the response of the last event."""
        items: list[Any] = []

        for chunk in chunks:
            event = chunk.get("type") if isinstance(chunk, Mapping) else None
            if not isinstance(event, str):
                raise InvalidReply(f"an event of the stream has no type: {excerpt(as_text(chunk), 200)!r}")
            if event == "error":
                raise ErrorReply(f"the stream ended with an error: {excerpt(as_text(chunk), 500)}", chunk)
            if event == "response.output_item.done":
                items.append(chunk.get("item"))
            elif event in _LAST_EVENTS:
                response = chunk.get("response")
                raise_error_in(response, "error")
                if isinstance(response, Mapping) and response.get("output") == []:  # Some gateways send the items only once.
                    response = {**response, "output": items}
                return self.read(response)
        raise IncompleteReply("the stream ended without its last event")


def _items(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the input items for a message: the message, its tool calls, or the result of one."""
    role, content = message.get("role"), message.get("content")
    if role == "tool":
        yield {"type": "function_call_output", "call_id": message.get("tool_call_id"), "output": _content(content)}
        return

    if content or not message.get("tool_calls"):
        if role == "assistant" and isinstance(content, list):  # Parts would need the ids of the response.
            content = "".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))
        yield {"role": role, "content": _content(content)}

    for call in message.get("tool_calls") or ():
        match call:
            case {"id": str() as call_id, "function": {"name": str() as name, "arguments": str() as arguments}}:
                yield {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}
            case _:
                raise UsageError(f"a message has an invalid tool call: {excerpt(as_text(call), 200)!r}")


def _content(content: Any) -> Any:
    """Convert the parts of a message; a part of the Responses API stays as it is."""
    return [_part(part) for part in content] if isinstance(content, list) else content


def _part(part: Any) -> Any:
    match part:
        case {"type": "text", "text": text}:
            return {"type": "input_text", "text": text}
        case {"type": "image_url", "image_url": {"url": url, **options}}:
            return {"type": "input_image", "image_url": url, "detail": "auto", **options}
        case {"type": "file", "file": Mapping() as file}:
            return {"type": "input_file", **file}
        case _:
            return part


def _parts(message: Mapping[str, Any]) -> list[Any]:
    content = message.get("content")
    if not isinstance(content, list):
        raise InvalidReply(f"the reply is not a response: the content of a message is {excerpt(as_text(content), 200)!r}")
    return content


def _texts(parts: Sequence[Any], part_type: str, name: str) -> list[str]:
    """Return the texts of all parts of a type; other parts are skipped."""
    texts = [part.get(name) for part in parts if isinstance(part, Mapping) and part.get("type") == part_type]
    if not all(isinstance(text, str) for text in texts):
        raise InvalidReply(f"the reply is not a response: a part has no text: {excerpt(as_text(parts), 200)!r}")
    return [str(text) for text in texts]


def _tool_call(item: Mapping[str, Any]) -> dict[str, Any]:
    match item:
        case {"call_id": str() as call_id, "name": str() as name, "arguments": str() as arguments}:
            return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        case _:
            raise InvalidReply(f"the reply is not a response: a tool call is {excerpt(as_text(item), 200)!r}")


def is_client_item(item: Any) -> bool:
    """Return whether the client has made an item of the input: a message that is not the model's, or the output of a tool.

    The `id` of such an item is new in every process. Those of other items are in earlier replies.
    """
    if not isinstance(item, dict):
        return False
    return item.get("role") in _CLIENT_ROLES or text_field(item, "type").endswith("_output")
