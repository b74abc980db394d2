"""A simulated model on this machine, to try evaluations without an API key: it knows capitals, and sometimes returns a 429.

An HTTP endpoint:

    python examples/endpoint.py &
    evaljournal run --data examples/capitals.jsonl --endpoint http://localhost:8000/generate --output-path output --score exact

It also has OpenAI's chat completions, with tools: set OPENAI_BASE_URL=http://localhost:8000/v1 and OPENAI_API_KEY=none.
"""

import itertools
import json
import re
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ROWS = [json.loads(line) for line in Path(__file__).with_name("capitals.jsonl").read_text(encoding="utf-8").splitlines()]
CAPITALS = {row["question"].removesuffix("?").rpartition(" ")[2]: row["answer"] for row in ROWS}
CALLS = itertools.count(1)


def answer(text: str) -> str:
    """Answer a question about a capital, loudly if it starts with M; as a judge, choose the first verdict."""
    if verdict := re.search(r"followed by one of: ([\w ]+)", text):
        return f"It does what the rubric demands.\nverdict: {verdict[1]}"
    capital = next((capital for country, capital in CAPITALS.items() if country in text), "I do not know.")
    return capital.upper() if capital.startswith("M") else capital


def message(request: dict[str, Any]) -> dict[str, Any]:
    """Call the tools one after the other; then answer with the last result, or without tools with what the model knows."""
    messages, tools = request["messages"], request.get("tools") or []
    results = [entry["content"] for entry in messages if entry["role"] == "tool"]
    if len(results) < len(tools):
        function = tools[len(results)]["function"]
        place = re.search(r"\bin ([A-Z]\w+)", next(entry["content"] for entry in messages if entry["role"] == "user"))
        values = {"city": place and place[1], **(json.loads(results[-1]) if results else {})}
        arguments = json.dumps({name: str(values.get(name)) for name in function["parameters"]["properties"]})
        call = {"name": function["name"], "arguments": arguments}
        tool_calls = [{"id": f"call-{len(results) + 1}", "type": "function", "function": call}]
        return {"role": "assistant", "content": None, "tool_calls": tool_calls}
    return {"role": "assistant", "content": f"Take this: {results[-1]}" if results else answer(messages[-1]["content"])}


class Endpoint(BaseHTTPRequestHandler):
    """Answers `{"input": question}` with `{"output": answer}`, and chat completions as OpenAI does."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:  # the name that http.server expects
        """Answer one call; every seventh is rate limited."""
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        time.sleep(0.05)
        if next(CALLS) % 7 == 0:
            self._send(429, {"error": {"message": "too many requests"}})
        elif "messages" in request:
            choice = {"index": 0, "message": message(request), "finish_reason": "stop"}
            usage = {"prompt_tokens": len(json.dumps(request["messages"])) // 4, "completion_tokens": 8, "total_tokens": 0}
            identity = {"id": "chat-1", "object": "chat.completion", "created": int(time.time()), "model": request["model"]}
            self._send(200, {**identity, "choices": [choice], "usage": usage})
        else:
            self._send(200, {"output": answer(json.dumps(request))})

    def _send(self, status: int, reply: dict[str, Any]) -> None:
        body = json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the signature of http.server
        """Log nothing."""


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8000
    server = ThreadingHTTPServer(("localhost", port), Endpoint)
    print(f"http://localhost:{server.server_port}", flush=True)
    server.serve_forever()
