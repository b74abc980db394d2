"""One call of an agent through the gateway: forwarded to the provider and recorded as a step, or answered from the journal.

A reply that is not a stream is sent to the agent after its step is recorded. A stream is sent as it arrives; its step is
recorded before its last event is sent, or, with Gemini, whose streams have none, before its end. So an agent never acts on a
complete reply before it is recorded. Calls to other paths, such as `/models`, are only forwarded.
"""

import time
from collections.abc import Iterable
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import attrs
import orjson
import trio

from evaljournal.journal.errors import JournalError
from evaljournal.runner.calls.http.client import Client, Response
from evaljournal.runner.calls.http.heads import RequestHead, ResponseHead
from evaljournal.runner.calls.http.reply import (
    MAX_BYTES,
    IncompleteReply,
    InvalidReply,
    NoResponse,
    Redirected,
    ReplyMemory,
    ReplyTooLarge,
    check_values,
)
from evaljournal.runner.calls.http.server import ClientConnection, ReplyAborted
from evaljournal.runner.retries.classify import classify
from evaljournal.runner.secrets.masking import mask
from evaljournal.runner.steps.attempt_steps import AttemptSteps, NotSent, ReplayedFailure, Step
from evaljournal.runner.steps.gateway.providers import Route
from evaljournal.runner.steps.model_calls import COMPARED_HEADERS, NO_SDK_RETRY, StepReply, reply_from_output, step_of_request
from evaljournal.runner.steps.waiting import admit_in_loop

LAST_REPLY_TIMEOUT: Final = 1.0
"""Seconds that an agent has to read the reply that ends its attempt."""

LONG_STREAM: Final = 16 * 1024 * 1024
"""Bytes of a reply that is read without waiting for others; a stream takes several hundred bytes for each token."""

STREAM_END_TIMEOUT: Final = 1.0
"""Seconds after the last event of a stream in which the provider must end it; otherwise, its connection is closed."""

_NO_RETRY: Final = (NO_SDK_RETRY[0].encode(), NO_SDK_RETRY[1].encode())
_FORWARDED_HEADERS: Final = frozenset(
    {b"accept", b"content-type", b"content-encoding", b"idempotency-key", b"x-client-request-id"}
)
_FORWARDED_PREFIXES: Final = (b"openai-", b"anthropic-")
"""Request headers that are forwarded; any other could change the path or the method, or authenticate as another user."""
_HEADER_NAMES: Final = {name.encode(): name for name in COMPARED_HEADERS}
_DROPPED_REPLY_HEADERS: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"content-length",
        b"set-cookie",
        _NO_RETRY[0],
    }
)


class KeyMissing(Exception):
    status_code: Final = int(HTTPStatus.UNAUTHORIZED)


class TooManyConnections(Exception):
    """The gateway cannot answer a call; the attempt fails, because its output could depend on that."""

    status_code: Final = int(HTTPStatus.SERVICE_UNAVAILABLE)


class AgentDisconnected(Exception):
    """The agent closed the connection before the reply was complete."""


class AgentConnection(ClientConnection):
    async def reject(self, status: int, message: str, *headers: tuple[bytes, bytes]) -> None:
        """Send an error in the form that the SDKs of OpenAI and Anthropic read."""
        error = {"type": "evaljournal_gateway", "code": "evaljournal_gateway", "message": f"evaljournal gateway: {message}"}
        body = orjson.dumps({"type": "error", "error": error})
        await self.send(status, [(b"content-type", b"application/json"), *headers], body)


class GatewayAttempt:
    """An attempt in flight: its steps, its calls, and the failure that ends it."""

    def __init__(self, steps: AttemptSteps, *, is_cancellable: bool) -> None:
        self.steps = steps
        self.failure: Exception | None = None
        """Why a call to a provider failed. No further call is forwarded."""
        self.scope: Final = trio.CancelScope()
        self._is_cancellable = is_cancellable
        self.calls: Final = set[trio.CancelScope]()

    def fail(self, failure: Exception) -> None:
        """Make the attempt fail, whatever its task returns, because a call to a provider failed; the first failure counts."""
        self.failure = self.failure or failure

    def end(self) -> None:
        """Cancel the task of an attempt that has failed, if it can be cancelled."""
        if self._is_cancellable:
            self.scope.cancel()


class _ErrorReply(NamedTuple):
    """A reply that is an error, before it is sent to the agent."""

    error: Exception
    head: ResponseHead
    body: bytes


@attrs.define
class Call:
    attempt: GatewayAttempt
    route: Route
    client: Client
    request: RequestHead
    target: str
    """Path and query at the provider."""
    connection: AgentConnection
    places: trio.Semaphore
    """Limits the large requests and replies that are read at the same time."""
    _step: Step | None = attrs.field(init=False, default=None)
    """Its step, until the end of that is recorded; None for a call that is not recorded."""
    _is_recorded: bool = attrs.field(init=False, default=False)
    """Whether a complete reply was recorded."""

    async def answer(self) -> None:
        attempt, connection = self.attempt, self.connection
        try:
            body = await connection.read_body(MAX_BYTES)
            if self.route.is_recorded:
                self._step, body = await self._parse_step(body)
        except NotSent as exc:
            attempt.fail(exc)
            await connection.reject(HTTPStatus.BAD_REQUEST, str(exc), _NO_RETRY)
            return
        except ReplyTooLarge as exc:
            await connection.reject(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, str(exc), _NO_RETRY)
            return
        if attempt.failure is not None:
            await connection.reject(HTTPStatus.SERVICE_UNAVAILABLE, f"the attempt failed: {attempt.failure}", _NO_RETRY)
            return

        try:
            await self._exchange(body)
        except NotSent as exc:
            attempt.fail(exc)
            await connection.reject(HTTPStatus.BAD_REQUEST, str(exc), _NO_RETRY)
        except (NoResponse, ReplyTooLarge, KeyMissing) as exc:
            if self._is_recorded:
                await connection.finish()  # The provider failed after the last event of a stream.
            else:
                await self.fail(self._step, exc)
        except (trio.Cancelled, trio.BrokenResourceError, trio.ClosedResourceError):
            if self._step is not None and connection.is_closed and not self._is_recorded:
                attempt.steps.fail(
                    self._step, AgentDisconnected("the agent closed the connection before the reply was complete")
                )
            raise

    async def _exchange(self, body: bytes) -> None:
        """Send the call, again after a rejection, until there is a reply for the agent."""
        steps = self.attempt.steps
        while True:
            if (step := self._step) is not None:
                try:
                    earlier_result = steps.begin(step)
                except ReplayedFailure as exc:
                    self._step = step.again(0.0)
                    if exc.is_repeated:
                        continue
                    self._step = None
                    await self.connection.reject(exc.status_code or HTTPStatus.BAD_GATEWAY, str(exc), _NO_RETRY)
                    return
                if earlier_result is not None:
                    self._step = None
                    await self._replay(earlier_result.output)
                    return
                await admit_in_loop(steps, step)

            if (error_reply := await self._forward(step, body)) is None:
                return
            waited = None
            if step is not None:
                self._step = None  # Its end is recorded before anything waits.
                steps.fail(step, error_reply.error)
                waited = await steps.wait_again(step, error_reply.error)
            if step is None or waited is None or self.attempt.failure is not None:
                await self.fail(None, *error_reply)
                return
            self._step = step.again(waited)

    async def _parse_step(self, body: bytes) -> tuple[Step, bytes]:
        steps = self.attempt.steps
        number = 0 if steps.rewrite is None else steps.next_number()

        def parse() -> tuple[Step, bytes]:
            check_values(body, label="the request")
            headers = {name: value.decode("latin-1") for key, value in self.request.headers if (name := _HEADER_NAMES.get(key))}
            url = f"{self.route.origin}{self.target}"
            keys, content = self.route.provider.api_keys, body
            if steps.rewrite is not None:
                url, content = steps.rewrite(number, self.route.method, url, body)
                self.target = url.removeprefix(self.route.origin)

            step = step_of_request(
                self.route.method,
                url,
                headers,
                content,
                earlier_inputs=steps.inputs,
                api_keys=keys,
                key_rules=steps.key_rules,
            )
            step.number = number
            return step, content

        with ReplyMemory("the request", places=self.places) as memory:
            await memory.add(len(body))
            return await memory.parse(parse)

    async def _replay(self, output: Any) -> None:
        try:
            status, headers, content = reply_from_output(output)
        except InvalidReply as exc:
            await self.fail(None, exc)
            return
        await self.connection.send(
            status, _filter_headers((name.encode(), text.encode()) for name, text in headers.items()), content
        )

    async def _forward(self, step: Step | None, body: bytes) -> _ErrorReply | None:
        """Send the call to the provider, and its reply to the agent; return an error reply of which nothing was sent."""
        route, connection = self.route, self.connection
        if route.provider.missing_key:
            raise KeyMissing(f"{route.provider.missing_key} is not set in the environment of the run; set it, then resume")

        forwarded_headers = [
            header
            for header in self.request.headers
            if header[0] in _FORWARDED_HEADERS or header[0].startswith(_FORWARDED_PREFIXES)
        ]
        content = body if route.method == "POST" else None
        chunks: list[bytes] = []

        with ReplyMemory(max_small=LONG_STREAM, places=self.places) as memory:
            async with await self.client.send(route.method, content, *forwarded_headers, target=self.target) as response:
                head = response.head
                headers = list(_filter_headers(head.headers))
                reader = self._open_reply(step, head)
                if reader.is_event_stream and reader.is_success:
                    await connection.begin(head.status, headers)
                while chunk := await response.read():
                    await memory.add(len(chunk))
                    reader.feed(chunk)
                    if not connection.is_reply_started:
                        chunks.append(chunk)
                        continue
                    if reader.is_complete:
                        await self._record(step, reader, memory)
                    await connection.send_chunk(chunk)
                    if self._is_recorded:
                        await self._read_to_end(response)
                        break
            reader.end()
            if not self._is_recorded:
                await self._record(step, reader, memory)

        if not self._is_recorded:
            return await self._end_error(step, reader, head, b"".join(chunks))
        if connection.is_reply_started:
            await connection.finish()
        else:
            await connection.send(head.status, headers, b"".join(chunks))
        return None

    async def _end_error(self, step: Step | None, reader: StepReply, head: ResponseHead, body: bytes) -> _ErrorReply | None:
        """End the attempt if a part of an error reply was sent; otherwise, return the reply."""
        error = reader.error(self.route.provider.masked_url(self.route.path))
        if not self.connection.is_reply_started:
            return _ErrorReply(error, head, body)
        await self.fail(step, error, head)
        return None

    def _open_reply(self, step: Step | None, head: ResponseHead) -> StepReply:
        headers = head.text_headers
        if step is not None:
            self.attempt.steps.read_reply(step, head.status, headers)
        return StepReply(head.status, headers)

    async def _read_to_end(self, response: Response) -> None:
        """Read what follows the last event, so that the provider's connection can be reused even if the agent disconnects."""
        with trio.move_on_after(STREAM_END_TIMEOUT, shield=True):
            while chunk := await response.read():
                with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    await self.connection.send_chunk(chunk)

    async def _record(self, step: Step | None, reader: StepReply, memory: ReplyMemory) -> None:
        """Record a reply if it is complete and, with `write_ahead`, wait until it is on disk."""
        if step is None:
            self._is_recorded = reader.is_success
            return
        result = await memory.parse(lambda: (reader.step_output(), reader.usage() or None) if reader.is_complete else None)
        if result is None:
            return

        steps = self.attempt.steps
        steps.complete(step, *result)
        self._is_recorded = True
        if steps.wait_durable is not None:
            try:
                await steps.wait_durable()
            except JournalError as exc:  # The journal has failed, which ends the run.
                raise ReplyAborted from exc

    async def fail(self, step: Step | None, exc: Exception, reply: ResponseHead | None = None, body: bytes = b"") -> None:
        """Record that a step failed, send the reply to the agent, and end the attempt unless the agent is at fault."""
        connection = self.connection
        if step is not None:
            self.attempt.steps.fail(step, exc)

        failure = classify(exc, now=time.time())
        ends_attempt = (
            failure.category in {"rate_limited", "unavailable"}
            or failure.stop_reason is not None
            or isinstance(exc, NoResponse | ReplyTooLarge | Redirected | InvalidReply)
        )
        no_retry = [_NO_RETRY] if ends_attempt else []
        if ends_attempt:
            self.attempt.fail(exc)  # Before the agent can read the reply and return.

        try:
            with trio.move_on_after(LAST_REPLY_TIMEOUT if ends_attempt else float("inf")):
                if connection.is_reply_started:
                    if not isinstance(exc, IncompleteReply | NoResponse | ReplyTooLarge):
                        await connection.finish()  # The stream contains the error.
                elif reply is None or isinstance(exc, Redirected):
                    status = exc.status_code if isinstance(exc, KeyMissing | TooManyConnections) else HTTPStatus.BAD_GATEWAY
                    await connection.reject(status, mask(str(exc)), *no_retry)
                else:
                    await connection.send(reply.status, [*_filter_headers(reply.headers), *no_retry], _masked_body(body))
        finally:
            if ends_attempt:
                self.attempt.end()


def _filter_headers(headers: Iterable[tuple[bytes, bytes]]) -> Iterable[tuple[bytes, bytes]]:
    return (header for header in headers if header[0] not in _DROPPED_REPLY_HEADERS)


def _masked_body(body: bytes) -> bytes:
    """Return the body of an error without keys; some providers repeat them."""
    try:
        return mask(body.decode()).encode()
    except ValueError:
        return body
