"""Replies of a chat API that are changed, incomplete or of another API: an error of the attempt, or an answer from them."""

import math
import random
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final

import orjson
import pytest

from evaljournal.runner.calls.chat import Chat, OpenChat
from evaljournal.runner.calls.dialects import names
from evaljournal.runner.calls.dialects.dialect import Answer
from evaljournal.runner.calls.http.reply import ErrorReply, IncompleteReply, InvalidReply, Reply, ReplyTooLarge
from evaljournal.runner.calls.prices import DEFAULT_PRICES, read_prices
from evaljournal.runner.data.exact_json import read_json
from evaljournal.runner.retries.classify import classify
from tests.security.dialect_replies import REPLIES, STREAMS, random_reply

EXPECTED_ERRORS: Final = (InvalidReply, ErrorReply, IncompleteReply, ReplyTooLarge)
SAMPLE, ALL = 300, 30_000
"""Replies of each dialect that are tried."""


class Received:
    """A client that has received a reply."""

    def __init__(self, body: bytes, *, is_stream: bool, has_length: bool) -> None:
        length = {"content-length": str(len(body))} if has_length else {}
        media_type = "text/event-stream" if is_stream else "application/json"
        self.reply = Reply(200, {"content-type": media_type, **length})
        self.reply.feed(body)

    async def call(self, *_: Any, read: Callable[[Reply], Any], **__: Any) -> Any:
        self.reply.check_content()
        return read(self.reply)


@cache
def chat_of(dialect: str, *, is_stream: bool) -> Chat:
    return Chat("m", dialect=dialect, base_url="http://127.0.0.1:1", stream=is_stream)


def answer_to(dialect: str, body: bytes, *, is_stream: bool, has_length: bool = True) -> Answer:
    """Return the answer in a reply, with its priced usage."""
    client: Any = Received(body, is_stream=is_stream, has_length=has_length)
    chat = OpenChat(chat_of(dialect, is_stream=is_stream), client, read_prices(DEFAULT_PRICES), "")
    call = chat.complete([{"role": "user", "content": "What is the capital of Peru?"}])
    try:
        call.send(None)  # It waits for nothing, so an event loop is not needed; that would take most of the time.
    except StopIteration as result:
        answer: Answer = result.value
        return answer
    raise AssertionError


def strings_in(value: Any) -> Iterator[str]:
    """Yield all strings in a JSON value, in their order."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from strings_in(item)


def received_strings(body: bytes, *, is_stream: bool) -> list[str]:
    if not is_stream:
        return list(strings_in(read_json(body)))
    strings: list[str] = []
    for line in body.decode("utf-8", "replace").splitlines():
        if line.startswith("data:"):
            data = line.removeprefix("data:").strip()
            try:
                strings += strings_in(read_json(data))
            except ValueError:
                strings.append(data)
    return strings


def is_joined_from(text: str, strings: list[str]) -> bool:
    """Return whether a text consists of some of these strings, in their order."""
    ends = {0}
    for string in filter(None, strings):
        ends |= {end + len(string) for end in ends if text.startswith(string, end)}
    return len(text) in ends


def check_answer(answer: Answer, strings: list[str]) -> None:
    """Assert that an answer has nothing that its reply does not contain, and that its usage is one."""
    usage: Any = answer.usage
    numbers = {name: value for name, value in usage.items() if name != "unpriced_model"}

    assert is_joined_from(answer.text, strings)
    assert answer.outcome in {"complete", "truncated", "declined"}
    for text in (answer.model, answer.fingerprint, answer.service_tier, answer.finish_reason):
        assert text in {"", "m", *strings}
    assert all(isinstance(call, dict) for call in answer.tool_calls)
    assert {} == {name: value for name, value in numbers.items() if type(value) not in {int, float}}
    assert {} == {name: value for name, value in numbers.items() if not (math.isfinite(value) and 0 <= value <= 2**53)}


def fuzz_reply(dialect: str, seed: int) -> str:
    """Read a random reply; return its error and category, or `answer`."""
    rng = random.Random(seed)
    body, is_stream = random_reply(dialect, rng)
    try:
        answer = answer_to(dialect, body, is_stream=is_stream, has_length=rng.random() < 0.7)
    except EXPECTED_ERRORS as exc:
        return f"{type(exc).__name__}: {classify(exc, now=0.0).category}"
    check_answer(answer, received_strings(body, is_stream=is_stream))
    return "answer"


@pytest.mark.parametrize("count", [SAMPLE, pytest.param(ALL, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("dialect", names())
def test_changed_replies(dialect: str, count: int) -> None:
    """A changed reply gives an expected error, or an answer whose text is in it and whose usage and cost are finite."""
    results = set()
    for seed in range(count):
        try:
            results.add(fuzz_reply(dialect, seed))
        except BaseException as exc:
            exc.add_note(f"seed {seed}: {random_reply(dialect, random.Random(seed))[0][:3_000]!r}")
            raise

    assert {"answer", "EmptyReply", "ErrorReply", "IncompleteReply", "InvalidReply"} == {
        result.partition(":")[0] for result in results
    }


@pytest.mark.parametrize("dialect", names())
def test_unchanged_replies(dialect: str) -> None:
    """The replies that the changed ones are made from are read: all texts, each outcome, and tokens in one meaning."""
    errors, answers = [], []
    for is_stream, replies in ((False, REPLIES[dialect]), (True, STREAMS[dialect])):
        for reply in replies:
            lines = [b"data: %b\n\n" % orjson.dumps(chunk) for chunk in reply] if is_stream else [orjson.dumps(reply)]
            try:
                answers.append(answer_to(dialect, b"".join(lines), is_stream=is_stream))
            except ErrorReply:
                errors.append(reply)

    assert len(errors) == {"chat": 1, "gemini": 1}.get(dialect, 2)
    assert {"complete", "truncated", "declined"} == {answer.outcome for answer in answers}
    assert "Lima it is." in {answer.text for answer in answers}  # All texts, without the reasoning.
    for answer in (answer for answer in answers if answer.outcome == "complete" and "input_tokens" in answer.usage):
        usage: Any = answer.usage
        assert (40, 10, 20) == tuple(usage[name] for name in ("input_tokens", "cached_tokens", "output_tokens"))
    assert any(answer.tool_calls for answer in answers)
