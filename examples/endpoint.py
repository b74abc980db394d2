"""An HTTP endpoint to evaluate without code: it answers questions about capitals, and sometimes returns a 429.

python examples/endpoint.py &
evaljournal run --data examples/capitals.jsonl --endpoint http://localhost:8000/generate --output-path output --score exact
"""

import itertools
import json
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROWS = [json.loads(line) for line in Path(__file__).with_name("capitals.jsonl").read_text(encoding="utf-8").splitlines()]
CAPITALS = {row["question"]: row["answer"] for row in ROWS}
CALLS = itertools.count(1)


class Endpoint(BaseHTTPRequestHandler):
    """Answers `{"input": question}` with `{"output": answer}`."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:  # the name that http.server expects
        """Answer one call; every seventh is rate limited."""
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        time.sleep(0.05)
        if next(CALLS) % 7 == 0:
            self._send(429, {"error": "too many requests"})
            return
        answer = CAPITALS.get(request["input"], "I do not know.")
        self._send(200, {"output": answer.upper() if answer.startswith("M") else answer})

    def _send(self, status: int, reply: dict[str, str]) -> None:
        body = json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the signature of http.server
        """Log nothing."""


if __name__ == "__main__":
    ThreadingHTTPServer(("localhost", 8000), Endpoint).serve_forever()
