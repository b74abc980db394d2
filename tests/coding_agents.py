"""A scripted provider on loopback for Claude Code and Codex, and the commands with which they call it through the gateway.

Each trial is a conversation of `TURNS` tool calls and a final text. The provider recognizes a call by the name of the case in
the prompt and the number of tool results, so it counts how often the same call was answered.
"""

import json
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import attrs
import pytest

TURNS: Final = 4
CASES: Final = ("alpha", "bravo")
COMMANDS: Final[Mapping[str, list[str]]] = {
    "claude": ["--command", "claude -p {input} --allowedTools Bash"],
    "codex": [
        "--shell",
        "--command",
        (
            "codex exec --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox -c analytics.enabled=false "
            "-c check_for_update_on_startup=false -c model_provider=gateway -c model_providers.gateway.name=gateway "
            '-c model_providers.gateway.base_url="$OPENAI_BASE_URL" -c model_providers.gateway.env_key=OPENAI_API_KEY '
            "-c model_providers.gateway.wire_api=responses -"
        ),
    ],
    "gemini": [
        "--command",
        "gemini -m gemini-3.8-flash -p {input} --yolo --skip-trust",
        "--key-without",
        r"Process Group PGID: \d+",  # in the results of its tools
    ],
}
QUIET: Final = {
    **dict.fromkeys(("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "DISABLE_TELEMETRY", "DISABLE_AUTOUPDATER"), "1"),
    "IS_SANDBOX": "1",
}
"""Variables that keep the programs from calling anything but the provider."""


def find_agent(name: str) -> str:
    """Return the path of a program; without it, skip the test, also in CI: npm may not have it for the platform."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(
            f"no {name} on the PATH; install it: npm install -g @anthropic-ai/claude-code @openai/codex @google/gemini-cli"
        )
    return path


@attrs.define(eq=False)
class Provider:
    """A running provider."""

    url: str = ""
    reject_every: int = 0
    """Every n-th request gets a 429; 0: none."""
    answered: Counter[tuple[str, int]] = attrs.field(factory=Counter[tuple[str, int]])
    """Case and number of tool results → how often the call was answered."""
    requests: int = 0
    _lock: threading.Lock = attrs.field(factory=threading.Lock)

    def answer(self, path: str, body: Any) -> tuple[int, str, bytes]:
        """Return status, media type and body of a reply."""
        text = json.dumps(body)
        case = next((case for case in CASES if f"case {case}" in text), "")
        with self._lock:
            self.requests += 1
            if self.reject_every and self.requests % self.reject_every == 0:
                return 429, "application/json", b'{"type":"error","error":{"type":"rate_limit_error","message":"slow down"}}'
        time.sleep(0.1)
        if path.endswith("count_tokens"):
            return 200, "application/json", b'{"input_tokens": 10}'
        name, events = (
            ("tool_result", _anthropic)
            if "/messages" in path
            else ("functionResponse", _gemini)
            if "Content" in path
            else ("function_call_output", _responses)
        )
        results = text.count(f'"{name}"')
        with self._lock:
            self.answered[case, results] += 1
        return 200, "text/event-stream", b"".join(events(body, results))


def _event(**fields: Any) -> bytes:
    return f"event: {fields['type']}\ndata: {json.dumps(fields)}\n\n".encode()


def _anthropic(body: Any, results: int) -> Iterator[bytes]:
    usage = {"input_tokens": 10, "output_tokens": 1}
    message = {"id": f"msg_{results}", "type": "message", "role": "assistant", "model": body["model"], "content": []}
    yield _event(type="message_start", message={**message, "stop_reason": None, "stop_sequence": None, "usage": usage})
    block: dict[str, Any] = {"type": "text", "text": ""}
    delta: dict[str, Any] = {"type": "text_delta", "text": f"done after {results} tools"}
    if results < TURNS:
        block = {"type": "tool_use", "id": f"toolu_{results}", "name": "Bash", "input": {}}
        arguments = {"command": f"echo line {results}", "description": "say it"}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(arguments)}
    yield _event(type="content_block_start", index=0, content_block=block)
    yield _event(type="content_block_delta", index=0, delta=delta)
    yield _event(type="content_block_stop", index=0)
    reason = "tool_use" if results < TURNS else "end_turn"
    yield _event(type="message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage={"output_tokens": 5})
    yield _event(type="message_stop")


def _gemini(body: Any, results: int) -> Iterator[bytes]:
    del body
    call = {"name": "run_shell_command", "args": {"command": f"echo line {results}", "description": "say it"}}
    part = {"functionCall": call} if results < TURNS else {"text": f"done after {results} tools"}
    candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}
    usage = {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15}
    reply = {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "gemini-3.8-flash"}
    yield f"data: {json.dumps(reply)}\r\n\r\n".encode()


def _responses(body: Any, results: int) -> Iterator[bytes]:
    response = {"id": f"resp_{results}"}
    yield _event(type="response.created", response=response)
    names = {tool.get("name") for tool in body.get("tools", ())}
    name, command = ("exec_command", "cmd") if "exec_command" in names else ("shell_command", "command")
    item: dict[str, Any] = {
        "type": "function_call",
        "id": f"fc_{results}",
        "call_id": f"call_{results}",
        "name": name,
        "arguments": json.dumps({command: f"echo line {results}"}),
    }
    if results >= TURNS:
        content = [{"type": "output_text", "text": f"done after {results} tools"}]
        item = {"type": "message", "role": "assistant", "id": f"msg_{results}", "content": content}
    yield _event(type="response.output_item.done", output_index=0, item=item)
    details = {"input_tokens_details": None, "output_tokens_details": None}
    usage: dict[str, Any] = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15, **details}
    completed: dict[str, Any] = {**response, "status": "completed", "output": [item], "usage": usage}
    yield _event(type="response.completed", response=completed)


@contextmanager
def serving_agents(reject_every: int = 0) -> Iterator[Provider]:
    """Serve a provider for the duration of the block."""
    provider = Provider(reject_every=reject_every)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:  # the name that the library calls
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            status, media, content = provider.answer(self.path.partition("?")[0], body)
            self.send_response(status)
            self.send_header("content-type", media)
            self.send_header("content-length", str(len(content)))
            if status != 200:
                self.send_header("retry-after", "0.2")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: Any) -> None:
            """Ignore connections that a killed process has reset."""

    server = Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    provider.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield provider
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
