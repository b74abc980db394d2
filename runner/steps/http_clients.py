"""Requests of HTTP clients as steps, without changes to the task: `@evaluation(durable="http")`.

They are intercepted at the transports of httpx and httpx2, which the SDKs of OpenAI and Anthropic use. Outside an attempt, and
for requests that are not steps, a transport works as usual.
"""

import functools
import importlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from types import ModuleType
from typing import Any, Final

from runner.errors import UsageError
from runner.secrets import add_secret, mask
from runner.steps.attempt_steps import AttemptSteps, current_steps
from runner.steps.model_calls import NO_SDK_RETRY, ReplyReader, reply_from_output, step_of_request
from runner.steps.waiting import wait_in_loop, wait_in_thread

_LIBRARIES: Final = ("httpx", "httpx2")
_AIOHTTP_TRANSPORT: Final = "AiohttpTransport"
"""Name of the transports for aiohttp, which the SDKs contain."""
_API_KEY_HEADERS: Final = ("authorization", "x-api-key", "api-key", "x-goog-api-key")
_UNREADABLE_ENCODINGS: Final = frozenset({"br", "zstd"})
_READABLE_ENCODINGS: Final = "gzip, deflate"
"""The encodings of replies that can be recorded as text."""
_wrapped_transports: Final[set[type]] = set()
_lock: Final = threading.Lock()


def watch_clients() -> None:
    """Make the transports of the installed HTTP clients record steps from now on; raise a `UsageError` if there is none."""
    modules = [module for name in _LIBRARIES if (module := _import_module(name)) is not None]
    if not modules:
        raise UsageError("durable needs httpx or httpx2, which the SDKs of OpenAI and Anthropic install")
    with _lock:
        for module in modules:
            _replace_method(module.HTTPTransport, "handle_request", functools.partial(_wrap_send, module))
            for transport in (module.AsyncHTTPTransport, *module.AsyncBaseTransport.__subclasses__()):
                if transport is module.AsyncHTTPTransport or transport.__name__ == _AIOHTTP_TRANSPORT:
                    _replace_method(transport, "handle_async_request", functools.partial(_wrap_async_send, module))


def _import_module(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _replace_method(transport: type, method: str, wrapper: Callable[[Any], Any]) -> None:
    if transport not in _wrapped_transports:
        _wrapped_transports.add(transport)
        setattr(transport, method, wrapper(getattr(transport, method)))


def _wrap_send(module: ModuleType, send: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return the method of a transport that records the requests of an attempt."""
    stream_class = _stream_class(module)

    @functools.wraps(send)
    def handle_request(transport: Any, request: Any) -> Any:
        steps = _steps_for(request)
        if steps is None:
            return send(transport, request)
        call = _Call(steps, request, request.read())
        if (earlier_result := steps.begin(call.step)) is not None:
            return _response(module, earlier_result.output)
        try:
            response = send(transport, request)
        except Exception as exc:
            steps.fail(call.step, exc)
            raise
        if call.open(response):
            response.stream = stream_class(response.stream, call)
        return response

    return handle_request


def _wrap_async_send(module: ModuleType, send: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    stream_class = _stream_class(module)

    @functools.wraps(send)
    async def handle_async_request(transport: Any, request: Any) -> Any:
        steps = _steps_for(request)
        if steps is None:
            return await send(transport, request)
        call = _Call(steps, request, await request.aread())
        if (earlier_result := steps.begin(call.step)) is not None:
            return _response(module, earlier_result.output)
        try:
            response = await send(transport, request)
        except Exception as exc:
            steps.fail(call.step, exc)
            raise
        if call.open(response):
            response.stream = stream_class(response.stream, call)
        return response

    return handle_async_request


def _steps_for(request: Any) -> AttemptSteps | None:
    """Return the steps of the attempt in flight if the request is one of them."""
    steps = current_steps()
    if steps is None or steps.is_step is None or not steps.is_step(request.method, str(request.url)):
        return None
    return steps


def _response(module: ModuleType, output: Any) -> Any:
    status, headers, content = reply_from_output(output)
    return module.Response(status, headers=headers, stream=module.ByteStream(content))


def _headers(message: Any) -> dict[str, str]:
    """Return the headers of a request or a response with lower-case names; the library's own class is slow."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in message.headers.raw}


class _Call:
    """A request that is a step, and its reply while it is read."""

    def __init__(self, steps: AttemptSteps, request: Any, body: bytes) -> None:
        self.steps = steps
        self._url = str(request.url)
        headers = _headers(request)
        for name in _API_KEY_HEADERS:
            if value := headers.get(name):
                add_secret(value.rpartition(" ")[2])
        self.step = step_of_request(request.method, self._url, headers, body, earlier_inputs=steps.inputs)
        self._reader: ReplyReader
        self._is_recorded = False
        if not _UNREADABLE_ENCODINGS.isdisjoint(headers.get("accept-encoding", "").replace(" ", "").split(",")):
            request.headers["accept-encoding"] = _READABLE_ENCODINGS

    def open(self, response: Any) -> bool:
        """Start to read a reply; return whether it can be a result or an error of the step. A redirect is neither."""
        if response.has_redirect_location:
            return False
        is_http2 = response.extensions.get("http_version") == b"HTTP/2"
        self._reader = ReplyReader(response.status_code, _headers(response), ends_by_closing=False if is_http2 else None)
        if not self._reader.is_success:
            name, value = NO_SDK_RETRY
            response.headers[name] = value
        return True

    def feed(self, chunk: bytes) -> bool:
        """Add received bytes; return whether the result was recorded now."""
        self._reader.feed(chunk)
        return self._reader.is_complete and self._record()

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
            self._is_recorded = True
            self.steps.fail(self.step, exc)

    def _record(self) -> bool:
        if self._is_recorded:
            return False
        self._is_recorded = True
        self.steps.complete(self.step, self._reader.step_output(), self._reader.usage() or None)
        return True


class _RecordedStream:
    """The body of a reply, recorded before the client gets its end."""

    def __init__(self, stream: Any, call: _Call) -> None:
        self._stream, self._call = stream, call

    def __iter__(self) -> Iterator[bytes]:
        call = self._call
        try:
            for chunk in self._stream:
                if call.feed(chunk):
                    wait_in_thread(call.steps)
                yield chunk
        except Exception as exc:
            call.fail(exc)
            raise
        if call.end():
            wait_in_thread(call.steps)

    def close(self) -> None:
        self._stream.close()
        self._call.close()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        call = self._call
        try:
            async for chunk in self._stream:
                if call.feed(chunk):
                    await wait_in_loop(call.steps)
                yield chunk
        except Exception as exc:
            call.fail(exc)
            raise
        if call.end():
            await wait_in_loop(call.steps)

    async def aclose(self) -> None:
        await self._stream.aclose()
        self._call.close()


@functools.cache
def _stream_class(module: ModuleType) -> Any:
    """Return `_RecordedStream` as a class that a library accepts as a body."""
    return type("RecordedStream", (_RecordedStream, module.SyncByteStream, module.AsyncByteStream), {})
