"""The gateway gets invalid requests, too many or too large ones, and agents that disconnect early or not at all."""

import json
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult

import pytest

from evaljournal.journal.events import AttemptFailed, StepCompleted, StepFailed
from evaljournal.runner.calls.http import server as http_server
from evaljournal.runner.steps.gateway import call, gateway
from tests.gateway import ask, chunk, evaluate, evaluate_with, gateway_address, scripted_provider
from tests.processes import TIMEOUT
from tests.runs import define_real, events, outputs, run_real
from tests.server import Server

STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
REPLY = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


pytestmark = pytest.mark.usefixtures("provider")


def connect(url: SplitResult) -> socket.socket:
    """Return a connection to the gateway."""
    return socket.create_connection((url.hostname, url.port), timeout=TIMEOUT)


def exchange(request: bytes) -> bytes:
    """Send bytes to the gateway; return all that it sends until it closes the connection."""
    with connect(gateway_address()) as client:
        client.sendall(request)
        received = b""
        while data := client.recv(65_536):
            received += data
    return received


def status(reply: bytes) -> int:
    return int(reply.split(b" ", 2)[1])


def request(target: str, method: str = "POST", headers: str = "", body: str = "{}") -> bytes:
    """Return a request after which the connection is closed."""
    return (
        f"{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}Content-Length: {len(body)}\r\n\r\n{body}"
    ).encode()


def test_only_known_paths_of_attempts_in_flight_are_forwarded(path: Path, server: Server, name: str) -> None:
    """Another path, method, token or host gets an error that names the problem, and the provider gets nothing."""
    messages: list[str] = []

    def agent(_: Any) -> list[int]:
        url = gateway_address("")
        token = url.path.split("/")[1]
        wrong = ("0" if token[-1] != "0" else "1").join([token[:-1], ""])
        replies = [
            exchange(request(target, method))
            for target, method in [
                (f"{url.path}/files", "POST"),
                (f"{url.path}/chat/completions/../../files", "POST"),
                (f"{url.path}/chat%2Fcompletions", "POST"),
                (f"{url.path}//chat/completions", "POST"),
                (f"/{token}/openai/v2/chat/completions", "POST"),
                (f"/{token}", "POST"),
                (f"{url.path}/chat/completions", "GET"),
                (f"{url.path}/chat/completions", "DELETE"),
                (url.path.replace(token, wrong) + "/chat/completions", "POST"),
                ("/openai/v1/chat/completions", "POST"),
                ("/", "GET"),
                ("*", "OPTIONS"),
                ("http://127.0.0.1:9/v1/chat/completions", "POST"),
                (f"http://127.0.0.1:9{url.path}/chat/completions", "POST"),
                ("127.0.0.1:9", "CONNECT"),
            ]
        ]
        messages.append(json.loads(replies[0].partition(b"\r\n\r\n")[2])["error"]["message"])
        return [*map(status, replies)]

    evaluate(agent, path)

    assert "/openai/v1/chat/completions" in messages[0]
    assert [[404] * 6 + [405] * 2 + [403] * 7] == outputs(path)
    assert [] == server.requests(name)
    assert [] == events(path, StepFailed)


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ("garbage\r\n\r\n", 400),
        ("POST {path} HTTP/1.1\r\n\r\n", 400),  # without Host
        ("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400),
        ("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 1, 2\r\n\r\n", 400),
        ("POST {path} HTTP/1.1\r\nHost: x\r\nHost: y\r\nContent-Length: 0\r\n\r\n", 400),
        ("POST {path} HTTP/1.1\nHost: x\nContent-Length: 0\n\n", 400),
        ("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        ("POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 501),
        ("POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        ("POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n", 400),
        ("POST {path} HTTP/1.1\r\nHost: x\r\nX: {large}\r\n\r\n", 431),
        ("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n", 413),
    ],
)
def test_invalid_requests(path: Path, head: str, expected: int) -> None:
    """What is not HTTP, or too large, gets a status, and the connection is closed."""

    def agent(_: Any) -> int:
        text = head.replace("{path}", gateway_address().path).replace("{large}", "x" * 2 * http_server.MAX_HEAD)
        return status(exchange(text.encode()))

    evaluate(agent, path)

    assert [expected] == outputs(path)


def test_a_body_that_is_too_large(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body without a length is read up to the limit; one with too many values would take a hundred times its size."""
    monkeypatch.setattr(call, "MAX_BYTES", 3_000_000)

    def agent(_: Any) -> list[int]:
        head = f"POST {gateway_address().path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        large = exchange(head + b"186a0\r\n%b\r\n" % (b"x" * 100_000) * 40)
        return [status(large), ask("a", values=[0] * 1_000_001)[0]]

    evaluate(agent, path)

    assert [[413, 413]] == outputs(path)


def test_large_bodies_wait_for_each_other(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All large bodies are answered, although only a few fit into memory at the same time."""
    monkeypatch.setattr("evaljournal.runner.steps.gateway.gateway.MAX_REQUESTS", 1_500_000)

    def agent(_: Any) -> int:
        url = gateway_address()
        with ThreadPoolExecutor(3) as pool:
            replies = pool.map(lambda _: ask("x" * 1_200_000, url)[0], range(3), timeout=TIMEOUT)
            return list(replies).count(200)

    evaluate(agent, path)

    assert [3] == outputs(path)


def test_many_connections(path: Path) -> None:
    """200 concurrent connections are answered next to 50 without a request, and none is left open."""
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0

    def agent(_: Any) -> int:
        url = gateway_address()
        body = b'{"model": "m", "messages": [{"role": "user", "content": "a"}]}'
        head = f"POST {url.path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        clients = [connect(url) for _ in range(200)]
        idle = [connect(url) for _ in range(50)]
        for client in clients:
            client.sendall(head + body)
        replies = [client.recv(65_536) for client in clients]
        for client in clients + idle:
            client.close()
        return sum(reply.startswith(b"HTTP/1.1 200 ") for reply in replies)

    evaluate(agent, path)

    assert [200] == outputs(path)
    assert 200 == len(events(path, StepCompleted))
    assert not before or len(os.listdir("/proc/self/fd")) <= before + 2


def kept_open(target: str, client: socket.socket) -> int:
    """Send a request after which the connection stays open; return the status of the reply."""
    client.sendall(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    return status(client.recv(65_536))


def test_too_many_connections_fail_the_attempt(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that the gateway cannot answer gets 503, and the attempt fails, whatever the agent returns."""
    monkeypatch.setattr(gateway, "MAX_CONNECTIONS", 2)
    replies: list[list[int]] = []

    def agent(_: Any) -> list[int]:
        url = gateway_address("")
        with ExitStack() as stack:
            open_count = 2 if not replies else 0
            clients = [connect(url) for _ in range(open_count)]
            kept = [kept_open(f"{url.path}/files", stack.enter_context(client)) for client in clients]
            replies.append([*kept, ask("a")[0]])
        return replies[-1]

    evaluate(agent, path)

    assert [[404, 404, 503], [200]] == replies
    assert [("unavailable", "the gateway has 2 open connections, its maximum; use fewer slots")] == [
        (event.category, event.message) for event in events(path, AttemptFailed)
    ]
    assert [[200]] == outputs(path)


def test_connections_without_a_token_do_not_count(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle connections, and those with a wrong token, take no place of an attempt, and are closed after some seconds."""
    monkeypatch.setattr(gateway, "MAX_CONNECTIONS", 2)
    monkeypatch.setattr(http_server, "TOKEN_TIMEOUT", 0.5)

    def agent(_: Any) -> list[int]:
        url = gateway_address("")
        with ExitStack() as stack:
            clients = [stack.enter_context(connect(url)) for _ in range(4)]
            first, wrong, partial, _ = clients
            replies = [kept_open(f"{url.path}/files", first), kept_open("/wrong/openai/v1/models", wrong)]
            partial.sendall(request(url.path)[:30])
            replies.append(ask("a")[0])
            ends = [client.recv(65_536) for client in clients[1:]]  # Returns when the gateway closes it.
            return [*replies, *map(len, ends), kept_open(f"{url.path}/files", first)]

    evaluate(agent, path)

    assert [[404, 403, 200, 0, 0, 0, 404]] == outputs(path)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
def test_few_connections_without_a_token_are_accepted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 200 idle connections, at most 64 take a file descriptor of the gateway, and a call after them is answered."""
    monkeypatch.setattr(http_server, "CROWDED_TIMEOUT", 0.05)

    def agent(_: Any) -> list[int]:
        url = gateway_address()
        with ExitStack() as stack:
            before = len(os.listdir("/proc/self/fd"))
            for _ in range(200):
                stack.enter_context(connect(url))
            reply = ask("a")[0]  # Accepted after all others.
            return [reply, len(os.listdir("/proc/self/fd")) - before - 200]

    evaluate(agent, path)

    ((reply, descriptors),) = outputs(path)
    assert 200 == reply
    assert descriptors < 64 + 20  # Others are connections of the calls.


@pytest.mark.parametrize("sent_first", [b"", STREAM + chunk("data: {}\n\n")], ids=["no reply", "a stream"])
def test_an_agent_that_disconnects(path: Path, monkeypatch: pytest.MonkeyPatch, sent_first: bytes) -> None:
    """The call of the agent is cancelled at the provider, and the step has failed; the attempt continues."""
    has_request, closed = threading.Event(), threading.Event()

    def answer(client: socket.socket, received: bytes) -> None:
        if b"again" in received:
            client.sendall(REPLY)
            return
        client.sendall(sent_first)
        has_request.set()
        if client.recv(1) == b"":
            closed.set()

    def agent(_: Any) -> int:
        url = gateway_address()
        with connect(url) as client:
            client.sendall(request(url.path))
            assert has_request.wait(TIMEOUT)
            assert not sent_first or client.recv(65_536)
        assert closed.wait(TIMEOUT)
        return ask("again")[0]

    evaluate_with(answer, agent, path, monkeypatch)

    assert [200] == outputs(path)
    assert ["evaljournal.AgentDisconnected"] == [step.error for step in events(path, StepFailed)]
    assert [] == events(path, AttemptFailed)


def test_a_call_in_flight_ends_with_its_attempt(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call is cancelled at the provider; the connection gets 403, and so does a later call with the same address."""
    has_request, closed = threading.Event(), threading.Event()
    late: list[int] = []
    threads: list[threading.Thread] = []

    def answer(client: socket.socket, _: bytes) -> None:
        has_request.set()
        if client.recv(1) == b"":
            closed.set()

    def agent(_: Any) -> str:
        url = gateway_address()
        client = connect(url)
        client.sendall(request(url.path))
        assert has_request.wait(TIMEOUT)

        def stay() -> None:
            with client:
                late.append(status(client.recv(65_536)))
            with connect(url) as second:
                second.sendall(request(url.path))
                late.append(status(second.recv(65_536)))

        threads.append(threading.Thread(target=stay))
        threads[0].start()
        return "done"

    def is_done(output: str) -> bool:
        threads[0].join(TIMEOUT)
        return output == "done"

    with scripted_provider(answer) as url:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        defined = define_real(agent, gateway=True)
        defined.score(is_done)
        run_real(defined, path)
        assert closed.wait(TIMEOUT)

    assert ["done"] == outputs(path)
    assert [403, 403] == late


def test_idle_connections_are_closed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection without another request, or with a part of one, is closed."""
    monkeypatch.setattr(http_server, "IDLE_TIMEOUT", 0.05)
    monkeypatch.setattr(gateway, "SWEEP_INTERVAL", 0.01)

    def agent(_: Any) -> list[str]:
        url = gateway_address()
        received = []
        for sent in (b"", request(url.path)[:30]):
            with connect(url) as client:
                kept_open(url.path, client)
                client.sendall(sent)
                received.append(client.recv(65_536).decode())
        return received

    evaluate(agent, path)

    assert [["", ""]] == outputs(path)
