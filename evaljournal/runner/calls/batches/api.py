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
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, Protocol

import attrs

from evaljournal.journal.events import BatchPrepared, BatchSubmitted
from evaljournal.runner.calls.batches.results import Results

ApiName = Literal["openai", "anthropic"]


@attrs.frozen(kw_only=True)
class BatchStatus:
    """A batch as the provider reports it."""

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
    def max_lines(self) -> int:
        """Maximum lines of a batch."""
        ...

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
