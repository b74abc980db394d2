"""The simulated providers behind HTTP, on the real clock: the same limits, headers and errors as in the simulation.

In a test, in the same process (port 0; it stops with the block):

    def test_something() -> None:
        with serving(lambda: OpenAI(limits=per_minute(requests=600, tokens=60_000), median=0.05)) as served:
            ...  # call f"{served.root}/v1/chat/completions"
        [server] = served.servers.values()
        assert 0 == server.rejected
        assert server.used_share(0.0, 5.0) > 0.9

By hand, until Ctrl-C; it prints its address:

    python -m benchmarks._provider_server openai --rpm 500 --tpm 200k
    evaljournal run --data cases.csv --chat MODEL --base-url http://127.0.0.1:PORT/v1 --score exact

    POST …/chat/completions            OpenAI, Azure, Groq
    POST …/messages                    Anthropic
    POST …/MODEL:generateContent       Gemini
    GET /                              accepted and rejected calls of each rate-limit key, as JSON

Each pair of API key and model has its own limits, made by the function that is passed. The answer is the last message in
capitals. A request has `characters / 4` input tokens and `output_tokens` output tokens, or `max_tokens` if that is less.
"""

import argparse
import asyncio
import functools
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from attrs import define, field

from benchmarks._server import Connection
from benchmarks.simulated.providers import Anthropic, Azure, Call, Gemini, Groq, OpenAI, Request, Server, per_minute

PROVIDERS: Final[Mapping[str, type[Server]]] = {
    "openai": OpenAI,
    "azure": Azure,
    "groq": Groq,
    "anthropic": Anthropic,
    "gemini": Gemini,
}
_API_KEY = re.compile(rb"\r\n(?:authorization|x-api-key|api-key|x-goog-api-key): *([^\r]*)", re.IGNORECASE)
_TOKEN_LIMITS = ("max_tokens", "max_completion_tokens", "maxOutputTokens")


@define
class Served:
    """A running server."""

    make_server: Callable[[], Server]
    output_tokens: int
    root: str = ""
    """Its address, without a path."""
    servers: dict[tuple[str, str], Server] = field(factory=dict[tuple[str, str], Server])
    """API key and model → the simulated provider that counts their calls; its t = 0 is the first of them."""
    _started: dict[tuple[str, str], float] = field(factory=dict[tuple[str, str], float])
    _calls: int = 0

    def find(self, key: tuple[str, str]) -> tuple[Server, float]:
        """Return the provider of a rate-limit key, and the seconds since its first call."""
        if key not in self.servers:
            server = self.servers[key] = self.make_server()
            server.epoch = time.time()
            self._started[key] = time.monotonic()
        return self.servers[key], time.monotonic() - self._started[key]

    def next_key(self) -> tuple[int, int]:
        """Return the number of a call, which determines its latency."""
        self._calls += 1
        return self._calls, 0


class _ProviderConnection(Connection):
    def __init__(self, served: Served) -> None:
        super().__init__()
        self._served = served

    def answer(self, head: bytes, body: bytes) -> None:
        method, path, _ = head.split(b" ", 2)
        if method == b"GET":
            counts = {
                " ".join(key): {"accepted": s.accepted, "rejected": s.rejected} for key, s in self._served.servers.items()
            }
            self.send(counts)
            return
        fields = json.loads(body)
        model = str(fields.get("model") or path.decode().rpartition("/")[2].partition(":")[0])
        match = _API_KEY.search(head)
        key = match[1].decode() if match else "", model
        server, t = self._served.find(key)
        text, limit = _prompt(fields), next((fields[name] for name in _TOKEN_LIMITS if fields.get(name)), None)
        limit = limit or fields.get("generationConfig", {}).get("maxOutputTokens")
        output_tokens = self._served.output_tokens if limit is None else min(self._served.output_tokens, limit)
        request = Request(
            characters=len(text),
            input_tokens=max(len(text) // 4, 1),
            output_tokens=output_tokens,
            max_tokens=limit,
            key=self._served.next_key(),
        )
        call = server.start(t, request)
        asyncio.get_running_loop().call_later(call.seconds, self._finish, key, call, text)

    def _finish(self, key: tuple[str, str], call: Call, text: str) -> None:
        server, t = self._served.find(key)
        reply = server.finish(t, call)
        if reply.error is not None:
            self.send(reply.error, reply.status, reply.headers)
        else:
            self.send(_success(server, key[1], text.rpartition("\n")[2].upper(), reply.usage), 200, reply.headers)


def _prompt(fields: Mapping[str, Any]) -> str:
    """Return the texts of a request's messages, one per line."""
    messages = fields.get("messages") or fields.get("contents") or []
    contents = [message.get("content", message.get("parts")) for message in messages]
    parts = [part for content in contents for part in (content if isinstance(content, list) else [content])]
    return "\n".join(str(part.get("text", "") if isinstance(part, dict) else part) for part in parts)


def _success(server: Server, model: str, text: str, usage: Mapping[str, int] | None) -> Any:
    """Return the body of a success in the provider's dialect."""
    match server:
        case Anthropic():
            content = [{"type": "text", "text": text}]
            reply = {"id": "m", "type": "message", "role": "assistant", "model": model, "content": content}
            return {**reply, "stop_reason": "end_turn", "stop_sequence": None, "usage": usage}
        case Gemini():
            candidate = {"content": {"role": "model", "parts": [{"text": text}]}, "finishReason": "STOP", "index": 0}
            return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": model}
        case _:
            choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            return {"id": "c", "object": "chat.completion", "created": 1, "model": model, "choices": [choice], "usage": usage}


@contextmanager
def serving(make_server: Callable[[], Server], *, output_tokens: int = 20, port: int = 0) -> Iterator[Served]:
    """Serve on a port of the loopback address, in a thread of this process, for the duration of the block."""
    served, ready, loop = Served(make_server, output_tokens), threading.Event(), asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        server = await loop.create_server(functools.partial(_ProviderConnection, served), "127.0.0.1", port, backlog=1000)
        served.root = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        ready.set()
        await stop.wait()
        server.close()

    def run() -> None:
        try:
            loop.run_until_complete(serve())
        finally:
            loop.close()
            ready.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    ready.wait()
    try:
        yield served
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)


def _amount(text: str) -> float:
    return float(text.removesuffix("k")) * (1000 if text.endswith("k") else 1)


def main(argv: Sequence[str] | None = None) -> None:
    """Serve a provider until Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks._provider_server", description="Serve a simulated provider.")
    parser.add_argument("provider", choices=PROVIDERS)
    for option, kind in (("rpm", "requests"), ("tpm", "tokens"), ("itpm", "input_tokens"), ("otpm", "output_tokens")):
        parser.add_argument(f"--{option}", dest=kind, type=_amount, metavar="N", help=f"{kind.replace('_', ' ')} per minute")
    parser.add_argument("--port", type=int, default=0, help="default: a free one")
    parser.add_argument("--median", type=float, default=1.0, help="median seconds of a reply (default: 1)")
    options = vars(parser.parse_args(argv))
    provider, port, median = PROVIDERS[options.pop("provider")], options.pop("port"), options.pop("median")
    limits = per_minute(**{kind: amount for kind, amount in options.items() if amount is not None})
    with serving(lambda: provider(limits=limits, median=median), port=port) as served:
        print(served.root, flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            print(json.dumps({" ".join(key): [s.accepted, s.rejected] for key, s in served.servers.items()}))


if __name__ == "__main__":
    main()
