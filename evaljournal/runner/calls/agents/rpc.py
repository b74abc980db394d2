"""JSON-RPC 2.0 with a program, one message per line.

We wait for one reply at a time, and handle what arrives until then: notifications, and requests of the program, which are
answered in their order. Nothing is queued, so memory is bounded by one message. A reply to another request is ignored, and
so is a line that does not begin with `{`, because some programs print warnings; any other line that is not a message is an
error. The package `agent-client-protocol` is for asyncio; its schema checks our messages in the tests.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import orjson
import trio

from evaljournal.replay.provider.reports import fields_of, text_field
from evaljournal.replay.text import as_text
from evaljournal.runner.calls.http.reply import InvalidReply
from evaljournal.runner.secrets.masking import excerpt

METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
_MAX_SHOWN: Final = 300

Message = Mapping[str, Any]
Answer = Callable[[str, Message], Awaitable[Any]]
"""Called with the method and the parameters of a request or a notification; returns the result, or raises an `RpcError`."""


class RpcError(Exception):
    def __init__(self, message: str, code: int = INVALID_PARAMS) -> None:
        super().__init__(message)
        self.code = code


class ProgramEnded(Exception):
    """The program closed its standard output while we waited for a reply."""


class RpcProgram:
    def __init__(self, stdin: trio.abc.SendStream, lines: AsyncGenerator[bytes], answer: Answer) -> None:
        self._stdin = stdin
        self._lines = lines
        self._answer = answer
        self._last_id = 0

    async def request(self, method: str, params: Message) -> Message:
        """Send a request, and return its result; raise `RpcError`, `ProgramEnded` or `InvalidReply`."""
        self._last_id += 1
        await self._send({"id": self._last_id, "method": method, "params": params})

        async for line in self._lines:
            if not line.lstrip().startswith(b"{"):
                continue
            message = _parse(line)
            if "method" in message:
                await self._handle(message)
            elif message.get("id") == self._last_id and (error := message.get("error")) is not None:
                code, text = fields_of(error).get("code"), text_field(fields_of(error), "message") or as_text(error)
                raise RpcError(text, code if isinstance(code, int) else 0)
            elif message.get("id") == self._last_id:
                return fields_of(message.get("result"))
        raise ProgramEnded(method)

    async def _handle(self, message: Message) -> None:
        """Answer a request of the program; a notification has no id, and gets no answer."""
        method, params = text_field(message, "method"), fields_of(message.get("params"))
        reply: dict[str, Any]
        try:
            reply = {"result": await self._answer(method, params)}
        except RpcError as exc:
            reply = {"error": {"code": exc.code, "message": str(exc)}}
        if message.get("id") is not None:
            await self._send({"id": message["id"], **reply})

    async def _send(self, message: Message) -> None:
        with suppress(trio.BrokenResourceError):  # It has ended, which is found when its output is read.
            await self._stdin.send_all(orjson.dumps({"jsonrpc": "2.0", **message}) + b"\n")


def _parse(line: bytes) -> Message:
    try:
        message = orjson.loads(line)
    except ValueError:
        message = None
    if isinstance(message, dict) and ("method" in message or "result" in message or "error" in message):
        return message
    text = excerpt(line.decode("utf-8", "replace"), _MAX_SHOWN)
    raise InvalidReply(f"the agent has sent a line that is no JSON-RPC message: {text!r}")
