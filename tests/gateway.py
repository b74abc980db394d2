"""Helpers for tests of the gateway: providers that send the bytes of a test, and calls of an agent."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

import pytest

from evaljournal import Outcome, Retry, gateway_env
from tests.processes import TIMEOUT
from tests.runs import define_real, run_real

KEY: Final = "sk-the-real-key-0123456789"
RETRY: Final = Retry(errors=1, rate_limits=30.0, base_delay=0.01)


@contextmanager
def scripted_provider(answer: Callable[[socket.socket, bytes], None]) -> Iterator[str]:
    """Serve a provider; `answer` is called in a thread with each connection and its request; yields its base URL."""
    threads: list[threading.Thread] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve(connection: socket.socket) -> None:
            with connection:
                connection.settimeout(TIMEOUT)
                answer(connection, _request(connection))

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                threads.append(threading.Thread(target=serve, args=(connection,), daemon=True))
                threads[-1].start()

        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        listener.shutdown(socket.SHUT_RDWR)
        for thread in [accepting, *threads]:
            thread.join(TIMEOUT)


def _request(connection: socket.socket) -> bytes:
    received = b""
    while True:
        head, end, body = received.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0] or 0)
        if end and len(body) >= length:
            return received
        if not (data := connection.recv(65_536)):
            return received
        received += data


def chunk(text: str) -> bytes:
    """Return a chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(text.encode()), text.encode())


def gateway_address(path: str = "/chat/completions") -> SplitResult:
    """Return the address of the current attempt."""
    return urlsplit(gateway_env()["OPENAI_BASE_URL"] + path)


def ask(question: str, url: SplitResult | None = None, **parameters: Any) -> tuple[int, dict[str, str], Any]:
    """Ask a model through the gateway; return status, headers and body of the reply."""
    url = url or gateway_address()
    connection = HTTPConnection(url.netloc, timeout=TIMEOUT)
    try:
        body = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": question}], **parameters}
        connection.request("POST", url.path, json.dumps(body), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        headers = {name.lower(): value for name, value in reply.getheaders()}
        content: Any = reply.read()
        with suppress(ValueError):
            content = json.loads(content)
        return reply.status, headers, content
    finally:
        connection.close()


def statuses(questions: list[str]) -> list[int]:
    """Ask all questions, also after errors; return the statuses."""
    return [ask(question)[0] for question in questions]


def evaluate(task: Any, path: Path, *questions: str, **options: Any) -> Outcome:
    """Run an agent that gets a list of questions, and calls models through the gateway."""
    evaluation = define_real(task, [{"id": "it", "input": list(questions)}], gateway=True, **{"retry": RETRY, **options})
    return run_real(evaluation, path)


def evaluate_with(
    answer: Callable[[socket.socket, bytes], None], task: Any, path: Path, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> None:
    """Run an agent that calls a scripted provider through the gateway."""
    with scripted_provider(answer) as url:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        evaluate(task, path, **options)
