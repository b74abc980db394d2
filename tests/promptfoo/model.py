"""A local OpenAI-compatible server whose replies depend only on the prompt.

`Say: X` is answered with X, `Upper: X` with X in capitals. A text with `[WORD ? A : B]` is a prompt of a grader: the answer is
A if the text has the word outside the brackets, otherwise B, in the form that graders use.
"""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_DIRECTIVE = re.compile(r"\[(\w+) \? ([^:\]]+) : ([^\]]+)\]")


def answer(messages: list[dict[str, Any]]) -> str:
    """Return the answer to a conversation."""
    text = "\n".join(message["content"] for message in messages)
    if directive := _DIRECTIVE.search(text):
        return _grade(directive[2] if directive[1] in _DIRECTIVE.sub("", text) else directive[3])
    for start, change in (("Say: ", str), ("Upper: ", str.upper)):
        if start in text:
            return change(text.partition(start)[2])
    return ""


def _grade(verdict: str) -> str:
    if verdict in {"Y", "N"}:
        return f"I have thought about it.\n{verdict}\n{verdict}"
    if len(verdict) == 1:
        return json.dumps({"category": verdict, "reason": "compared"})
    word, score = verdict.split()
    return f"Verdict: {json.dumps({'reason': 'graded', 'pass': word == 'pass', 'score': float(score)})}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        message = {"role": "assistant", "content": answer(request["messages"])}
        reply = {
            "id": "reply",
            "object": "chat.completion",
            "model": request["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100},
        }
        content = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@contextmanager
def serving_model() -> Iterator[str]:
    """Serve the model; yields the address of its API."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
