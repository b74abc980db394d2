"""Anthropic's message batches: created by one call, without metadata; only the results show whose a batch is."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import attrs
import orjson

from evaljournal.journal.events import BatchPrepared, BatchSubmitted
from evaljournal.replay.provider.reports import fields_of
from evaljournal.runner.calls.batches.api import (
    ApiName,
    BatchCalls,
    BatchStatus,
    OwnerUnknown,
    ResultsArchived,
    count_of,
    identifier,
    iso_time,
    text_of,
)
from evaljournal.runner.calls.batches.results import LineResult, Results, dump_body
from evaljournal.runner.calls.http.reply import InvalidReply

_PATH: Final = "/v1/messages/batches"
_CLOCK_MARGIN: Final = timedelta(hours=1)
"""Maximum difference between the clocks of this machine and the provider; with more, others' batches may have to end first."""
_FIRST_LINES: Final = 10
_MAX_READ: Final = 1024 * 1024
"""Lines or bytes of the results that are read to see whose they are; a line may be broken."""
_STATUSES: Final[Mapping[str, int]] = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""Type of an error → its status in a live call."""
_COUNTS: Final = ("succeeded", "errored", "canceled", "expired", "processing")


@attrs.frozen(kw_only=True)
class AnthropicBatches:
    calls: BatchCalls
    max_lines: int = 100_000
    max_bytes: int = 100_000_000
    """Anthropic allows 256 MB; more than this would only take more memory."""

    name: ApiName = attrs.field(init=False, default="anthropic")

    @property
    def address(self) -> str:
        return f"{self.calls.url}{_PATH}"

    def account(self, run: str) -> str:
        return self.calls.account(run)

    def encode(self, custom_id: str, body: Mapping[str, Any]) -> bytes:
        return orjson.dumps({"custom_id": custom_id, "params": body})

    async def submit(self, batch: BatchPrepared, lines: Sequence[bytes]) -> BatchSubmitted:
        return await self.calls.create(_PATH, b'{"requests":[%b]}' % b",".join(lines), partial(_submitted, batch))

    async def find(self, batch: BatchPrepared, since: datetime, known_ids: Collection[str]) -> BatchSubmitted | None:
        """Find a batch that was created since and whose results have the prefix; it may be one of as many lines in progress."""
        running: list[str] = []
        for job in await self.calls.list_since(_PATH, since - _CLOCK_MARGIN, "after_id", "limit=1000"):
            job_id = identifier(job.get("id"))
            if job_id in known_ids:
                continue
            if job.get("processing_status") != "ended":
                running += [job_id] if _total(job) in {0, len(batch.trials)} else []
            elif not _is_archived(job) and await self._has_prefix(job_id, batch.prefix):
                return _submitted(batch, job)

        if running:
            raise OwnerUnknown(f"whether the batch was created is known when these have ended: {', '.join(running)}")
        return None

    async def _has_prefix(self, batch_id: str, prefix: str) -> bool:
        """Return whether one of the first lines of the results has a `custom_id` with this prefix."""
        content = b""
        async with self.calls.open(f"{_PATH}/{batch_id}/results") as response:
            while content.count(b"\n") < _FIRST_LINES and len(content) < _MAX_READ and (chunk := await response.read()):
                content += chunk
        return f'"{prefix}'.encode() in content

    async def poll(self, batch_id: str) -> BatchStatus:
        return _status(await self.calls.call_batch("GET", f"{_PATH}/{identifier(batch_id)}", batch_id), batch_id)

    async def results(self, status: BatchStatus) -> Results:
        """Download the results of an ended batch. The server's `results_url` is not called: it may name another host."""
        if status.is_archived:
            raise ResultsArchived(f"the results of batch {status.id} were deleted: Anthropic keeps them for 29 days")
        return await self.calls.download([f"{_PATH}/{identifier(status.id)}/results"], status.id, _line_result)

    async def cancel(self, batch_id: str) -> BatchStatus:
        await self.calls.cancel(f"{_PATH}/{identifier(batch_id)}/cancel", batch_id)
        return await self.poll(batch_id)


def _submitted(batch: BatchPrepared, job: Mapping[str, Any]) -> BatchSubmitted:
    return BatchSubmitted(batch=batch.batch, id=identifier(job.get("id")), expires=iso_time(job.get("expires_at")))


def _total(job: Mapping[str, Any]) -> int:
    counts = fields_of(job.get("request_counts"))
    return sum(count_of(counts.get(name)) for name in _COUNTS)


def _is_archived(job: Mapping[str, Any]) -> bool:
    return job.get("processing_status") == "ended" and (bool(job.get("archived_at")) or not job.get("results_url"))


def _status(job: Mapping[str, Any], batch_id: str) -> BatchStatus:
    state = text_of(job.get("processing_status")).lower()
    if not state:
        raise InvalidReply("the reply has no status of a batch")

    counts = fields_of(job.get("request_counts"))
    completed = count_of(counts.get("succeeded"))
    unprocessed = (name for name in ("canceled", "expired") if state == "ended" and count_of(counts.get(name)))

    return BatchStatus(
        id=batch_id,
        state=next(unprocessed, state),
        is_ended=state == "ended",
        completed=completed,
        failed=sum(count_of(counts.get(name)) for name in ("errored", "canceled", "expired")),
        total=_total(job),
        expires=iso_time(job.get("expires_at")),
        is_archived=_is_archived(job),
    )


def _line_result(value: Mapping[str, Any]) -> LineResult | None:
    """Return the reply in a line of the results; None if the line was cancelled or has expired."""
    result = fields_of(value.get("result"))
    match result.get("type"):
        case "succeeded":
            return LineResult(value["custom_id"], HTTPStatus.OK, dump_body(result.get("message")))
        case "errored":
            error = fields_of(result.get("error"))
            kind = text_of(fields_of(error.get("error")).get("type")) or text_of(error.get("type"))
            return LineResult(value["custom_id"], _STATUSES.get(kind, HTTPStatus.INTERNAL_SERVER_ERROR), dump_body(error))
        case "canceled" | "expired":
            return None
        case _:
            raise ValueError("a line of the results has no result")
