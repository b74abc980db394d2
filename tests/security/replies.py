"""Servers whose replies a test defines; nothing here asserts anything."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import attrs


@attrs.frozen
class Request:
    """A request that was received."""

    path: str
    """Path and query."""
    headers: Mapping[str, str]
    """Headers, with lower-case names."""
    body: bytes


Answer = Callable[[Request], tuple[int, Mapping[str, str], bytes]]
"""Returns status, headers and body of the reply to a request; called in a thread."""


@attrs.frozen
class Replies:
    """A running server."""

    url: str
    requests: list[Request]


@contextmanager
def answering(answer: Answer) -> Iterator[Replies]:
    """Serve on a port of this machine for the duration of the block."""
    requests: list[Request] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:  # the name that http.server calls
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Request(self.path, headers, self.rfile.read(int(headers.get("content-length", 0))))
            requests.append(request)
            status, reply_headers, body = answer(request)
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **reply_headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object, **_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *arguments: object, **_: object) -> None:
            """Ignore clients that close the connection."""

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield Replies(f"http://127.0.0.1:{server.server_port}/", requests)
        finally:
            server.shutdown()
            thread.join(10)


@contextmanager
def replying(body: bytes, media_type: str = "application/json", *, status: int = 200, **headers: str) -> Iterator[Replies]:
    """Send the same reply to every request; an underscore in a header's name stands for a dash."""
    all_headers = {"Content-Type": media_type, **{name.replace("_", "-"): value for name, value in headers.items()}}
    with answering(lambda _: (status, all_headers, body)) as replies:
        yield replies
