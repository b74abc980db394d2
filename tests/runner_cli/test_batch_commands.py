"""Batches from the command line: run, leave, resume, rescore, suites and what is rejected, at a server in this process."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from evaljournal.journal.events import BatchCollected, BatchPrepared
from evaljournal.replay import load
from evaljournal.runner.testing import events_of
from tests.batch_servers import BatchServer, connect_in_memory
from tests.runner_cli.commands import evaljournal

RUN = Path("runs/qa/0001")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> BatchServer:
    return connect_in_memory(monkeypatch)


def chat(plan: str = "-", name: str = "t", model: str = "m") -> list[str]:
    """Return the options of a model at the server."""
    base = f"http://127.0.0.1:1/{name}/{plan}/v1"
    return ["--data", "qa.jsonl", "--chat", model, "--base-url", base, "--key-env", "KEY", "--prompt", "{question}"]


def lines(server: BatchServer, name: str = "t") -> int:
    """Return the number of lines that were sent."""
    return sum(len(record["lines"]) for record in server.ledger(name, "create"))


@pytest.mark.usefixtures("dataset")
def test_a_run_waits_and_finishes(server: BatchServer) -> None:
    """`run --batch` polls until the results are there, and scores them."""
    result = evaljournal("run", *chat("polls:2"), "--score", "exact", "--batch", "-s", "batch-poll=0.05")

    assert 0 == result.exit_code, result.output
    assert (3, 1) == (lines(server), len(server.ledger("t", "create")))
    assert "exact" in load(RUN).state.scores
    assert 0 == evaljournal("verify", RUN).exit_code


@pytest.mark.usefixtures("dataset")
def test_a_left_run_is_collected_without_a_flag(server: BatchServer) -> None:
    """`run --batch --leave` exits with 3; `resume` knows that the run sends batches, and exits with 3 while some are open."""
    codes = [evaljournal("run", *chat("polls:2"), "--batch", "--leave").exit_code]
    codes += [evaljournal("resume", RUN).exit_code for _ in range(2)]

    assert [3, 3, 0] == codes
    assert (3, "") == (lines(server), load(RUN).state.outcome.replace("finished", ""))


@pytest.mark.usefixtures("dataset")
def test_resume_waits(server: BatchServer) -> None:
    """`resume --wait` polls, in a directory that was moved."""
    evaljournal("run", *chat("polls:3"), "--batch", "--leave", "-s", "batch-poll=0.05")
    Path("elsewhere").mkdir()
    moved = RUN.rename("elsewhere/run")
    result = evaljournal("resume", moved, "--wait")

    assert 0 == result.exit_code, result.output
    assert (3, 3) == (lines(server), load(moved).state.completed)


@pytest.mark.usefixtures("dataset")
def test_a_judge_of_a_finished_run_is_sent_in_a_batch(server: BatchServer) -> None:
    """`rescore --batch` sends the calls of a judge; with --leave, the same command collects them."""
    evaljournal("run", *chat(), "--batch", "-s", "batch-poll=0.05")
    judge = ("--judge", "large", "--judge-url", "http://127.0.0.1:1/j/polls:2,reply:correct/v1", "-s", "judge-key-env=KEY")
    codes = [evaljournal("rescore", RUN, *judge, "--batch", "--leave").exit_code]
    resumed = evaljournal("resume", RUN)
    codes += [evaljournal("rescore", RUN, *judge, "--batch", "-s", "batch-poll=0.05").exit_code]

    assert ([3, 0], 3) == (codes, lines(server, "j"))
    assert 2 == resumed.exit_code
    assert "rescore" in resumed.output
    assert {1.0} == {tally.mean for tally in load(RUN).state.scores.values()}


@pytest.mark.usefixtures("dataset")
def test_a_pairwise_judge_is_sent_in_batches(server: BatchServer) -> None:
    """`rescore --against --batch` sends both orders once each; with --leave, the same command collects and combines them."""
    for _ in range(2):
        evaljournal("run", *chat(), "--batch", "-s", "batch-poll=0.05")
    url = "http://127.0.0.1:1/j/polls:2,reply:tie/v1"
    options = ("--against", RUN, "--judge", "large", "--judge-url", url, "-s", "judge-key-env=KEY", "--batch")
    other = RUN.with_name("0002")
    codes = [evaljournal("rescore", other, *options, *flags).exit_code for flags in (("--leave",), ("-s", "batch-poll=0.05"))]
    result = orjson.loads(evaljournal("status", other, "--json").stdout)["pairwise"]["judge-vs-0001"]

    assert ([3, 0], 6) == (codes, lines(server, "j"))
    assert (3, 3) == (result["pairs"], result["ties"])
    assert 0 == evaljournal("verify", other).exit_code


@pytest.mark.usefixtures("dataset")
def test_a_dry_run_counts_lines_and_batches(server: BatchServer) -> None:
    """`--dry-run` prints the lines, the batches and the cost at the batch price; nothing is sent."""
    options = ("--max-tokens", 100, "--dry-run", "--json")
    batched, live = (
        orjson.loads(evaljournal("run", *chat(model="gpt-5.6-luna"), *options, *flags).stdout) for flags in (["--batch"], [])
    )
    text = evaljournal("run", *chat(model="gpt-5.6-luna"), *options[:-1], "--batch").stdout

    assert [{"name": "gpt-5.6-luna", "lines": 3, "batches": 1}] == batched["batches"]
    assert live["batches"] is None
    assert pytest.approx(live["max_cost_without_retries"] / 2) == batched["max_cost_without_retries"]
    assert "3 lines of gpt-5.6-luna in 1 batch" in text
    assert (0, False) == (lines(server), Path("runs").exists())


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--data", "qa.jsonl", "--command", "./answer.sh", "--batch"], "chat models"),
        (["--data", "qa.jsonl", "--endpoint", "http://127.0.0.1:1/", "--batch"], "chat models"),
        (["--data", "qa.jsonl", "--output-key", "topic", "--batch"], "chat models"),
        ([*chat(), "--batch", "--stream"], "stream"),
        ([*chat()[:-2], "--turns", "turns", "--batch"], "turns"),
        ([*chat(), "--batch", "--workers", "processes:2"], "worker"),
        ([*chat(), "--leave"], "--batch"),
        ([*chat(), "-s", "batch-fallback=true"], "--batch"),
        ([*chat(), "-s", "batch-tokens=5"], "--batch"),
        ([*chat(), "--batch", "-s", "batch-poll=0"], "seconds"),
        ([*chat(), "--batch", "-s", "batch-tokens=0"], "whole number"),
        ([*chat(), "--batch", "--budget", "output_tokens=100"], "--max-tokens"),
        (["--data", "qa.jsonl", "--chat", "gemini:m", "--key-env", "KEY", "--batch"], "batches"),
    ],
    ids=lambda value: " ".join(value[-3:]) if isinstance(value, list) else value,
)
@pytest.mark.usefixtures("dataset")
def test_a_usage_error(server: BatchServer, options: list[str], word: str) -> None:
    """What cannot be sent in batches is a usage error, also with --dry-run; nothing is written or called."""
    results = [evaljournal("run", *options), *([] if "--leave" in options else [evaljournal("run", *options, "--dry-run")])]

    assert {2} == {result.exit_code for result in results}, results[0].output
    assert all(word in result.output for result in results), results[0].output
    assert ([], False) == (server.ledger("t"), Path("runs").exists())


@pytest.mark.usefixtures("dataset")
def test_a_budget_cannot_limit_a_judge_without_a_token_limit(server: BatchServer) -> None:
    """The error names the judge, not --max-tokens, which was passed; and following it works."""
    url = "http://127.0.0.1:1/j/reply:correct/v1"
    judge = ("--judge", "large", "--judge-url", url, "-s", "judge-key-env=KEY")
    options = (*chat(), "--max-tokens", "50", "--batch", "--budget", "output_tokens=1000", "-s", "batch-poll=0.05")
    rejected = evaljournal("run", *options, *judge)
    codes = [evaljournal("run", *options).exit_code]
    codes += [evaljournal("rescore", RUN, *judge, "--batch", "-s", "batch-poll=0.05").exit_code]

    assert 2 == rejected.exit_code
    assert (
        "the output_tokens of the judge 'judge' for the case 'peru' cannot be estimated, so a budget cannot limit batches; "
        "limit its replies in Python with scorers.judge(MODEL, max_tokens=N), "
        "remove the judge and add its scores later with `rescore`, which has no budget, or remove the budget\n"
    ) in rejected.output
    assert ([0, 0], 3) == (codes, lines(server, "j"))


@pytest.mark.usefixtures("dataset")
def test_waiting_without_batches_is_a_usage_error() -> None:
    """`resume --wait` of a run that sends no batches is a usage error."""
    evaljournal("run", "--data", "qa.jsonl", "--command", "sleep 60", "--deadline", 0.1, "-s", "grace=0", "-o", "stopped")
    result = evaljournal("resume", "stopped", "--wait")

    assert 2 == result.exit_code
    assert "--wait" in result.output


@pytest.mark.usefixtures("dataset")
def test_open_batches_need_a_key_that_sees_them(server: BatchServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """`resume` with a key of another project is an error, and nothing is lost; one of the same project collects them."""
    evaljournal("run", *chat(), "--batch", "--leave")
    monkeypatch.setenv("KEY", "sk-another-key-of-the-tests")
    result = evaljournal("resume", RUN)

    assert 3 == result.exit_code
    assert "with another API key: use that one" in result.output
    assert "`evaljournal fork --at " in result.output
    monkeypatch.setenv("KEY", "sk-first-key-of-the-tests-rotated")
    assert (0, 3) == (evaljournal("resume", RUN).exit_code, lines(server))


@pytest.mark.usefixtures("dataset")
def test_a_configuration_file_has_the_keys(server: BatchServer) -> None:
    """The settings of batches are keys of a configuration file."""
    base = "http://127.0.0.1:1/t/-/v1"
    model = f'data = "qa.jsonl"\nchat = "m"\nbase-url = "{base}"\nkey-env = "KEY"\nprompt = "{{question}}"\n'
    Path("qa.toml").write_text(f"{model}batch = true\nbatch-poll = 0.05\nbatch-tokens = 1000\nbatch-fallback = true\n")
    result = evaljournal("run", "qa.toml")

    assert 0 == result.exit_code, result.output
    assert 3 == lines(server)


SUITE = """
from evaljournal import Chat, evaluation

first, second = (
    evaluation(name=name, cases=[{{"id": "a", "input": name}}, {{"id": "b", "input": "b"}}], batch=True, batch_poll=0.05)(
        Chat("m", base_url=f"http://127.0.0.1:1/{{name}}/polls:2/v1", key_env="KEY")
    )
    for name in ("first", "second")
)
"""


def test_a_suite_sends_all_batches_before_it_waits(server: BatchServer) -> None:
    """The evaluations of a suite submit their batches at the same time; `--leave` and `resume` apply to all of them."""
    Path("evals").mkdir()
    Path("evals/both.py").write_text(SUITE.format())
    left = evaljournal("run", "evals", "--leave")
    counts = [lines(server, name) for name in ("first", "second")]
    suite = next(Path("runs/evals").iterdir())
    collected = evaljournal("resume", suite, "--wait")

    assert (3, [2, 2], 0) == (left.exit_code, counts, collected.exit_code), collected.output
    assert [2, 2] == [lines(server, name) for name in ("first", "second")]


def test_a_suite_without_batches_is_not_left(server: BatchServer) -> None:
    """`--leave` is a usage error if no evaluation of a new suite sends batches; nothing is written."""
    Path("evals").mkdir()
    Path("evals/both.py").write_text(SUITE.format().replace("batch=True", "batch=False"))
    result = evaljournal("run", "evals", "--leave")

    assert (2, True) == (result.exit_code, "without batches" in result.output), result.output
    assert ([], False) == (server.ledger("first"), Path("runs").exists())


@pytest.mark.usefixtures("dataset")
def test_shards_with_batches_are_merged(server: BatchServer) -> None:
    """Batches of shards are renumbered by `merge`; a shard with an open batch is rejected."""
    for number in (1, 2):
        path = f"shard-{number}"
        evaljournal("run", *chat(), "--shard", f"{number}/2", "-o", path, "--batch", "--leave")
    rejected = evaljournal("merge", "shard-1", "shard-2", "-o", "merged")
    for number in (1, 2):
        assert 0 == evaljournal("resume", f"shard-{number}").exit_code
    merged = evaljournal("merge", "shard-1", "shard-2", "-o", "merged")

    assert 2 == rejected.exit_code
    assert "open batch" in rejected.output
    assert 0 == merged.exit_code, merged.output
    assert [1, 2] == [event.batch for event in events_of("merged") if isinstance(event, BatchPrepared)]
    assert 0 == evaljournal("verify", "merged").exit_code
    assert 3 == lines(server)


@pytest.mark.usefixtures("dataset")
def test_a_fork_collects_a_submitted_batch(server: BatchServer) -> None:
    """A fork and its source both use the results of a batch that was submitted before the fork; it is sent once."""
    evaljournal("run", *chat(), "--batch", "--leave")
    forked = evaljournal("fork", RUN, "-o", "forked")
    codes = [evaljournal("resume", path).exit_code for path in ("forked", RUN)]

    assert (0, [0, 0], 3) == (forked.exit_code, codes, lines(server)), forked.output
    assert "both runs collect the open batches" in forked.output


@pytest.mark.usefixtures("dataset")
def test_a_fork_does_not_send_what_its_source_prepared(server: BatchServer) -> None:
    """A batch that was prepared and not submitted when a run was forked ends in the fork, where its lines are sent again."""
    evaljournal("run", *chat(), "--batch", "--leave")
    seq = next(record.seq for record in load(RUN).records() if isinstance(record.event, BatchPrepared))
    evaljournal("fork", RUN, "-o", "forked", "--at", seq)
    result = evaljournal("resume", "forked", "--wait", "-s", "batch-poll=0.05")

    assert 0 == result.exit_code, result.output
    states: list[Any] = [event.state for event in events_of("forked") if isinstance(event, BatchCollected)]
    assert (["forked", "completed"], 6) == (states, lines(server))
