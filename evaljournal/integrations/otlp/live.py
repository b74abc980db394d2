"""A run, sent to an OpenTelemetry collector while it goes on: `--otlp`.

It promises that a run is neither slowed down nor failed by it: it reads the journal like any other reader, in a thread with a
loop of its own, and what it cannot send, it does not lose, because it is in the journal.

- Every second it reads the trials with new records, and sends the spans that have ended and the scores, as log events. A pause
  is at least five times as long as the processor was used before it, however fast the run is.
- Nothing is remembered between sessions. A resumed run sends all its spans again, whose ids are derived from the journal: a
  receiver that merges equal ids shows each once. A file with the position would be wrong as soon as the receiver lost data.
- While the receiver is unavailable, nothing is read; the records wait on disk. At the end of a session it gets a few seconds.
- Only the caller says where to: nothing of the journal, which another user may have written, is used as an address. Headers are
  in requests only, and a redirect is an error, so that they go to that host alone.
- Without `content`, only attributes of the list `_PLAIN` are sent. A list of those to remove would miss the next one.
"""

import logging
import os
import re
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, suppress
from http import HTTPStatus
from itertools import islice
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import trio

from evaljournal.integrations.otlp.encoding import log_requests, protobuf_requests
from evaljournal.integrations.otlp.export import models_of, resource_of, scope_of, score_events, trial_spans
from evaljournal.journal.disk import segments
from evaljournal.journal.events import (
    AttemptEnd,
    Record,
    ScoringFailed,
    StepCompleted,
    StepFailed,
    StepReused,
    TrialCompleted,
    TrialFailed,
    TrialScored,
)
from evaljournal.journal.readers.follow import POLL_INTERVAL, follow
from evaljournal.replay.export import Source
from evaljournal.replay.runs.trial import TrialDetails
from evaljournal.replay.text import printable
from evaljournal.runner.calls.http.address import Address
from evaljournal.runner.calls.http.client import Client
from evaljournal.runner.calls.http.reply import NoResponse
from evaljournal.runner.data.case import content_name
from evaljournal.runner.errors import UsageError
from evaljournal.runner.secrets.masking import excerpt
from evaljournal.runner.sessions.options import LiveRun
from evaljournal.runner.sessions.outputs import RunOutput

ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
HEADERS: Final = "OTEL_EXPORTER_OTLP_HEADERS"
_INTERVAL: Final = 1.0
"""Seconds between passes."""
_PAUSE_RATIO: Final = 5
"""Minimum length of a pause, in terms of the processor time that was used before it."""
_MAX_TRIALS: Final = 200
"""Maximum trials in a pass."""
_TIMEOUT: Final = 10.0
"""Seconds without data after which a request has failed."""
_FINAL_TIME: Final = 10.0
"""Maximum seconds at the end of a session."""
_FINAL_RETRY: Final = 1.0
"""The same, while the receiver is unavailable."""
_MAX_RETRY_PAUSE: Final = 30.0
_RETRIED: Final = frozenset({408, 429, 500, 502, 503, 504})
_OMITTED: Final = frozenset({400, 413, 422})
"""The receiver cannot read this request; the next one may be different."""
_ENDS: Final = (AttemptEnd, StepCompleted, StepFailed, StepReused, TrialScored, ScoringFailed, TrialCompleted, TrialFailed)
_PARTIAL_SUCCESS: Final = b"\n"
"""The tag of the only field of a response."""
_DIGITS: Final = re.compile(r"[0-9a-f]{6,16}(?:-\d+)?")

_PLAIN: Final = re.compile(
    r"gen_ai\.(?:operation\.name|agent\.name|provider\.name|tool\.name|usage\..+|response\.(?:id|model|finish_reasons)"
    r"|request\..+|evaluation\.(?:name|score\..+))|server\.address|error\.type|exception\.type|openinference\.span\.kind"
    r"|llm\.(?:model_name|provider|token_count\..+)|tool\.name"
    r"|evaljournal\.(?:seq|trial|case|variant|repeat|stage|attempts?|steps?|reused_\w+|slot|batch|line|session|category"
    r"|latency|time_to_completion|\w+_time|usage\..+|run|dataset|environment\..+)|service\.(?:name|version)"
)
"""Attributes that contain nothing of an input, an output, a prompt or a command."""

_log = logging.getLogger("evaljournal")


class _NoTime(Exception):
    """The receiver was still unavailable at the end of the session."""


class _Rejected(Exception):
    """The receiver does not take what is sent to this address."""


class OtlpOutput(RunOutput):
    def __init__(self, traces: Address, logs: Address, *, has_content: bool) -> None:
        self._traces, self._logs = traces, logs
        self._has_content = has_content
        self._due_trials: dict[str, int] = {}
        """Trial → the last record before the first one that was not sent."""
        self._is_failing = False
        """Whether the last request failed: a failure is logged once, until a request succeeds."""
        self._deadline: float | None = None
        """When it has to end, on the monotonic clock; None while the session goes on."""
        self._thread: threading.Thread | None = None

    async def update(self, live_run: LiveRun) -> None:
        """Send the run in a thread, which ends with the session."""
        self._thread = threading.Thread(target=self._run, args=(live_run.journal.path,), name="evaljournal-otlp", daemon=True)
        self._thread.start()
        await trio.sleep_forever()

    def finish(self, run: Path) -> str:
        """Wait a few seconds for the rest; what was not sent is a warning, because the run does not depend on it."""
        seconds = _FINAL_RETRY if self._is_failing else _FINAL_TIME
        self._deadline = time.monotonic() + seconds
        if self._thread is not None:
            with suppress(KeyboardInterrupt):
                self._thread.join(seconds + 1)
            if self._due_trials:
                _log.warning("not all of %s was sent to %s; `export --format otlp` has it", run, self._traces.masked_url)
        return ""

    def _run(self, run: Path) -> None:
        try:
            trio.run(self._send_run, run)
        except Exception as exc:  # noqa: BLE001  # the run continues
            problem = exc.exceptions[0] if isinstance(exc, ExceptionGroup) else exc
            self._due_trials.setdefault("", 0)
            if not isinstance(problem, _NoTime):  # Otherwise, `finish` has a message for it.
                exc_info = None if isinstance(problem, _Rejected | OSError) else problem
                _log.warning("nothing more is sent to %s: %s", self._traces.masked_url, problem, exc_info=exc_info)

    async def _send_run(self, run: Path) -> None:
        while not (run / segments.name(1)).exists():  # noqa: ASYNC110  # there is no event for a new file
            await trio.sleep(POLL_INTERVAL)
        source = Source(run)
        self._due_trials = dict.fromkeys(source.state.trials, 0)
        timeouts = {"connect_timeout": _TIMEOUT, "read_timeout": _TIMEOUT}
        send, receive = trio.open_memory_channel[Record](_MAX_TRIALS)
        async with (
            Client(self._traces, **timeouts) as traces,
            Client(self._logs, **timeouts) as logs,
            aclosing(follow(run, load_blobs=False)) as records,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(_forward, records, send)
            await self._send_until_the_end(source, receive, traces, logs)
            nursery.cancel_scope.cancel()

    async def _send_until_the_end(
        self, source: Source, records: "trio.MemoryReceiveChannel[Record]", traces: Client, logs: Client
    ) -> None:
        """Send what has ended, until the session is over and everything is sent, or there is no more time."""
        are_logs_accepted = True
        while True:
            start_time, deadline = time.thread_time(), self._deadline
            has_read = await self._read(source, records)
            due = dict(islice(self._due_trials.items(), _MAX_TRIALS))
            spans, events = self._spans_of(source, due)
            resource, scope = resource_of(source), scope_of(source)
            if not self._has_content:
                resource = _plain(resource)

            for pieces in protobuf_requests(resource, scope, spans) if spans else ():
                await self._post(traces, b"".join(pieces))
            try:
                for pieces in log_requests(resource, scope, events) if events and are_logs_accepted else ():
                    await self._post(logs, b"".join(pieces))
            except _Rejected:  # Phoenix, for one, takes only traces, whose spans have the scores, too.
                are_logs_accepted = False

            for trial in due:
                del self._due_trials[trial]

            if deadline is not None and (time.monotonic() > deadline or not (has_read or self._due_trials)):
                return
            pause = _PAUSE_RATIO * (time.thread_time() - start_time)
            await self._wait(pause if self._due_trials else max(pause, _INTERVAL))

    async def _read(self, source: Source, records: "trio.MemoryReceiveChannel[Record]") -> bool:
        """Apply the records that are there, up to those of a pass; return whether there were any."""
        has_read = False
        while len(self._due_trials) < _MAX_TRIALS:
            with trio.move_on_after(3 * POLL_INTERVAL) as scope:
                record = await records.receive()
            if scope.cancelled_caught:
                break
            has_read = True
            if record.seq > source.state.seq:
                source.apply(record)
                if isinstance(record.event, _ENDS):
                    self._due_trials.setdefault(record.event.trial, record.seq - 1)
        return has_read

    def _spans_of(self, source: Source, due: dict[str, int]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        models, spans, events = models_of(source), list[dict[str, Any]](), list[dict[str, Any]]()
        for name, after in due.items():
            trial = source.trial(name)
            new_spans, new_events = trial_spans(source, trial, models, after), score_events(source, trial, after)
            spans += new_spans if self._has_content else (_without_content(span, trial) for span in new_spans)
            events += new_events if self._has_content else (_without_content(event, trial) for event in new_events)
        return spans, events

    async def _post(self, client: Client, content: bytes) -> None:
        """Send a request, again and again while the receiver is unavailable."""
        pause = _INTERVAL
        while True:
            try:
                async with await client.send("POST", content, (b"Content-Type", b"application/x-protobuf")) as response:
                    status, body = response.head.status, b""
                    while part := await response.read():
                        body += part[: 1 << 16]
            except NoResponse as exc:
                problem = str(exc)
            else:
                problem = f"{status} from {client.masked_url}"
                if status < HTTPStatus.MULTIPLE_CHOICES:
                    self._report_success(client, body)
                    return
                if status in _OMITTED:
                    _log.warning("%s; a request is omitted: %s", problem, _text(body))
                    return
                if status not in _RETRIED:
                    raise _Rejected(problem)

            if not self._is_failing:
                _log.warning("%s; it is tried again, and the run continues", problem)
            self._is_failing = True
            if self._deadline is not None and time.monotonic() + pause > self._deadline:
                raise _NoTime
            await self._wait(pause)
            pause = min(2 * pause, _MAX_RETRY_PAUSE)

    def _report_success(self, client: Client, body: bytes) -> None:
        if self._is_failing:
            _log.warning("%s is available again; nothing is missing", client.masked_url)
        self._is_failing = False
        if body.startswith(_PARTIAL_SUCCESS):
            _log.warning("%s rejected a part of a request: %s", client.masked_url, _text(body))

    async def _wait(self, seconds: float) -> None:
        """Wait, not longer than the session goes on; then, not longer than an interval of the retries."""
        end_time, is_over = time.monotonic() + seconds, self._deadline is not None
        while time.monotonic() < end_time and is_over == (self._deadline is not None):  # noqa: ASYNC110  # another thread sets it
            await trio.sleep(min(POLL_INTERVAL, seconds))


async def _forward(records: AsyncGenerator[Record, None], send: "trio.MemorySendChannel[Record]") -> None:
    async for record in records:
        await send.send(record)


def _text(body: bytes) -> str:
    return printable(excerpt(body.decode(errors="replace"), 200))


def _plain(attributes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if _PLAIN.fullmatch(name)}


def _without_content(part: dict[str, Any], trial: TrialDetails) -> dict[str, Any]:
    """Return a span or an event without what may contain something of an input or an output, its name included."""
    attributes = _plain(part["attributes"])
    part = part | {"attributes": attributes}

    words = content_name(trial.input, "", digits=0)
    if trial.case.startswith(words) and _DIGITS.fullmatch(trial.case[len(words) :]):  # It is named after its input.
        for name in attributes.keys() & {"evaljournal.trial", "evaljournal.case"}:
            attributes[name] = attributes[name].replace(words, "case-", 1)
        part["name"] = part["name"].replace(words, "case-", 1)

    if "status" in part:
        part["status"] = {name: value for name, value in part["status"].items() if name != "message"}
    if "events" in part:
        part["events"] = [_without_content(event, trial) for event in part["events"]]
    return part


def otlp_output(url: str | None, *, retry_failed: bool = False, has_content: bool | None = None) -> OtlpOutput:  # noqa: ARG001  # what an output is called with
    if has_content is None:  # A configuration file, which another user may have written, cannot make a run send anything.
        raise UsageError("otlp is not a value of --export; pass --otlp URL")
    url = url or os.environ.get(ENDPOINT, "")
    if not url:
        raise UsageError(f"--otlp needs a URL: pass --otlp http://localhost:4318, or set {ENDPOINT}")

    base = url.partition("?")[0].rstrip("/").removesuffix("/v1/traces")
    if urlsplit(base).scheme not in {"http", "https"}:
        raise UsageError(f"--otlp {printable(url)}: it is not an http:// or https:// URL; write --otlp last, or --otlp=URL")

    headers = dict(_headers(os.environ.get(HEADERS, "")))
    base = base.replace("$", "$$").replace("{", "{{").replace("}", "}}")  # It is no template.
    traces, logs = (Address.parse(f"{base}/v1/{signal}", headers) for signal in ("traces", "logs"))
    return OtlpOutput(traces, logs, has_content=has_content)


def _headers(text: str) -> Iterator[tuple[str, str]]:
    """Parse `NAME=VALUE,…`, as OpenTelemetry's exporters do; an error must not contain a value."""
    for number, item in enumerate(filter(None, map(str.strip, text.split(","))), 1):
        name, equals, value = item.partition("=")
        if not equals:
            raise UsageError(f"{HEADERS}: item {number} has no '='; write NAME=VALUE,NAME=VALUE")
        yield name.strip(), unquote(value.strip()).replace("$", "$$")
