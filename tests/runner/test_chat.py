"""Chat models, over real sockets: what is said to them, what they answer, and what that costs; and the SDKs of others."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anthropic
import openai
import pytest
import trio

from journal.events import AttemptFailed, AttemptSucceeded, Noted
from replay.ending import final_report
from runner import Case, UsageError
from runner.tasks.chat import Chat
from runner.tasks.prices import DEFAULT_PRICES, Prices
from tests.runs import define_real, events, outputs, run_real
from tests.server import Server


def noted(path: Path, name: str) -> list[Any]:
    return [event.value for event in events(path, Noted) if event.name == name]


def sent(server: Server, name: str) -> dict[str, Any]:
    """Give the body of the one call."""
    (seen,) = server.seen(name)
    return dict(json.loads(seen["body"]))


# What is said.


def test_a_prompt_is_filled_in(server: Server, path: Path, name: str) -> None:
    """The prompt is the user's message; what was set is sent, and what was not is not."""
    chat = Chat(
        "small",
        base_url=server.url(name, "ok", "v1/"),
        prompt="Answer briefly: {question}",
        system="You know {topic}.",
        temperature=0.5,
        max_tokens=50,
        seed=7,
        more={"top_p": 0.9},
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
    """Without a prompt, a text is the user's message, and a list of messages is what was said so far."""
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    run_real(define_real(Chat("small", base_url=server.url(name, "ok", "v1"), system="s"), [Case(name="a", input=talk)]), path)

    assert [{"role": "system", "content": "s"}, *talk] == sent(server, name)["messages"]


def test_messages_come_from_a_file(server: Server, path: Path, name: str, tmp_path: Path) -> None:
    """A file of messages is a template too: every text in it is filled in."""
    file = tmp_path / "messages.json"
    parts = [{"type": "text", "text": "{question}"}, {"type": "image_url", "image_url": {"url": "{image}"}}]
    file.write_text(json.dumps([{"role": "user", "content": parts}]))
    chat = Chat("small", base_url=server.url(name, "say:x", "v1"), messages=file)
    run_real(define_real(chat, [{"question": "q", "image": "u"}]), path)

    content = sent(server, name)["messages"][0]["content"]
    assert [{"type": "text", "text": "q"}, {"type": "image_url", "image_url": {"url": "u"}}] == content


def test_a_case_may_name_its_model(server: Server, path: Path, name: str) -> None:
    """A model with a field is another one for each case, and each may have a limit of its own."""
    chat = Chat("{model}", base_url=server.url(name, "ok", "v1"))
    cases = [{"question": "q", "model": model} for model in ("gpt-4o", "small")]
    outcome = run_real(define_real(chat, cases), path, limit_key="model")

    assert {"gpt-4o", "small"} == {json.loads(seen["body"])["model"] for seen in server.seen(name)}
    assert {"gpt-4o", "small"} == set(outcome.state.limits)
    assert 0.0035 == outcome.state.usage["cost"]


def test_models_that_think_have_another_name_for_their_limit() -> None:
    """OpenAI's models that reason are told the most tokens under the name that they know."""
    assert 5 == Chat("o4-mini", base_url="http://h/", max_tokens=5).body([])["max_completion_tokens"]
    assert 5 == Chat("gpt-5-mini", base_url="http://h/", max_tokens=5).body([])["max_completion_tokens"]
    assert 5 == Chat("gpt-4o", base_url="http://h/", max_tokens=5).body([])["max_tokens"]


def test_a_key_goes_only_where_it_belongs(server: Server, path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenAI's key is not sent to another address; a key that was named is."""
    monkeypatch.setenv("OPENAI_API_KEY", "a-key-for-openai-only")
    monkeypatch.setenv("OTHER_KEY", "a-key-for-the-other")
    run_real(define_real(Chat("small", base_url=server.url(name, "ok", "v1"))), path)
    run_real(define_real(Chat("small", base_url=server.url(name, "ok", "v1"), key_env="OTHER_KEY")), path.with_name("2"))

    assert [None, "Bearer a-key-for-the-other"] == [seen["headers"].get("authorization") for seen in server.seen(name)]
    assert b"a-key-for" not in b"".join(file.read_bytes() for file in path.parent.rglob("journal-*"))


def test_a_schema_makes_the_output_json(server: Server, path: Path, name: str) -> None:
    """With a schema, the model is asked for JSON of that form, and the output is that value."""
    schema = {"type": "object", "properties": {"answer": {"type": "string"}}}
    run_real(define_real(Chat("small", base_url=server.url(name, "ok", "v1"), schema=schema)), path)

    assert schema == sent(server, name)["response_format"]["json_schema"]["schema"]
    assert [{"answer": "LIMA"}] == outputs(path)


# What comes back.


def test_a_stream_is_put_together(server: Server, path: Path, name: str) -> None:
    """In pieces or not, the output and the usage are the same; of pieces, the first byte is timed."""
    run_real(define_real(Chat("gpt-4o", base_url=server.url(name, "sse", "v1"), stream=True)), path)

    assert ["LIMA"] == outputs(path)
    assert [{"input_tokens": 1000, "output_tokens": 100, "cost": 0.0035}] == noted(path, "usage")
    assert 1 == len(noted(path, "evaljournal.stream"))
    assert {"include_usage": True} == sent(server, name)["stream_options"]


@pytest.mark.parametrize(("model", "cost"), [("gpt-4o", 0.0035), ("gpt-4o-2024-11-20", 0.0035), ("gpt-4o-unknown", None)])
def test_tokens_have_a_price(server: Server, path: Path, name: str, model: str, cost: float | None) -> None:
    """Tokens are written down with what they cost; a model whose price is not known costs nothing that we could say."""
    outcome = run_real(define_real(Chat(model, base_url=server.url(name, "ok", "v1"))), path)

    assert [cost] == [usage.get("cost") for usage in noted(path, "usage")]
    assert (1000, 100, cost or 0) == tuple(outcome.state.usage[each] for each in ("input_tokens", "output_tokens", "cost"))


def test_a_price_is_that_of_the_model_that_answered(server: Server, path: Path, name: str) -> None:
    """Where another model has answered than was asked, the price of the one that was asked would be wrong: none is said."""
    run_real(define_real(Chat("gpt-4o", base_url=server.url(name, "say:another", "v1"))), path)

    assert [{"input_tokens": 1000, "output_tokens": 100}] == noted(path, "usage")


def test_a_usage_that_cannot_be_is_not_believed(server: Server, path: Path, name: str) -> None:
    """A count that is no number, or less than nothing, is not written down, and nothing is said to have been cost by it."""
    outcome = run_real(define_real(Chat("gpt-4o", base_url=server.url(name, "say:nonsense", "v1"))), path)

    assert (1, [], {}) == (outcome.state.completed, noted(path, "usage"), dict(outcome.state.usage))


def test_prices_can_be_replaced(server: Server, path: Path, name: str, tmp_path: Path) -> None:
    """A file of the user's own takes the place of ours."""
    file = tmp_path / "prices.toml"
    file.write_text('[models."small"]\ninput = 1000.0\noutput = 10000.0\n')
    run_real(define_real(Chat("small", base_url=server.url(name, "ok", "v1"), prices=file)), path)

    assert [2.0] == [usage["cost"] for usage in noted(path, "usage")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("models = 1", "add a table [models"),
        ("[models.a]\ninput = 1", "needs input and output"),
        ("[models.a]\ninput = -1\noutput = 1", "input = -1"),
        ('[models.a]\ninput = "1"\noutput = 1', "input = '1'"),
        ("[models.a]\ninput = 1\noutput = 1\ncachd = 1", "['cachd']"),
        ("[models.a", "not TOML"),
    ],
)
def test_wrong_prices_are_refused(tmp_path: Path, text: str, said: str) -> None:
    """A table that is wrong is an error of the definition, with its place."""
    file = tmp_path / "prices.toml"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        Chat("small", base_url="http://h/", prices=file)

    assert said in str(caught.value)
    assert str(file) in str(caught.value)


def test_cached_tokens_cost_less() -> None:
    """What the maker had seen before has a price of its own; without one, it costs as all else."""
    price = Prices.read(DEFAULT_PRICES).of("gpt-4o")

    assert price is not None
    assert 1.25 == price.cost(input_tokens=1_000_000, output_tokens=0, cached_tokens=1_000_000)
    assert 2.5 == price.cost(input_tokens=1_000_000, output_tokens=0)


def test_saying_nothing_is_an_answer(server: Server, path: Path, name: str) -> None:
    """A model that says nothing has given an empty output."""
    run_real(define_real(Chat("small", base_url=server.url(name, "say:", "v1"))), path)

    assert [""] == outputs(path)


def test_a_refusal_is_what_the_model_said(server: Server, path: Path, name: str) -> None:
    """A model that declines says so under another name than it answers: those words are its output."""
    reply = quote('raw:{"choices": [{"message": {"refusal": "I cannot."}}]}')
    run_real(define_real(Chat("small", base_url=server.url(name, reply, "v1"))), path)

    assert ["I cannot."] == outputs(path)


def test_an_answer_that_was_cut_short_is_an_answer_and_says_so(server: Server, path: Path, name: str) -> None:
    """What the limit of tokens has cut short is an output, and is counted as such by every view."""
    outcome = run_real(define_real(Chat("small", base_url=server.url(name, "say:short", "v1"))), path)

    assert (["short"], ["length"], 1) == (outputs(path), noted(path, "evaljournal.finish_reason"), outcome.state.truncated)
    said = "1 of 1 answer truncated by the token limit; raise --max-tokens"
    assert said in final_report(outcome.state, path=path)


@pytest.mark.parametrize(
    ("steps", "options", "category", "said"),
    [
        ("nooutput", {}, "error", "not a chat completion: no 'choices' in the value"),
        ("notjson", {}, "error", "not JSON"),
        ("empty", {}, "error", "not JSON"),
        ("error:503", {}, "unavailable", "the model is asleep"),
        (quote('raw:{"choices": [{"message": null}]}'), {}, "error", "its message is 'null'"),
        (quote('raw:{"choices": [{"message": "no"}]}'), {}, "error", "its message is 'no'"),
        (quote("raw:data: [1]\n\n"), {"stream": True}, "error", "a piece of the stream is not a chat completion: '[1]'"),
        (quote('raw:data: {"choices": [1]}\n\n'), {"stream": True}, "error", "is not a chat completion"),
        (quote('raw:data: {"choices": [{"delta": null}]}\n\n'), {"stream": True}, "unavailable", "without a finish_reason"),
        (quote('raw:data: {"choices": []}\n\ndata: [DONE]\n\n'), {"stream": True}, "error", "without a finish_reason"),
        ("say:no json", {"schema": {}}, "error", "reply is not JSON"),
        ("ndjson:cut", {"stream": True}, "unavailable", "peer closed"),
        ("429:1", {}, "rate_limited", "429"),
        ("400", {}, "fatal", "400"),
    ],
)
def test_a_failure_is_what_it_is(
    server: Server, path: Path, name: str, *, steps: str, options: Any, category: str, said: str
) -> None:
    """What is no completion is not taken for one."""
    run_real(define_real(Chat("small", base_url=server.url(name, steps, "v1"), **options)), path)

    (failed,) = events(path, AttemptFailed)
    assert (category, True) == (failed.category, said in failed.message)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"prompt": "x", "messages": [{"role": "user", "content": "y"}]}, "pass one of them"),
        ({"messages": [{"content": "y"}]}, "messages must be a non-empty list"),
        ({"messages": "no/such/file.json"}, "cannot read the"),
        ({"schema": "no/such/file.json"}, "cannot read the"),
        ({"prompt": "{"}, "is not a template"),
        ({"prices": "no/such/prices.toml"}, "cannot read the"),
        ({"base_url": "api.test/v1"}, "is not a URL"),
        ({"base_url": "https://api.openai.com/v1"}, "needs the environment variable OPENAI_API_KEY"),
        ({"key_env": "NO_SUCH_KEY"}, "needs the environment variable NO_SUCH_KEY"),
    ],
)
def test_what_is_wrong_is_refused_where_it_is_written(options: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chat that could not be had is an error of the definition."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(UsageError) as caught:
        Chat("small", **{"base_url": "http://h/v1", **options})

    assert said in str(caught.value)


def test_an_unknown_field_is_an_error_before_the_start(path: Path) -> None:
    """A prompt that names what a case does not have is refused before anything is sent."""
    chat = Chat("small", base_url="http://h/v1", prompt="{contxt}")
    with pytest.raises(UsageError, match=r"no field {contxt}.*did you mean {context}"):
        run_real(define_real(chat, [{"question": "q", "context": "c"}]), path)

    assert not path.exists()


def test_a_fingerprint_knows_the_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another prompt, model or temperature is another task; another key is not."""
    monkeypatch.setenv("MY_KEY", "first-key-of-all")
    first = Chat("small", base_url="http://h/v1", prompt="a", key_env="MY_KEY").fingerprint
    monkeypatch.setenv("MY_KEY", "second-key-of-all")

    assert first == Chat("small", base_url="http://h/v1", prompt="a", key_env="MY_KEY").fingerprint
    others: list[dict[str, Any]] = [{"prompt": "b"}, {"prompt": "a", "temperature": 1.0}, {"prompt": "a", "system": "s"}]
    assert 4 == len({first, *(Chat("small", base_url="http://h/v1", **each).fingerprint for each in others)})


# The SDKs of others, in tasks of the user's own.


def openai_task(url: str) -> Any:
    async def task(question: str) -> str | None:
        async with openai.AsyncOpenAI(base_url=url, api_key="a-key-of-no-shape", max_retries=0, timeout=5) as client:
            reply = await client.chat.completions.create(model="small", messages=[{"role": "user", "content": question}])
            return reply.choices[0].message.content

    return task


def anthropic_task(url: str) -> Any:
    async def task(question: str) -> str:
        base = url.removesuffix("/v1")
        async with anthropic.AsyncAnthropic(base_url=base, api_key="a-key-of-no-shape", max_retries=0, timeout=5) as client:
            messages: Any = [{"role": "user", "content": question}]
            reply: Any = await client.messages.create(model="small", max_tokens=10, messages=messages)
            return str(reply.content[0].text)

    return task


@pytest.mark.parametrize("loop", ["trio", "asyncio"])
@pytest.mark.parametrize("sdk", [openai_task, anthropic_task])
@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ("ok", ("LIMA", None)),
        ("429:7", ("rate_limited", 7.0)),
        ("429:date", ("rate_limited", 2.0)),
        ("500", ("unavailable", None)),
        ("reset", ("unavailable", None)),
        ("404", ("fatal", None)),
        ("401", ("fatal", None)),
    ],
)
def test_sdks_are_understood(
    server: Server, path: Path, name: str, *, loop: Any, sdk: Any, steps: str, expected: tuple[str, float | None]
) -> None:
    """The SDKs work in both loops, and what they raise means what it means, although none of them is imported by us."""
    stops = steps == "401"
    cases = [Case(name=each, input="lima") for each in ("ab" if stops else "a")]  # The second is not asked any more.
    outcome = run_real(define_real(sdk(server.url(name, steps, "v1")), cases, loop=loop, slots=1), path)

    answered = [(event.output, None) for event in events(path, AttemptSucceeded)]
    failed = [(event.category, event.retry_after) for event in events(path, AttemptFailed)]
    assert [expected] == answered + failed
    assert ("unauthorized" if stops else "") == outcome.stopped


def test_it_can_be_asked_by_hand(server: Server, name: str) -> None:
    """An evaluation of a chat model is still the model."""
    assert "LIMA" == trio.run(define_real(Chat("small", base_url=server.url(name, "ok", "v1"))), "lima")
