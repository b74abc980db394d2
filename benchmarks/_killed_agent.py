"""A run of a 30-step agent for `benchmarks.steps`, in a process that is killed: `python -m benchmarks._killed_agent KIND …`."""

import asyncio
import json
import os
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any, Final

import trio

from evaljournal import Case, Retry, durable, evaluation, gateway_env, run

STEPS: Final = 30
SECONDS: Final = 0.02
"""Seconds of a call."""


def main(kind: str, path: Path, calls: Path, cases: int, options: dict[str, Any]) -> None:
    """Start a run or resume it; every call of a function is appended to the file `calls`."""
    log = os.open(calls, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def pay(case: str, number: int) -> None:
        os.write(log, f"{case}/{number}\n".encode())

    tasks: dict[str, Any] = {
        "trio": _trio(pay),
        "asyncio": _asyncio(pay),
        "threads": _threads(pay),
        "sdk": _sdk,
        "gateway": _http,
    }
    own: dict[str, dict[str, Any]] = {"trio": {"loop": "trio"}, "sdk": {"durable": "http"}, "gateway": {"gateway": True}}
    definition: Any = evaluation(
        cases=[Case(name=f"c{number}", input=f"c{number}") for number in range(cases)],
        name="agent",
        policy="fixed",
        timeout=60,
        retry=Retry(errors=0),
        **own.get(kind, {}),
    )(tasks[kind])
    outcome = run(definition, path, resume=path.exists(), **options)
    sys.exit(not outcome.passed)


def _trio(pay: Any) -> Any:
    @durable(kind="model")
    async def ask(case: str, number: int) -> str:
        pay(case, number)
        await trio.sleep(SECONDS)
        return f"{case} {number}"

    async def agent(case: str) -> str:
        return "".join([await ask(case, number) for number in range(STEPS)])[-9:]

    return agent


def _asyncio(pay: Any) -> Any:
    @durable(kind="model")
    async def ask(case: str, number: int) -> str:
        pay(case, number)
        await asyncio.sleep(SECONDS)
        return f"{case} {number}"

    async def agent(case: str) -> str:
        return "".join([await ask(case, number) for number in range(STEPS)])[-9:]

    return agent


def _threads(pay: Any) -> Any:
    @durable(kind="model")
    def ask(case: str, number: int) -> str:
        pay(case, number)
        time.sleep(SECONDS)
        return f"{case} {number}"

    def agent(case: str) -> str:
        return "".join(ask(case, number) for number in range(STEPS))[-9:]

    return agent


_clients = threading.local()


def _sdk(case: str) -> str:
    """Call a model with the OpenAI SDK; the server counts the calls."""
    from openai import OpenAI  # noqa: PLC0415  # slow to import

    client = _clients.__dict__.setdefault("client", OpenAI())
    for number in range(STEPS):
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": f"{case}/{number}"}])
    return case


def _http(case: str) -> str:
    """Call a model through the gateway."""
    url = f"{gateway_env()['OPENAI_BASE_URL']}/chat/completions"
    for number in range(STEPS):
        body = {"model": "m", "messages": [{"role": "user", "content": f"{case}/{number}"}]}
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)  # noqa: S310  # our own gateway
        with urllib.request.urlopen(request, timeout=30) as reply:  # noqa: S310  # our own gateway
            reply.read()
    return case


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), json.loads(sys.argv[5]))
