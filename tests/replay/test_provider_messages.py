"""Messages and tool calls in recorded requests and replies of models."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaljournal.replay.provider.messages import Message, ToolCall, finish_reason_of, messages_of, reply_of

CALL = ToolCall("weather", {"city": "Lima"}, "c1")
FUNCTION = {"name": "weather", "arguments": '{"city": "Lima"}'}
CHAT = {"role": "assistant", "content": "Let me see.", "tool_calls": [{"id": "c1", "type": "function", "function": FUNCTION}]}
RESPONSES = [
    {"type": "reasoning", "summary": []},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me see."}]},
    {"type": "function_call", "call_id": "c1", "id": "f1", **FUNCTION},
]
ANTHROPIC = {
    "role": "assistant",
    "content": [
        {"type": "thinking", "thinking": "hm"},
        {"type": "text", "text": "Let me see."},
        {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Lima"}},
    ],
}

FUNCTION_CALL = {"id": "c1", "name": "weather", "args": {"city": "Lima"}}
GEMINI = {
    "role": "model",
    "parts": [{"text": "hm", "thought": True}, {"text": "Let me see."}, {"functionCall": FUNCTION_CALL}],
}
GEMINI_SDK = [{"text": "Let me see.", "function_call": None}, {"text": None, "function_call": FUNCTION_CALL}]


def stream(*events: Any) -> str:
    """Return a recorded stream of server-sent events."""
    return "".join(f"event: x\ndata: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"


def delta(**fields: Any) -> dict[str, Any]:
    """Return a piece of a streamed chat completion."""
    return {"choices": [{"index": 0, "delta": fields}]}


STREAMED_CHAT = stream(
    delta(role="assistant", content="Let me"),
    delta(content=" see."),
    delta(tool_calls=[{"index": 0, "id": "c1", "function": {"name": "weather", "arguments": '{"city"'}}]),
    delta(tool_calls=[{"index": 0, "function": {"arguments": ': "Lima"}'}}]),
    {"choices": [], "usage": {"prompt_tokens": 1}},
)
STREAMED_RESPONSES = stream(
    {"type": "response.output_text.delta", "delta": "Let me"},
    {"type": "response.completed", "response": {"output": RESPONSES}},
)
STREAMED_ANTHROPIC = stream(
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Let me see."}},
    {
        "type": "content_block_start",
        "index": 1,
        "content_block": {"type": "tool_use", "id": "c1", "name": "weather", "input": {}},
    },
    {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"city": '}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '"Lima"}'}},
    {"type": "message_stop"},
)
STREAMED_GEMINI = stream(
    *({"candidates": [{"content": {"parts": [{"text": text}]}}]} for text in ("Let me", " see.")),
    {"candidates": [{"content": {"parts": [{"functionCall": FUNCTION_CALL}]}}]},
    {"candidates": [{"content": {"role": "model", "parts": [{"text": ""}]}, "finishReason": "STOP"}]},
)


@pytest.mark.parametrize("is_http", [False, True])
@pytest.mark.parametrize(
    "reply",
    [
        {"choices": [{"message": CHAT}]},
        {"choices": [{"index": 1, "message": {"role": "assistant", "content": "No."}}, {"index": 0, "message": CHAT}]},
        {"output": RESPONSES},
        ANTHROPIC,
        CHAT,
        STREAMED_CHAT,
        STREAMED_RESPONSES,
        STREAMED_ANTHROPIC,
        {"candidates": [{"content": GEMINI, "finishReason": "STOP"}]},
        {"candidates": [{"content": {"parts": GEMINI_SDK}, "finish_reason": "STOP"}]},
        STREAMED_GEMINI,
    ],
)
def test_replies(reply: Any, is_http: bool) -> None:  # noqa: FBT001
    """Text and tool calls are read from every API, streamed or not."""
    recorded = {"status": 200, "content-type": "application/json", "body": reply} if is_http else reply

    assert Message("assistant", "Let me see.", (CALL,)) == reply_of(recorded)


def test_the_first_choice_of_a_stream() -> None:
    """Of a stream with several choices, only the one with index 0 is the reply, whatever their order is."""
    other = {"index": 1, "delta": {"content": "no"}, "finish_reason": "length"}
    last = {"index": 0, "delta": {"content": "a\u2028"}, "finish_reason": "stop"}
    chunks = (delta(content="Lim"), {"choices": [other]}, {"choices": [other, last]}, {"choices": [other]})
    recorded = "\ufeff" + stream(*chunks).replace("\\u2028", "\u2028")

    assert (Message("assistant", "Lima\u2028"), "stop") == (reply_of(recorded), finish_reason_of(recorded))


def test_a_text_is_a_reply() -> None:
    """A step that returns the text of a reply has no tool calls."""
    assert Message("assistant", "Lima") == reply_of("Lima")


@pytest.mark.parametrize(
    ("request_body", "expected"),
    [
        (
            {"messages": [{"role": "user", "content": "Q"}, CHAT, {"role": "tool", "tool_call_id": "c1", "content": "18 °C"}]},
            [Message("user", "Q"), Message("assistant", "Let me see.", (CALL,)), Message("tool", "18 °C", (), "c1")],
        ),
        (
            {
                "system": "Be brief.",
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "Q"}, {"type": "image", "source": {}}]},
                    ANTHROPIC,
                    {
                        "role": "user",
                        "content": [
                            {"type": "tool_result", "tool_use_id": "c1", "content": "18 °C"},
                            {"type": "tool_result", "tool_use_id": "c2", "content": [{"type": "text", "text": "sunny"}]},
                            {"type": "text", "text": "Go on."},
                        ],
                    },
                ],
            },
            [
                Message("system", "Be brief."),
                Message("user", "Q\n(image)"),
                Message("assistant", "Let me see.", (CALL,)),
                Message("tool", "18 °C", (), "c1"),
                Message("tool", "sunny", (), "c2"),
                Message("user", "Go on."),
            ],
        ),
        (
            {
                "instructions": "Be brief.",
                "input": [
                    {"role": "user", "content": "Q"},
                    RESPONSES[2],
                    {"type": "function_call_output", "call_id": "c1", "output": "18 °C"},
                ],
            },
            [
                Message("system", "Be brief."),
                Message("user", "Q"),
                Message("assistant", "", (CALL,)),
                Message("tool", "18 °C", (), "c1"),
            ],
        ),
        (
            {
                "systemInstruction": {"parts": [{"text": "Be brief."}]},
                "contents": [
                    {"role": "user", "parts": [{"text": "Q"}, {"inlineData": {"mimeType": "image/png", "data": "A"}}]},
                    GEMINI,
                    {
                        "role": "user",
                        "parts": [
                            {"functionResponse": {"id": "c1", "name": "weather", "response": {"result": "18 °C"}}},
                            {"functionResponse": {"id": "c2", "name": "weather", "response": {"sky": "clear"}}},
                            {"text": "Go on."},
                        ],
                    },
                ],
            },
            [
                Message("system", "Be brief."),
                Message("user", "Q\n(inlineData)"),
                Message("assistant", "Let me see.", (CALL,)),
                Message("tool", "18 °C", (), "c1"),
                Message("tool", '{"sky":"clear"}', (), "c2"),
                Message("user", "Go on."),
            ],
        ),
        ({"input": "Q"}, [Message("user", "Q")]),
        ({"question": "Q"}, []),
        ("Q", []),
    ],
)
def test_requests(request_body: Any, expected: list[Message]) -> None:
    """Messages are read from the requests of every API; the results of tools have the ids of their calls."""
    assert expected == messages_of(request_body)


KEYS = ["choices", "message", "delta", "content", "tool_calls", "function", "name", "arguments", "output", "type", "role"]
KEYS += ["candidates", "contents", "parts", "systemInstruction", "functionCall", "functionResponse", "finishReason"]
KEYS += ["status", "body", "messages", "input", "system", "text", "content_block", "index", "response"]
TYPES = ["function_call", "tool_use", "tool_result", "text", "response.completed", "function_call_output"]
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(TYPES) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=20,
)


@given(ANY_JSON, st.booleans())
def test_any_value_is_accepted(value: Any, is_stream: bool) -> None:  # noqa: FBT001
    """What a model or a server sends may have any shape."""
    reply_of(stream(value) if is_stream else value)
    finish_reason_of(stream(value) if is_stream else value)
    messages_of(value)


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ({"choices": [{"message": CHAT, "finish_reason": "tool_calls"}]}, "tool_call"),
        ({"choices": [{"finish_reason": "length"}]}, "length"),
        ({**ANTHROPIC, "stop_reason": "end_turn"}, "stop"),
        ({"status": "completed", "output": RESPONSES}, "tool_call"),
        ({"status": "completed", "output": RESPONSES[:2]}, "stop"),
        ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}, "output": []}, "length"),
        (stream(delta(content="x"), {"choices": [{"delta": {}, "finish_reason": "stop"}]}, {"choices": []}), "stop"),
        (stream({"type": "message_delta", "delta": {"stop_reason": "max_tokens"}}, {"type": "message_stop"}), "length"),
        (stream({"type": "response.completed", "response": {"status": "completed", "output": []}}), "stop"),
        ({"candidates": [{"content": GEMINI, "finishReason": "MAX_TOKENS"}]}, "length"),
        (STREAMED_GEMINI, "stop"),
        ("Lima", ""),
        ({"content": "Lima"}, ""),
        (None, ""),
    ],
)
def test_finish_reasons(reply: Any, expected: str) -> None:
    """The reason why a model stopped has one name for all APIs."""
    assert expected == finish_reason_of(reply) == finish_reason_of({"status": 200, "body": reply})
