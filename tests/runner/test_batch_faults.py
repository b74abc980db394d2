"""Runs with batches at a server with every fault of the providers, in the APIs of OpenAI and Anthropic, on a virtual clock."""

from collections import Counter
from typing import Any

import pytest
import trio

from evaljournal import Outcome, evaluation
from evaljournal.journal import verify
from evaljournal.journal.events import AttemptInterrupted, AttemptStarted, AttemptSucceeded, BatchCollected
from evaljournal.runner.calls.chat import Chat
from evaljournal.runner.scorers.llm_judge import Judge
from tests.batch_servers import BatchServer, connect_in_memory
from tests.journal.disk import SimulatedDisk
from tests.runs import PATH, AnyEvaluation, audited, events, numbered_cases, run_virtual

CASES = 4


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> BatchServer:
    """Let all connections reach a server in this process."""
    return connect_in_memory(monkeypatch, lambda: 1_800_000_000.0 + trio.current_time())


def define(dialect: str, plan: str, **options: Any) -> AnyEvaluation:
    """Return an evaluation of a model at the server, under the name `t`."""
    base = f"http://127.0.0.1:1/t/{plan}{'' if dialect == 'anthropic' else '/v1'}"
    chat = Chat("m", dialect=dialect, base_url=base, key_env="KEY", prompt="{input}", max_tokens=10)
    defined: AnyEvaluation = evaluation(cases=numbered_cases(CASES), batch=True, **options)(chat)
    return defined


def submitted(server: BatchServer) -> Counter[int]:
    """Return how many requests were sent once, twice, …, in batches."""
    digests = Counter(digest for record in server.ledger("t", "create") for _, digest in record["lines"])
    return Counter(digests.values())


def states(disk: SimulatedDisk) -> list[str]:
    return [event.state for event in events(disk, BatchCollected)]


def check(disk: SimulatedDisk, outcome: Outcome) -> None:
    """Check that the journal is valid, and that no line was used twice."""
    interrupted = {(event.trial, event.attempt) for event in events(disk, AttemptInterrupted)}
    starts = [event for event in events(disk, AttemptStarted) if (event.trial, event.attempt) not in interrupted]
    assert {1} >= set(Counter((event.batch, event.line) for event in starts if event.batch).values())
    assert verify(PATH, files=disk, expect_head=outcome.head).ok
    result = audited(disk)
    assert ((), ()) == (result.findings, result.notes)


FAULTS = {
    "-": ({1: CASES}, ["completed"], ["ended"]),
    "upload:500": ({1: CASES}, ["not_sent", "completed"], ["ended"]),
    "upload:lost": ({1: CASES}, ["not_sent", "completed"], ["ended"]),
    "create:429": ({1: CASES}, ["not_sent", "completed"], ["not_sent", "ended"]),
    "create:lost": ({1: CASES}, ["completed"], ["ended"]),
    "create:broken": ({1: CASES}, ["completed"], ["ended"]),
    "create:late:500": ({1: CASES}, ["completed"], ["ended"]),
    "create:500": ({1: CASES}, ["not_sent", "completed"], ["not_sent", "ended"]),
    "create:unsent": ({1: CASES}, ["not_sent", "completed"], ["not_sent", "ended"]),
    "create:lost,list:500+lost": ({1: CASES}, ["completed"], ["ended"]),
    "create:lost,list:stale": ({1: CASES}, ["completed"], ["ended"]),
    "create:lost,others:3": ({1: CASES}, ["completed"], ["ended"]),
    "create:lost,lines:ok+missing+broken": ({1: 3, 2: 1}, ["completed", "completed"], ["ended", "ended"]),
    "create:tokens": ({1: CASES}, ["not_sent", "completed", "completed"], ["not_sent", "ended", "ended"]),
    "poll:500+lost+429": ({1: CASES}, ["completed"], ["ended"]),
    "download:500+cut": ({1: CASES}, ["completed"], ["ended"]),
    "polls:5": ({1: CASES}, ["completed"], ["ended"]),
    "end:tokens": ({2: CASES}, ["failed", "completed", "completed"], ["ended", "ended"]),
    "end:expired": ({1: 2, 2: 2}, ["expired", "completed"], ["expired", "ended"]),
    "lines:ok+429": ({1: 2, 2: 2}, ["completed", "completed"], ["ended", "ended"]),
    "lines:ok+500": ({1: 2, 2: 2}, ["completed", "completed"], ["ended", "ended"]),
    "lines:ok+expired": ({1: 2, 2: 2}, ["completed", "completed"], ["expired", "ended"]),
    "lines:ok+missing": ({1: 2, 2: 2}, ["completed", "completed"], ["ended", "ended"]),
    "lines:double": ({1: CASES}, ["completed"], ["ended"]),
    "lines:foreign": ({1: CASES}, ["completed"], ["ended"]),
    "lines:broken": ({1: CASES}, ["completed"], ["ended"]),
    "files:one,lines:ok+500": ({1: 2, 2: 2}, ["completed", "completed"], ["ended", "ended"]),
}
"""Plan of the server → how often the requests were sent, and the states of the batches at OpenAI and at Anthropic."""


async def test_a_session_that_waits_prints_each_problem_once(
    disk: SimulatedDisk, server: BatchServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """While the provider does not answer, the reason is on standard error, not once per poll."""
    outcome = await run_virtual(define("chat", "poll:500+500+500"), disk)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("the provider of the batches")]

    assert not outcome.stop_reason
    assert 1 == len(lines)
    assert "500" in lines[0]


@pytest.mark.parametrize("dialect", ["chat", "anthropic"])
@pytest.mark.parametrize("plan", FAULTS)
async def test_a_run_survives_a_fault(disk: SimulatedDisk, server: BatchServer, dialect: str, plan: str) -> None:
    """Every trial gets its output; a request is sent again only if its batch does not exist, or its line had no answer."""
    defined = define(dialect, plan)
    chat: Any = defined.task

    async def end_batches(_: object) -> None:
        """Advance the batches, which the server does only when it is asked about them, but an unclear one has no id."""
        await trio.sleep(1_000)
        for batch in server.worlds["t"].batches:
            await chat.batch_api().poll(batch.id)

    is_unclear = dialect == "anthropic" and plan.startswith("create:")
    outcome = await run_virtual(defined, disk, observer=end_batches if is_unclear else None)

    times, *expected_states = FAULTS[plan]
    assert ("", CASES, 0) == (outcome.stop_reason, outcome.state.completed, outcome.state.failed), outcome.detail
    assert {f"CASE-{number}" for number in range(CASES)} == {event.output for event in events(disk, AttemptSucceeded)}
    assert times == submitted(server)
    assert expected_states[dialect == "anthropic"] == states(disk)
    assert [] == server.ledger("t", "live")
    assert [] == list(outcome.state.trials.attempts.latencies)
    check(disk, outcome)


STOPS = {
    "create:401": ("unauthorized", "401"),
    "create:quota": ("unauthorized", "quota"),
    "create:400": ("interrupted", "not accepted"),
    "poll:401": ("unauthorized", "401"),
    "lines:always+400": ("", ""),
    "lines:always+401": ("unauthorized", "401"),
    "end:invalid": ("interrupted", "failed: line 1: This line is not parseable"),
    "end:cancelled": ("interrupted", "batch 1 was cancelled at the provider"),
    "batch:deleted": ("batches", "cancel"),
    "results:gone": ("batches", "cancel"),
    "files:none": ("batches", "the provider counts 4"),
}
"""Plan of the server → why the run stops, and a word of the reason."""


ONLY_OPENAI = ("lines:always+401", "end:invalid", "files:none")


@pytest.mark.parametrize(
    ("dialect", "plan"),
    [*(("chat", plan) for plan in STOPS), *(("anthropic", plan) for plan in STOPS if plan not in ONLY_OPENAI)],
)
async def test_a_fault_stops_the_run(disk: SimulatedDisk, server: BatchServer, dialect: str, plan: str) -> None:
    """A fault that would be repeated stops the run, nothing is sent twice, and the next session continues."""
    outcome = await run_virtual(define(dialect, plan, stop_on_same_error=None), disk)

    reason, word = STOPS[plan]
    assert reason == outcome.stop_reason
    assert word in outcome.detail
    assert {1} >= set(submitted(server))
    check(disk, outcome)
    if "always" not in plan:
        server.worlds["t"].set_plan("-")
        outcome = await run_virtual(define(dialect, plan, stop_on_same_error=None), disk, resume=True)
        assert ("", CASES, 0) == (outcome.stop_reason, outcome.state.completed, outcome.state.failed), outcome.detail
        check(disk, outcome)


@pytest.mark.parametrize("dialect", ["chat", "anthropic"])
async def test_what_failed_is_called_live(disk: SimulatedDisk, server: BatchServer, dialect: str) -> None:
    """With `batch_fallback`, lines that expired or failed are called live, at the full price, and none is sent in a batch."""
    outcome = await run_virtual(define(dialect, "lines:ok+expired+500+ok", batch_fallback=True), disk)

    assert ("", CASES) == (outcome.stop_reason, outcome.state.completed)
    assert ({1: CASES}, 2) == (submitted(server), len(server.ledger("t", "live")))
    assert [0, 0, 1, 1, 1] == sorted(event.batch for event in events(disk, AttemptStarted))
    check(disk, outcome)


@pytest.mark.parametrize("dialect", ["chat", "anthropic"])
async def test_judges_are_called_in_batches(disk: SimulatedDisk, server: BatchServer, dialect: str) -> None:
    """Task and judge each have a batch."""
    defined = define(dialect, "reply:verdict%3A correct")
    chat: Any = defined.task
    judge = Judge(chat=Chat("large", dialect=dialect, base_url=chat.base_url, key_env="KEY", max_tokens=10))
    defined.score(name="judge")(judge)
    outcome = await run_virtual(defined, disk)

    assert ("", CASES) == (outcome.stop_reason, outcome.state.completed)
    assert {1.0} == {tally.mean for tally in outcome.state.scores.values()}
    assert (2, {1: 2 * CASES}) == (len(server.ledger("t", "create")), submitted(server))
    check(disk, outcome)
