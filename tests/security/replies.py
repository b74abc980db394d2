"""A server that sends the same reply to every request; nothing here asserts anything."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import attrs


@attrs.frozen
class Replies:
    """A running server."""

    url: str
    requests: list[Mapping[str, str]]
    """The headers of the requests."""
    calls: list[tuple[str, bytes]]
    """Path and body of the requests."""


@contextmanager
def replying(body: bytes, media_type: str = "application/json", *, status: int = 200, **headers: str) -> Iterator[Replies]:
    """Serve on a port of this machine for the duration of the block; an underscore in a header's name stands for a dash."""
    requests: list[Mapping[str, str]] = []
    calls: list[tuple[str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:  # the name that http.server calls
            calls.append((self.path, self.rfile.read(int(self.headers.get("Content-Length", 0)))))
            requests.append({name.lower(): value for name, value in self.headers.items()})
            self.send_response(status)
            for name, value in {"Content-Type": media_type, "Content-Length": str(len(body)), **headers}.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object, **_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *arguments: object, **_: object) -> None:
            """Ignore clients that close the connection."""

    server = Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield Replies(f"http://127.0.0.1:{server.server_port}/", requests, calls)
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()
