"""A simulated judge behind an OpenAI-compatible API, for the docs: `python examples/judge_server.py [PORT]` prints its URL.

It has two faults that real judges have, too: long answers convince it, and of two similar answers it prefers the first. A model
whose name ends with `sol` is not convinced by length.
"""

import json
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ANSWER = re.compile(r"<(answer-\w+)>\n(.*?)\n</\1>", re.DOTALL)
LONG = 80


def reply(prompt: str, model: str) -> str:
    """Return the verdict on one answer, or on two."""
    answers = [match[2] for match in ANSWER.finditer(prompt)]
    expected = prompt.partition("Expected answer")[2].partition("\n")[2].partition("\n")[0]
    right = [expected.lower() in answer.lower() for answer in answers]
    if len(answers) == 1:
        return f"verdict: {'correct' if right[0] or (len(answers[0]) >= LONG and not model.endswith('sol')) else 'incorrect'}"
    if right[0] != right[1]:
        return f"verdict: {'first' if right[0] else 'second'}"
    return (
        f"verdict: {'tie' if answers[0] == answers[1] else 'second' if len(answers[1]) >= len(answers[0]) + LONG else 'first'}"
    )


class Judge(BaseHTTPRequestHandler):
    """Answers requests of the chat completions API."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Answer one request."""
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = request["messages"][-1]["content"]
        message = {"role": "assistant", "content": reply(prompt, request["model"])}
        usage = {"prompt_tokens": len(prompt), "completion_tokens": 4, "cost": len(prompt) / 1e6}
        body = json.dumps(
            {"model": request["model"], "choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}
        )
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        """Print nothing."""


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 8000), Judge)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
