"""The batch APIs of the providers: requests, statuses, results and errors, against a server with every fault."""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import httpcore2
import orjson
import pytest
import trio

from evaljournal.journal.events import BatchPrepared
from evaljournal.journal.fact import evolve_fact
from evaljournal.runner.calls.batches import openai
from evaljournal.runner.calls.batches.api import (
    BatchApi,
    BatchNotFound,
    BatchStatus,
    NotSubmitted,
    OwnerUnknown,
    SubmissionUnclear,
    WrongAccount,
    digest_of,
)
from evaljournal.runner.calls.batches.openai import OpenAiBatches
from evaljournal.runner.calls.chat import Chat
from evaljournal.runner.calls.http.reply import BadStatus, InvalidReply, NoResponse
from evaljournal.runner.errors import UsageError
from tests.batch_servers import BatchServer, connect_in_memory

DIALECTS = ("chat", "anthropic")
PREFIX = "ej-run-1-"
START = datetime.now(UTC)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> BatchServer:
    """Let all connections reach a server in this process."""
    return connect_in_memory(monkeypatch)


def open_api(dialect: str, plan: str = "-") -> BatchApi:
    """Return the API of a chat model at the server, under the name `t`."""
    base = f"http://127.0.0.1:1/t/{plan}{'' if dialect == 'anthropic' else '/v1'}"
    return Chat("m", dialect=dialect, base_url=base, key_env="KEY").batch_api()


def prepare(api: BatchApi, count: int = 4) -> tuple[BatchPrepared, list[bytes]]:
    """Return a batch of some lines."""
    bodies = [{"model": "m", "messages": [{"role": "user", "content": f"line {line}"}]} for line in range(1, count + 1)]
    lines = [api.encode(f"{PREFIX}{number}", body) for number, body in enumerate(bodies, 1)]
    fields: Any = {"model": "m", "api": api.name, "address": api.address, "bytes": 0, "tokens": 0}
    return BatchPrepared(batch=1, trials=["a"] * count, prefix=PREFIX, digest=digest_of(lines), **fields), lines


async def finish(api: BatchApi, batch_id: str) -> BatchStatus:
    """Poll a batch until it has ended."""
    while not (status := await api.poll(batch_id)).is_ended:
        pass
    return status


async def run_batch(api: BatchApi, count: int = 4) -> BatchStatus:
    """Submit a batch, and poll it until it has ended."""
    return await finish(api, (await api.submit(*prepare(api, count))).id)


async def collect(api: BatchApi, status: BatchStatus) -> tuple[dict[str, int], int]:
    """Return the status of each line in the results, and the number of broken lines."""
    with await api.results(status) as results:
        statuses = {result.custom_id.removeprefix(PREFIX): result.status for result in results}
        return statuses, results.broken


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_results(server: BatchServer, dialect: str) -> None:
    """Each line has its reply, whatever the order of the results; the body is that of a live call."""
    api = open_api(dialect, "polls:3")
    submitted = await api.submit(*prepare(api))

    states = [await api.poll(submitted.id) for _ in range(3)]
    with await api.results(states[-1]) as results:
        bodies = {result.custom_id: orjson.loads(result.body) for result in results}

    assert [False, False, True] == [state.is_ended for state in states]
    assert (0, 4) == (states[0].completed, states[0].total)
    assert (4, 0, 4) == (states[-1].completed, states[-1].failed, states[-1].total)
    assert submitted.expires == states[-1].expires != ""
    assert [f"{PREFIX}{number}" for number in (4, 3, 2, 1)] == list(bodies)
    text = bodies[f"{PREFIX}2"]["content"][0]["text"] if dialect == "anthropic" else _text(bodies[f"{PREFIX}2"])
    assert text == "LINE 2"
    assert [[f"{PREFIX}{number}" for number in (1, 2, 3, 4)]] == [
        [line[0] for line in record["lines"]] for record in server.ledger("t", "create")
    ]


def _text(body: Mapping[str, Any]) -> str:
    return str(body["choices"][0]["message"]["content"])


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_known_batches_are_not_found(server: BatchServer, dialect: str) -> None:
    """A batch that another one is known to be, and one of another batch with as many lines, are not ours."""
    del server
    api = open_api(dialect)
    batch, lines = prepare(api)
    submitted = await api.submit(batch, lines)
    await finish(api, submitted.id)
    other = evolve_fact(batch, prefix="ej-run-2-", digest="0" * 64)

    assert (submitted.id, None, None) == (
        (await api.find(batch, START, ()) or submitted).id,
        await api.find(batch, START, {submitted.id}),
        await api.find(other, START, ()),
    )


async def test_older_batches_are_not_listed_to_the_end(server: BatchServer) -> None:
    """A list is read up to the first page with only older batches."""
    api = open_api("chat")
    batch, lines = prepare(api)
    for _ in range(9):
        await api.submit(batch, lines)

    assert await api.find(evolve_fact(batch, prefix="later-"), START + timedelta(days=3), ()) is None
    assert 1 == len(server.ledger("t", "list"))


async def test_a_batch_is_found_by_its_file(server: BatchServer) -> None:
    """A provider that does not keep the metadata still lists the name of the file."""
    api = open_api("chat", "create:lost")
    batch, lines = prepare(api)
    with pytest.raises(SubmissionUnclear):
        await api.submit(batch, lines)
    server.worlds["t"].batches[0].metadata = None

    submitted = await api.find(batch, START, ())

    assert submitted is not None
    assert submitted.file == server.worlds["t"].batches[0].file


async def test_an_endpoint_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a connection, nothing was submitted."""

    async def refuse(*_: object, **__: object) -> None:
        raise ConnectionRefusedError

    monkeypatch.setenv("KEY", "sk-first-key-of-the-tests")
    monkeypatch.setattr("trio.open_tcp_stream", refuse)
    api = open_api("anthropic")
    with pytest.raises(NotSubmitted) as raised:
        await api.submit(*prepare(api))

    assert isinstance(raised.value.__cause__, NoResponse)
    assert isinstance(raised.value.__cause__.__cause__, httpcore2.ConnectError)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("key", "error"), [("sk-second-key-of-the-tests", BatchNotFound), ("sk-invalid-key-of-tests", WrongAccount)]
)
async def test_another_api_key(
    server: BatchServer, monkeypatch: pytest.MonkeyPatch, dialect: str, key: str, error: type[Exception]
) -> None:
    """With another API key, the batch does not exist or is not accessible; the accounts differ; messages name no key."""
    del server
    api = open_api(dialect)
    submitted = await api.submit(*prepare(api))
    monkeypatch.setenv("KEY", key)
    other = open_api(dialect)
    with pytest.raises(error) as raised:
        await other.poll(submitted.id)

    assert key not in str(raised.value)
    assert api.account("run") != other.account("run")
    assert api.account("run") != api.account("run 2")
    assert api.account("run") == api.account("run")
    assert api != other


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_failed_poll(server: BatchServer, dialect: str) -> None:
    """A status that says nothing about the batch is raised as it is; the error is not its own cause."""
    del server
    api = open_api(dialect, "poll:500")
    submitted = await api.submit(*prepare(api))

    with pytest.raises(BadStatus) as raised:
        await api.poll(submitted.id)

    assert raised.value.__cause__ is None


@pytest.mark.parametrize("dialect", DIALECTS)
def test_equal_apis(server: BatchServer, dialect: str) -> None:
    """Two models of one endpoint with one API key have the same batches."""
    del server

    assert {open_api(dialect)} == {open_api(dialect)}
    assert open_api(dialect) != open_api(dialect, "polls:2")


async def test_another_user_with_as_many_lines(server: BatchServer) -> None:
    """While a batch of Anthropic with as many lines is in progress, whose it is is unknown."""
    del server
    api = open_api("anthropic", "others:running")
    batch, _ = prepare(api, 1)

    with pytest.raises(OwnerUnknown, match="batch_other"):
        await api.find(batch, START, ())


@pytest.mark.parametrize(
    "reply",
    [
        b"[]",
        b'"x"',
        b"{}",
        b'{"id": "../../x", "status": "completed", "processing_status": "ended"}',
        b'{"status": 7, "processing_status": []}',
        b'{"status": "completed", "output_file_id": "a/b", "processing_status": ""}',
    ],
)
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_invalid_replies(server: BatchServer, monkeypatch: pytest.MonkeyPatch, dialect: str, reply: bytes) -> None:
    """A reply of the wrong form leaves a submission unclear, and a poll without a result."""
    monkeypatch.setattr(server, "reply", lambda *_: reply)
    api = open_api(dialect)
    batch, lines = prepare(api)

    with pytest.raises(SubmissionUnclear if dialect == "anthropic" else NotSubmitted):
        await api.submit(batch, lines)
    if b"../.." not in reply:
        with pytest.raises(InvalidReply):
            await api.poll("batch_1")
    if reply != b"[]":
        with pytest.raises(InvalidReply):
            await api.find(batch, START, ())


async def test_replies_with_wild_values(server: BatchServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts and times of the wrong type are unknown; the message is shortened, and keys in it are masked."""
    job = {
        "status": "FAILED",
        "request_counts": {"total": -1, "completed": 2**70, "failed": "x"},
        "expires_at": 1e300,
        "errors": {"data": [{"message": "sk-first-key-of-the-tests" + "y" * 9_000, "line": "?"}, 3]},
    }
    monkeypatch.setattr(server, "reply", lambda *_: json.dumps(job).encode())

    status = await open_api("chat").poll("batch_1")

    assert ("failed", True, 0, 0, 0, "") == (
        status.state,
        status.is_ended,
        status.total,
        status.completed,
        status.failed,
        status.expires,
    )
    assert len(status.message) < 600
    assert "sk-first-key" not in status.message


@pytest.mark.parametrize(
    ("base_url", "address", "fields"),
    [
        (None, "https://api.openai.com/v1/batches", {"endpoint": "/v1/chat/completions", "deployment": ""}),
        (
            "https://r.openai.azure.com/openai/deployments/d?api-version=2024-10-21",
            "https://r.openai.azure.com/openai/batches",
            {"endpoint": "/chat/completions", "deployment": "d"},
        ),
        (
            "https://r.openai.azure.com/openai/v1",
            "https://r.openai.azure.com/openai/v1/batches",
            {"endpoint": "/v1/chat/completions", "deployment": ""},
        ),
        (
            "https://api.groq.com/openai/v1",
            "https://api.groq.com/openai/v1/batches",
            {"endpoint": "/v1/chat/completions", "purpose": "batch"},
        ),
        (
            "https://api.together.xyz/v1",
            "https://api.together.xyz/v1/batches",
            {"purpose": "batch-api", "upload_path": "/files/upload", "has_metadata": False},
        ),
        ("http://localhost:8000/v1/", "http://localhost:8000/v1/batches", {"endpoint": "/v1/chat/completions"}),
    ],
)
def test_endpoints(monkeypatch: pytest.MonkeyPatch, base_url: str | None, address: str, fields: dict[str, Any]) -> None:
    """Each provider has its own URL and fields; the deployment of Azure is the model of each line."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-first-key-of-the-tests")
    api = Chat("m", base_url=base_url).batch_api()

    assert isinstance(api, OpenAiBatches)
    assert (address, fields) == (api.address, {name: getattr(api, name) for name in fields})
    assert (api.deployment or "m") == orjson.loads(api.encode("a", {"model": "m"}))["body"]["model"]


async def test_azure_and_together_requests(server: BatchServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The API version is in every request to Azure; Together gets the name of the file, and no metadata."""
    targets: list[str] = []
    bodies: list[bytes] = []
    reply = server.reply

    def record(head: Any, body: bytes) -> bytes:
        targets.append(re.sub(r"batch_\d+", "batch_N", head.target))
        bodies.append(body)
        is_wrapped = head.method == "POST" and head.target == "/t/-/v1/batches"
        return b'{"job":%b}' % reply(head, body) if is_wrapped else reply(head, body)

    monkeypatch.setattr(server, "reply", record)
    azure = Chat("m", base_url="http://r.openai.azure.com/t/-/deployments/d?api-version=2024-10-21", key_env="KEY").batch_api()
    status = await run_batch(azure)
    await collect(azure, status)
    together = Chat("m", base_url="http://api.together.xyz/t/-/v1", key_env="KEY").batch_api()
    batch, lines = prepare(together)
    submitted = await together.submit(batch, lines)

    version = "?api-version=2024-10-21"
    assert targets == [
        f"/t/-/files{version}",
        f"/t/-/batches{version}",
        f"/t/-/batches/batch_N{version}",
        f"/t/-/files/batch_N.output/content{version}",
        "/t/-/v1/files/upload",
        "/t/-/v1/batches",
    ]
    assert b'name="file_name"\r\n\r\nej-run-1-.jsonl\r\n' in bodies[4]
    assert {"input_file_id", "endpoint", "completion_window"} == orjson.loads(bodies[5]).keys()
    assert submitted == await together.find(batch, START, {status.id})


async def test_a_file_that_is_never_ready(server: BatchServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch whose uploaded file does not become ready is not submitted."""
    monkeypatch.setattr(openai, "_FILE_WAIT", 0.0)
    monkeypatch.setattr(server, "reply", lambda *_: b'{"id":"file-1","status":"pending"}')
    api = open_api("chat")

    with trio.fail_after(20), pytest.raises(NotSubmitted, match="not ready"):
        await api.submit(*prepare(api))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dialect": "gemini"}, "batches are not supported for the dialect 'gemini'"),
        ({"base_url": "https://openrouter.ai/api/v1"}, "openrouter.ai has no batches of chat/completions"),
        ({"base_url": "https://api.groq.com/openai/v1", "dialect": "responses"}, "api.groq.com has no batches of responses"),
    ],
)
def test_endpoints_without_batches(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], message: str) -> None:
    """Where there are no batches, this is a usage error."""
    for name in ("OPENAI_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.setenv(name, "sk-first-key-of-the-tests")

    with pytest.raises(UsageError, match=re.escape(message)):
        Chat("m", **options).batch_api()


async def test_exact_numbers(server: BatchServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """An integer of more than 64 bits in a reply is kept."""
    api = open_api("chat")
    status = await run_batch(api, 1)
    body = b'{"n":%d}' % 2**70
    monkeypatch.setattr(server, "reply", lambda *_: b'{"custom_id":"a","response":{"status_code":200,"body":%b}}' % body)

    with await api.results(status) as results:
        assert [2**70] == [json.loads(result.body)["n"] for result in results]
