"""`evaljournal import --otlp`: a case of each trace in OTLP JSON, as the file exporter of a collector writes it, and we do.

The attributes are those of OpenTelemetry's conventions for generative AI and of OpenInference. The file is untrusted; what is
not recognized is omitted.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from evaljournal.replay.provider.messages import messages_of, reply_of
from evaljournal.replay.provider.reports import objects_of
from evaljournal.replay.text import as_text
from evaljournal.runner.data.traces import Message, annotation, case_of, documents
from evaljournal.runner.errors import UsageError

_MODEL: Final = {"LLM", "chat", "text_completion", "generate_content"}
_TOOL: Final = {"TOOL", "execute_tool"}
_PREFIX: Final = "evaljournal."


def cases(path: Path, expected: str | None) -> Iterator[dict[str, Any]]:
    """Yield the row of a case for each trace with a question."""
    traces = dict[str, list[Mapping[str, Any]]]()
    for document in documents(path):
        for span in _spans(document):
            traces.setdefault(as_text(span.get("traceId")), []).append(span)
    if not traces:
        raise UsageError("no spans; expected OTLP as JSON, with resourceSpans", path=path)
    for trace, spans in traces.items():
        spans.sort(key=lambda span: _integer(span.get("startTimeUnixNano")))

        ids = {as_text(span.get("spanId")) for span in spans}
        root = next((span for span in spans if as_text(span.get("parentSpanId")) not in ids), spans[0])
        root_attributes = _attributes(root.get("attributes"))
        in_order = [_attributes(span.get("attributes")) for span in spans]

        row = case_of(
            as_text(root_attributes.get(f"{_PREFIX}trial") or trace),
            _messages(root_attributes, in_order),
            annotation(expected, root_attributes, *in_order, _unprefixed(root_attributes)),
            output=_output(root_attributes),
        )
        if row is not None:
            yield row


def _messages(root: Mapping[str, Any], spans: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Return the conversation: what the root, or the first call of a model, was asked; then the answers and the tools."""
    models = [span for span in spans if _kind(span) & _MODEL]
    asked = next(filter(None, (_asked(span) for span in (root, *models))), [])
    messages = [message for message in asked if message["role"] != "assistant" or message["content"]]

    calls = list[dict[str, Any]]()
    for span in spans:
        if _kind(span) & _TOOL:
            name = span.get("gen_ai.tool.name") or span.get("tool.name")
            arguments = span.get("gen_ai.tool.call.arguments", span.get("input.value"))
            result = span.get("gen_ai.tool.call.result", span.get("output.value"))
            calls.append({"name": as_text(name), "arguments": _parsed(arguments), "result": as_text(result)})
        elif _kind(span) & _MODEL:
            answer = _output(span)
            messages.append({"role": "assistant", "content": "" if answer is None else as_text(answer)})

        if calls and messages and messages[-1]["role"] == "assistant":
            messages[-1].setdefault("tool_calls", []).extend(calls)
            calls = []
    if calls:
        messages.append({"role": "assistant", "content": "", "tool_calls": calls})
    return messages


def _asked(span: Mapping[str, Any]) -> list[Message]:
    messages = _parsed(span.get("gen_ai.input.messages"))
    if isinstance(messages, list):
        return [{"role": as_text(item.get("role")), "content": _parts_text(item)} for item in objects_of(messages)]
    value = _parsed(span.get("input.value"))
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    recorded = [{"role": item.role or "user", "content": item.text} for item in messages_of(value)]
    return recorded or ([] if value is None else [{"role": "user", "content": value}])


def _output(span: Mapping[str, Any]) -> Any:
    messages = _parsed(span.get("gen_ai.output.messages"))
    if isinstance(messages, list) and messages and isinstance(messages[-1], dict):
        return _parts_text(messages[-1])
    value = _parsed(span.get("output.value"))
    reply = reply_of(value) if isinstance(value, Mapping) else None
    return reply.text if reply is not None and (reply.text or reply.tool_calls) else value


def _parts_text(message: Mapping[str, Any]) -> str:
    parts = message.get("parts")
    if not isinstance(parts, list):
        return as_text(message.get("content") or "")
    texts = (part.get("content") for part in objects_of(parts) if part.get("type") == "text")
    return "\n".join(text for text in texts if isinstance(text, str))


def _kind(span: Mapping[str, Any]) -> set[Any]:
    return {as_text(span.get(name)) for name in ("openinference.span.kind", "gen_ai.operation.name")}


def _unprefixed(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name.removeprefix(_PREFIX): _parsed(value) for name, value in attributes.items() if name.startswith(_PREFIX)}


def _spans(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for resource in objects_of(document.get("resourceSpans")):
        for scope in objects_of(resource.get("scopeSpans")):
            yield from objects_of(scope.get("spans"))


def _attributes(items: Any) -> dict[str, Any]:
    return {as_text(item.get("key")): _value(item.get("value")) for item in objects_of(items)}


def _value(value: Any) -> Any:
    """Return an attribute's value; integers are texts in OTLP JSON."""
    kind, content = next(iter(value.items()), ("", None)) if isinstance(value, dict) else ("", None)
    match kind:
        case "intValue":
            return _integer(content)
        case "arrayValue":
            return [_value(item) for item in objects_of(content.get("values"))] if isinstance(content, dict) else None
        case "kvlistValue":
            return _attributes(content.get("values")) if isinstance(content, dict) else None
        case _:
            return content


def _parsed(value: Any) -> Any:
    """Return JSON that an attribute has as a text; any other text unchanged."""
    if not isinstance(value, str) or value[:1] not in {"{", "["}:
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return value


def _integer(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        return 0
