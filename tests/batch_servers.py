"""A server with the batch APIs of OpenAI and Anthropic and their faults: `python -m tests.batch_servers` prints its URL.

The base URL is `URL/NAME/PLAN/v1` for OpenAI and `URL/NAME/PLAN` for Anthropic; the name separates tests. `GET /NAME` returns
the ledger: every upload, creation (with its lines), listing, poll, download, cancellation and live call. `POST /NAME` replaces
the plan. Nothing depends on time: the state of a batch advances when it is polled or listed. A plan is `-`, or settings
`KEY:VALUE` with commas between them; of values with `+` between them, each is used once, then the default applies:

    upload:lost     reply to an upload: `ok`, `lost` (stored), `hang` (stored, no reply), or a status
    create:lost     reply to a creation: `ok`, `lost` (created), `hang` (created, no reply), `broken` (created, not JSON),
                    `unsent` (not created, no reply), `late:500` (created, with that status), or a status (not created);
                    `quota`: no credit; `tokens`: too many enqueued tokens
    list:500        reply to a listing: `ok`, `lost`, `stale` (without the newest batch), or a status
    poll:500        reply to a poll: `ok`, `lost`, or a status
    download:500    reply to a download: `ok`, `cut` (incomplete), or a status
    polls:2         polls or lists until a batch ends (default: 1); `polls:never`
    end:expired     how it ends: `completed`, `expired` and `cancelled` (half of the lines have results), `invalid` (a line is),
                    `tokens` (too many enqueued tokens)
    lines:ok+429    results of the lines, in turn: `ok`, a status, `expired`, `missing`, `double`, `foreign` (a line that is not
                    ours besides its own), `broken` (a line that is not JSON besides its own). Unlike other values, they are
                    repeated; but a request that was seen before succeeds, except with `lines:always+429`
    files:one       `one` (all results in the output file), `none` (both files are null)
    results:gone    `gone`: deleted; Anthropic reports the batch as archived
    batch:deleted   the batches no longer exist
    others:3        batches of other users in each list, with as many lines; `others:running`: one that never ends
    reply:TEXT      the answer of the model (default: the last message in capitals)

A batch belongs to the API key that created it, and to the same key with `-rotated` at its end, which is another one of the
project: with any other, it does not exist. A key that contains `invalid` gets 401.
Lists have 2 entries per page. Results are in reverse order.
"""

import hashlib
import itertools
import json
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from subprocess import PIPE
from sys import executable
from typing import Any
from urllib.parse import parse_qs, unquote
from urllib.request import Request, urlopen

import attrs
import orjson
import pytest
import trio
import trio.testing

from evaljournal.runner.calls.http import client
from evaljournal.runner.calls.http.heads import RequestHead
from evaljournal.runner.calls.http.server import ClientConnection, ReplyAborted
from tests.processes import ROOT, Process

PAGE = 2
_SEQUENCES = ("upload", "create", "list", "poll", "download", "end")
_SUCCESS = (b"content-type", b"application/json")
_ENDED = ("completed", "expired", "cancelled", "failed", "ended")
_ANTHROPIC_ERRORS = {"400": "invalid_request_error", "429": "rate_limit_error", "500": "api_error", "529": "overloaded_error"}


class Lost(Exception):
    """The connection is closed without a reply."""


class Hanging(Exception):
    """There is no reply until the client disconnects."""


class Rejected(Exception):
    """A reply with an error."""

    def __init__(self, status: int, code: str = "", message: str = "") -> None:
        super().__init__(status, code)
        self.status = status
        self.body = {"error": {"code": code or str(status), "type": code or "error", "message": message or f"error {status}"}}


@attrs.define
class Batch:
    """A batch of one of the two APIs."""

    id: str
    key: str
    lines: list[dict[str, Any]]
    created_at: float
    file: str = ""
    metadata: dict[str, str] | None = None
    polls: int = 0
    end: str = "completed"
    is_cancelled: bool = False
    state: str = "validating"
    results: list[tuple[str, dict[str, Any]]] = attrs.field(factory=list)
    """Kind (`ok`, `error` or `raw`) and content of each result line, when it has ended."""


@attrs.define
class World:
    """The state of one name."""

    plan: dict[str, str] = attrs.field(factory=dict)
    text: str | None = None
    queues: dict[str, deque[str]] = attrs.field(factory=lambda: defaultdict(deque))
    batches: list[Batch] = attrs.field(factory=list)
    files: dict[str, tuple[str, str, bytes]] = attrs.field(factory=dict)
    """Id → API key, name and content."""
    ledger: list[dict[str, Any]] = attrs.field(factory=list)
    seen: set[str] = attrs.field(factory=set)
    """Digests of all requests so far."""

    def set_plan(self, text: str) -> None:
        """Replace the plan."""
        self.text = text
        self.plan = dict(setting.partition(":")[::2] for setting in text.split(",") if setting != "-")
        self.queues = defaultdict(deque, {key: deque(self.plan[key].split("+")) for key in _SEQUENCES if key in self.plan})

    def next(self, key: str, default: str = "ok") -> str:
        """Return the next value of a setting."""
        return self.queues[key].popleft() if self.queues[key] else default


class BatchServer:
    """The replies of the server; `serve` serves a connection."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.now = now
        self._numbers = itertools.count(1)
        self.worlds: dict[str, World] = defaultdict(World)

    def ledger(self, name: str, event: str | None = None) -> list[dict[str, Any]]:
        """Return the records of a name, or those of one kind."""
        return [record for record in self.worlds[name].ledger if event in {None, record["event"]}]

    async def serve(self, stream: trio.abc.HalfCloseableStream) -> None:
        """Serve a connection."""
        connection = ClientConnection(stream)

        async def answer(head: RequestHead) -> None:
            connection.authorize()
            body = await connection.read_body(1 << 30)
            try:
                status, content = HTTP_OK, self.reply(head, body)
            except Rejected as exc:
                status, content = exc.status, orjson.dumps(exc.body)
            except Lost:
                raise ReplyAborted from None
            except Hanging:
                await trio.sleep_forever()
            if content.startswith(b"CUT"):
                await connection.begin(status, [])
                await connection.send_chunk(content[3:])
                raise ReplyAborted
            await connection.send(status, [_SUCCESS], content)

        await connection.serve(answer)

    def reply(self, head: RequestHead, body: bytes) -> bytes:
        """Return the reply to a request."""
        path, _, query = head.target.partition("?")
        name, plan, *parts = [unquote(part) for part in path.strip("/").split("/")] + [""] * (path.count("/") < 2)
        world = self.worlds[name]
        if not parts:
            if head.method == "POST":
                world.set_plan(body.decode())
            return orjson.dumps(world.ledger)
        if world.text is None:
            world.set_plan(plan)
        headers = {key.decode(): value.decode() for key, value in head.headers}
        key = headers.get("x-api-key") or headers.get("api-key") or headers.get("authorization", "").removeprefix("Bearer ")
        if "invalid" in key:
            raise Rejected(401, "invalid_api_key")
        parameters = {name: values[0] for name, values in parse_qs(query).items()}
        call = Call(self, world, key.removesuffix("-rotated"), head.method, parameters, headers.get("content-type", ""), body)
        if parts[:3] == ["v1", "messages", "batches"]:
            return call.anthropic(parts[3:])
        return call.openai(parts[1:] if parts[0] == "v1" else parts)

    def new_id(self, kind: str) -> str:
        """Return the id of a new batch or file."""
        return f"{kind}{next(self._numbers)}"

    def record(self, world: World, event: str, **fields: Any) -> None:
        """Add a record to the ledger."""
        world.ledger.append({"event": event, **fields})


HTTP_OK = 200


@attrs.define
class Call:
    """A call with an API key."""

    server: BatchServer
    world: World
    key: str
    method: str
    parameters: dict[str, str]
    media: str
    body: bytes

    def fault(self, kind: str) -> None:
        """Raise the next fault of a kind that prevents its effect."""
        match self.world.queues[kind][0] if self.world.queues[kind] else "ok":
            case status if status.isdigit():
                self.world.next(kind)
                raise Rejected(int(status))
            case "unsent":
                self.world.next(kind)
                raise Lost
            case "quota":
                self.world.next(kind)
                raise Rejected(429, "insufficient_quota", "You exceeded your current quota")
            case "tokens" if kind == "create":
                self.world.next(kind)
                raise Rejected(400, "token_limit_exceeded", "Enqueued token limit reached")
            case _:
                pass

    def fault_after(self, kind: str) -> None:
        """Raise the next fault of a kind that prevents only the reply."""
        match self.world.next(kind).split(":"):
            case ["lost"]:
                raise Lost
            case ["hang"]:
                raise Hanging
            case ["late", status]:
                raise Rejected(int(status))
            case _:
                pass

    def openai(self, parts: list[str]) -> bytes:  # noqa: PLR0911  # a table
        """Answer a call of OpenAI's API, or a live call of either."""
        match [self.method, *parts]:
            case ["POST", "files"] | ["POST", "files", "upload"]:
                return self.upload()
            case ["GET", "files"]:
                files = [self.file(file_id) for file_id, file in self.world.files.items() if file[0] == self.key]
                return self.page(list(reversed(files)), "after")
            case ["GET", "files", file_id]:
                return orjson.dumps(self.file(file_id))
            case ["GET", "files", file_id, "content"]:
                return self.download(file_id)
            case ["POST", "batches"]:
                return self.create_openai()
            case ["GET", "batches"]:
                return self.list_batches("after", self.openai_batch)
            case ["GET", "batches", batch_id]:
                return orjson.dumps(self.openai_batch(self.poll(batch_id)))
            case ["POST", "batches", batch_id, "cancel"]:
                return orjson.dumps(self.openai_batch(self.cancel(batch_id)))
            case ["POST", *_, "completions" | "messages" as end]:
                body = orjson.loads(self.body)
                self.server.record(self.world, "live", digest=digest_of(body))
                return orjson.dumps(self.answer(body, is_openai=end == "completions"))
            case _:
                raise Rejected(404)

    def anthropic(self, parts: list[str]) -> bytes:
        """Answer a call of Anthropic's API."""
        match [self.method, *parts]:
            case ["POST"]:
                self.fault("create")
                requests = orjson.loads(self.body)["requests"]
                lines = [{"custom_id": request["custom_id"], "body": request["params"]} for request in requests]
                return self.created(self.new_batch(lines, "in_progress"), self.anthropic_batch)
            case ["GET"]:
                return self.list_batches("after_id", self.anthropic_batch)
            case ["GET", batch_id]:
                return orjson.dumps(self.anthropic_batch(self.poll(batch_id)))
            case ["GET", batch_id, "results"]:
                return self.anthropic_results(self.find(batch_id))
            case ["POST", batch_id, "cancel"]:
                return orjson.dumps(self.anthropic_batch(self.cancel(batch_id)))
            case _:
                raise Rejected(404)

    def upload(self) -> bytes:
        """Store a file."""
        self.fault("upload")
        boundary = f"--{self.media.partition('boundary=')[2]}".encode()
        part = next(part for part in self.body.split(boundary) if b'name="file"' in part)
        head, _, content = part.partition(b"\r\n\r\n")
        file_id = self.server.new_id("file-")
        name = head.partition(b'filename="')[2].partition(b'"')[0].decode()
        self.world.files[file_id] = (self.key, name, content.removesuffix(b"\r\n"))
        self.server.record(self.world, "upload", file=file_id)
        self.fault_after("upload")
        return orjson.dumps(self.file(file_id))

    def file(self, file_id: str) -> dict[str, Any]:
        """Return a file as it is reported."""
        if file_id not in self.world.files or self.world.files[file_id][0] != self.key:
            raise Rejected(404)
        _, name, content = self.world.files[file_id]
        return {
            "id": file_id,
            "object": "file",
            "filename": name,
            "bytes": len(content),
            "purpose": "batch",
            "status": "processed",
        }

    def create_openai(self) -> bytes:
        """Create a batch of an uploaded file."""
        self.fault("create")
        request = orjson.loads(self.body)
        self.file(request["input_file_id"])
        lines = [orjson.loads(line) for line in self.world.files[request["input_file_id"]][2].splitlines()]
        assert {line["url"] for line in lines} == {request["endpoint"]}
        batch = self.new_batch(lines, "validating")
        batch.file, batch.metadata = request["input_file_id"], request.get("metadata")
        return self.created(batch, self.openai_batch)

    def new_batch(self, lines: list[dict[str, Any]], state: str) -> Batch:
        """Add a batch."""
        world = self.world
        batch = Batch(self.server.new_id("batch_"), self.key, lines, self.server.now(), state=state)
        assert len({line["custom_id"] for line in lines}) == len(lines)
        batch.end = world.next("end", "completed")
        world.batches.append(batch)
        self.server.record(
            world, "create", batch=batch.id, lines=[[line["custom_id"], digest_of(line["body"])] for line in lines]
        )
        return batch

    def created(self, batch: Batch, show: Callable[[Batch], dict[str, Any]]) -> bytes:
        """Return the reply to a creation."""
        if self.world.queues["create"] and self.world.queues["create"][0] == "broken":
            self.world.next("create")
            return b"{"
        self.fault_after("create")
        return orjson.dumps(show(batch))

    def list_batches(self, cursor: str, show: Callable[[Batch], dict[str, Any]]) -> bytes:
        """Return a page of the batches, newest first."""
        self.server.record(self.world, "list")
        self.fault("list")
        batches = [batch for batch in reversed(self.world.batches) if batch.key == self.key]
        if self.world.queues["list"] and self.world.queues["list"][0] == "stale":
            batches = batches[1:]
        if cursor not in self.parameters:
            self.fault_after("list")
        page = self.page([*map(show, self.others()), *map(show, batches)], cursor)
        if b'"has_more":false' in page:
            for batch in batches:
                self.advance(batch)
        return page

    def others(self) -> list[Batch]:
        """Return the batches of other users of the account."""
        setting = self.world.plan.get("others", "0")
        count = len(self.world.batches[-1].lines) if self.world.batches else 1
        lines = [{"custom_id": f"other-{number}", "body": {}} for number in range(count)]
        if setting == "running":
            return [Batch("batch_other", self.key, lines, self.server.now(), metadata={"job": "other"}, state="in_progress")]
        return [
            Batch(f"batch_other_{number}", self.key, lines, self.server.now(), metadata={"job": "other"}, state="ended")
            for number in range(int(setting))
        ]

    def page(self, entries: list[dict[str, Any]], cursor: str) -> bytes:
        """Return a page of a list."""
        ids = [entry["id"] for entry in entries]
        start = ids.index(self.parameters[cursor]) + 1 if cursor in self.parameters else 0
        has_more = start + PAGE < len(entries)
        return orjson.dumps({"object": "list", "data": entries[start : start + PAGE], "has_more": has_more})

    def find(self, batch_id: str) -> Batch:
        """Return a batch of the API key."""
        batches = [*self.world.batches, *self.others()]
        batch = next((batch for batch in batches if batch.id == batch_id and batch.key == self.key), None)
        if batch is None or self.world.plan.get("batch") == "deleted":
            raise Rejected(404, "not_found_error")
        return batch

    def poll(self, batch_id: str) -> Batch:
        """Advance a batch by one poll."""
        self.server.record(self.world, "poll", batch=batch_id)
        self.fault("poll")
        batch = self.find(batch_id)
        self.fault_after("poll")
        self.advance(batch)
        return batch

    def advance(self, batch: Batch) -> None:
        """Advance a batch by one poll or list."""
        if batch.state in _ENDED:
            return
        batch.polls += 1
        polls = self.world.plan.get("polls", "1")
        if batch.is_cancelled or (polls != "never" and batch.polls >= int(polls)):
            self.finish(batch)
        elif batch.state == "validating":
            batch.state = "in_progress"

    def cancel(self, batch_id: str) -> Batch:
        """Cancel a batch; it ends with the next poll."""
        self.server.record(self.world, "cancel", batch=batch_id)
        batch = self.find(batch_id)
        if batch.state in _ENDED:
            raise Rejected(409, "conflict")
        batch.is_cancelled, batch.end, batch.state = True, "cancelled", "cancelling"
        return batch

    def finish(self, batch: Batch) -> None:
        """Make the results of a batch."""
        world = self.world
        batch.state = "failed" if batch.end in {"invalid", "tokens"} else batch.end
        if batch.state == "failed":
            return
        fates = world.plan.get("lines", "ok").split("+")
        is_always = fates[0] == "always"
        fates = fates[is_always:]
        done = len(batch.lines) if batch.end == "completed" else len(batch.lines) // 2
        for number, line in enumerate(batch.lines):
            is_seen = digest_of(line["body"]) in world.seen
            fate = "ok" if is_seen and not is_always else fates[number % len(fates)]
            world.seen.add(digest_of(line["body"]))
            batch.results += self.results_of(line, fate if number < done else batch.end)
        batch.results.reverse()
        if not batch.file:
            batch.state = "ended"

    def results_of(self, line: dict[str, Any], fate: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the result lines for a line."""
        is_openai = "url" in line
        answer = self.answer(line["body"], is_openai=is_openai)
        success = openai_result(line, 200, answer) if is_openai else anthropic_result(line, "succeeded", message=answer)
        match fate:
            case "ok":
                yield "ok", success
            case "double":
                yield from [("ok", success), ("ok", success)]
            case "foreign":
                yield from [("ok", success), ("ok", {**success, "custom_id": "not-ours-1"})]
            case "broken":
                yield from [("ok", success), ("raw", {})]
            case "missing":
                pass
            case "expired" | "cancelled":
                error = {"code": f"batch_{fate}", "message": f"This request was {fate}"}
                result = {"custom_id": line["custom_id"], "response": None, "error": error}
                yield "error", result if is_openai else anthropic_result(line, "canceled" if fate == "cancelled" else fate)
            case status:
                error = {
                    "type": _ANTHROPIC_ERRORS.get(status, "error"),
                    "message": f"error {status}",
                    "code": f"error_{status}",
                }
                body = {"type": "error", "error": error}
                yield (
                    "error",
                    openai_result(line, int(status), body) if is_openai else anthropic_result(line, "errored", error=body),
                )

    def answer(self, body: dict[str, Any], *, is_openai: bool) -> dict[str, Any]:
        """Return the reply of the model."""
        content = body["messages"][-1]["content"]
        prompt = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
        text = self.world.plan.get("reply", prompt.upper())
        if is_openai:
            choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            usage = {"prompt_tokens": 1_000, "completion_tokens": 100, "total_tokens": 1_100}
            return {"object": "chat.completion", "model": body["model"], "choices": [choice], "usage": usage}
        return {
            "type": "message",
            "model": body["model"],
            "content": [{"type": "text", "text": text}],
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 1_000, "output_tokens": 100, "service_tier": "batch"},
        }

    def openai_batch(self, batch: Batch) -> dict[str, Any]:
        """Return a batch as OpenAI reports it."""
        kinds = {kind for kind, _ in batch.results}
        if self.world.plan.get("files") == "one":
            kinds = {"ok"} if kinds else kinds
        is_shown = self.world.plan.get("files") != "none"
        errors = {
            "invalid": [{"code": "invalid_json_line", "message": "This line is not parseable", "line": 1}],
            "tokens": [{"code": "token_limit_exceeded", "message": "Enqueued token limit reached for the model"}],
        }
        return {
            "id": batch.id,
            "object": "batch",
            "status": "completed" if batch.state == "ended" else batch.state,
            "input_file_id": batch.file,
            "created_at": int(batch.created_at),
            "expires_at": int(batch.created_at) + 86_400,
            "metadata": batch.metadata,
            "errors": {"data": errors[batch.end]} if batch.state == "failed" else None,
            "output_file_id": f"{batch.id}.output" if kinds & {"ok", "raw"} and is_shown else None,
            "error_file_id": f"{batch.id}.errors" if "error" in kinds and is_shown else None,
            "request_counts": {
                "total": len(batch.lines),
                "completed": sum(kind == "ok" for kind, _ in batch.results),
                "failed": sum(kind == "error" for kind, _ in batch.results),
            },
        }

    def anthropic_batch(self, batch: Batch) -> dict[str, Any]:
        """Return a batch as Anthropic reports it."""
        is_ended = batch.state in _ENDED
        counts = dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0)
        for _, result in batch.results:
            counts[result.get("result", {}).get("type", "errored")] += 1
        if not is_ended or batch.id.startswith("batch_other"):
            counts["processing"] = len(batch.lines)
        created_at = datetime.fromtimestamp(batch.created_at, UTC)
        is_gone = is_ended and self.world.plan.get("results") == "gone"
        return {
            "id": batch.id,
            "type": "message_batch",
            "processing_status": "ended" if is_ended else "canceling" if batch.is_cancelled else "in_progress",
            "request_counts": counts,
            "created_at": created_at.isoformat(),
            "expires_at": datetime.fromtimestamp(batch.created_at + 86_400, UTC).isoformat(),
            "archived_at": created_at.isoformat() if is_gone else None,
            "results_url": "https://elsewhere.invalid/results" if is_ended and not is_gone else None,
        }

    def download(self, file_id: str) -> bytes:
        """Return one of the two files of a batch."""
        batch_id, _, kind = file_id.partition(".")
        batch = self.find(batch_id)
        if self.world.plan.get("results") == "gone":
            raise Rejected(404)
        is_one = self.world.plan.get("files") == "one"
        kinds = {"ok", "raw", "error"} if is_one else {"error"} if kind == "errors" else {"ok", "raw"}
        return self.lines(batch, [result for result in batch.results if result[0] in kinds])

    def anthropic_results(self, batch: Batch) -> bytes:
        """Return the results of a batch."""
        if batch.state not in _ENDED or self.world.plan.get("results") == "gone":
            raise Rejected(404)
        if batch.id.startswith("batch_other"):
            return orjson.dumps(anthropic_result(batch.lines[0], "canceled"), option=orjson.OPT_APPEND_NEWLINE)
        return self.lines(batch, batch.results)

    def lines(self, batch: Batch, results: list[tuple[str, dict[str, Any]]]) -> bytes:
        """Return result lines as a file."""
        self.fault("download")
        ids = [result.get("custom_id") for _, result in results]
        self.server.record(self.world, "download", batch=batch.id, lines=ids)
        content = b"\n".join(b'{"custom_id": "half' if kind == "raw" else orjson.dumps(result) for kind, result in results)
        return b"CUT" + content[: len(content) // 2] if self.world.next("download") == "cut" else content


def openai_result(line: dict[str, Any], status: int, body: Any) -> dict[str, Any]:
    """Return a line of a result file of OpenAI."""
    response = {"status_code": status, "request_id": "request", "body": body}
    return {"id": "result", "custom_id": line["custom_id"], "response": response, "error": None}


def anthropic_result(line: dict[str, Any], kind: str, **fields: Any) -> dict[str, Any]:
    """Return a line of the results of Anthropic."""
    return {"custom_id": line["custom_id"], "result": {"type": kind, **fields}}


def digest_of(body: Any) -> str:
    """Return a digest of a request, which identifies it in the ledger."""
    return hashlib.sha256(orjson.dumps(body, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]


def connect_in_memory(monkeypatch: pytest.MonkeyPatch, now: Callable[[], float] = time.time) -> BatchServer:
    """Let all connections of this process reach a server in it, without sockets, so that time may be virtual."""
    server = BatchServer(now)
    monkeypatch.setenv("KEY", "sk-first-key-of-the-tests")

    async def open_socket(*_: object) -> trio.abc.Stream:
        client_end, server_end = trio.testing.memory_stream_pair()
        trio.lowlevel.spawn_system_task(server.serve, server_end)
        client_end.is_readable = False  # type: ignore[attr-defined]  # of a `SocketStream`
        return client_end

    monkeypatch.setattr(client, "open_socket", open_socket)
    return server


class BatchServerProcess:
    """A server in its own process, which outlives killed clients."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ledger(self, name: str, event: str | None = None) -> list[dict[str, Any]]:
        """Return the records of a name, or those of one kind."""
        with urlopen(f"{self.url}/{name}", timeout=60) as reply:  # noqa: S310  # loopback
            return [record for record in json.load(reply) if event in {None, record["event"]}]

    def set_plan(self, name: str, plan: str) -> None:
        """Replace the plan of a name."""
        with urlopen(Request(f"{self.url}/{name}", plan.encode(), method="POST"), timeout=60) as reply:  # noqa: S310  # loopback
            reply.read()


@contextmanager
def batch_server_process() -> Iterator[BatchServerProcess]:
    """Run a server in its own process."""
    with Process([executable, "-m", "tests.batch_servers"], cwd=ROOT, stdout=PIPE) as process:
        assert process.stdout is not None
        yield BatchServerProcess(process.stdout.readline().strip())
        process.kill()


async def main() -> None:
    """Serve until the process is killed; print the URL."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    print(f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}", flush=True)  # noqa: T201
    await trio.serve_listeners(BatchServer().serve, listeners)


if __name__ == "__main__":
    trio.run(main)
