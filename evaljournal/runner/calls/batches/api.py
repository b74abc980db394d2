"""The interface of a provider's batches: what is sent, what is reported, and the errors. It keeps no state and records nothing.

`Chat.batch_api()` returns the `BatchApi` of a chat model; it raises a `UsageError` if the endpoint has no batches. In order:

1. `encode` every request as a line; `custom_id` is the prefix of the batch and the number of the line. `digest_of` the lines.
2. Record the batch and sync. Then `submit` it, once; only after `NotSubmitted` may it be submitted again.
3. After `SubmissionUnclear`, or if the process died before the result of `submit` was recorded: `find` it, twice, 30 s apart.
   None both times: no such batch exists. `OwnerUnknown`: ask again after a while, as long as that takes.
4. `poll` until `is_ended`; then read `results` once. They are complete: a line that is not among them has no reply.

Any method may also raise what a call of a model raises (`BadStatus`, `NoResponse`, `InvalidReply`, …): `classify` returns
whether to wait and repeat the method; this is safe for all but `submit`. All texts of a server are shortened, with secrets
masked.

The calls themselves are below: one connection each, bounded replies, and which errors mean that nothing was submitted.
"""

import hashlib
import re
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final, Literal, Protocol, Self, cast

import attrs
import httpcore2

from evaljournal.journal.events import BatchPrepared, BatchSubmitted
from evaljournal.replay.provider.reports import fields_of
from evaljournal.runner.calls.batches.results import LineParser, Results
from evaljournal.runner.calls.http.address import Address
from evaljournal.runner.calls.http.client import Client, Response
from evaljournal.runner.calls.http.reply import BadStatus, InvalidReply, NoResponse, Reply
from evaljournal.runner.errors import UsageError, is_whole_number
from evaljournal.runner.secrets.masking import excerpt

ApiName = Literal["openai", "anthropic"]

_CONNECT_TIMEOUT: Final = 10.0
_TIMEOUT: Final = 600.0
"""Seconds to send a request, and between two received bytes: a batch may have 100 MB."""
_MAX_TEXT: Final = 500
_ID: Final = re.compile(r"[A-Za-z0-9_.:-]{1,200}")
TOKEN_LIMIT: Final = "token_limit_exceeded"  # noqa: S105  # an error code
"""Code of the error when too many tokens are enqueued."""
_UNCLEAR_STATUSES: Final = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.CONFLICT)
"""Statuses below 500 after which a batch may exist."""
_GONE_STATUSES: Final = (HTTPStatus.NOT_FOUND, HTTPStatus.GONE)
_MAX_PAGES: Final = 1_000


@attrs.frozen(kw_only=True)
class BatchStatus:
    id: str
    state: str
    """The provider's own word, in lower case: `in_progress`, `completed`, `ended`, …; one of Anthropic that has ended
    is `canceled` or `expired` if a line is."""
    is_ended: bool
    """Whether its results are final."""
    completed: int
    """Lines with a successful reply; Anthropic reports 0 until the batch has ended."""
    failed: int
    """Lines with an error, and those that were cancelled or expired, if the provider counts them."""
    total: int
    """All lines; 0 if unknown."""
    expires: str = ""
    """When it expires, in ISO format; empty if unknown."""
    message: str = ""
    """The provider's error."""
    is_over_token_limit: bool = False
    """Whether the batch failed because too many tokens of the account are enqueued; nothing was processed."""
    is_archived: bool = False
    """Whether the results are no longer available."""
    files: Sequence[str] = ()
    """What `results` reads."""


class BatchError(Exception):
    """Something about a batch that its caller handles; `__cause__` is the error of the call, if there was one."""


class NotSubmitted(BatchError):
    """The batch certainly does not exist, and may be submitted again; `classify` returns when, or that there is no credit."""


class TokenLimitExceeded(NotSubmitted):
    """Too many tokens of the account are enqueued in batches."""


class SubmissionUnclear(BatchError):
    """The batch may exist: it was sent, and the reply was lost or is invalid."""


class OwnerUnknown(BatchError):
    """Batches are in progress that may be the submitted one; only their results will show it."""


class BatchNotFound(BatchError):
    """There is no such batch: it was deleted, or belongs to another account than that of the API key."""


class WrongAccount(BatchError):
    """The API key is invalid, or has no access to the batch."""


class ResultsArchived(BatchError):
    """The provider has deleted the results."""


class BatchApi(Protocol):
    """The batches of one account of a provider; equal, and hashable, for the same endpoint and API key.

    Each call uses a new connection, so that none is repeated.
    """

    @property
    def name(self) -> ApiName:
        """The shape of the API."""
        ...

    @property
    def address(self) -> str:
        """The URL of the batches, with secrets masked."""
        ...

    @property
    def max_lines(self) -> int: ...

    @property
    def max_bytes(self) -> int:
        """Maximum bytes of the lines of a batch, including their ends."""
        ...

    def account(self, run: str) -> str:
        """Return a digest of the endpoint and the API key for a run with this id, the same in all processes."""
        ...

    def encode(self, custom_id: str, body: Mapping[str, Any]) -> bytes:
        """Return a line, without its end, for the body of a live call."""
        ...

    async def submit(self, batch: BatchPrepared, lines: Sequence[bytes]) -> BatchSubmitted:
        """Submit a batch; raise a `NotSubmitted` or a `SubmissionUnclear` if that failed, and nothing else."""
        ...

    async def find(self, batch: BatchPrepared, since: datetime, known_ids: Collection[str]) -> BatchSubmitted | None:
        """List the batches once; return the one that was submitted `since` a time with a time zone, or None.

        `known_ids`: batches that it cannot be.
        """
        ...

    async def poll(self, batch_id: str) -> BatchStatus:
        """Return the status of a batch; raise a `BatchNotFound` or a `WrongAccount`."""
        ...

    async def results(self, status: BatchStatus) -> Results:
        """Download all results of an ended batch to a temporary file; raise a `ResultsArchived` if they were deleted."""
        ...

    async def cancel(self, batch_id: str) -> BatchStatus:
        """Cancel a batch, which takes a while; its finished lines are charged, and their results are available."""
        ...


def digest_of(lines: Sequence[bytes]) -> str:
    """Return the digest of lines, which are encoded without their ends."""
    digest = hashlib.sha256()
    for line in lines:
        digest.update(line)
        digest.update(b"\n")
    return digest.hexdigest()


@attrs.frozen
class BatchCalls:
    """The calls with one API key to the batches of one endpoint."""

    _address: Address = attrs.field(eq=False)
    root: str
    """Path before that of the batches."""
    _query: str
    _keys: frozenset[str] = attrs.field(
        init=False, repr=False, default=attrs.Factory(lambda self: frozenset(self._address.key_digests), takes_self=True)
    )
    """Digests of the API keys."""
    url: str = attrs.field(init=False, default=attrs.Factory(lambda self: self._address.masked_url, takes_self=True))
    """The URL before the path of the batches, with secrets masked."""

    @classmethod
    def beside(cls, address: Address, end: str) -> Self:
        """Return the calls beside live calls to an address whose path ends with `end`, a regular expression."""
        if address.is_template:
            raise UsageError("batches need the same URL for all cases; remove the {fields} from base_url")
        (url, _, _), (target, _, query) = address.masked_url.partition("?"), address.target.partition("?")
        url, root = (re.sub(f"{end}/?$", "", path) for path in (url, target))
        return cls(attrs.evolve(address, masked_url=url), root, query)

    @property
    def host(self) -> str:
        return self._address.origin.host.decode().lower()

    def account(self, run: str) -> str:
        """Return a digest of the endpoint and the API key, salted with the id of the run."""
        return hashlib.sha256("\0".join([run, self.url, *sorted(self._keys)]).encode()).hexdigest()

    async def call(
        self, method: str, path: str, content: bytes | None = None, *, media: str = "application/json", query: str = ""
    ) -> Mapping[str, Any]:
        """Make a call and return the object in its reply; a list becomes an object with `data`."""
        headers = () if content is None else ((b"Content-Type", media.encode()),)
        async with self._client() as client:
            value = await client.call(method, content, *headers, read=Reply.json, target=self._target(path, query))
        if isinstance(value, list):
            return {"data": value}
        if not isinstance(value, Mapping):
            raise InvalidReply(f"the reply from {self.url} is not a JSON object")
        return cast("Mapping[str, Any]", value)

    async def create(self, path: str, content: bytes, parse: Callable[[Mapping[str, Any]], BatchSubmitted]) -> BatchSubmitted:
        """Create a batch, once, and parse the reply; raise a `NotSubmitted` or a `SubmissionUnclear` if that failed."""
        try:
            return parse(await self.call("POST", path, content))
        except Exception as exc:
            if is_unsent(exc) or (
                isinstance(exc, BadStatus)
                and exc.status_code < HTTPStatus.INTERNAL_SERVER_ERROR
                and exc.status_code not in _UNCLEAR_STATUSES
            ):
                raise not_submitted(exc) from exc
            raise SubmissionUnclear(f"it is unclear whether a batch was created: {exc}") from exc

    async def call_batch(self, method: str, path: str, batch_id: str) -> Mapping[str, Any]:
        """Make a call about one batch; raise a `BatchNotFound` or a `WrongAccount` for the statuses that mean it."""
        try:
            return await self.call(method, path)
        except BadStatus as exc:
            if exc.status_code in _GONE_STATUSES:
                problem = f"batch {batch_id} does not exist, or belongs to another account than that of the API key: {exc}"
                raise BatchNotFound(problem) from exc
            if exc.status_code in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
                raise WrongAccount(f"the API key has no access to batch {batch_id}: {exc}") from exc
            raise

    async def cancel(self, path: str, batch_id: str) -> None:
        """Cancel a batch, unless it has ended."""
        try:
            await self.call_batch("POST", path, batch_id)
        except BadStatus as exc:
            if exc.status_code not in {HTTPStatus.BAD_REQUEST, HTTPStatus.CONFLICT}:
                raise

    async def list_since(self, path: str, since: datetime | None, cursor: str, query: str) -> list[Mapping[str, Any]]:
        """Return the objects of a list, newest first, at least those created since a time; `cursor`: its parameter."""
        objects: list[Mapping[str, Any]] = []
        after = ""

        for _ in range(_MAX_PAGES):
            reply = await self.call("GET", path, query=f"{query}{after}")
            data = reply.get("data")
            if not isinstance(data, list):
                raise InvalidReply(f"the reply from {self.url}{path} is not a list")

            page = [fields_of(item) for item in data]
            recent = [
                item for item in page if since is None or (time := time_of(item.get("created_at"))) is None or time >= since
            ]
            objects += recent
            if not recent or reply.get("has_more") is not True:
                return objects
            after = f"&{cursor}={identifier(page[-1].get('id'))}"
        raise InvalidReply(f"the list {self.url}{path} has more than {_MAX_PAGES:,} pages")

    async def download(self, paths: Sequence[str], batch_id: str, parse: LineParser) -> Results:
        """Download all results of a batch; raise a `ResultsArchived` if they were deleted."""
        results = Results(parse)
        try:
            for path in paths:
                async with self.open(path) as response:
                    await results.add(response)
        except BaseException as exc:
            results.close()
            if isinstance(exc, BadStatus) and exc.status_code in _GONE_STATUSES:
                raise ResultsArchived(f"the results of batch {batch_id} were deleted: {exc}") from exc
            raise
        return results

    @asynccontextmanager
    async def open(self, path: str) -> AsyncGenerator[Response]:
        """Make a call and yield its response, whose body is read as it arrives; raise a `BadStatus` for any status but 200."""
        async with self._client() as client, await client.send("GET", None, target=self._target(path)) as response:
            if response.head.status != HTTPStatus.OK:
                reply = Reply(response.head.status, response.head.text_headers)
                reply.feed(await response.read())
                raise BadStatus(reply, self.url)
            yield response

    def _client(self) -> Client:
        return Client(self._address, connect_timeout=_CONNECT_TIMEOUT, read_timeout=_TIMEOUT)

    def _target(self, path: str, query: str = "") -> str:
        all_query = "&".join(filter(None, (self._query, query)))
        return f"{self.root}{path}{'?' if all_query else ''}{all_query}"


def is_unsent(exc: Exception) -> bool:
    """Return whether a call failed before its request was sent."""
    return isinstance(exc, NoResponse) and isinstance(exc.__cause__, httpcore2.ConnectError | httpcore2.ConnectTimeout)


def not_submitted(exc: Exception) -> NotSubmitted:
    if isinstance(exc, BadStatus) and exc.status_code in {HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED}:
        return NotSubmitted(f"this endpoint has no batches, or not for this model: {exc}")
    is_limit = isinstance(exc, BadStatus) and (exc.code == TOKEN_LIMIT or "enqueued token" in str(exc).lower())
    return (TokenLimitExceeded if is_limit else NotSubmitted)(f"the batch was not accepted: {exc}")


def identifier(value: object) -> str:
    """Return an id in a reply, which becomes a part of paths."""
    if not isinstance(value, str) or _ID.fullmatch(value) is None or set(value) == {"."}:
        raise InvalidReply("the reply has no valid id of a batch or a file")
    return value


def optional_id(value: object) -> str:
    """Return an id in a reply; empty if there is none."""
    return "" if value is None or value == "" else identifier(value)


def text_of(value: object) -> str:
    """Return a text in a reply, shortened, with secrets masked; empty if it is of another type."""
    return excerpt(value, _MAX_TEXT) if isinstance(value, str) else ""


def count_of(value: object) -> int:
    """Return a count in a reply; 0 if it is not one."""
    return value if isinstance(value, int) and is_whole_number(value, 0) else 0


def time_of(value: object) -> datetime | None:
    """Return a time in a reply, which is in seconds since 1970 or in ISO format; None if it is neither."""
    try:
        if isinstance(value, int | float):
            return datetime.fromtimestamp(value, UTC)
        time = datetime.fromisoformat(value) if isinstance(value, str) else None
    except (ValueError, OverflowError, OSError):
        return None
    return time if time is None or time.tzinfo is not None else time.replace(tzinfo=UTC)


def iso_time(value: object) -> str:
    """Return a time in a reply in ISO format, in UTC, without fractions of a second; empty if there is none."""
    time = time_of(value)
    try:
        return "" if time is None else time.astimezone(UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError):
        return ""
