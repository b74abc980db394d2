"""An HTTP endpoint as a task: the input is sent as JSON, and the output is read from the reply.

Templates define the request; paths locate the output in the reply.
"""

import hashlib
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, Final, Literal, cast
from urllib.parse import urlencode

import attrs
import orjson
import trio

from evaljournal.replay.text import as_text
from evaljournal.runner.calls import ReportedStep, Task, TrialInput
from evaljournal.runner.calls.call_size import CallSize
from evaljournal.runner.calls.http.address import Address, masked_headers
from evaljournal.runner.calls.http.client import Client
from evaljournal.runner.calls.http.reply import ErrorReply, IncompleteReply, InvalidReply, OutputMissing, Reply
from evaljournal.runner.calls.notes import model_step, record_steps
from evaljournal.runner.calls.reported_steps import read_steps
from evaljournal.runner.calls.turns import Message, converse, turns_of
from evaljournal.runner.data.case import Case
from evaljournal.runner.data.fingerprint import canonical, digest
from evaljournal.runner.data.templates import Fields, MissingField, fill_body, has_fields, parse_body, value_at
from evaljournal.runner.errors import UsageError
from evaljournal.runner.secrets.masking import excerpt, mask, mask_definition
from evaljournal.runner.secrets.shapes import mask_shapes

_JSON_HEADERS: Final = (
    (b"Content-Type", b"application/json"),
    (b"Accept", b"application/json, text/event-stream;q=0.9, */*;q=0.8"),
)


@attrs.frozen
class _SingleCall:
    case: Case
    trial: str = "single call"


class BuiltinTask:
    """What the tasks of an evaluation without code have in common."""

    __slots__ = ()
    __name__: str

    @property
    def definition(self) -> dict[str, Any]:
        """Everything that affects the outputs, with secrets masked."""
        raise NotImplementedError

    @property
    def fingerprint(self) -> str:
        return digest(canonical(self.definition, f"the {self.__name__}"))

    async def __call__(self, value: Any, /) -> Any:
        """Make one call, inside trio, without a run."""
        async with self.open_session("") as task:
            return await task.call(_SingleCall(Case(input=value)), lambda _: None)

    def open_session(self, run: str, /) -> AbstractAsyncContextManager[Task]:
        raise NotImplementedError


class HttpTask(BuiltinTask):
    __slots__ = ()
    _address: Address

    @property
    def address(self) -> str:
        """The URL with environment variables replaced and secrets masked."""
        return self._address.masked_url

    @property
    def rate_limit_identity(self) -> str:
        """Identifies the endpoint and the API key; calls with the same value share a rate limit. Kept in memory only."""
        return self._address.rate_limit_identity


@attrs.frozen(kw_only=True)
class Endpoint(HttpTask):
    """An HTTP endpoint, the requests to it, and where the output is in its replies.

    `evaluation(cases="qa.jsonl")(Endpoint("http://localhost:8000/generate", output_path="output"))` is an evaluation.
    """

    __name__ = "endpoint"

    url: str = attrs.field(kw_only=False, repr=lambda url: repr(mask(url)))
    """`$NAME` stands for an environment variable, here and in the headers; its name is recorded, and secret values are masked.
    Path and query may contain `{fields}` of the case."""
    method: Literal["POST", "GET"] = attrs.field(default="POST", validator=attrs.validators.in_(("POST", "GET")))
    """HTTP method."""
    body: Any = attrs.field(default=None)
    """A JSON value, or its text, with `{fields}`. None: the input if it is an object, otherwise `{"input": …}`.
    With GET, the keys are sent as query parameters; None sends none if the URL has fields."""
    headers: Mapping[str, str] = attrs.field(factory=dict[str, str], repr=lambda headers: repr(masked_headers(headers)))
    """Request headers."""
    output_path: str | None = None
    """Path of the output in the reply, such as `choices.0.text`. None: the whole reply, parsed if its media type is
    JSON or `error_path` is set."""
    error_path: str | None = None
    """Path of an error in a reply with a success status; if there is one, the attempt fails. None: not checked, except for
    `error` in the chunks of a stream."""
    done_path: str | None = None
    """Path of a key, such as `done`, that is true in the last chunk of a stream; a stream with neither it nor
    `[DONE]` is incomplete."""
    connect_timeout: float | None = 10.0
    """Seconds to connect, within the timeout of the attempt."""
    read_timeout: float | None = None
    """Maximum seconds between two received bytes. None: only the timeout of the attempt applies."""
    idempotency_header: str = "Idempotency-Key"
    """Header with a value that is the same for all attempts at a trial, and differs for each turn; empty: not sent."""
    turns: str | None = None
    """Column with a list of user messages, sent one after the other. `{messages}` in the body stands for the conversation so
    far, `{turn}` for the last message. None as the body: `{"messages": …}`."""
    _body: Any = attrs.field(
        init=False, repr=False, default=attrs.Factory(lambda self: parse_body(self.body, "the body"), takes_self=True)
    )
    _address: Address = attrs.field(
        init=False, repr=False, default=attrs.Factory(lambda self: Address.parse(self.url, self.headers), takes_self=True)
    )

    @property
    def definition(self) -> dict[str, Any]:
        return {
            "url": mask_shapes(self.url),
            "method": self.method,
            "body": mask_definition(self.body),
            "headers": masked_headers(self.headers),
            "output_path": self.output_path,
            "error_path": self.error_path,
            "done_path": self.done_path,
            **({} if self.turns is None else {"turns": self.turns}),
        }

    def check(self, case: Case) -> None:
        """Raise a UsageError if the case lacks a field of the URL or the body, or all turns would send the same request."""
        request = self.request(case)
        if self.turns is not None and request == self.request_with(turn_fields(case, [{"role": "user", "content": ""}])):
            raise UsageError("the body lacks {messages} and {turn}, so all turns would send the same request")

    @property
    def constant_template(self) -> str:
        """The template that makes the request the same for all cases; empty if requests differ."""
        is_constant = self._body is not None and not has_fields(self._body) and not self._address.is_template
        return "the body" if is_constant else ""

    def target(self, fields: Fields) -> str | None:
        """Return path and query for a case; None if they are the same for all."""
        return self._address.target_for(fields) if self._address.is_template else None

    def content(self, fields: Fields) -> Any:
        """Return the body, or with GET the query parameters, for a case."""
        case = fields.case
        if self._body is not None:
            content = fill_body(self._body, fields)
        elif self.turns is not None:
            content = {"messages": fields.get("messages")}
        elif self.method == "GET" and self._address.is_template:
            content = {}
        else:
            content = case.input if isinstance(case.input, Mapping) else {"input": case.input}

        if self.method == "GET" and not isinstance(content, Mapping):
            raise UsageError(f"with GET, the body must be an object of parameters, not {type(content).__name__}")
        return content

    def request(self, case: Case) -> dict[str, Any]:
        """Return the request for a case, or for its first turn, as it is recorded."""
        if self.turns is None:
            return self.request_with(Fields(case))
        return self.request_with(turn_fields(case, [{"role": "user", "content": turns_of(case, self.turns)[0]}]))

    def request_with(self, fields: Fields) -> dict[str, Any]:
        target, content = self.target(fields), self.content(fields)
        return {**({} if target is None else {"path": target}), ("query" if self.method == "GET" else "body"): content}

    @asynccontextmanager
    async def open_session(self, run: str, /) -> "AsyncGenerator[_OpenEndpoint]":
        async with Client(self._address, connect_timeout=self.connect_timeout, read_timeout=self.read_timeout) as client:
            yield _OpenEndpoint(self, self._address, client, run)


@attrs.frozen
class _OpenEndpoint:
    takes_trial = True

    _endpoint: Endpoint
    _address: Address
    _client: Client
    _run: str

    def request(self, case: Case) -> dict[str, Any]:
        return self._endpoint.request(case)

    async def call(self, trial: TrialInput, _: object, /) -> Any:
        if self._endpoint.turns is None:
            return await self._send(Fields(trial.case), trial.trial)

        async def reply_to(number: int, messages: list[Message]) -> Any:
            fields = turn_fields(trial.case, messages)
            send = partial(self._send, fields, f"{trial.trial}\0{number}")
            request = self._endpoint.request_with(fields)
            return await model_step(f"turn {number}", request, send, lambda: None, CallSize())

        return await converse(turns_of(trial.case, self._endpoint.turns), [], reply_to)

    async def _send(self, fields: Fields, identity: str) -> Any:
        endpoint = self._endpoint
        target, content = endpoint.target(fields), endpoint.content(fields)
        headers = idempotency_headers(endpoint.idempotency_header, self._run, identity)

        if endpoint.method == "GET":
            query = urlencode({name: as_text(value) for name, value in cast("dict[str, Any]", content).items()})
            path = target or self._address.target
            separator = "" if not query else "&" if "?" in path else "?"
            method, body, headers, target = "GET", None, (*_JSON_HEADERS[1:], *headers), f"{path}{separator}{query}"
        else:
            method, body, headers = "POST", orjson.dumps(content), (*_JSON_HEADERS, *headers)

        start_time = trio.current_time()
        output, steps = await self._client.call(method, body, *headers, read=self._read, target=target)
        if steps:
            record_steps(steps, trio.current_time() - start_time)
        return output

    def _read(self, reply: Reply) -> tuple[Any, list[ReportedStep]]:
        steps = read_steps(reply)
        return output_of(reply, self._endpoint.output_path, self._endpoint.error_path, self._endpoint.done_path), steps


def turn_fields(case: Case, messages: list[Message]) -> Fields:
    return Fields(case, {"messages": messages, "turn": messages[-1]["content"]})


def idempotency_headers(header: str, run: str, trial: str) -> tuple[tuple[bytes, bytes], ...]:
    """Return the header by which an endpoint can recognize repeated calls for a trial."""
    if not header:
        return ()
    return ((header.encode(), idempotency_key(run, trial).encode()),)


def idempotency_key(run: str, trial: str) -> str:
    """Return a key that is the same for all attempts at a trial of a run, and unique to it."""
    return hashlib.sha256(f"{run}\0{trial}".encode()).hexdigest()[:32]


def output_of(reply: Reply, output_path: str | None, error_path: str | None, done_path: str | None) -> Any:
    if reply.is_stream:
        return _join_chunks(reply, output_path, error_path, done_path)
    if output_path is None and error_path is None and "json" not in reply.media:
        return reply.text()

    try:
        value = reply.json()
    except InvalidReply as exc:
        fix = "check the URL" if output_path is None else "check the URL, or omit --output-path to use the text"
        raise InvalidReply(f"{exc}; {fix}") from exc

    raise_error_in(value, error_path)
    try:
        return value if output_path is None else value_at(value, output_path)
    except MissingField as exc:
        raise OutputMissing(f"the reply has no {output_path!r}: {exc}") from exc


def _join_chunks(reply: Reply, output_path: str | None, error_path: str | None, done_path: str | None) -> Any:
    """Join the chunks of a stream: strings into one string, anything else into a list."""
    outputs: list[Any] = []
    is_done = done_path is None or reply.is_done

    for chunk in reply.chunks():
        raise_error_in(chunk, error_path or "error")
        is_done = is_done or _is_true(chunk, done_path)
        try:
            output = chunk if output_path is None else value_at(_with_indexed_choices(chunk), output_path)
        except MissingField:
            continue  # The first and the last chunks of a stream often contain something else.
        if output is not None:
            outputs.append(output)

    if not is_done:
        raise IncompleteReply(f"the stream ended before {done_path!r} was true")
    if not outputs and output_path is not None:
        raise OutputMissing(f"no chunk of the stream has {output_path!r}: {reply.excerpt!r}")
    return "".join(outputs) if all(isinstance(output, str) for output in outputs) else outputs


def _with_indexed_choices(chunk: Any) -> Any:
    """Return a chunk with its `choices` by their `index`: a chunk of OpenAI's API has only some of them, in any order."""
    choices = chunk.get("choices") if isinstance(chunk, Mapping) else None
    if not isinstance(choices, list) or not all(isinstance(choice, Mapping) and "index" in choice for choice in choices):
        return chunk
    return {**cast("Mapping[str, Any]", chunk), "choices": {str(choice["index"]): choice for choice in choices}}


def raise_error_in(value: Any, path: str | None) -> None:
    """Raise an ErrorReply if a reply contains an error at a path."""
    if path is None or (value.__class__ is dict and path.partition(".")[0] not in value):
        return  # As in most replies, which need no exception for it.
    try:
        error = value_at(value, path)
    except MissingField:
        return
    if error:
        raise ErrorReply(f"the reply contains an error at {path!r}: {excerpt(as_text(error), 500)}", error)


def _is_true(value: Any, path: str | None) -> bool:
    try:
        return path is not None and bool(value_at(value, path))
    except MissingField:
        return False
