"""Tests of what replies report: models, tiers, usage, and the ends of streams."""

from collections.abc import Mapping
from typing import Any, Final

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaljournal.replay.provider.messages import Message, finish_reason_of, messages_of, reply_of
from evaljournal.replay.provider.reports import Report, StreamReport

CHAT: Final = {"model": "m", "service_tier": "flex", "usage": {"prompt_tokens": 9, "completion_tokens": None}}
GEMINI: Final = {"modelVersion": "m", "usageMetadata": {"promptTokenCount": 9, "trafficType": "FLEX"}}
FAST: Final = {"model": "m", "usage": {"input_tokens": 9, "speed": "fast"}}

NAMES: Final = (
    *("model", "usage", "usageMetadata", "service_tier", "message", "response", "candidates", "finishReason", "choices"),
    *("type", "delta", "content", "content_block", "index", "tool_calls", "function", "output", "input", "messages"),
    *("parts", "error"),
)
TEXTS: Final = ("stop", "text", "tool_use", "response.completed", "message_stop")
VALUES: Final = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(TEXTS),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.sampled_from(NAMES), values, max_size=5),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("reply", "tier", "usage"),
    [(CHAT, "flex", {"prompt_tokens": 9}), (GEMINI, "flex", GEMINI["usageMetadata"]), (FAST, "fast", FAST["usage"])],
)
def test_a_streamed_reply_reports_what_the_same_reply_does(reply: Mapping[str, Any], tier: str, usage: object) -> None:
    """Model, service tier and usage are the same for a reply and for a stream of it."""
    whole, stream = Report(), StreamReport()
    whole.add(reply)
    for name, value in reply.items():
        stream.feed(b"data: %b\n\n" % orjson.dumps({name: value, "usage": reply.get("usage")}))
    stream.feed(b"data: %b\n\n" % orjson.dumps(reply))
    stream.end()

    assert ("m", tier, usage) == (whole.model, whole.tier, whole.usage)
    assert ("m", tier, usage) == (stream.model, stream.tier, stream.usage)


def test_an_incomplete_response_has_a_message() -> None:
    """The message of a stream of the Responses API that the token limit ended is read, as that of a complete one."""
    part = {"type": "output_text", "text": "Li"}
    response = {
        "status": "incomplete",
        "incomplete_details": {"reason": "max_output_tokens"},
        "output": [{"type": "message", "role": "assistant", "content": [part]}],
    }
    event = {"type": "response.incomplete", "response": response}
    stream = f"event: response.incomplete\ndata: {orjson.dumps(event).decode()}\n\n"

    assert Message("assistant", "Li") == reply_of(stream)
    assert "length" == finish_reason_of(stream)


@given(VALUES)
def test_no_value_makes_the_reader_fail(value: object) -> None:
    """Any value of any type can be read as a request, a reply, an event and a stream."""
    data = orjson.dumps(value)
    report, stream = Report(), StreamReport()
    report.add_event(value)
    stream.feed(b"data: %b\n\n" % data)

    assert stream.usage == report.usage or stream.usage is None
    assert all(isinstance(message, Message) for message in messages_of(value))
    for reply in (value, f"data: {data.decode()}\n\n"):
        assert isinstance(reply_of(reply), Message | None)
        assert isinstance(finish_reason_of(reply), str)
