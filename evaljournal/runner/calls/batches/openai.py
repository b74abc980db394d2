"""Batches of OpenAI, and of Azure, Groq, Together and others with the same API: an uploaded file, a batch, two result files."""

import re
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

import attrs
import orjson
import trio

from evaljournal.journal.events import BatchPrepared, BatchSubmitted
from evaljournal.replay.provider.reports import fields_of
from evaljournal.runner.calls.batches.api import (
    TOKEN_LIMIT,
    ApiName,
    BatchCalls,
    BatchStatus,
    count_of,
    identifier,
    iso_time,
    not_submitted,
    optional_id,
    text_of,
)
from evaljournal.runner.calls.batches.results import LineResult, Results, dump_body
from evaljournal.runner.calls.http.reply import InvalidReply

_ENDED_STATES: Final = frozenset({"completed", "failed", "expired", "cancelled", "canceled"})
_UNREADY_STATES: Final = frozenset({"pending", "running", "notrunning"})
"""States of an uploaded file at Azure before a batch may use it."""
_FILE_WAIT: Final = 5.0
"""Seconds between two calls that ask whether an uploaded file is ready."""
_MAX_FILE_POLLS: Final = 120
_CLOCK_MARGIN: Final = timedelta(days=1)
"""Maximum difference between the clocks of this machine and the provider; more only lists more batches."""
_UNANSWERED: Final = re.compile(r"batch_(?:expired|cancell?ed)|expired|cancell?ed")
"""Codes of the errors of lines that were not processed."""
_STATUSES: Final = range(200, 600)
_MAX_ERRORS: Final = 20
"""Errors of a batch that its message lists."""
_BOUNDARY: Final = "evaljournal-lines"


@attrs.frozen(kw_only=True)
class OpenAiBatches:
    calls: BatchCalls
    endpoint: str
    """Path of the live call in each line: `/v1/chat/completions`."""
    max_lines: int = 50_000
    max_bytes: int = 100_000_000
    """OpenAI allows 200 MB; more than this would only take more memory."""
    purpose: str = "batch"
    upload_path: str = "/files"
    deployment: str = ""
    """The model of each line, if the provider names models by their deployment."""
    has_metadata: bool = True
    """Whether a batch may have metadata; otherwise, it is found by the name of its file."""

    name: ApiName = attrs.field(init=False, default="openai")

    @property
    def address(self) -> str:
        return f"{self.calls.url}/batches"

    def account(self, run: str) -> str:
        return self.calls.account(run)

    def encode(self, custom_id: str, body: Mapping[str, Any]) -> bytes:
        content = {**body, "model": self.deployment} if self.deployment else body
        return orjson.dumps({"custom_id": custom_id, "method": "POST", "url": self.endpoint, "body": content})

    async def submit(self, batch: BatchPrepared, lines: Sequence[bytes]) -> BatchSubmitted:
        try:
            file = await self._upload(batch, lines)
        except Exception as exc:  # Without a batch, a file has no effect.
            raise not_submitted(exc) from exc
        metadata = {"metadata": _metadata(batch)} if self.has_metadata else {}
        request = {"input_file_id": file, "endpoint": self.endpoint, "completion_window": "24h", **metadata}
        return await self.calls.create("/batches", orjson.dumps(request), partial(_submitted, batch))

    async def _upload(self, batch: BatchPrepared, lines: Sequence[bytes]) -> str:
        """Upload the lines; return the id of the file when a batch may use it."""
        fields = {"purpose": self.purpose}
        if self.upload_path != "/files":  # Together
            fields |= {"file_name": _file_name(batch), "file_type": "jsonl"}

        form, media = _multipart(fields, _file_name(batch), lines), f"multipart/form-data; boundary={_BOUNDARY}"
        reply = await self.calls.call("POST", self.upload_path, form, media=media)
        file = identifier(reply.get("id"))

        for _ in range(_MAX_FILE_POLLS):
            if text_of(reply.get("status")).lower() not in _UNREADY_STATES:
                return file
            await trio.sleep(_FILE_WAIT)
            reply = await self.calls.call("GET", f"/files/{file}")
        raise InvalidReply(f"the uploaded file is not ready after {_MAX_FILE_POLLS * _FILE_WAIT:g} s")

    async def find(self, batch: BatchPrepared, since: datetime, known_ids: Collection[str]) -> BatchSubmitted | None:
        """Find a batch by its metadata, or by the name of its file."""
        jobs = await self.calls.list_since("/batches", since - _CLOCK_MARGIN, "after", "limit=100")
        jobs = [job for job in jobs if job.get("id") not in known_ids]
        for job in jobs:
            if fields_of(job.get("metadata")).items() >= _metadata(batch).items():
                return _submitted(batch, job)
        if all(job.get("metadata") for job in jobs):  # The provider keeps it, so the files need not be listed.
            return None

        files = await self.calls.list_since("/files", None, "after", f"purpose={self.purpose}")
        file_ids = {text_of(file.get("id")) for file in files if file.get("filename") == _file_name(batch)}
        return next((_submitted(batch, job) for job in jobs if job.get("input_file_id") in file_ids), None)

    async def poll(self, batch_id: str) -> BatchStatus:
        return _status(await self.calls.call_batch("GET", f"/batches/{identifier(batch_id)}", batch_id), batch_id)

    async def results(self, status: BatchStatus) -> Results:
        """Download both files of an ended batch; either may be missing."""
        return await self.calls.download([f"/files/{file}/content" for file in status.files], status.id, _line_result)

    async def cancel(self, batch_id: str) -> BatchStatus:
        await self.calls.cancel(f"/batches/{identifier(batch_id)}/cancel", batch_id)
        return await self.poll(batch_id)


def _file_name(batch: BatchPrepared) -> str:
    return f"{batch.prefix}.jsonl"


def _metadata(batch: BatchPrepared) -> dict[str, str]:
    return {"evaljournal": batch.prefix, "sha256": batch.digest}


def _multipart(fields: Mapping[str, str], name: str, lines: Sequence[bytes]) -> bytes:
    """Return a form with a file; no line contains a carriage return, so none can contain the boundary."""
    part = f"--{_BOUNDARY}\r\nContent-Disposition: form-data; name="
    texts = "".join(f'{part}"{field}"\r\n\r\n{value}\r\n' for field, value in fields.items())
    head = f'{texts}{part}"file"; filename="{name}"\r\nContent-Type: application/jsonl\r\n\r\n'
    return b"\n".join([head.encode() + lines[0], *lines[1:], f"\r\n--{_BOUNDARY}--\r\n".encode()])


def _job(reply: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the batch in a reply; Together has it in `job` when it was created."""
    return fields_of(reply["job"]) if "job" in reply else reply


def _submitted(batch: BatchPrepared, reply: Mapping[str, Any]) -> BatchSubmitted:
    job = _job(reply)
    file = optional_id(job.get("input_file_id"))
    return BatchSubmitted(batch=batch.batch, id=identifier(job.get("id")), file=file, expires=_expires(job))


def _expires(job: Mapping[str, Any]) -> str:
    return iso_time(job.get("expires_at") or job.get("job_deadline"))  # Together


def _status(reply: Mapping[str, Any], batch_id: str) -> BatchStatus:
    job = _job(reply)
    state = text_of(job.get("status")).lower()
    if not state:
        raise InvalidReply("the reply has no status of a batch")

    counts = fields_of(job.get("request_counts"))
    errors = fields_of(job.get("errors")).get("data")
    problems = [fields_of(error) for error in errors[:_MAX_ERRORS]] if isinstance(errors, list) else []
    messages = [_message(problem) for problem in problems] or [text_of(job.get("error"))]

    return BatchStatus(
        id=batch_id,
        state=state,
        is_ended=state in _ENDED_STATES,
        completed=count_of(counts.get("completed")),
        failed=count_of(counts.get("failed")),
        total=count_of(counts.get("total")),
        expires=_expires(job),
        message=text_of("; ".join(messages)),
        is_over_token_limit=any(problem.get("code") == TOKEN_LIMIT for problem in problems),
        files=[file for name in ("output_file_id", "error_file_id") if (file := optional_id(job.get(name)))],
    )


def _message(problem: Mapping[str, Any]) -> str:
    line = f"line {count_of(problem['line'])}: " if problem.get("line") else ""
    return f"{line}{text_of(problem.get('message')) or text_of(problem.get('code'))}"


def _line_result(value: Mapping[str, Any]) -> LineResult | None:
    """Return the reply in a line of the output file or the error file; None if the line was not processed."""
    response, error = fields_of(value.get("response")), fields_of(value.get("error"))
    status, body = response.get("status_code"), response.get("body")
    if isinstance(status, int) and status in _STATUSES:
        return LineResult(value["custom_id"], status, dump_body(body))
    code = text_of(error.get("code"))
    if _UNANSWERED.fullmatch(code):
        return None
    if not error:
        raise ValueError("a line of the results has neither a reply nor an error")
    is_invalid = code.startswith("invalid")
    return LineResult(value["custom_id"], 400 if is_invalid else 500, dump_body({"error": error}))
