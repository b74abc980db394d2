"""A provider of batches in memory, on trio's clock, with a ledger; it outlives the processes that use it."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, Self

import attrs
import orjson
import trio

from evaljournal import Evaluation, evaluation
from evaljournal.journal.events import BatchPrepared, BatchSubmitted
from evaljournal.runner.calls.batches.api import (
    BatchNotFound,
    BatchStatus,
    OwnerUnknown,
)
from evaljournal.runner.calls.batches.results import LineResult
from evaljournal.runner.calls.chat import Chat
from evaljournal.runner.scorers.llm_judge import Judge

Answer = tuple[int, Any] | None
"""Status and body of a result; None: the line has no result."""


def answer(text: str, **fields: Any) -> Answer:
    """Return a successful answer of a chat model."""
    usage = {"prompt_tokens": 10, "completion_tokens": 2}
    return 200, {"choices": [{"message": {"content": text}, "finish_reason": "stop"}], "usage": usage, **fields}


def prompt_of(body: Mapping[str, Any]) -> str:
    """Return the last message of a request."""
    return str(body["messages"][-1]["content"])


@attrs.define(eq=False)
class MemoryBatch:
    """A batch at the provider."""

    prefix: str
    bodies: list[dict[str, Any]]
    created: float
    state: str = ""
    """Its last state; empty while it is in progress."""


@attrs.define(eq=False)
class MemoryBatches:
    """The batches of an account; implements `BatchApi`."""

    respond: Callable[[Mapping[str, Any], int], Answer] = lambda body, _: answer(f"answer to {prompt_of(body)}")
    """Returns the answer to a request; the number is that of its submissions so far."""
    seconds: float = 3600.0
    """How long a batch takes."""
    state: str = "completed"
    """State of ended batches."""
    completed: int | None = None
    """Results that it counts; None: as many as there are."""
    max_lines: int = 50_000
    max_bytes: int = 100_000_000
    on_submit: Callable[[int, "MemoryBatches"], None] = lambda _, __: None
    """Called with the number of a submission after it was accepted; may raise."""
    on_receive: Callable[[int, Sequence[bytes]], None] = lambda _, __: None
    """Called with the number of a submission before it is accepted; may raise."""
    on_poll: Callable[[int], None] = lambda _: None
    """Called with the number of a poll; may raise."""
    extra_results: Sequence[LineResult] = ()
    """Results that belong to no line."""
    owner_is_hidden: bool = False
    """Whether a batch can be recognized only when it has ended."""
    batches: dict[str, MemoryBatch] = attrs.field(init=False, factory=dict)
    submissions: int = attrs.field(init=False, default=0)
    submitted: Counter[str] = attrs.field(init=False, factory=Counter)
    """Prompt → number of lines that had it."""
    listings: list[float] = attrs.field(init=False, factory=list)
    polls: int = attrs.field(init=False, default=0)
    key: str = "key"
    started: float = 0.0
    """Seconds on the provider's clock when the process that uses it started."""
    name: Literal["openai", "anthropic"] = attrs.field(init=False, default="openai")
    address: str = attrs.field(init=False, default="https://batches.example/v1")

    def account(self, run: str) -> str:
        return f"{run[:4]}-{self.key}"

    def encode(self, custom_id: str, body: Mapping[str, Any]) -> bytes:
        return orjson.dumps({"custom_id": custom_id, "body": body})

    async def submit(self, batch: BatchPrepared, lines: Sequence[bytes]) -> BatchSubmitted:
        await trio.sleep(1)
        self.submissions += 1
        self.on_receive(self.submissions, lines)
        requests = [orjson.loads(line) for line in lines]
        assert [f"{batch.prefix}{number}" for number in range(1, len(lines) + 1)] == [line["custom_id"] for line in requests]
        batch_id = f"batch_{len(self.batches) + 1}"
        bodies = [line["body"] for line in requests]
        self.batches[batch_id] = MemoryBatch(batch.prefix, bodies, self.now())
        self.submitted.update(map(prompt_of, bodies))
        self.on_submit(self.submissions, self)
        await trio.sleep(1)
        return BatchSubmitted(batch=batch.batch, id=batch_id, expires="2027-01-16T08:00:00+00:00")

    async def find(self, batch: BatchPrepared, since: datetime, known_ids: Collection[str]) -> BatchSubmitted | None:
        del since
        await trio.sleep(0.1)
        self.listings.append(self.now())
        for batch_id, known in self.batches.items():
            if known.prefix == batch.prefix and batch_id not in known_ids:
                if self.owner_is_hidden and not self._is_ended(known):
                    raise OwnerUnknown("a batch is in progress that may be the submitted one")
                return BatchSubmitted(batch=batch.batch, id=batch_id)
        return None

    def now(self) -> float:
        return self.started + trio.current_time()

    def _is_ended(self, batch: MemoryBatch) -> bool:
        return bool(batch.state) or self.now() - batch.created >= self.seconds

    async def poll(self, batch_id: str) -> BatchStatus:
        await trio.sleep(0.1)
        self.polls += 1
        self.on_poll(self.polls)
        batch = self.batches.get(batch_id)
        if batch is None:
            raise BatchNotFound(f"batch {batch_id} does not exist")
        is_ended, lines = self._is_ended(batch), len(batch.bodies)
        state = (batch.state or self.state) if is_ended else "in_progress"
        bodies = batch.bodies if is_ended and state != "failed" else []
        answers = [self.respond(body, self.submitted[prompt_of(body)]) for body in bodies]
        completed = self.completed if is_ended and self.completed is not None else len(answers) - answers.count(None)
        return BatchStatus(id=batch_id, state=state, is_ended=is_ended, completed=completed, failed=0, total=lines)

    async def results(self, status: BatchStatus) -> "MemoryResults":
        await trio.sleep(0.1)
        batch = self.batches[status.id]
        results = []
        for number, body in reversed(list(enumerate(batch.bodies, 1))):  # In another order.
            reply = self.respond(body, self.submitted[prompt_of(body)])
            if reply is not None and status.state != "failed":
                results.append(LineResult(f"{batch.prefix}{number}", reply[0], orjson.dumps(reply[1])))
        return MemoryResults([*results, *self.extra_results])

    async def cancel(self, batch_id: str) -> BatchStatus:
        self.batches[batch_id].state = "cancelled"
        return await self.poll(batch_id)


@attrs.define(eq=False)
class MemoryResults:
    """Results in memory; see `Results`."""

    _results: Sequence[LineResult]
    broken: int = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __iter__(self) -> Iterator[LineResult]:
        return iter(self._results)


def define_batches(cases: Any, *, judge: bool = False, **options: Any) -> Evaluation[Any, Any, Any]:
    """Return an evaluation of a chat model that sends batches."""
    chat = Chat("small", base_url="http://batches.example/v1", prompt="{input}", max_tokens=10)
    defined: Evaluation[Any, Any, Any] = evaluation(cases=cases, **{"batch": True, **options})(chat)
    if judge:
        defined.score(name="judge")(Judge(chat=Chat("large", base_url="http://batches.example/v1", max_tokens=10)))
    return defined
