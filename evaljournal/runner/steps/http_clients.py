"""Requests of HTTP clients as steps, without changes to the task: `@evaluation(durable="http")`.

They are intercepted where a client of httpx or httpx2 passes a request to its transport: this covers the SDKs of OpenAI and
Anthropic, litellm, subclasses of the clients, and any transport. Outside an attempt, and for requests that are not steps, a
client works as usual.
"""

import functools
import importlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from http import HTTPStatus
from types import ModuleType
from typing import Any, Final

from evaljournal.runner.errors import UsageError
from evaljournal.runner.secrets.masking import add_secret, mask
from evaljournal.runner.steps.attempt_steps import REJECTED_STATUSES, AttemptSteps, NotSent, ReplayedFailure, current_steps
from evaljournal.runner.steps.model_calls import NO_SDK_RETRY, StepReply, reply_from_output, step_of_request
from evaljournal.runner.steps.waiting import (
    admit_in_loop,
    admit_in_thread,
    wait_again_in_loop,
    wait_again_in_thread,
    wait_in_loop,
    wait_in_thread,
)

_LIBRARIES: Final = ("httpx", "httpx2")
_API_KEY_HEADERS: Final = ("authorization", "x-api-key", "api-key", "x-goog-api-key")
_UNREADABLE_ENCODINGS: Final = frozenset({"br", "zstd"})
_READABLE_ENCODINGS: Final = "gzip, deflate"
"""The encodings of replies that can be recorded as text."""
_wrapped_clients: Final[set[type]] = set()
_lock: Final = threading.Lock()


def watch_clients() -> None:
    """Make the installed HTTP clients record steps from now on; raise a `UsageError` if there is none."""
    modules = [module for name in _LIBRARIES if (module := _import_module(name)) is not None]
    if not modules:
        raise UsageError("durable needs httpx or httpx2, which the SDKs of OpenAI and Anthropic install")
    with _lock:
        for module in modules:
            for client in (module.Client, module.AsyncClient):
                if client not in _wrapped_clients:
                    _wrapped_clients.add(client)
                    client._transport_for_url = _wrap(module, client._transport_for_url)  # noqa: SLF001  # no public hook sees all requests


def _import_module(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _wrap(module: ModuleType, transport_for_url: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return the method of a client that returns the transport for each request."""

    @functools.wraps(transport_for_url)
    def wrapper(client: Any, url: Any) -> Any:
        transport = transport_for_url(client, url)
        return transport if current_steps() is None else _RecordedTransport(module, transport)

    return wrapper


class _RecordedTransport:
    """A transport for one request of an attempt, which is recorded if it is a step."""

    def __init__(self, module: ModuleType, transport: Any) -> None:
        self._module, self._transport = module, transport

    def handle_request(self, request: Any) -> Any:
        steps = _steps_for(request)
        if steps is None:
            return self._transport.handle_request(request)
        waited = 0.0
        while True:
            try:
                call = _Call(steps, request, request.read(), waited)
                if (recorded := call.begin(self._module)) is not None:
                    return recorded
                admit_in_thread(steps, call.step)
            except NotSent as exc:
                return _rejection(self._module, exc)

            try:
                response = self._transport.handle_request(call.request)
                if response.status_code in REJECTED_STATUSES:
                    response.read()
            except Exception as exc:
                steps.fail(call.step, exc)
                raise

            if call.open(response, self._module):
                wait_in_thread(steps)
            if call.error is None or (seconds := wait_again_in_thread(steps, call.step, call.error)) is None:
                return response
            waited = seconds

    async def handle_async_request(self, request: Any) -> Any:
        steps = _steps_for(request)
        if steps is None:
            return await self._transport.handle_async_request(request)
        waited = 0.0
        while True:
            try:
                call = _Call(steps, request, await request.aread(), waited)
                if (recorded := call.begin(self._module)) is not None:
                    return recorded
                await admit_in_loop(steps, call.step)
            except NotSent as exc:
                return _rejection(self._module, exc)

            try:
                response = await self._transport.handle_async_request(call.request)
                if response.status_code in REJECTED_STATUSES:
                    await response.aread()
            except Exception as exc:
                steps.fail(call.step, exc)
                raise

            if call.open(response, self._module):
                await wait_in_loop(steps)
            if call.error is None or (seconds := await wait_again_in_loop(steps, call.step, call.error)) is None:
                return response
            waited = seconds


def _steps_for(request: Any) -> AttemptSteps | None:
    steps = current_steps()
    if steps is None or steps.is_step is None or not steps.is_step(request.method, str(request.url)):
        return None
    return steps


def _response(module: ModuleType, output: Any) -> Any:
    status, headers, content = reply_from_output(output)
    return module.Response(status, headers=headers, stream=module.ByteStream(content))


def _rejection(module: ModuleType, error: NotSent) -> Any:
    """Return a reply that makes an SDK raise the error of a request that was not sent, and not retry it."""
    body = {"type": "error", "error": {"type": "evaljournal_limit", "code": "evaljournal_limit", "message": str(error)}}
    return module.Response(HTTPStatus.BAD_REQUEST, headers=dict([NO_SDK_RETRY]), json=body)


def _with_body(request: Any, url: str, body: bytes) -> Any:
    headers = [header for header in request.headers.raw if header[0].lower() not in {b"content-length", b"transfer-encoding"}]
    return type(request)(request.method, url, headers=headers, content=body, extensions=request.extensions)


def _failure(module: ModuleType, failure: ReplayedFailure) -> Any:
    """Return the recorded error reply, as far as it is known; raise if there was no reply."""
    if failure.status_code is None:
        raise module.ConnectError(str(failure)) from failure
    body = {"type": "error", "error": {"type": "evaljournal_replayed", "message": str(failure)}}
    return module.Response(failure.status_code, headers=dict([NO_SDK_RETRY]), json=body)


def _headers(message: Any) -> dict[str, str]:
    """Return the headers of a request or a response with lower-case names; the library's own class is slow."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in message.headers.raw}


class _Call:
    """A request that is a step, and its reply while it is read."""

    def __init__(self, steps: AttemptSteps, request: Any, body: bytes, waited: float) -> None:
        """`waited`: seconds since the same request was rejected."""
        self.steps = steps
        self.error: Exception | None = None
        """Why the request failed, once that is known."""

        self._url, number = str(request.url), 0
        if steps.rewrite is not None:
            number = steps.next_number()
            self._url, new_body = steps.rewrite(number, request.method, self._url, body)
            if new_body is not body:
                request, body = _with_body(request, self._url, new_body), new_body
        self.request = request
        """The request as it is sent."""

        headers = _headers(request)
        api_keys = [value.rpartition(" ")[2] for name in _API_KEY_HEADERS if (value := headers.get(name))]
        for key in api_keys:
            add_secret(key)
        self.step = step_of_request(
            request.method,
            self._url,
            headers,
            body,
            earlier_inputs=steps.inputs,
            api_keys=api_keys,
            key_rules=steps.key_rules,
        )
        self.step.waited, self.step.number = waited, number

        self._reader: StepReply
        self._is_recorded = False
        if not _UNREADABLE_ENCODINGS.isdisjoint(headers.get("accept-encoding", "").replace(" ", "").split(",")):
            request.headers["accept-encoding"] = _READABLE_ENCODINGS

    def begin(self, module: ModuleType) -> Any:
        """Start the step; return its recorded reply, which may be an error, or None: the request has to be sent."""
        while True:
            try:
                result = self.steps.begin(self.step)
            except ReplayedFailure as exc:
                if not exc.is_repeated:
                    return _failure(module, exc)
                self.step = self.step.again(0.0)
            else:
                return None if result is None else _response(module, result.output)

    def open(self, response: Any, module: ModuleType) -> bool:
        """Start to read a reply; return whether it was recorded now. A redirect is neither a result nor an error."""
        if response.has_redirect_location:
            return False

        is_http2 = response.extensions.get("http_version") == b"HTTP/2"
        headers = _headers(response)
        self.steps.read_reply(self.step, response.status_code, headers)
        if response.is_stream_consumed:  # The transport has read and decoded it.
            headers.pop("content-encoding", None)
        self._reader = StepReply(response.status_code, headers, ends_by_closing=False if is_http2 else None)

        if not self._reader.is_success:
            name, value = NO_SDK_RETRY
            response.headers[name] = value
        if response.is_stream_consumed:
            return self.feed(response.content) or self.end()
        response.stream = _stream_class(module)(response.stream, self)
        return False

    def feed(self, chunk: bytes) -> bool:
        """Add received bytes; return whether the result was recorded now."""
        self._reader.feed(chunk)
        return self._reader.is_complete and self._record()

    @property
    def is_ending(self) -> bool:
        return self._reader.is_ending

    def end(self) -> bool:
        """Handle the end of the reply; return whether the result was recorded now."""
        if self._is_recorded:
            return False
        self._reader.end()
        if self._reader.is_complete:
            return self._record()
        self.close()
        return False

    def close(self) -> None:
        """Record an error that the reply contains. A reply that was not read to its end is not recorded."""
        if self._reader.has_failed:
            self.fail(self._reader.error(mask(self._url)))

    def fail(self, exc: Exception) -> None:
        """Record that no complete reply arrived."""
        if not self._is_recorded:
            self._is_recorded, self.error = True, exc
            self.steps.fail(self.step, exc)

    def _record(self) -> bool:
        if self._is_recorded:
            return False
        self._is_recorded = True
        self.steps.complete(self.step, self._reader.step_output(), self._reader.usage() or None)
        return True


class _RecordedStream:
    """The body of a reply, recorded before the client gets its end, or what it may take for the end."""

    def __init__(self, stream: Any, call: _Call) -> None:
        self._stream, self._call = stream, call

    def __iter__(self) -> Iterator[bytes]:
        call, content = self._call, b""
        try:
            for chunk in self._stream:
                if call.feed(chunk):
                    wait_in_thread(call.steps)
                content += chunk
                if not call.is_ending:
                    yield content
                    content = b""
        except Exception as exc:
            call.fail(exc)
            raise

        if call.end():
            wait_in_thread(call.steps)
        if content:
            yield content

    def close(self) -> None:
        self._stream.close()
        self._call.close()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        call, content = self._call, b""
        try:
            async for chunk in self._stream:
                if call.feed(chunk):
                    await wait_in_loop(call.steps)
                content += chunk
                if not call.is_ending:
                    yield content
                    content = b""
        except Exception as exc:
            call.fail(exc)
            raise

        if call.end():
            await wait_in_loop(call.steps)
        if content:
            yield content

    async def aclose(self) -> None:
        await self._stream.aclose()
        self._call.close()


@functools.cache
def _stream_class(module: ModuleType) -> Any:
    """Return `_RecordedStream` as a class that a library accepts as a body."""
    return type("RecordedStream", (_RecordedStream, module.SyncByteStream, module.AsyncByteStream), {})
