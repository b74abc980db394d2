"""`evaljournal cancel`: batches are cancelled, finished lines are used, and nothing is sent."""

from pathlib import Path

import orjson
import pytest

from evaljournal import Retry
from evaljournal.journal import read
from evaljournal.journal.events import BatchCollected, BatchPrepared, TrialCompleted, TrialFailed
from evaljournal.replay import load
from evaljournal.runner.gates import batcher
from tests.batch_servers import BatchServer, connect_in_memory
from tests.runner_cli.commands import evaljournal
from tests.runs import events

CASES = 6
RUN = Path("runs/qa/0001")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> BatchServer:
    """Let all connections reach a server in this process."""
    monkeypatch.setattr(batcher, "_SECOND_LISTING", 0.0)
    rows = [
        orjson.dumps({"id": f"c{number}", "input": f"word {number}", "expected": f"WORD {number}"}) for number in range(CASES)
    ]
    Path("qa.jsonl").write_bytes(b"\n".join(rows))
    return connect_in_memory(monkeypatch)


def leave(plan: str, *options: str, dialect: str = "openai") -> None:
    """Start a run whose batches are left open."""
    url = f"http://127.0.0.1:1/t/{plan}{'/v1' if dialect == 'openai' else ''}"
    chat = ["--chat", "m" if dialect == "openai" else "anthropic:m", "--base-url", url, "--key-env", "KEY"]
    arguments = ["--score", "exact", "--batch", "--leave", "-s", "batch-poll=0.001", *options]
    result = evaljournal("run", "--data", "qa.jsonl", *chat, *arguments)

    assert 3 == result.exit_code, result.output


def collected() -> list[tuple[str, int, int]]:
    """Return the states of the ended batches, with the results that were used, and the lines without one."""
    return [(event.state, event.results, event.missing) for event in events(RUN, BatchCollected)]


def resume() -> None:
    """Resume the run until it is finished, and verify it."""
    result = evaljournal("resume", RUN, "--wait")

    assert 0 == result.exit_code, result.output
    assert CASES == len(events(RUN, TrialCompleted))
    assert 0 == evaljournal("verify", RUN).exit_code


@pytest.mark.parametrize(("dialect", "state"), [("openai", "cancelled"), ("anthropic", "canceled")])
def test_finished_lines_are_used(server: BatchServer, dialect: str, state: str) -> None:
    """The results of finished lines are used; `resume` sends only the others again."""
    leave("polls:never", dialect=dialect)
    result = evaljournal("cancel", RUN)
    sent = server.ledger("t", "create")
    server.worlds["t"].set_plan("-")

    assert 0 == result.exit_code, result.output
    assert f"batch 1 ({state}): 3 results used, 3 lines without a result" in result.output
    assert "`evaljournal resume runs/qa/0001` sends 3 lines again" in result.output
    assert ([(state, 3, 3)], 1) == (collected(), len(sent))
    resume()
    assert [CASES, 3] == [len(record["lines"]) for record in server.ledger("t", "create")]


def test_nothing_is_called(server: BatchServer) -> None:
    """Neither lines without a result nor the judge of finished ones are called, although failed lines would be."""
    leave("polls:never,lines:429", "-s", "batch-fallback=true", "--judge", "m=Is it right?")
    evaljournal("cancel", RUN)

    assert ([], 1) == (server.ledger("t", "live"), len(server.ledger("t", "create")))


@pytest.mark.parametrize(("plan", "state"), [("batch:deleted", "deleted"), ("results:gone", "archived")])
@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
def test_batches_that_were_deleted(server: BatchServer, dialect: str, plan: str, state: str) -> None:
    """`resume` reports a batch that was deleted, or whose results were; after `cancel`, it sends the lines again."""
    leave("polls:1", dialect=dialect)
    server.worlds["t"].set_plan(plan)
    resumed, status = evaljournal("resume", RUN), evaljournal("status", RUN)
    cancelled = evaljournal("cancel", RUN)
    server.worlds["t"].set_plan("-")

    assert 3 == resumed.exit_code
    assert "`evaljournal cancel` records the batch as ended" in resumed.output
    assert "stopped (a batch has no results to collect)" in resumed.output
    assert "next: evaljournal cancel runs/qa/0001\n" in resumed.output
    assert "next: evaljournal cancel runs/qa/0001\n" in status.output
    assert 0 == cancelled.exit_code, cancelled.output
    assert [(state, 0, CASES)] == collected()
    resume()


def test_results_that_are_not_there(server: BatchServer) -> None:
    """Lines that the provider counts as completed, without their results, are sent again only after `cancel`."""
    leave("files:none")
    resumed = [evaljournal("resume", RUN) for _ in range(3)]
    sent = len(server.ledger("t", "create"))
    cancelled = evaljournal("cancel", RUN)
    server.worlds["t"].set_plan("-")

    assert ([3] * 3, 1) == ([result.exit_code for result in resumed], sent)
    assert "batch 1 has 0 results, but the provider counts 6" in resumed[-1].output
    assert "next: evaljournal cancel runs/qa/0001\n" in resumed[-1].output
    assert (0, [("completed", 0, CASES)]) == (cancelled.exit_code, collected())
    resume()


def test_a_line_is_not_sent_by_every_resume(server: BatchServer) -> None:
    """Batches without a result for a line are counted across sessions; then its trial has an error."""
    leave("lines:always+missing")
    results = [evaljournal("resume", RUN) for _ in range(6)]

    assert Retry().errors + 1 == len(server.ledger("t", "create")), results[-1].output
    assert CASES == len(events(RUN, TrialFailed))


def test_a_batch_whose_reply_was_lost(server: BatchServer) -> None:
    """A batch that was created is found and cancelled; one that was not is recorded as not sent."""
    leave("create:unsent,list:500+500+500,polls:never")
    cancelled = evaljournal("cancel", RUN)

    assert 0 == cancelled.exit_code, cancelled.output
    assert [("not_sent", 0, CASES)] == collected()
    assert [] == server.ledger("t", "cancel")


def test_a_batch_of_a_rescoring(server: BatchServer) -> None:
    """Only the `rescore` that submitted a batch collects or cancels it; other commands say so, and change nothing."""
    leave("-")
    resume()
    url = "http://127.0.0.1:1/j/polls:never,reply:correct/v1"
    rescore = ["rescore", RUN, "--judge", "large", "--judge-url", url, "-s", "judge-key-env=KEY", "--batch"]
    left = evaljournal(*rescore, "--leave")
    others = [evaljournal("cancel", RUN), evaljournal("resume", RUN, "--wait")]

    assert (3, [2, 2]) == (left.exit_code, [result.exit_code for result in others])
    assert f"next: evaljournal rescore {RUN} --judge large --batch" in left.output
    assert all("with --cancel, it cancels it" in result.output for result in others)
    cancelled = evaljournal(*rescore, "--leave", "--cancel")
    assert 0 == cancelled.exit_code, cancelled.output
    assert "cancelled" == collected()[-1][0]
    assert "finished" == load(RUN).state.outcome
    again = evaljournal(*rescore, "--cancel")
    assert (2, True) == (again.exit_code, "no open batches" in again.output)
    assert 0 == evaljournal("verify", RUN).exit_code


def test_without_open_batches(server: BatchServer) -> None:
    """A run without open batches is not changed."""
    leave("polls:1")
    server.worlds["t"].set_plan("-")
    resume()
    before = [file.read_bytes() for file in sorted(RUN.glob("journal-*"))]
    result = evaljournal("cancel", RUN)

    assert (0, "runs/qa/0001 has no open batches\n") == (result.exit_code, result.output)
    assert before == [file.read_bytes() for file in sorted(RUN.glob("journal-*"))]


def test_another_api_key(server: BatchServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """With another API key, nothing is cancelled, and nothing is lost."""
    leave("polls:2")
    monkeypatch.setenv("KEY", "sk-second-key-of-the-tests")
    result = evaljournal("cancel", RUN)
    monkeypatch.setenv("KEY", "sk-first-key-of-the-tests")

    assert 3 == result.exit_code, result.output
    assert "another API key" in result.output
    assert ([], [False]) == (collected(), [batch.is_cancelled for batch in server.worlds["t"].batches])
    resume()
    assert 1 == len(server.ledger("t", "create"))


def test_a_lost_api_key(server: BatchServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork from a record before the batch sends its lines with another API key."""
    leave("-")
    monkeypatch.setenv("KEY", "sk-second-key-of-the-tests")
    seq = next(record.seq for record in read(RUN) if isinstance(record.event, BatchPrepared))
    forked = evaljournal("fork", RUN, "--at", seq - 1, "-o", "fork")
    resumed = evaljournal("resume", "fork", "--wait")

    assert 0 == forked.exit_code, forked.output
    assert 0 == resumed.exit_code, resumed.output
    assert [CASES, CASES] == [len(record["lines"]) for record in server.ledger("t", "create")]


def test_a_foreign_run(server: BatchServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The endpoint that a run of another user names is called only with `--trust`."""
    leave("polls:never")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    ledger = server.ledger("t")
    rejected = evaljournal("cancel", RUN)

    assert (2, ledger) == (rejected.exit_code, server.ledger("t"))
    assert "`evaljournal cancel runs/qa/0001 --trust`" in rejected.output
    assert 0 == evaljournal("cancel", RUN, "--trust").exit_code
