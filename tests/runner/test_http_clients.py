"""Model calls of the real SDKs, and other requests, as steps: `durable="http"`."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import anthropic
import httpx
import httpx2
import openai
import pytest

from journal.events import AttemptFailed, StepCompleted, StepFailed, StepReused
from replay import load
from runner import Endpoint, RateLimited, Retry, UsageError, durable, verify
from runner.engine.recorder import LateRecorder
from runner.steps import http_clients
from tests.runs import define_real, events, outputs, run_real
from tests.sdk_agents import (
    CHAT,
    CLIENTS,
    KEY,
    TURNS,
    Agent,
    Turn,
    chat,
    chat_async,
    chat_async_streamed,
    chat_streamed,
    make_client,
    message,
    message_async,
    message_async_streamed,
    message_streamed,
    responses,
    responses_streamed,
)
from tests.server import Server

RETRY: Final = Retry(rate_limits=30.0, errors=3, base_delay=0.01)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Has an element for each time that a step has waited until it is on disk."""
    done: list[None] = []
    wait = LateRecorder._wait_durable

    async def wait_and_count(self: LateRecorder) -> None:
        await wait(self)
        done.append(None)

    monkeypatch.setattr(LateRecorder, "_wait_durable", wait_and_count)
    return done


@pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")  # The OpenAI SDK leaves its own open.
@pytest.mark.parametrize(
    "kind",
    [
        (chat, None),
        (chat_streamed, None),
        (responses, None),
        (responses_streamed, None),
        (message, None),
        (message_streamed, None),
        (chat_async, "asyncio"),
        (chat_async_streamed, "asyncio"),
        (chat_async_streamed, "trio"),
        (message_async, "trio"),
        (message_async_streamed, "asyncio"),
        (message_async_streamed, "trio"),
    ],
    ids=lambda kind: f"{kind[0].__name__}-{kind[1]}",
)
def test_an_agent_continues_after_a_rate_limit(
    path: Path, server: Server, name: str, waits: list[None], kind: tuple[Turn, Any]
) -> None:
    """The next attempt gets the recorded replies as the SDK read them before; the SDK itself does not retry."""
    turn, loop = kind
    ok = "sse" if "streamed" in turn.__name__ else "ok"
    url = server.url(name, f"{ok},{ok},429:0.05,{ok}", "api")
    agent = Agent(lambda: make_client(url, CLIENTS[turn]), turn)
    task = agent.plain if loop is None else agent.awaited
    defined = define_real(task, "lima", loop=loop, durable="http", retry=RETRY, write_ahead=True)
    outcome = run_real(defined, path, durability="sync")

    assert ["LIMA 0 1"] == outputs(path)
    assert TURNS + 1 == len(server.requests(name))
    assert (TURNS, 1, 2) == tuple(len(events(path, kind)) for kind in (StepCompleted, StepFailed, StepReused))
    assert agent.replies[0] == agent.replies[1][:2]
    assert TURNS == len(waits)
    assert {"input_tokens": 1000 * TURNS, "output_tokens": 100 * TURNS}.items() <= dict(outcome.state.usage).items()
    assert ["rate_limited"] == [event.category for event in events(path, AttemptFailed)]
    assert verify(path).ok
    assert not [file for file in path.rglob("*.jsonl") if KEY.encode() in file.read_bytes()]


def post(url: str, text: str = "lima", **options: Any) -> httpx.Response:
    """Call a model with httpx, without an SDK."""
    with httpx.Client(verify=False) as client:  # noqa: S501  # loading certificates takes long
        body = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": text}]}
        return client.post(url, json=body, **options).raise_for_status()


class FailsOnce:
    """A task that makes its calls, fails once with a rate limit, and returns what they returned."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self.results: list[Any] = []
        """What the calls of each attempt returned."""

    def __call__(self, _: Any) -> Any:
        self.results.append(self._call())
        if len(self.results) == 1:
            raise RateLimited(0.01)
        return self.results[-1]


def run_failing_once(path: Path, call: Callable[[], Any], **options: Any) -> FailsOnce:
    """Run a task that fails once after its calls."""
    task = FailsOnce(call)
    run_real(define_real(task, "lima", name="task", retry=RETRY, **{"durable": "http", **options}), path)
    assert 2 == len(task.results)
    return task


def test_what_a_killed_process_leaves(path: Path, server: Server, name: str) -> None:
    """With `write_ahead`, a resumed run makes only the calls that had not returned."""
    url = server.url(name, "ok", "v1/chat/completions")
    copy = path.with_name("copy")

    def agent(_: Any) -> str:
        texts = [post(url, f"turn {number}").json()["choices"][0]["message"]["content"] for number in range(3)]
        if not copy.exists():
            shutil.copytree(path, copy)  # What a process that is killed now leaves.
        return " ".join([*texts, post(url, "last").json()["choices"][0]["message"]["content"]])

    defined = define_real(agent, "lima", durable="http", write_ahead=True)
    run_real(defined, path, durability="sync")
    run_real(defined, copy, resume=True, durability="sync")

    assert ["TURN 0 TURN 1 TURN 2 LAST"] == outputs(copy)
    assert 4 + 1 == len(server.requests(name))
    assert 3 == len(events(copy, StepReused))
    assert verify(copy).ok


def test_equal_concurrent_calls(path: Path, server: Server, name: str) -> None:
    """Each call has its own result, and each result is used once."""
    url = server.url(name, "reply:a,reply:b,reply:c,reply:d", "v1/chat/completions")
    attempts: list[list[str]] = []

    async def agent(_: Any) -> list[str]:
        async with httpx.AsyncClient(verify=False) as client:  # noqa: S501  # loading certificates takes long
            body = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "lima"}]}
            replies = await asyncio.gather(*(client.post(url, json=body) for _ in range(3)))
            attempts.append(sorted(reply.json()["choices"][0]["message"]["content"] for reply in replies))
        if len(attempts) == 1:
            raise RateLimited(0.01)
        return attempts[-1]

    run_real(define_real(agent, "lima", loop="asyncio", durable="http", retry=RETRY), path)

    assert [["a", "b", "c"]] * 2 == attempts
    assert 3 == len(server.requests(name))


def test_other_requests_pass_through(path: Path, server: Server, name: str) -> None:
    """Other requests, and all requests without the setting, are repeated and not recorded, whatever the client."""
    url = server.url(name, "ok", "v1/models")
    run_failing_once(path, lambda: httpx.get(url, verify=False).status_code)  # noqa: S501
    run_failing_once(path.with_name("off"), lambda: post(server.url(name, "ok", "v1/chat/completions")).text, durable=())

    assert 2 + 2 == len(server.requests(name))
    assert [] == events(path, StepCompleted) + events(path.with_name("off"), StepCompleted)


def test_outside_an_attempt_nothing_is_recorded(server: Server, name: str) -> None:
    """Clients, and the retries of an SDK, work as usual."""
    http_clients.watch_clients()
    with make_client(server.url(name, "429:0.01,ok", "api"), openai.OpenAI) as client:
        text, _ = chat(client, [{"role": "user", "content": "lima"}])

    assert "LIMA" == text
    assert 2 == len(server.requests(name))


def test_listed_addresses(path: Path, server: Server, name: str) -> None:
    """Requests to them are steps; two that differ only in their query never share a result."""
    url = server.url(name, "target", "search")
    queries = ["?q=a", "?q=b", "?key=a", "?key=b", "?token=0123456789abcdef", "?token=fedcba9876543210", ""]

    def call() -> list[str]:
        order = queries if len(server.requests(name)) == 0 else queries[::-1]
        with httpx2.Client(verify=False) as client:
            answers = {query: client.get(url + query).json()["output"] for query in order}
        return [answers[query] for query in queries]

    task = run_failing_once(path, call, durable=("http", url))

    assert [f"/{name}/target/search{query}" for query in queries] == task.results[0] == task.results[1]
    assert len(queries) == len(server.requests(name))
    assert {("tool", f"GET 127.0.0.1/{name}/target/search")} == {
        (event.kind, event.name) for event in events(path, StepCompleted)
    }
    assert "0123456789abcdef" not in str([event.input for event in events(path, StepCompleted)])


def stream_text(url: str, *, chunks: int = 1000) -> str:
    """Return the text of a streamed answer, or its beginning."""
    with make_client(url, openai.OpenAI) as client:
        messages: Any = [{"role": "user", "content": "lima"}]
        with client.chat.completions.create(messages=messages, stream=True, **CHAT) as stream:
            received = [chunk for _, chunk in zip(range(chunks), stream, strict=False)]
    return "".join(chunk.choices[0].delta.content or "" for chunk in received if chunk.choices)


def test_a_stream_that_is_closed_early_is_called_again(path: Path, server: Server, name: str) -> None:
    """A stream that the task closes early is not recorded, and the next attempt repeats the call."""
    url = server.url(name, "sse", "api")
    task = run_failing_once(path, lambda: stream_text(url, chunks=3))

    assert ["LI", "LI"] == task.results
    assert 2 == len(server.requests(name))
    assert [] == events(path, StepCompleted) + events(path, StepFailed)


@pytest.mark.parametrize(
    ("turn", "fault"),
    [
        (chat_streamed, "cut"),
        (chat_streamed, "chunk"),
        (message_streamed, "cut"),
        (message_streamed, "error"),
    ],
)
def test_a_stream_that_breaks_is_a_failed_step(path: Path, server: Server, name: str, turn: Turn, fault: str) -> None:
    """An incomplete stream, or one with an error, is never a result; the next attempt repeats the call."""
    url = server.url(name, f"sse:{fault},sse", "api")

    def agent(question: str) -> str:
        with make_client(url, CLIENTS[turn]) as client:
            return str(turn(client, [{"role": "user", "content": question}])[0])

    defined = define_real(agent, "lima", durable="http", retry=RETRY)
    run_real(defined, path)

    assert ["LIMA"] == outputs(path)
    assert (1, 1) == (len(events(path, StepFailed)), len(events(path, StepCompleted)))
    assert [] == events(path, StepReused)


@pytest.mark.parametrize("fault", ["500", "close", "cut", "notjson", "gzip:cut"])
def test_a_call_that_fails_is_a_failed_step(path: Path, server: Server, name: str, fault: str) -> None:
    """An error status, a closed connection, and an incomplete or invalid reply are failed steps."""
    url = server.url(name, f"{fault},ok", "v1/chat/completions")
    defined = define_real(lambda _: post(url).json()["choices"], "lima", name="task", durable="http", retry=RETRY)
    run_real(defined, path)

    assert 1 == len(outputs(path))
    assert (1, 1) == (len(events(path, StepFailed)), len(events(path, StepCompleted)))


@pytest.mark.parametrize("coding", ["gzip", "deflate", "deflate:bare"])
def test_compressed_replies(path: Path, server: Server, name: str, coding: str) -> None:
    """Compressed replies are recorded as JSON and replayed uncompressed; no other encoding is requested."""
    url = server.url(name, coding, "v1/chat/completions")
    accepted = {"accept-encoding": "gzip, br, zstd"}
    task = run_failing_once(path, lambda: post(url, headers=accepted).json())
    [step] = events(path, StepCompleted)

    assert task.results[0] == task.results[1] == step.output["body"]
    assert ["gzip, deflate"] == [request["headers"]["accept-encoding"] for request in server.requests(name)]


def test_a_key_in_a_prompt_or_a_reply_is_masked(path: Path, server: Server, name: str) -> None:
    """A key is masked even if it is in no environment variable and in no earlier request."""
    url = server.url(name, "echo", "v1/chat/completions")
    keys = ["a-key-of-this-test-8812", "another-key-of-this-test-8813"]
    headers = {"authorization": f"Bearer {keys[0]}", "api-key": keys[1]}
    run_failing_once(path, lambda: len(post(url, " ".join(keys), headers=headers).text))
    content = b"".join(file.read_bytes() for file in path.rglob("*.jsonl")).decode()

    assert "***" in content
    assert [] == [key for key in keys if key in content]


def test_a_redirect_is_not_a_step(path: Path, server: Server, name: str) -> None:
    """A redirect is neither a result nor a failure."""
    url = server.url(name, "redirect", "v1/chat/completions")

    def call() -> int:
        with httpx.Client(verify=False) as client:  # noqa: S501
            return client.post(url).status_code

    run_failing_once(path, call)

    assert [] == events(path, StepCompleted) + events(path, StepFailed)


def test_usage_of_a_call_inside_a_step_is_counted_once(path: Path, server: Server, name: str) -> None:
    """A step that returns the reply of a model does not count its tokens again."""
    url = server.url(name, "ok", "v1/chat/completions")
    ask = durable(kind="model", name="ask")(lambda: post(url).json())
    run_failing_once(path, ask)

    assert [("chat.completions gpt-4o-mini", 1), ("ask", 0)] == [
        (event.name, event.parent) for event in events(path, StepCompleted)
    ]
    state = load(path).state
    assert 1000 == state.usage["input_tokens"] == state.steps.usage_saved["input_tokens"]
    assert not any(state.usage_without_output.values())


def test_aiohttp(path: Path, server: Server, name: str) -> None:
    """The SDKs' clients for aiohttp are covered."""
    url = server.url(name, "gzip", "api")
    texts: list[str] = []

    async def agent(_: Any) -> str:
        http_client = anthropic.DefaultAioHttpClient(verify=False)
        async with anthropic.AsyncAnthropic(base_url=url, api_key=KEY, http_client=http_client) as client:
            texts.append((await message_async(client, [{"role": "user", "content": "lima"}]))[0])
        if len(texts) == 1:
            raise RateLimited(0.01)
        return texts[-1]

    run_real(define_real(agent, "lima", loop="asyncio", durable="http", retry=RETRY), path)

    assert ["LIMA", "LIMA"] == texts
    assert 1 == len(server.requests(name))


@pytest.mark.parametrize("value", ["https", "tools.example", "ftp://tools.example/", "https://tools.example/?q=1", 3])
def test_an_invalid_address(value: Any) -> None:
    """An invalid address is rejected where the evaluation is defined."""
    with pytest.raises(UsageError, match="durable"):
        define_real(lambda _: None, "lima", name="task", durable=[value])


def test_a_task_without_clients(path: Path) -> None:
    """An endpoint has no SDK whose calls could be recorded."""
    with pytest.raises(UsageError, match="durable"):
        run_real(define_real(Endpoint("http://127.0.0.1:1"), "lima", durable="http"), path)


def test_a_gateway_records_the_same_calls(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With both, one call would be two steps, and its tokens would count twice."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with pytest.raises(UsageError, match="durable"):
        run_real(define_real(lambda _: None, "lima", name="task", durable="http", gateway=True), path)


def test_without_a_library(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names what to install."""
    monkeypatch.setattr(http_clients, "_LIBRARIES", ("no_such_library",))
    with pytest.raises(UsageError, match="httpx"):
        run_real(define_real(lambda _: None, "lima", name="task", durable="http"), path)
