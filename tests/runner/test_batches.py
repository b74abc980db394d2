"""Runs that send batches, on a virtual clock: what is sent, collected, retried and recorded, and what stops them."""

import base64
import errno
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pytest
import trio

from evaljournal import Case, Retry, UsageError, evaluation, scorers
from evaljournal.journal import read, verify
from evaljournal.journal.events import (
    AttemptFailed,
    AttemptStarted,
    AttemptSucceeded,
    BatchChanged,
    BatchCollected,
    BatchPrepared,
    BatchSubmitted,
)
from evaljournal.replay import fold
from evaljournal.runner.calls import chat as chat_module
from evaljournal.runner.calls.batches.api import NotSubmitted, SubmissionUnclear, TokenLimitExceeded
from evaljournal.runner.calls.batches.results import LineResult
from evaljournal.runner.calls.chat import AttachmentError, Chat, OpenChat
from evaljournal.runner.calls.http.batch_line import current_line
from evaljournal.runner.calls.http.client import Client
from evaljournal.runner.errors import RunChanged
from evaljournal.runner.gates.batcher import Batcher
from evaljournal.runner.testing import inline
from tests.batches import Answer, MemoryBatches, answer, define_batches, prompt_of
from tests.journal.disk import SimulatedDisk
from tests.runs import PATH, audited, count, events, numbered_cases, run_virtual, signal_after


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> MemoryBatches:
    provider = MemoryBatches()
    monkeypatch.setattr(Chat, "batch_api", lambda _: provider)
    return provider


def collected(disk: SimulatedDisk) -> list[tuple[int, str, int, int, int]]:
    """Return number, state, results, missing lines and unused results of each batch that has ended."""
    return [(event.batch, event.state, event.results, event.missing, event.unused) for event in events(disk, BatchCollected)]


async def test_a_run_waits_for_its_batch(disk: SimulatedDisk, provider: MemoryBatches) -> None:
    """All calls are lines of one batch; when it has ended, each attempt is recorded with its line, without latency."""
    outcome = await run_virtual(define_batches(numbered_cases(3)), disk)

    assert ("", 3) == (outcome.stop_reason, outcome.state.completed)
    assert [("case-0", 1, 1), ("case-1", 1, 2), ("case-2", 1, 3)] == sorted(
        (event.trial, event.batch, event.line) for event in events(disk, AttemptStarted)
    )
    assert {f"answer to case-{number}" for number in range(3)} == {event.output for event in events(disk, AttemptSucceeded)}
    assert {0.0} == {event.elapsed for event in events(disk, AttemptSucceeded)}
    assert [(1, "completed", 3, 0, 0)] == collected(disk)
    assert ["in_progress", "completed"] == [event.state for event in events(disk, BatchChanged)]
    assert 1 == provider.submissions
    assert verify(PATH, files=disk, expect_head=outcome.head).ok


async def test_a_line_has_the_bytes_of_a_live_call(
    disk: SimulatedDisk, provider: MemoryBatches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The body of a line is the body of a live call, with its image."""
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(20))
    sent: list[bytes] = []

    async def call(_: Client, __: str, content: bytes, *___: Any, **____: Any) -> Any:
        sent.append(content)
        raise ConnectionError

    url = f"data:image/png;base64,{base64.b64encode((tmp_path / 'a.png').read_bytes()).decode()}"
    chat = Chat("small", base_url="http://batches.example/v1", prompt="é {input}", images=["photo"], extra_body={"top_p": 0.1})
    defined = evaluation(cases=[{"id": "a", "input": "ü", "photo": url}], batch=True, retry=Retry(errors=0))(chat)
    monkeypatch.setattr(chat_module, "run_in_thread", inline)
    await run_virtual(defined, disk)
    monkeypatch.setattr(Client, "call", call)
    await run_virtual(defined, SimulatedDisk(), batch=False)

    assert [orjson.loads(sent[0])] == provider.batches["batch_1"].bodies
    assert sent == [orjson.dumps(body) for body in provider.batches["batch_1"].bodies]


async def test_the_price_is_half(disk: SimulatedDisk, provider: MemoryBatches) -> None:
    """The tokens of a batch cost half, whatever tier its replies name."""
    chat = Chat("gpt-5.6-luna", base_url="http://batches.example/v1", prompt="{input}")
    provider.respond = lambda *_: answer("yes", service_tier="default", model="gpt-5.6-luna")
    outcome = await run_virtual(evaluation(cases=numbered_cases(1), batch=True)(chat), disk)

    live_cost = chat._prices["gpt-5.6-luna"].input * 10 / 1e6 + chat._prices["gpt-5.6-luna"].output * 2 / 1e6
    assert pytest.approx(live_cost / 2) == outcome.state.usage["cost"]
    assert provider.submissions == 1


async def test_a_line_is_not_sent_for_ever(disk: SimulatedDisk, provider: MemoryBatches) -> None:
    """A line that is missing from more batches than errors are retried ends its trial with one error, without a call."""
    provider.respond = lambda *_: None
    outcome = await run_virtual(define_batches(numbered_cases(1), retry=Retry(errors=1)), disk)

    assert [(1, "completed", 0, 1, 0), (2, "completed", 0, 1, 0)] == collected(disk)
    assert (0, 1) == (outcome.state.completed, outcome.state.failed)
    assert ["no result in 2 batches"] == [event.message for event in events(disk, AttemptFailed)]


async def test_a_line_without_a_text(disk: SimulatedDisk, provider: MemoryBatches) -> None:
    """A result with neither a text nor a tool call is invalid, and its line is sent once more."""
    provider.respond = lambda *_: (200, {"choices": [{"message": {"content": None}, "finish_reason": "stop"}]})
    outcome = await run_virtual(define_batches(numbered_cases(1)), disk)

    assert ["parse_error"] * 2 == [event.category for event in events(disk, AttemptFailed)]
    assert (0, 1, 2) == (outcome.state.completed, outcome.state.failed, provider.submissions)


async def test_canceled_lines_are_not_counted(disk: SimulatedDisk, provider: MemoryBatches) -> None:
    """A line of a canceled batch costs nothing, and may be sent any number of times."""
    provider.respond, provider.state = lambda _, times: answer("yes") if times == 5 else None, "canceled"
    defined = define_batches(numbered_cases(1), retry=Retry(errors=1))
    outcomes = [await run_virtual(defined, disk, resume=number > 0) for number in range(5)]

    assert [*["interrupted"] * 4, ""] == [outcome.stop_reason for outcome in outcomes]
    assert (5, 1) == (provider.submissions, outcomes[-1].state.completed)


async def test_results_that_come_late(disk: SimulatedDisk, provider: MemoryBatches) -> None:
    """While the provider counts more results than it has, it is asked again, and nothing is sent again."""
    provider.respond = lambda *_: answer("yes") if provider.polls > 3 else None
    provider.seconds, provider.completed = 0.0, 2
    outcome = await run_virtual(define_batches(numbered_cases(2)), disk)

    assert ("", 2, 1) == (outcome.stop_reason, outcome.state.completed, provider.submissions)
    assert 1 == [event.state for event in events(disk, BatchChanged)].count("incomplete")


async def test_a_deleted_batch_does_not_hide_another(disk: SimulatedDisk, provider: MemoryBatches) -> None:
    """The run stops because of a deleted batch when the results of the others are collected; its lines stay in the batch."""

    def delete(_: int) -> None:
        provider.batches.pop("batch_1", None)

    provider.max_lines, provider.on_poll = 1, delete
    defined = define_batches(numbered_cases(2))
    for resume in (False, True):
        outcome = await run_virtual(defined, disk, resume=resume)

        assert ("batches", 1, 2) == (outcome.stop_reason, outcome.state.completed, provider.submissions)
        assert ["deleted"] == [batch.state for batch in outcome.state.batches.values() if batch.is_open]


async def test_foreign_and_repeated_results_are_not_used(disk: SimulatedDisk, provider: MemoryBatches) -> None:
    """A result for a line that is not ours, or that has a result, is counted and not used."""
    prefix = "ej-f1768c0741924da6798f7e8056021879-1-"
    ids = ["another-1", f"{prefix}9", f"{prefix}-1", f"{prefix}0", f"{prefix}1", f"{prefix}{'1' * 5000}", "", f"{prefix}²"]
    provider.extra_results = [LineResult(name, 200, orjson.dumps(answer("evil"))) for name in ids]
    outcome = await run_virtual(define_batches(numbered_cases(2)), disk)

    assert [(1, "completed", 2, 0, len(ids))] == collected(disk)
    assert {"answer to case-0", "answer to case-1"} == {event.output for event in events(disk, AttemptSucceeded)}
    assert "" == outcome.stop_reason


async def test_a_session_can_leave_its_batches(disk: SimulatedDisk, provider: MemoryBatches) -> None:
    """With `leave`, the session ends when everything is submitted; later ones collect what has ended, and leave the rest."""
    provider.respond = lambda body, _: answer("verdict: correct" if body["model"] == "large" else "yes")
    defined = define_batches(numbered_cases(2), judge=True)
    outcomes = [await run_virtual(defined, disk, leave=True)]
    for seconds in (10, provider.seconds, provider.seconds):
        await trio.sleep(seconds)
        outcomes.append(await run_virtual(defined, disk, resume=True, leave=True))

    assert [("batches", 0), ("batches", 0), ("batches", 0), ("", 2)] == [
        (outcome.stop_reason, outcome.state.completed) for outcome in outcomes
    ]
    assert 2 == provider.submissions
    assert [1, 1, 2, 2] == [len(fold(read(PATH, files=disk), at=outcome.state.seq).batches) for outcome in outcomes]
    assert audited(disk).ok


async def test_polls_become_rarer(disk: SimulatedDisk, provider: MemoryBatches) -> None:
    """The provider is asked after 60 s, then ever more rarely, at least every ten minutes."""
    times: list[float] = []
    provider.on_poll, provider.seconds = lambda _: times.append(trio.current_time()), 20_000
    await run_virtual(define_batches(numbered_cases(1)), disk)

    gaps = [round(later - earlier) for earlier, later in pairwise(times)]
    assert [60, 120, 240, 480, 600, 600] == gaps[:6]
    assert 600 == max(gaps)


async def test_an_unclear_submission_needs_the_same_key(disk: SimulatedDisk, provider: MemoryBatches) -> None:
    """With another API key, a batch without an id is not looked for: the lists may be others; nothing is recorded."""

    def lose_reply(*_: object) -> None:
        raise SubmissionUnclear("no response")

    provider.on_submit, provider.owner_is_hidden = lose_reply, True
    defined = define_batches(numbered_cases(1))
    head = (await run_virtual(defined, disk, leave=True)).head
    provider.key = "another"

    with pytest.raises(UsageError, match="another API key"):
        await run_virtual(defined, disk, resume=True)
    assert head == fold(read(PATH, files=disk)).head


async def test_changes_are_not_adopted_while_batches_are_open(disk: SimulatedDisk, provider: MemoryBatches) -> None:
    """`adopt` with a changed task is rejected while batches are open, and names the two ways out."""
    await run_virtual(define_batches(numbered_cases(1)), disk, leave=True)
    changed = define_batches(numbered_cases(2))

    with pytest.raises(RunChanged, match="open batches") as error:
        await run_virtual(changed, disk, resume=True, adopt=True)
    assert "--wait" in str(error.value)
    assert "cancel" in str(error.value)
    assert 1 == provider.submissions


async def test_the_provider_limits_the_lines_of_a_batch(disk: SimulatedDisk, provider: MemoryBatches) -> None:
    """More lines than a batch may have are sent in several batches, by number or by bytes."""
    provider.max_lines = 4
    outcome = await run_virtual(define_batches(numbered_cases(10)), disk)
    assert [4, 4, 2] == [len(event.trials) for event in events(disk, BatchPrepared)]
    assert 10 == outcome.state.completed

    provider.max_lines, provider.max_bytes, disk = 100, 320, SimulatedDisk()
    outcome = await run_virtual(define_batches(numbered_cases(5)), disk)
    assert [2, 2, 1] == [len(event.trials) for event in events(disk, BatchPrepared)]
    assert all(event.bytes <= provider.max_bytes for event in events(disk, BatchPrepared))
    assert 5 == outcome.state.completed


async def test_a_line_that_is_too_large_is_an_error(disk: SimulatedDisk, provider: MemoryBatches) -> None:
    """A request that no batch can have ends its trial with an error; the others are sent."""
    provider.max_bytes = 1_000
    cases = [Case(name="long", input="x" * 2_000), *numbered_cases(2)]
    outcome = await run_virtual(define_batches(cases), disk)

    assert (2, 1) == (outcome.state.completed, outcome.state.failed)
    assert ["long"] == [event.trial for event in events(disk, AttemptFailed)]
    assert {"case-0": 1, "case-1": 1} == provider.submitted


async def test_enqueued_tokens_are_limited(disk: SimulatedDisk, provider: MemoryBatches) -> None:
    """With `batch_tokens`, the open batches together have at most as many input tokens."""
    outcome = await run_virtual(define_batches(numbered_cases(6), batch_tokens=45), disk)

    assert 6 == outcome.state.completed
    assert [2, 2, 2] == [len(event.trials) for event in events(disk, BatchPrepared)]
    kinds = [type(record.event) for record in read(PATH, files=disk)]
    order = [kind for kind in kinds if kind in {BatchPrepared, BatchCollected}]
    assert [BatchPrepared, BatchCollected] * 3 == order


async def test_a_line_beyond_the_declared_tokens_is_not_sent(disk: SimulatedDisk, provider: MemoryBatches) -> None:
    """A line with more input tokens than all open batches may have stops the run."""
    outcome = await run_virtual(define_batches(numbered_cases(2), batch_tokens=1), disk)

    assert ("quota", 0) == (outcome.stop_reason, provider.submissions)
    assert "more than batch-tokens" in outcome.detail


async def test_batches_are_halved_at_the_token_limit(disk: SimulatedDisk, provider: MemoryBatches) -> None:
    """If too many tokens are enqueued, smaller batches are sent, when another one has ended."""

    def limit(_: int, lines: Any) -> None:
        if len(lines) > 3:
            raise TokenLimitExceeded("too many enqueued tokens")

    provider.on_receive = limit
    outcome = await run_virtual(define_batches(numbered_cases(8)), disk)

    assert 8 == outcome.state.completed
    assert [8, 4, 2, 2, 2, 2] == [len(event.trials) for event in events(disk, BatchPrepared)]
    assert {1} == set(provider.submitted.values())


async def test_an_interrupt_leaves_the_batches_running(disk: SimulatedDisk, provider: MemoryBatches) -> None:
    """Ctrl-C ends the session at once; the next one collects the batch."""
    defined = define_batches(numbered_cases(2))
    outcome = await run_virtual(defined, disk, **signal_after(100))

    assert ("interrupted", 1) == (outcome.stop_reason, len(outcome.state.batches.lines.open))
    assert "still running at the provider: 1 batch (`evaljournal cancel" in outcome.detail
    outcome = await run_virtual(defined, disk, resume=True)
    assert ("", 2, 1) == (outcome.stop_reason, outcome.state.completed, provider.submissions)


async def test_an_interrupt_lets_a_submission_end(disk: SimulatedDisk, provider: MemoryBatches) -> None:
    """A batch that is being submitted gets the grace period, so that its id is recorded; then the session ends."""
    started = trio.current_time()
    outcome = await run_virtual(define_batches(numbered_cases(2), grace=500.0), disk, **signal_after(1.5))

    assert ("interrupted", 1) == (outcome.stop_reason, count(disk, BatchSubmitted))
    assert 1 == provider.submissions
    assert trio.current_time() - started < 10


async def test_a_stopped_session_looks_for_nothing(
    disk: SimulatedDisk, provider: MemoryBatches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a session that is stopped scores its last outputs, its batcher does nothing."""
    waits: list[float] = []
    wait_seconds = Batcher._wait_seconds

    def count_waits(self: Batcher) -> float:
        waits.append(trio.current_time())
        return wait_seconds(self)

    monkeypatch.setattr(Batcher, "_wait_seconds", count_waits)
    provider.seconds = 50
    defined = define_batches(numbered_cases(2), grace=500.0)

    @defined.score
    async def slow(output: str) -> bool:
        await trio.sleep(300)
        return bool(output)

    await run_virtual(defined, disk, **signal_after(150))

    assert [] == [time for time in waits if time > 151]


async def test_too_many_failures_stop_the_collection(disk: SimulatedDisk, provider: MemoryBatches) -> None:
    """Results after the failure that stopped the run are used by the next session, once."""
    provider.respond = lambda body, _: (400, {"error": {"message": "no"}}) if prompt_of(body) > "case-5" else answer("yes")
    defined = define_batches(numbered_cases(10), max_failures=1)
    outcome = await run_virtual(defined, disk)
    assert ("failed_fast", 2) == (outcome.stop_reason, outcome.state.failed)

    outcome = await run_virtual(defined, disk, resume=True, max_failures=None)
    assert ("", 6, 4) == (outcome.stop_reason, outcome.state.completed, outcome.state.failed)
    assert {1} == set(Counter(event.line for event in events(disk, AttemptStarted)).values())
    assert 1 == provider.submissions


async def test_the_same_error_stops_the_run(disk: SimulatedDisk, provider: MemoryBatches) -> None:
    """If the first results all have the same error, the run stops."""
    provider.respond = lambda *_: (400, {"error": {"message": "no"}})
    outcome = await run_virtual(define_batches(numbered_cases(30)), disk)

    assert ("same_error", 20) == (outcome.stop_reason, outcome.state.failed)


async def test_a_batch_is_as_large_as_the_budget_allows(disk: SimulatedDisk, provider: MemoryBatches) -> None:
    """A budget reserves the estimated need of each line until it is used, also in the next session.

    When no further line fits, the run stops.
    """
    provider.respond = lambda *_: answer("yes", usage={"prompt_tokens": 10, "completion_tokens": 10})
    defined = define_batches(numbered_cases(10), budget={"output_tokens": 35})
    for resume in (False, True):
        outcome = await run_virtual(defined, disk, resume=resume, leave=True)
        assert ("batches", 1) == (outcome.stop_reason, provider.submissions)
    outcome = await run_virtual(defined, disk, resume=True)

    prepared = events(disk, BatchPrepared)
    assert [(3, {"output_tokens": 30.0})] == [(len(event.trials), event.reserved) for event in prepared]
    assert ("budget", 3, 30) == (outcome.stop_reason, outcome.state.completed, outcome.state.usage["output_tokens"])
    outcome = await run_virtual(defined, disk, resume=True, budget={"output_tokens": 1000})
    assert ("", 10, 2) == (outcome.stop_reason, outcome.state.completed, provider.submissions)
    assert audited(disk).ok


async def test_a_budget_limits_a_judge_with_a_token_limit(disk: SimulatedDisk, provider: MemoryBatches) -> None:
    """The replies of a judge that has a token limit are estimated, so that a budget can limit its batches."""
    provider.respond = lambda body, _: answer("verdict: correct" if body["model"] == "large" else "yes")
    outcome = await run_virtual(define_batches(numbered_cases(3), judge=True, budget={"output_tokens": 100}), disk)

    assert ("", 3, 2) == (outcome.stop_reason, outcome.state.completed, provider.submissions)


async def test_a_request_that_cannot_be_rendered_is_an_error(
    disk: SimulatedDisk, provider: MemoryBatches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A case whose image cannot be read ends with the error of a live attempt; nothing is sent for it.

    If the error is temporary, the retry is rendered again, and is a line of a batch.
    """
    answer, renderings = OpenChat._answer, Counter[str]()

    def answer_or_fail(self: OpenChat, messages: Any, trial: Any, *arguments: Any) -> Any:
        name = trial.case.name
        renderings[name] += 1
        if name == "case-0":
            raise AttachmentError("a.png: no such file")
        if name == "case-1" and renderings[name] <= 2:
            raise ConnectionError("a share that is not reachable now")
        return answer(self, messages, trial, *arguments)

    monkeypatch.setattr(OpenChat, "_answer", answer_or_fail)
    outcome = await run_virtual(define_batches(numbered_cases(3)), disk)

    assert ("", 2, 1) == (outcome.stop_reason, outcome.state.completed, outcome.state.failed)
    messages = {event.trial: event.message for event in events(disk, AttemptFailed)}
    assert {"case-0": "a.png: no such file", "case-1": "a share that is not reachable now"} == messages
    starts = [(event.trial, event.batch > 0) for event in events(disk, AttemptStarted)]
    assert [("case-0", False), ("case-1", False), ("case-1", True), ("case-2", True)] == sorted(starts)
    assert {"case-1": 1, "case-2": 1} == provider.submitted


def call_live(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let live calls of chat models return `live` after a second."""
    call = OpenChat.call

    async def call_or_read(self: OpenChat, trial: Any, sink: Any) -> Any:
        if current_line() is not None:
            return await call(self, trial, sink)
        await trio.sleep(1)
        return "live"

    monkeypatch.setattr(OpenChat, "call", call_or_read)


def delay_third(number: int, provider: MemoryBatches) -> None:
    """Let the third batch end later than the others."""
    if number == 3:
        provider.batches["batch_3"].created += 5000


async def test_live_calls_are_not_left(disk: SimulatedDisk, provider: MemoryBatches, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that leaves its batches makes the live calls that wait for a rate limit first."""
    call_live(monkeypatch)
    provider.max_lines, provider.on_submit = 1, delay_third
    provider.respond = lambda *_: (500, {"error": {"message": "busy"}})
    defined = define_batches(numbered_cases(3), batch_fallback=True, limits={"rpm": 1})
    await run_virtual(defined, disk, leave=True)
    await trio.sleep(provider.seconds)
    outcome = await run_virtual(defined, disk, resume=True, leave=True)

    assert ("batches", 2) == (outcome.stop_reason, outcome.state.completed)


async def test_a_live_call_waits_for_the_reserve_of_a_batch(
    disk: SimulatedDisk, provider: MemoryBatches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A live call that the budget does not allow beside an open batch is made when the batch has used less."""
    call_live(monkeypatch)
    provider.max_lines, provider.on_submit = 1, delay_third
    tokens = {"case-0": 20, "case-2": 1}

    def respond(body: Mapping[str, Any], _: int) -> Answer:
        if prompt_of(body) == "case-1":
            return 500, {"error": {"message": "busy"}}
        return answer("yes", usage={"prompt_tokens": 10, "completion_tokens": tokens[prompt_of(body)]})

    provider.respond = respond
    defined = define_batches(numbered_cases(3), batch_fallback=True, budget={"output_tokens": 45})
    outcome = await run_virtual(defined, disk)

    assert ("", 3, 3) == (outcome.stop_reason, outcome.state.completed, provider.submissions)


async def test_rejections_become_rarer(disk: SimulatedDisk, provider: MemoryBatches) -> None:
    """A batch that is rejected again and again is prepared ever more rarely, at least every ten minutes."""
    times: list[float] = []

    def fail(number: int, _: object) -> None:
        times.append(trio.current_time())
        if number < 8:
            raise NotSubmitted("busy")

    provider.on_receive = fail
    await run_virtual(define_batches(numbered_cases(1)), disk)

    assert [60, 120, 240, 480, 600, 600] == [round(later - earlier, -1) for earlier, later in pairwise(times)][:6]


VARIANTS = {"short": {"system": "Be short."}, "long": {"system": "Be long."}}


async def test_a_session_of_one_variant_keeps_the_results_of_others(disk: SimulatedDisk, provider: MemoryBatches) -> None:
    """A batch with lines of two variants stays open while a session runs only one of them; no result is lost or sent again."""
    defined = define_batches(numbered_cases(2), variants=VARIANTS)
    await run_virtual(defined, disk, leave=True)
    outcome = await run_virtual(defined, disk, resume=True, only_variants="short")

    assert ("interrupted", 2, []) == (outcome.stop_reason, outcome.state.completed, collected(disk))
    outcome = await run_virtual(defined, disk, resume=True)
    assert ("", 4, 1) == (outcome.stop_reason, outcome.state.completed, provider.submissions)
    assert [(1, "completed", 4, 0, 0)] == collected(disk)
    assert audited(disk).ok


async def test_a_session_of_one_variant_ends_without_its_results(disk: SimulatedDisk, provider: MemoryBatches) -> None:
    """If an ended batch has results only for trials outside the session, the session stops; a complete one sends the others."""
    defined = define_batches(numbered_cases(2), variants=VARIANTS)
    provider.respond = lambda body, _: None if "short" in str(body) and provider.submissions == 1 else answer("yes")
    await run_virtual(defined, disk, leave=True)
    with trio.fail_after(10_000):
        outcome = await run_virtual(defined, disk, resume=True, only_variants="short")

    assert ("batches", 0, []) == (outcome.stop_reason, outcome.state.completed, collected(disk))
    assert "--only-variant" in outcome.detail
    outcome = await run_virtual(defined, disk, resume=True)
    assert ("", 4, 2) == (outcome.stop_reason, outcome.state.completed, provider.submissions)
    assert [(1, "completed", 2, 2, 0), (2, "completed", 2, 0, 0)] == collected(disk)
    assert audited(disk).ok


async def test_a_full_disk_loses_no_result(disk: SimulatedDisk, provider: MemoryBatches) -> None:
    """If the disk is full while results are recorded, the run stops; the next session uses the others."""

    def fill(call: str) -> None:
        if call.startswith("write"):
            raise OSError(errno.ENOSPC, "No space left on device")

    defined = define_batches(numbered_cases(20))
    with pytest.MonkeyPatch.context() as patch:
        results = MemoryBatches.results

        async def fill_disk(self: MemoryBatches, status: Any) -> Any:
            disk.on_call = fill
            return await results(self, status)

        patch.setattr(MemoryBatches, "results", fill_disk)
        outcome = await run_virtual(defined, disk)
    disk.on_call = lambda _: None

    assert "disk_full" == outcome.stop_reason
    outcome = await run_virtual(defined, disk, resume=True)
    assert ("", 20, 1) == (outcome.stop_reason, outcome.state.completed, provider.submissions)
    assert verify(PATH, files=disk, expect_head=outcome.head).ok


async def test_several_graded_assertions_have_no_batches(disk: SimulatedDisk, provider: MemoryBatches) -> None:
    """A case for which a judge is called several times is a usage error: a line of a batch is one call."""
    graded = [{"type": "model-graded-closedqa", "value": value} for value in ("names Lima", "is polite")]
    defined = define_batches([Case(name="peru", input="x", metadata={"assert": graded})])
    judge = scorers.judge("large", base_url="http://batches.example/v1")
    defined.score(name="assertions")(scorers.assertions(judge=judge))

    with pytest.raises(UsageError, match="called several times for the case 'peru'"):
        await run_virtual(defined, disk)
