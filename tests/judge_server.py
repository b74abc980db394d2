"""A chat model for tests that answers by a function of the prompt, in a thread of the test; it keeps the prompts."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import orjson

Answer = Callable[[str], str]
"""Returns the reply to a prompt."""


class JudgeServer(ThreadingHTTPServer):
    """The server; `prompts` are those of all requests, in the order in which they arrived."""

    daemon_threads = True

    def __init__(self, answer: Answer) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self.prompts: list[str] = []

    def handle_error(self, *_: object) -> None:
        """Print nothing if a client was killed."""

    @property
    def url(self) -> str:
        """The base URL of its API."""
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: JudgeServer

    def do_POST(self) -> None:
        request = orjson.loads(self.rfile.read(int(self.headers["content-length"])))
        prompt = request["messages"][-1]["content"]
        self.server.prompts.append(prompt)
        message = {"role": "assistant", "content": self.server.answer(prompt)}
        usage = {"prompt_tokens": 1_000, "completion_tokens": 2}
        body = orjson.dumps({"model": "judge", "choices": [{"message": message, "finish_reason": "stop"}], "usage": usage})
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def judge_server(answer: Answer) -> Iterator[JudgeServer]:
    """Run a server in a thread."""
    with JudgeServer(answer) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
