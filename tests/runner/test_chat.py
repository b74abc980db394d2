"""Chat tasks over real sockets: requests, replies, usage and prices."""

import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
import trio

from evaljournal import Answer, Case, Retry, UsageError
from evaljournal.journal.events import AttemptFailed, AttemptSucceeded, Noted
from evaljournal.runner.calls.chat import Chat, OpenChat
from evaljournal.runner.calls.dialects.completions import Completions
from evaljournal.runner.calls.prices import Price, Tokens, read_prices
from tests.runs import define_real, events, outputs, run_real
from tests.security.replies import replying
from tests.server import Server

TOKENS = {"input_tokens": 1000, "output_tokens": 100}


def notes(path: Path, name: str) -> list[Any]:
    return [event.value for event in events(path, Noted) if event.name == name]


def usages(path: Path) -> list[Any]:
    return [value["usage"] for value in notes(path, "evaljournal.answer") if "usage" in value]


def raw(body: str) -> str:
    """Return the step with which the server sends a body."""
    return quote(f"raw:{quote(body)}")


def sent(server: Server, name: str) -> dict[str, Any]:
    """Return the body of the only call."""
    (request,) = server.requests(name)
    return dict(json.loads(request["body"]))


@pytest.mark.parametrize(("case_count", "calls"), [(1, 2), (3, 0)])
def test_a_prompt_without_a_field(server: Server, path: Path, name: str, case_count: int, calls: int) -> None:
    """It is rejected as soon as a second case is read from a stream; nothing is called then."""
    numbers: list[int] = []

    def stream() -> Iterator[str]:
        for number in range(case_count):
            numbers.append(number)
            yield str(number)

    evaluation = define_real(Chat("small", base_url=server.url(name, "ok", "v1"), prompt="Hi"), stream, repeats=2)
    with nullcontext() if calls else pytest.raises(UsageError, match="the prompt has no field"):
        run_real(evaluation, path)

    assert (min(case_count, 2), calls) == (len(numbers), len(server.requests(name)))


async def test_a_request_is_rendered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is rendered for the record of an attempt is sent; a retry, which records no request, renders it again."""
    rendered_cases: list[str] = []
    conversation = Chat.conversation

    def counted(chat: Chat, case: Case) -> list[Any]:
        rendered_cases.append(case.name)
        return conversation(chat, case)

    monkeypatch.setattr(Chat, "conversation", counted)
    client = _Client()
    chat = OpenChat(Chat("small", base_url="http://localhost/v1", prompt="{input}"), client, {}, "run")  # type: ignore[arg-type]  # sends nothing
    case = Case(name="peru", input="Peru")
    recorded_request = chat.request(case)
    await chat.call(_trial(case), None)
    renderings = len(rendered_cases)
    await chat.call(_trial(case), None)

    assert [recorded_request, recorded_request] == client.bodies
    assert (1, 2) == (renderings, len(rendered_cases))


async def test_a_request_that_was_not_sent() -> None:
    """If the requests of two cases are rendered before either is sent, each case still gets its own."""
    client = _Client()
    chat = OpenChat(Chat("small", base_url="http://localhost/v1", prompt="{input}"), client, {}, "run")  # type: ignore[arg-type]  # sends nothing
    cases = [Case(name=city, input=city) for city in ("Lima", "Quito")]
    for case in cases:
        chat.request(case)
    for case in cases:
        await chat.call(_trial(case), None)

    assert ["Lima", "Quito"] == [body["messages"][0]["content"] for body in client.bodies]


def _trial(case: Case) -> Any:
    return SimpleNamespace(trial=case.name, case=case, line=None)


class _Client:
    """Stands in for the HTTP client: it keeps the bodies."""

    def __init__(self) -> None:
        self.bodies: list[Any] = []

    async def call(self, _: str, content: bytes, *__: object, **___: object) -> Answer:
        self.bodies.append(json.loads(content))
        await trio.lowlevel.checkpoint()
        return Answer(text="", usage={})


def test_a_prompt_is_filled_in(server: Server, path: Path, name: str) -> None:
    """The prompt is the user's message; parameters that are set are sent, and no others."""
    chat = Chat(
        "small",
        base_url=server.url(name, "ok", "v1/"),
        prompt="Answer briefly: {question}",
        system="You know {topic}.",
        temperature=0.5,
        max_tokens=50,
        seed=7,
        extra_body={"top_p": 0.9},
    )
    run_real(define_real(chat, [{"question": "capital?", "topic": "Peru"}]), path)

    expected = {
        "model": "small",
        "messages": [
            {"role": "system", "content": "You know Peru."},
            {"role": "user", "content": "Answer briefly: capital?"},
        ],
        "temperature": 0.5,
        "max_tokens": 50,
        "seed": 7,
        "top_p": 0.9,
    }
    assert expected == sent(server, name)
    assert ["ANSWER BRIEFLY: CAPITAL?"] == outputs(path)


def test_the_input_may_be_a_conversation(server: Server, path: Path, name: str) -> None:
    """Without a prompt, a text is the user's message, and a list of messages is sent as it is."""
    conversation = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    run_real(
        define_real(Chat("small", base_url=server.url(name, "ok", "v1"), system="s"), [Case(name="a", input=conversation)]),
        path,
    )

    assert [{"role": "system", "content": "s"}, *conversation] == sent(server, name)["messages"]


def test_messages_come_from_a_file(server: Server, path: Path, name: str, tmp_path: Path) -> None:
    """A file of messages is a template: every text in it is filled in."""
    file = tmp_path / "messages.json"
    parts = [{"type": "text", "text": "{question}"}, {"type": "image_url", "image_url": {"url": "{image}"}}]
    file.write_text(json.dumps([{"role": "user", "content": parts}]))
    chat = Chat("small", base_url=server.url(name, "reply:x", "v1"), messages=file)
    run_real(define_real(chat, [{"question": "q", "image": "u"}]), path)

    content = sent(server, name)["messages"][0]["content"]
    assert [{"type": "text", "text": "q"}, {"type": "image_url", "image_url": {"url": "u"}}] == content


def test_a_case_may_name_its_model(server: Server, path: Path, name: str) -> None:
    """The model may be a field of the case, and each model may have its own limit."""
    chat = Chat("{model}", base_url=server.url(name, "ok", "v1"))
    cases = [{"question": "q", "model": model} for model in ("gpt-4o", "small")]
    outcome = run_real(define_real(chat, cases), path, limit_key="model")

    assert {"gpt-4o", "small"} == {json.loads(request["body"])["model"] for request in server.requests(name)}
    assert {"gpt-4o", "small"} == set(outcome.state.policy.limits)
    assert 0.0035 == outcome.state.usage["cost"]


def test_parameters_that_depend_on_the_request() -> None:
    """OpenAI's reasoning models get `max_completion_tokens`; a stream is requested with its usage."""

    def body(model: str, **options: Any) -> dict[str, Any]:
        return Chat(model, base_url="http://h/", **options).body([])

    assert (
        5 == body("o4-mini", max_tokens=5)["max_completion_tokens"] == body("gpt-5-mini", max_tokens=5)["max_completion_tokens"]
    )
    assert 5 == body("gpt-4o", max_tokens=5)["max_tokens"]
    assert {"include_usage": True} == body("gpt-4o", stream=True)["stream_options"]


def test_openai_key_is_not_sent_elsewhere(server: Server, path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenAI's key is not sent to another host, unless it is named."""
    monkeypatch.setenv("OPENAI_API_KEY", "a-key-for-openai-only")
    monkeypatch.setenv("OTHER_KEY", "a-key-for-the-other")
    run_real(define_real(Chat("small", base_url=server.url(name, "ok", "v1"))), path)
    run_real(define_real(Chat("small", base_url=server.url(name, "ok", "v1"), key_env="OTHER_KEY")), path.with_name("2"))

    assert [None, "Bearer a-key-for-the-other"] == [
        request["headers"].get("authorization") for request in server.requests(name)
    ]
    assert b"a-key-for" not in b"".join(file.read_bytes() for file in path.parent.rglob("journal-*"))


def test_a_schema_makes_the_output_json(server: Server, path: Path, name: str) -> None:
    """With a schema, JSON of that form is requested, and the output is the parsed value."""
    schema = {"type": "object", "properties": {"answer": {"type": "string"}}}
    run_real(define_real(Chat("small", base_url=server.url(name, "ok", "v1"), schema=schema)), path)

    assert schema == sent(server, name)["response_format"]["json_schema"]["schema"]
    assert [{"answer": "LIMA"}] == outputs(path)


@pytest.mark.parametrize(
    ("model", "steps", "usage"),
    [
        ("gpt-4o", "ok", {**TOKENS, "cost": 0.0035}),
        ("gpt-4o", "sse", {**TOKENS, "cost": 0.0035}),
        ("gpt-4o-2024-11-20", "ok", {**TOKENS, "cost": 0.0035}),
        ("gpt-4o-unknown", "ok", {**TOKENS, "unpriced_calls": 1, "unpriced_model": "gpt-4o-unknown"}),
        ("gpt-4o", "reply:another", {**TOKENS, "unpriced_calls": 1, "unpriced_model": "another"}),
        ("gpt-4o", "reply:nonsense", {"unpriced_calls": 1, "unpriced_model": "gpt-4o without usage"}),
    ],
)
def test_tokens_have_a_price(server: Server, path: Path, name: str, *, model: str, steps: str, usage: dict[str, Any]) -> None:
    """Usage is recorded with its cost, that of the model in the reply; without a price, or a valid count, it has none."""
    outcome = run_real(define_real(Chat(model, base_url=server.url(name, steps, "v1"), stream=steps == "sse")), path)

    assert [usage] == usages(path)
    assert {unit: amount for unit, amount in usage.items() if unit != "unpriced_model"} == dict(outcome.state.usage)


def test_prices_can_be_replaced(server: Server, path: Path, name: str, tmp_path: Path) -> None:
    """A price file of the user replaces the default one."""
    file = tmp_path / "prices.toml"
    file.write_text('[models."small"]\ninput = 1000.0\noutput = 10000.0\n')
    run_real(define_real(Chat("small", base_url=server.url(name, "ok", "v1"), prices=file)), path)

    assert [2.0] == [usage["cost"] for usage in usages(path)]


def test_prices_of_two_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path names the price table in the current directory, not one that was read in another."""
    inputs = []
    for price in (1, 2):
        (tmp_path / str(price)).mkdir()
        monkeypatch.chdir(tmp_path / str(price))
        Path("table.toml").write_text(f"[models.a]\ninput = {price}\noutput = 1\n")
        inputs.append(read_prices(Path("table.toml"))["a"].input)

    assert [1, 2] == inputs


@pytest.mark.parametrize(
    ("tokens", "tier", "cost"),
    [
        ({"input": 100_000}, "default", 0.2),
        ({"input": 100_000, "cached": 50_000}, "standard", 0.105),
        ({"input": 100_000, "cache_writes": 50_000}, "", 0.225),
        ({"input": 100_000, "cache_writes_1h": 1}, "", None),
        ({"input": 100_000, "output": 10_000}, "flex", 0.15),
        ({"input": 100_000, "output": 10_000}, "priority", 0.6),
        ({"input": 100_000, "output": 10_000}, "unheard-of", None),
        ({"input": 300_000, "output": 10_000}, "", 1.35),
        ({"input": 300_000, "cached": 100_000}, "", 1.2),
        ({"input": 10, "cached": 50, "cache_writes": 50}, "", 0.000125),
    ],
)
def test_caches_tiers_and_long_requests_have_prices(tokens: dict[str, int], tier: str, cost: float | None) -> None:
    """Caches, service tiers and long requests have their own prices; without one, cached tokens cost as much as others."""
    above = Price(input=4.0, output=15.0, cache_write=5.0)
    price = Price(
        input=2.0, output=10.0, cached=0.1, cache_write=2.5, tiers={"flex": 0.5, "priority": 2}, above=(272_000, above)
    )

    assert cost == price.cost(Tokens(**{"output": 0, **tokens}), tier)


@pytest.mark.parametrize(
    ("choices", "output"),
    [
        ('{"message": {"content": ""}}', ""),
        ('{"message": {"content": [{"type": "text", "text": ""}]}}', ""),
        ('{"message": {"content": null}, "finish_reason": "length"}', ""),
        ('{"message": {"refusal": "I cannot."}}', "I cannot."),
        ('{"index": 1, "message": {"content": "Quito"}}, {"index": 0, "message": {"content": "Lima"}}', "Lima"),
    ],
    ids=["empty", "empty part", "truncated", "refusal", "lowest index"],
)
def test_the_output_of_a_reply(path: Path, choices: str, output: str) -> None:
    """It is the text or refusal of the choice with the lowest index, even if it is empty or follows a byte order mark."""
    with replying(f'\ufeff{{"choices": [{choices}]}}'.encode()) as replies:
        run_real(define_real(Chat("small", base_url=replies.url)), path)

    assert [output] == outputs(path)


def test_a_reply_of_whitespace_is_empty(path: Path) -> None:
    """A body of whitespace, which some servers send to keep a connection open, is an empty reply."""
    with replying(b" \n") as replies:
        run_real(define_real(Chat("small", base_url=replies.url), retry=Retry(errors=0)), path)

    assert {"parse_error"} == {event.category for event in events(path, AttemptFailed)}


def test_the_first_choice_of_a_stream_is_the_output(server: Server, path: Path, name: str) -> None:
    """Of a stream with several choices, the one with index 0 is the output, whatever their order and the first bytes are."""
    chunks = (
        '{"index": 0, "delta": {"content": "Li"}}',
        '{"index": 1, "delta": {"content": "Qui"}}, {"index": 0, "delta": {"content": "ma"}, "finish_reason": "stop"}',
        '{"index": 1, "delta": {"content": "to"}, "finish_reason": "length"}',
    )
    stream = "\ufeff" + "".join(f'data: {{"choices": [{chunk}]}}\r\n\r\n' for chunk in chunks)
    run_real(define_real(Chat("small", base_url=server.url(name, raw(stream), "v1"), stream=True)), path)

    assert (["Lima"], [{"finish_reason": "stop"}]) == (outputs(path), notes(path, "evaljournal.answer"))


def test_the_tool_calls_of_a_stream_are_joined(server: Server, path: Path, name: str) -> None:
    """Tool calls of a stream arrive in parts, by their index; the output is the message with the whole calls."""
    parts = [
        {"index": 0, "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ""}},
        {"index": 1, "id": "call_2", "type": "function", "function": {"name": "time", "arguments": "{"}},
        {"index": 0, "function": {"arguments": '{"city": '}},
        {"index": 1, "function": {"arguments": "}"}},
        {"index": 0, "function": {"name": None, "arguments": '"Lima"}'}},
    ]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": None}, *({"tool_calls": [part]} for part in parts)]
    chunks = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    stream = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
    run_real(define_real(Chat("small", base_url=server.url(name, raw(stream), "v1"), stream=True)), path)

    (output,) = [event.output for event in events(path, AttemptSucceeded)]
    calls = [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in output["tool_calls"]]
    assert [("call_1", "weather", '{"city": "Lima"}'), ("call_2", "time", "{}")] == calls


EMPTY_CHOICES = (
    '{"message": {}, "finish_reason": "stop"}',
    '{"message": {"content": null, "refusal": null}, "finish_reason": "stop"}',
    '{"message": {"content": null, "tool_calls": []}, "finish_reason": "tool_calls"}',
    '{"message": {"reasoning_content": "Peru"}, "finish_reason": "stop"}',
    '{"message": {"content": [{"type": "thinking", "thinking": []}]}, "finish_reason": "stop"}',
)


@pytest.mark.parametrize(
    ("steps", "options", "category", "message"),
    [
        ("nooutput", {}, "error", "not a chat completion: no 'choices' in the value"),
        ("error:503", {}, "unavailable", "the model is asleep"),
        (raw('{"choices": [{"message": null}]}'), {}, "error", "its message is 'null'"),
        (raw('{"choices": [{"message": "no"}]}'), {}, "error", "its message is 'no'"),
        (raw("data: [1]\n\n"), {"stream": True}, "error", "a chunk of the stream is not a chat completion: '[1]'"),
        (raw('{"choices": [{"error": {"code": 502}, "message": {}}]}'), {}, "unavailable", "an error at 'error'"),
        (raw('{"choices": [{"finish_reason": "error", "message": {}}]}'), {}, "error", "ended with finish_reason 'error'"),
        (raw('data: {"choices": [{"error": {"code": 429}}]}\n\n'), {"stream": True}, "rate_limited", "an error at 'error'"),
        (raw('data: {"choices": [1]}\n\n'), {"stream": True}, "error", "is not a chat completion"),
        (
            raw('data: {"choices": [{"delta": {"tool_calls": [1]}, "finish_reason": "stop"}]}\n\n'),
            {"stream": True},
            "error",
            "a message of the stream is not a chat completion",
        ),
        *((raw(f'{{"choices": [{choice}]}}'), {}, "parse_error", "neither a text nor a tool call") for choice in EMPTY_CHOICES),
        *(
            (
                raw(f'data: {{"choices": [{choice}]}}\n\n'.replace("message", "delta")),
                {"stream": True},
                "parse_error",
                "neither",
            )
            for choice in EMPTY_CHOICES
        ),
        (
            raw('{"choices": [{"message": {"content": "Li"}, "finish_reason": null}]}'),
            {},
            "error",
            "finish_reason of the reply",
        ),
        (raw('data: {"choices": [{"delta": null}]}\n\n'), {"stream": True}, "unavailable", "without a finish_reason"),
        (raw('data: {"choices": []}\n\ndata: [DONE]\n\n'), {"stream": True}, "error", "without a finish_reason"),
    ],
)
def test_failures_are_classified(
    server: Server, path: Path, name: str, *, steps: str, options: Any, category: str, message: str
) -> None:
    """What is not a completion is a failure."""
    run_real(define_real(Chat("small", base_url=server.url(name, steps, "v1"), **options)), path)

    (failed,) = events(path, AttemptFailed)
    assert (category, True) == (failed.category, message in failed.message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt": "x", "messages": [{"role": "user", "content": "y"}]}, "pass one of them"),
        ({"messages": [{"content": "y"}]}, "messages must be a non-empty list"),
        ({"messages": "no/such/file.json"}, "cannot read the"),
        ({"schema": "no/such/file.json"}, "cannot read the"),
        ({"prompt": "{"}, "is not a template"),
        ({"prices": "no/such/prices.toml"}, "cannot be read"),
        ({"base_url": "api.test/v1"}, "is not a valid http"),
        ({"base_url": "https://api.openai.com/v1"}, "needs the environment variable OPENAI_API_KEY"),
        ({"key_env": "NO_SUCH_KEY"}, "needs the environment variable NO_SUCH_KEY"),
    ],
)
def test_invalid_arguments_are_rejected(options: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An invalid argument is a usage error."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(UsageError) as caught:
        Chat("small", **{"base_url": "http://h/v1", **options})

    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("chunk", "has_token"),
    [
        ({"role": "assistant", "content": ""}, False),
        ({"role": "assistant", "content": None, "refusal": None}, False),
        ({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}]}, False),
        ({"content": "L"}, True),
        ({"content": '"'}, True),
        ({"refusal": "I"}, True),
        ({"reasoning_content": "Hm"}, True),
        ({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}, True),
    ],
)
def test_the_first_token(chunk: dict[str, Any], *, has_token: bool) -> None:
    """A chunk with a role or the name of a tool has no token; one with text, reasoning or arguments has."""
    for separators in ((",", ":"), (", ", ": ")):
        data = json.dumps({"choices": [{"index": 0, "delta": chunk}]}, separators=separators).encode()

        assert has_token == (Completions.first_token.search(data) is not None)
