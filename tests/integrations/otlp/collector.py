"""A collector of OpenTelemetry on the loopback address, which keeps what it receives."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    """What it received, and what it replies."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.statuses: list[int] = []
        """Statuses of the next replies; then 200."""
        self.unknown_paths: set[str] = set()
        self.received = threading.Event()

    def _resources(self, path: str, kind: Any, name: str) -> list[Any]:
        bodies = [body for request_path, _, body in self.requests if request_path == path]
        return [resource for body in bodies for resource in getattr(kind.FromString(body), name)]

    @property
    def spans(self) -> list[Any]:
        """All spans, in the order of their arrival."""
        resources = self._resources("/v1/traces", ExportTraceServiceRequest, "resource_spans")
        return [span for resource in resources for scope in resource.scope_spans for span in scope.spans]

    @property
    def logs(self) -> list[Any]:
        """All log records, in the order of their arrival."""
        resources = self._resources("/v1/logs", ExportLogsServiceRequest, "resource_logs")
        return [log for resource in resources for scope in resource.scope_logs for log in scope.log_records]


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector in a thread."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:  # the library calls it so
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = 404 if self.path in collector.unknown_paths else collector.statuses.pop(0) if collector.statuses else 200
            if status == 200:
                collector.requests.append((self.path, dict(self.headers), body))
            self.send_response(status)
            if status == 307:
                self.send_header("Location", "http://127.0.0.1:9/v1/traces")
            self.send_header("Content-Length", "0")
            self.end_headers()
            collector.received.set()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield collector
        server.shutdown()
        thread.join(5)
