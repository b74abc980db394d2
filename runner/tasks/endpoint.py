"""An HTTP endpoint as a task: a case goes there as JSON, and what comes back is the output.

What is sent and what is taken out of the reply is said by templates and paths. Whether a failure is tried again is decided
elsewhere, by what is raised here.
"""

import hashlib
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, Literal, cast
from urllib.parse import urlencode

import attrs
import orjson

from replay.text import as_text
from runner.data.case import Case
from runner.data.fingerprint import canonical, digest
from runner.data.templates import Body, Fields, MissingField, find
from runner.errors import UsageError
from runner.notes import note
from runner.secrets import mask
from runner.tasks import Ending, TrialInput
from runner.tasks.address import Address, described
from runner.tasks.client import Client, ErrorReply, InvalidReply, Reply, TruncatedReply, code_in

_JSON: Final = ((b"Content-Type", b"application/json"), (b"Accept", b"application/json, text/event-stream;q=0.9, */*;q=0.8"))


def _parsed(template: Any) -> Body | None:
    return None if template is None else Body.parse(template, "the body")


@attrs.frozen(kw_only=True)
class Endpoint:
    """Where cases are sent, in which form, and where the output stands in the reply.

    `evaluation(cases="qa.jsonl")(Endpoint("http://localhost:8000/generate", output_path="output"))` is an evaluation.
    """

    __name__ = "endpoint"

    url: str = attrs.field(kw_only=False, repr=lambda url: repr(mask(url)))
    """May hold `$NAME` for a variable of the environment, as may the headers; neither is written down with its value. Its path
    and its parameters may hold `{fields}` of the case."""
    method: Literal["POST", "GET"] = attrs.field(default="POST", validator=attrs.validators.in_(("POST", "GET")))
    body: Any = attrs.field(default=None)
    """A JSON value, or its text, with `{fields}` in its texts. None: the input if it is an object, else `{"input": …}`.
    With GET, its members are the parameters; None adds none where the URL has fields."""
    headers: Mapping[str, str] = attrs.field(factory=dict[str, str], repr=lambda headers: repr(described(headers)))
    output_path: str | None = None
    """Where the output stands in the reply, such as `choices.0.text`. None: all of it, as JSON if it says that it is JSON."""
    error_path: str | None = None
    """Where an error stands in a reply whose status says success; something there fails the attempt. None: nowhere, but in the
    pieces of a stream `error`."""
    done_path: str | None = None
    """Where a stream says that it has come to its end, such as `done`; one that never says so was cut off."""
    connect_timeout: float | None = 10.0
    """Seconds to get through to the other side, within the attempt's own limit."""
    read_timeout: float | None = None
    """Seconds without a byte from the other side; None: as long as the attempt may take."""
    idempotency_header: str = "Idempotency-Key"
    """Sent with a value that is the same for all attempts at a trial; empty to send none."""
    _body: Body | None = attrs.field(
        init=False, repr=False, default=attrs.Factory(lambda self: _parsed(self.body), takes_self=True)
    )
    _address: Address = attrs.field(
        init=False, repr=False, default=attrs.Factory(lambda self: Address.parse(self.url, self.headers), takes_self=True)
    )

    @property
    def fingerprint(self) -> str:
        """Digest of all that decides the outputs, but for what is secret."""
        facts = {
            "url": mask(self.url),
            "method": self.method,
            "body": self.body,
            "headers": described(self.headers),
            "output_path": self.output_path,
            "error_path": self.error_path,
            **({} if self.done_path is None else {"done_path": self.done_path}),
        }
        return digest(canonical(facts, "the endpoint"))

    @property
    def rate_limit_identity(self) -> str:
        """Tells endpoints and API keys apart, whose rate limits differ; to be kept in memory only."""
        return self._address.rate_limit_identity

    def check(self, case: Case) -> None:
        """Refuse a case that lacks a field of the address or of the body."""
        self.target(case)
        self.content(case)

    def target(self, case: Case) -> str | None:
        """Say which path and query a case is sent to; None where that is the same for all."""
        return self._address.target_for(Fields(case)) if self._address.is_template else None

    def content(self, case: Case) -> Any:
        """Say what is sent for a case."""
        if self._body is not None:
            content = self._body.fill(Fields(case))
        elif self.method == "GET" and self._address.is_template:
            content = {}
        else:
            content = case.input if isinstance(case.input, Mapping) else {"input": case.input}
        if self.method == "GET" and not isinstance(content, Mapping):
            raise UsageError(f"the parameters of a GET are the members of an object, and the body is {type(content).__name__}")
        return content

    @asynccontextmanager
    async def open_session(self, run: str, /) -> "AsyncGenerator[_Live]":
        """Keep connections for a session."""
        async with Client(self._address, connect_timeout=self.connect_timeout, read_timeout=self.read_timeout) as client:
            yield _Live(self, self._address, client, run)

    async def __call__(self, value: Any, /) -> Any:
        """Ask it once, by hand, inside trio."""
        return await call_once(self, value)


class _Live:
    """An endpoint while a session lasts."""

    takes_trial: bool = True

    def __init__(self, endpoint: Endpoint, address: Address, client: Client, run: str) -> None:
        self._endpoint = endpoint
        self._address = address
        self._client = client
        self._run = run

    async def call(self, asked: TrialInput, _: object) -> Any:
        """Send the case, and find the output in the reply."""
        endpoint = self._endpoint
        target, content = endpoint.target(asked.case), endpoint.content(asked.case)
        key = idempotency(endpoint.idempotency_header, self._run, asked.trial)
        if endpoint.method == "GET":
            query = urlencode({name: as_text(value) for name, value in cast("dict[str, Any]", content).items()})
            path = target or self._address.target
            between = "" if not query else "&" if "?" in path else "?"
            reply = await self._client.call("GET", None, *_JSON[1:], *key, target=f"{path}{between}{query}")
        else:
            reply = await self._client.call("POST", orjson.dumps(content), *_JSON, *key, target=target)
        heed(reply)
        return output_of(reply, endpoint.output_path, endpoint.error_path, endpoint.done_path)


def idempotency(header: str, run: str, trial: str) -> tuple[tuple[bytes, bytes], ...]:
    """Give the header by which the other side can tell that it has seen a trial before."""
    if not header:
        return ()
    return ((header.encode(), idempotency_key(run, trial).encode()),)


def idempotency_key(run: str, trial: str) -> str:
    """Name a trial of a run, for somebody else: the same for all attempts at it, and for nothing else."""
    return hashlib.sha256(f"{run}\0{trial}".encode()).hexdigest()[:32]


def heed(reply: Reply) -> None:
    """Note when the first byte of a reply came."""
    if reply.is_stream:
        note(stream={"first_byte": round(reply.first_byte, 6), "bytes": len(reply.body)})


def output_of(reply: Reply, output_path: str | None, error_path: str | None, done_path: str | None) -> Any:
    """Find the output in a reply. An empty reply is an output too: an empty one."""
    if not reply.body and not (reply.is_stream and (done_path or reply.ends_by_closing)):
        return ""
    if reply.is_stream:
        return _gathered(reply, output_path, error_path, done_path)
    if output_path is None and error_path is None and "json" not in reply.media:
        return reply.text()
    value = reply.json()
    raise_error_in(value, error_path)
    try:
        return value if output_path is None else find(value, output_path)
    except MissingField as exc:
        raise InvalidReply(f"the reply has no {output_path!r}: {exc}") from exc


def _gathered(reply: Reply, output_path: str | None, error_path: str | None, done_path: str | None) -> Any:
    """Put the pieces of a stream together: texts into one text, anything else into a list."""
    pieces: list[Any] = []
    done = done_path is None or reply.is_done
    for piece in reply.pieces():
        raise_error_in(piece, error_path or "error")  # Whatever a piece with an error is, it is not the end of an answer.
        done = done or _is_true(piece, done_path)
        try:
            found = piece if output_path is None else find(piece, output_path)
        except MissingField:
            continue  # Streams begin and end with pieces that hold something else.
        if found is not None:
            pieces.append(found)
    if not done:
        raise TruncatedReply(f"the stream ended, and nothing at {done_path!r} had said that it was done")
    if not pieces and output_path is not None:
        raise InvalidReply(f"no piece of the stream has {output_path!r}: {reply.body[:300].decode(errors='replace')!r}")
    return "".join(pieces) if all(isinstance(piece, str) for piece in pieces) else pieces


def raise_error_in(value: Any, path: str | None) -> None:
    """Raise what a reply says of an error, although its status says success."""
    if path is None:
        return
    try:
        error = find(value, path)
    except MissingField:
        return
    if error:
        raise ErrorReply(f"the reply says at {path!r}: {as_text(error)[:500]}", code_in(error))


def _is_true(value: Any, path: str | None) -> bool:
    try:
        return path is not None and bool(find(value, path))
    except MissingField:
        return False


@attrs.frozen
class _ByHand:
    trial: str
    case: Case


async def call_once(task: Any, value: Any) -> Any:
    """Open a task, ask it one thing, and close it."""

    def nobody(_: Ending) -> None: ...

    async with task.open_session("") as live:
        return await live.call(_ByHand("by hand", Case(input=value)), nobody)
