"""A hostile endpoint: whatever it replies, the loop does not block, memory is bounded, and the attempt ends."""

import gc
import gzip
import random
import re
import threading
import time
import weakref
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import orjson
import pytest
import trio

from evaljournal import Case, note, scorers
from evaljournal.journal.events import NOTE_PREFIX, AttemptFailed, ScorerCallFailed
from evaljournal.replay import load
from evaljournal.runner.calls.chat import Chat, OpenChat
from evaljournal.runner.calls.endpoint import Endpoint, output_of
from evaljournal.runner.calls.http import reply as http_reply
from evaljournal.runner.calls.http.reply import ErrorReply, IncompleteReply, InvalidReply, Reply, ReplyMemory, ReplyTooLarge
from evaljournal.runner.data.exact_json import read_json
from evaljournal.runner.secrets.masking import SecretValues, mask, mask_keys, mask_output, mask_values
from tests.processes import TIMEOUT
from tests.runs import define_real, events, outputs, run_real
from tests.security.growth import FACTOR, LINEAR, growth
from tests.security.replies import replying

EXPECTED_ERRORS: Final = (InvalidReply, ErrorReply, IncompleteReply, ReplyTooLarge)
"""What parsing a reply may raise."""


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make replies of a few kB large ones."""
    monkeypatch.setattr(http_reply, "SMALL_REPLY", 10_000)
    monkeypatch.setattr(http_reply, "MAX_PARSED_IN_LOOP", 1_000)
    monkeypatch.setattr(http_reply, "MAX_BYTES", 100_000)


def test_large_replies_wait_for_each_other(small_limits: None) -> None:
    """However many replies are in flight, only four are large; each gets its turn."""
    parsed: list[int] = []
    count = peak = 0

    async def reply(number: int) -> None:
        nonlocal count, peak
        with ReplyMemory() as memory:
            for _ in range(9):
                await memory.add(10_000)
                await trio.sleep(0.001)
            count += 1
            peak = max(peak, count)
            await memory.parse(lambda: time.sleep(0.002))
            count -= 1
            parsed.append(number)

    async def main() -> None:
        with trio.fail_after(TIMEOUT):
            async with trio.open_nursery() as nursery:
                for number in range(20):
                    nursery.start_soon(reply, number)

    trio.run(main)

    assert http_reply.LARGE_REPLIES == peak
    assert list(range(20)) == sorted(parsed)


def test_an_abandoned_parse_keeps_its_place(small_limits: None) -> None:
    """A reply that is parsed although its attempt was cancelled counts until the thread ends; then its place is free."""
    end = threading.Event()

    async def parse() -> None:
        with ReplyMemory() as memory:
            await memory.add(50_000)
            await memory.parse(lambda: end.wait(TIMEOUT))

    async def wait_for_place() -> bool:
        with trio.move_on_after(0.05), ReplyMemory() as memory:
            await memory.add(50_000)
            return True
        return False

    async def main() -> list[bool]:
        with trio.fail_after(TIMEOUT):
            for _ in range(http_reply.LARGE_REPLIES):
                with trio.move_on_after(0.01):
                    await parse()
            before = await wait_for_place()
            end.set()
            while not (after := await wait_for_place()):
                pass
            return [before, after]

    assert [False, True] == trio.run(main)


def test_a_place_is_free_after_an_error(small_limits: None, path: Path) -> None:
    """Replies that are too large fail their attempts and free their places."""
    with replying(b"x" * 200_000, "text/plain") as replies:
        run_real(define_real(Endpoint(replies.url), [Case(name=str(number), input=number) for number in range(12)]), path)

    assert ["evaljournal.ReplyTooLarge"] * 12 == [event.error for event in events(path, AttemptFailed)]


def test_a_large_reply_is_parsed_in_a_thread(small_limits: None, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop parses small replies only."""
    threads: dict[int, str] = {}
    parse = Reply.json

    def recording(self: Reply) -> Any:
        threads[len(self.body)] = threading.current_thread().name
        return parse(self)

    monkeypatch.setattr(Reply, "json", recording)
    sizes = []
    for number, size in enumerate((100, 50_000)):
        body = orjson.dumps({"output": "x" * size})
        sizes.append(len(body))
        with replying(body) as replies:
            run_real(define_real(Endpoint(replies.url, output_path="output")), path / str(number))

    assert [True, False] == [threads[size] == threading.current_thread().name for size in sizes]


@pytest.mark.parametrize("body", [b"[" + b"[]," * 40 + b"[]]", b"[" + b"1," * 60 + b"1]", b'{"a": [' + b"{}," * 50 + b"{}]}"])
def test_too_many_values_are_rejected(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of values is limited, since they take far more memory than their bytes; commas in a text are not values."""
    monkeypatch.setattr("evaljournal.runner.calls.http.reply.MAX_VALUES", 50)
    text = orjson.dumps([body.decode().replace("{", '"'), "\\" * 51 + '"' + "," * 60])

    with pytest.raises(ReplyTooLarge):
        reply(body).json()
    with pytest.raises(ReplyTooLarge):
        list(reply(b"".join(b"data: %b\n\n" % item for item in [b"[]"] * 60), "text/event-stream").chunks())
    assert orjson.loads(text) == reply(text).json()


def test_a_very_long_reply_of_a_judge_is_invalid(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A judge's reply with more characters than the limit is invalid."""
    monkeypatch.setattr("evaljournal.runner.scorers.llm_judge._MAX_REPLY", 1_000)
    body = {"choices": [{"message": {"content": "verdict: correct " * 100}, "finish_reason": "stop"}]}
    with replying(orjson.dumps(body)) as replies:
        evaluation = define_real(identity)
        evaluation.score(scorers.judge("m", base_url=replies.url))
        run_real(evaluation, path)

    assert ["evaljournal.InvalidReply"] == [event.error for event in events(path, ScorerCallFailed)]


def identity(value: str) -> str:
    return value


@pytest.mark.parametrize("unit", ["verdict: ", "verdict", "verdict: correct ", "verdict________", "correct\n", "\n", " ", "*"])
def test_reading_a_verdict_takes_linear_time(unit: str) -> None:
    """No reply of a judge is slow to read."""
    judge = scorers.judge("m", base_url="http://127.0.0.1:1")

    def verdict(text: str) -> None:
        with suppress(InvalidReply):
            judge.verdict(text)

    assert growth(verdict, unit * 2_000, unit * 2_000 * FACTOR) <= LINEAR


@pytest.mark.parametrize("media_type", ["application/json", "text/event-stream", "application/x-ndjson", "text/plain"])
@pytest.mark.parametrize(
    "unit",
    [
        *("[", "{", "[],", '"', "\\", "1", "1,", " ", "\n", "\r", "\r\n", "data:", "data:\n", "data: [DONE] x\n"),
        *("data: {}\n\n", 'data: {"choices": [{"delta": {"content": "a"}}]}\n\n', "event: a\n", "-", "0.1e1", "\x00", "é"),
        *("\ud7ff",),
    ],
)
def test_parsing_takes_linear_time(unit: str, media_type: str) -> None:
    """No repetition in a reply is slow to parse."""

    def parse(body: bytes) -> None:
        parse_reply(reply(body, media_type))

    small = unit.encode() * (4_000 // len(unit.encode()))
    assert growth(parse, small, small * FACTOR) <= LINEAR


@pytest.mark.parametrize("status", [200, 302, 404, 429, 500])
def test_headers_and_errors_are_bounded(status: int, path: Path) -> None:
    """Long headers that look like secrets, and a long body, take little time and space."""
    start = time.process_time()
    with replying(
        b"_eyJ" * 100_000, "text/plain", status=status, Location="/?" + "_eyJ" * 10_000, X_Ratelimit="_eyJ" * 3_000
    ) as replies:
        run_real(define_real(Endpoint(replies.url)), path)

    assert time.process_time() - start < 5
    assert sum(file.stat().st_size for file in path.glob("*.jsonl")) < 20_000 + (400_100 if status == 200 else 0)
    assert load(path).state.totals.done == 1


def test_a_compressed_reply_counts_as_a_large_one(small_limits: None, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reply that expands waits for a place, because its size is unknown."""
    waits: list[bool] = []
    take = ReplyMemory.take_place

    async def recording(self: ReplyMemory) -> None:
        waits.append(True)
        await take(self)

    monkeypatch.setattr(ReplyMemory, "take_place", recording)
    with replying(gzip.compress(b'{"output": "Lima"}'), Content_Encoding="gzip") as replies:
        run_real(define_real(Endpoint(replies.url, output_path="output")), path)

    assert ["Lima"] == outputs(path)
    assert [True] == waits


@pytest.mark.parametrize("is_compressed", [False, True])
def test_a_rejected_reply_is_freed(
    small_limits: None, path: Path, monkeypatch: pytest.MonkeyPatch, *, is_compressed: bool
) -> None:
    """What was read of a reply that is too large is freed with its attempt, without a garbage collection."""
    monkeypatch.setattr("evaljournal.runner.calls.http.reply.MAX_BYTES", 100_000)
    errors: list[weakref.ref[ReplyTooLarge]] = []

    def record(self: ReplyTooLarge, *arguments: object) -> None:
        Exception.__init__(self, *arguments)
        errors.append(weakref.ref(self))

    monkeypatch.setattr(ReplyTooLarge, "__init__", record)
    body = b"x" * 200_000
    content, coding = (gzip.compress(body), "gzip") if is_compressed else (body, "identity")
    gc.disable()
    try:
        with replying(content, "text/plain", Content_Encoding=coding) as replies:
            run_real(define_real(Endpoint(replies.url), [Case(name=str(number), input=number) for number in range(3)]), path)
        freed = [error() is None for error in errors]
    finally:
        gc.enable()

    assert [True] * 3 == freed


# Fuzzing: a sample in every test run, all with `pytest -m exhaustive`.

PIECES: Final = (
    *(b"{", b"}", b"[", b"]", b'"', b":", b",", b" ", b"\n", b"\r", b"\r\n\r\n", b"\n\n", b"\\", b"\\u", b"\\ud800"),
    *(b"\\/", b"null", b"true", b"NaN", b"-", b"1", b"1e999", b"12345678901234567890", b"0" * 30, b"1" * 5_000, b"\xff"),
    *(b"\xc3", b"\x00", b"data:", b"data: ", b"event: error\n", b"[DONE]", b"data: [DONE]\n\n", b'"choices":', b'"delta":'),
    *(b'"content":', b'"error":', b'{"choices":[{"message":{"content":"a"}}]}', b'"usage":{"total_tokens":'),
    *(b'"finish_reason":"stop"', b'"output":', b"\x1e", "é\u2028\U0001f600".encode(), b"[" * 300, b"]" * 300),
    *(b'{"a":' * 1_100,),
)
MEDIA_TYPES: Final = ("application/json", "text/event-stream", "application/x-ndjson", "text/plain", "text/plain; charset=", "")
CHARSETS: Final = (
    "utf-7",
    "utf-16",
    "idna",
    "punycode",
    "unicode_escape",
    "zlib",
    "latin-1",
    "nonsense",
    "\udcff",
    "a" * 5_000,
)


def reply(body: bytes, media_type: str = "application/json", *, has_length: bool = True, **headers: str) -> Reply:
    length = {"content-length": str(len(body))} if has_length else {}
    received = Reply(200, {"content-type": media_type, **length, **headers})
    received.feed(body)
    return received


def parse_reply(received: Reply) -> None:
    """Parse a reply in every way; raise only errors that are not expected."""
    chat = Chat("m", base_url="http://127.0.0.1:1")
    readers: list[Callable[[], object]] = [
        lambda: output_of(received, None, None, None),
        lambda: output_of(received, "output", "error", "done"),
        lambda: OpenChat(chat, None, {}, "")._read(received),  # type: ignore[arg-type]  # it makes no call
    ]
    for reader in readers:
        with suppress(*EXPECTED_ERRORS):
            reader()


def fuzzed_body(seed: int) -> bytes:
    rng = random.Random(seed)
    body = b"".join(rng.choices(PIECES, k=rng.randrange(1, 40)))
    if rng.random() < 0.3:
        place = rng.randrange(len(body) or 1)
        body = body[:place] + rng.randbytes(rng.randrange(4)) + body[place + rng.randrange(3) :]
    return body


def fuzz_reply(seed: int) -> None:
    rng = random.Random(seed)
    body, media_type, headers = fuzzed_body(seed), rng.choice(MEDIA_TYPES), dict[str, str]()
    if media_type.endswith("="):
        media_type += rng.choice(CHARSETS)
    if rng.random() < 0.3:
        headers["content-encoding"] = rng.choice(["gzip", "deflate", "br", "gzip, deflate", "identity", "\udcff"])
        body = rng.choice([zlib.compress(body), gzip.compress(body), body])
        body = body[: rng.randrange(len(body) + 1)] if rng.random() < 0.3 else body
    received = reply(body, media_type, has_length=rng.random() > 0.3, **headers)
    try:
        received.check_content()
    except EXPECTED_ERRORS:
        return
    parse_reply(received)


SECRET_PIECES: Final = (
    *("eyJ", "sk-", "Authorization: ", "Bearer ", "api_key", "=", ": ", "'", '"', "\\", "\\\\", "/", "\\/", "\n", " "),
    *("***", "$NAME", "password", "cookie", "https://", "user:", "@", "?key=", "&code=", "--token ", "-u ", "TOKEN="),
    *("-----BEGIN PRIVATE KEY-----", "-----END ", "{a}", "abcdefgh12", "é", "\ud800", "\x00", "\U0001f600", "ſ", "K", "İ"),
    *("ghp_", "AKIA", "0" * 20, "a" * 50, "no/known+form=4711"),
)


def fuzz_mask(seed: int) -> None:
    rng = random.Random(seed)
    text = "".join(rng.choices(SECRET_PIECES, k=rng.randrange(1, 30)))
    values = SecretValues()
    values.add("no/known+form=4711")
    value = {text: [text, {"api_key": text}], "q": text}
    remaining = [piece for piece in re.split(r"\*\*\*", mask(text)) if piece not in text]
    assert [] == remaining, text
    assert "no/known+form=4711" not in values.mask(text), text
    assert mask(text) == mask_values(value)["q"], text
    assert value == mask_output(value), text
    for key in ("sk-0123456789abcdef", "ghp_0123456789abcdef0123"):
        assert key not in mask(f"{text} {key} {text}"), text
        assert key not in mask_keys(f"{text} {key} {text}"), text


SAMPLE, ALL = 300, 50_000
"""Inputs of each kind that are tried."""


@pytest.mark.parametrize("count", [SAMPLE, pytest.param(ALL, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("fuzz", [fuzz_reply, fuzz_mask])
def test_any_input_is_classified(fuzz: Callable[[int], None], count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsers of replies raise only what is classified; masks only remove parts of a text, and leave no key in it."""
    for name in ("_all_secrets", "sent_secrets"):  # Without the secrets of earlier tests.
        monkeypatch.setattr(f"evaljournal.runner.secrets.masking.{name}", SecretValues())
    for seed in range(count):
        try:
            fuzz(seed)
        except BaseException as exc:
            exc.add_note(f"seed {seed}")
            raise


ENGINE_NOTES: Final = ("quota", "answer", "finish_reason", "unauthorized", "masked", "judge", "usage")
"""What the engine and the views read from notes of their own."""


@pytest.mark.parametrize("prefix", ["", NOTE_PREFIX])
def test_notes_from_a_reply_do_not_control_the_engine(prefix: str, path: Path) -> None:
    """A task that notes whatever a reply contains cannot use a name of the engine; other names mean nothing to it."""

    def task(value: str) -> str:
        note(**{f"{prefix}{name}": "length" for name in ENGINE_NOTES})
        return value

    outcome = run_real(define_real(task), path)
    state = outcome.state

    assert ("", int(not prefix), int(bool(prefix)), 0) == (
        outcome.stop_reason,
        state.completed,
        state.failed,
        state.totals.truncated,
    )
    assert {"": [], NOTE_PREFIX: ["evaljournal.UsageError"]}[prefix] == [event.error for event in events(path, AttemptFailed)]


@pytest.mark.parametrize("depth", [200, 300, 1_020, 5_000])
def test_deep_replies_are_invalid(depth: int, path: Path) -> None:
    """A reply that is nested too deeply to be parsed or stored fails its attempt, whatever parses it."""
    for number in (b"1", b"1" * 25):
        with replying(b"[" * depth + number + b"]" * depth) as replies:
            run_real(define_real(Endpoint(replies.url)), path / number.decode())

    failed = [event.error for number in ("1", "1" * 25) for event in events(path / number, AttemptFailed)]
    assert len(failed) == (1 if depth == 200 else 2)  # The long integer cannot be stored.
    assert {"evaljournal.InvalidReply", "Unserializable"} >= set(failed)


def test_a_deep_value_raises_only_value_errors() -> None:
    """However deeply a long integer is nested, reading it raises nothing but ValueError, whichever parser rejects it."""
    for depth in (900, 1_000, 1_020, 1_100, 10_000):
        with suppress(ValueError):
            read_json(b"[" * depth + b"1" * 25 + b"]" * depth)
