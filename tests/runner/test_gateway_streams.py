"""Streams through the gateway as they arrive, and the certificates of providers."""

import socket
import threading
from collections.abc import Callable
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final

import pytest
import trustme

from evaljournal.journal.events import AttemptFailed, StepCompleted, StepFailed
from evaljournal.runner.testing import events_of
from tests.gateway import ask, chunk, evaluate, evaluate_with, gateway_address, statuses
from tests.processes import TIMEOUT
from tests.runs import events, outputs
from tests.sdk_agents import chat, gateway_client
from tests.server import Server, serving

STREAM: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
DONE: Final = "data: [DONE]\n\n"
OVERLOADED: Final = 'event: error\ndata: {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}\n\n'
CHUNK: Final = 'data: {"model": "gpt-4o-mini", "choices": [{"index": 0, "delta": {"content": "Lima"}}]}\n\n'


def test_embeddings_and_models(path: Path, server: Server, name: str, provider: Callable[[str], None]) -> None:
    """Embeddings are steps; a list of models is forwarded and not recorded."""
    provider('raw:{"data":[]}')

    def agent(_: Any) -> int:
        with gateway_client(chat) as client:
            vectors = client.embeddings.create(model="m", input="lima", encoding_format="float").data
            return len(vectors) + len(client.models.list().data)

    evaluate(agent, path)

    assert [0] == outputs(path)
    assert ["embeddings m"] == [step.name for step in events(path, StepCompleted)]
    assert ["POST", "GET"] == [call["method"] for call in server.requests(name)]


def read_stream(on_chunk: Callable[[bytes], None]) -> None:
    """Ask for a stream through the gateway; pass on each part as it arrives."""
    url = gateway_address()
    connection = HTTPConnection(url.netloc, timeout=TIMEOUT)
    with closing(connection):
        connection.request("POST", url.path, '{"model": "m", "stream": true, "messages": []}')
        with connection.getresponse() as reply:
            while data := reply.read1():
                on_chunk(data)


def test_a_stream_is_passed_on_as_it_arrives(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent reads the first chunk before the provider sends the second; the step is recorded before the last."""
    has_read = threading.Event()
    recorded: list[int] = []

    def answer(client: socket.socket, _: bytes) -> None:
        client.sendall(STREAM + chunk(CHUNK))
        assert has_read.wait(TIMEOUT)
        client.sendall(chunk(DONE) + b"0\r\n\r\n")

    def agent(_: Any) -> str:
        parts: list[bytes] = []

        def on_chunk(data: bytes) -> None:
            parts.append(data)
            recorded.append(sum(isinstance(event, StepCompleted) for event in events_of(path)))
            has_read.set()

        read_stream(on_chunk)
        return b"".join(parts).decode()

    evaluate_with(answer, agent, path, monkeypatch, write_ahead=True, durability="sync")

    assert [CHUNK + DONE] == outputs(path)
    assert [0, 1] == recorded
    assert 1 == len(events(path, StepCompleted))


def test_an_agent_that_disconnects_after_the_last_event(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SDKs do that: the call is complete, and its connection to the provider is used again."""
    has_disconnected, requests = threading.Event(), list[bytes]()

    def answer(client: socket.socket, received: bytes) -> None:
        requests.append(received)
        client.sendall(STREAM + chunk(CHUNK) + chunk(DONE))
        assert has_disconnected.wait(TIMEOUT)
        client.sendall(b"0\r\n\r\n")
        requests.append(client.recv(65_536))
        client.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")

    def agent(_: Any) -> int:
        url = gateway_address()
        with socket.create_connection((url.hostname, url.port), timeout=TIMEOUT) as client:
            client.sendall(f"POST {url.path} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{{}}".encode())
            received = b""
            while DONE.encode() not in received:
                received += client.recv(65_536)
        has_disconnected.set()
        return ask("again")[0]

    evaluate_with(answer, agent, path, monkeypatch)

    assert [200] == outputs(path)
    assert (2, 0) == (len(events(path, StepCompleted)), len(events(path, StepFailed)))
    assert b"again" in requests[1]


@pytest.mark.parametrize(
    ("end", "error", "category"),
    [
        ("", "evaljournal.NoResponse", "unavailable"),
        ('data: {"error": {"message": "overloaded", "code": 503}}\n\n', "evaljournal.ErrorReply", "unavailable"),
        (OVERLOADED, "evaljournal.ErrorReply", "unavailable"),
        ('data: {"error": {"message": "flagged"}}\n\n', "evaljournal.ErrorReply", None),
    ],
    ids=["truncated", "code", "overloaded", "flagged"],
)
def test_an_incomplete_stream(path: Path, monkeypatch: pytest.MonkeyPatch, end: str, error: str, category: str | None) -> None:
    """The stream is passed on up to its end, is a failed step, and ends the attempt if the provider is at fault."""
    parts: list[bytes] = []

    def answer(client: socket.socket, _: bytes) -> None:
        client.sendall(STREAM + chunk(CHUNK) + (chunk(end) + b"0\r\n\r\n" if end else b""))

    def agent(_: Any) -> str:
        try:
            read_stream(parts.append)
        except OSError:
            return "truncated"
        return "read"

    evaluate_with(answer, agent, path, monkeypatch, retry={"errors": 0})

    assert b"".join(parts).startswith(CHUNK.encode())
    assert [error] == [step.error for step in events(path, StepFailed)]
    assert ([] if category is None else [category]) == [failed.category for failed in events(path, AttemptFailed)]


def test_certificates_of_providers_are_checked(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider that cannot prove its name gets no key."""
    certificate = tmp_path / "certificate.pem"
    trustme.CA().issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(certificate)
    with serving(str(certificate)) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url("gateway", "ok", "v1"))
        evaluate(statuses, path, "a", retry={"errors": 0})
    (failed,) = events(path, AttemptFailed)

    assert "evaljournal.NoResponse" == failed.error
    assert "certificate" in failed.message
