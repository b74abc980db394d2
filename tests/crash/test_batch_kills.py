"""Batch runs that are killed with SIGKILL, also between sending a batch and its reply: no line is submitted twice."""

import random
import shutil
import signal
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from evaljournal.journal.events import AttemptStarted, AttemptSucceeded, BatchCollected, BatchPrepared, TrialCompleted
from tests.batch_servers import BatchServerProcess, batch_server_process
from tests.processes import Forked, Forks, forks_of, wait_until
from tests.runner_cli.commands import evaljournal
from tests.runs import events

pytestmark = pytest.mark.slow

CASES = 24
KILLS = 4
"""Kills per run."""
RUN = Path("runs/qa/0001")
SCRIPT = textwrap.dedent(
    """
    import functools, os, sys
    import evaljournal.runner.cli.commands.resume
    import evaljournal.runner.cli.commands.run
    import evaljournal.runner.cli.session
    from evaljournal.runner.calls.batches import openai, providers
    from evaljournal.runner.cli import main
    from evaljournal.runner.gates import batcher
    sys.path.insert(0, sys.argv[1])  # A package in the environment may contain a directory `tests`.
    from tests.processes import forked_arguments

    directory, max_lines, *sys.argv[1:] = forked_arguments()
    os.chdir(directory)
    batcher._SECOND_LISTING = 0.2  # Instead of 30 s.
    providers.OpenAiBatches = functools.partial(openai.OpenAiBatches, max_lines=int(max_lines))
    main()
    """
)


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """Start commands quickly."""
    with forks_of(SCRIPT, tmp_path_factory.mktemp("script")) as forks:
        yield forks


def start(forks: Forks, *arguments: object, max_lines: int = 50_000) -> Forked:
    """Start a command in the current directory."""
    return forks.start(Path.cwd(), max_lines, *arguments)


@pytest.fixture(scope="module")
def server() -> Iterator[BatchServerProcess]:
    """Run a server that outlives the killed processes."""
    with batch_server_process() as server:
        yield server


def write_cases(count: int) -> None:
    """Write a dataset; the model of the server answers in capitals."""
    rows = [
        orjson.dumps({"id": f"c{number}", "input": f"word {number}", "expected": f"WORD {number}"}) for number in range(count)
    ]
    Path("qa.jsonl").write_bytes(b"\n".join(rows))


def run_arguments(url: str, *options: object) -> list[object]:
    """Return the arguments of a run with batches."""
    model = "m" if url.endswith("/v1") else "anthropic:m"
    chat = ["--chat", model, "--base-url", url]
    return ["run", "--data", "qa.jsonl", *chat, "--score", "exact", "-o", RUN, "--batch", "-s", "batch-poll=0.02", *options]


def base_url(server: BatchServerProcess, name: str, plan: str, dialect: str) -> str:
    """Return the base URL of a dialect under a name of the server."""
    return f"{server.url}/{name}/{plan}{'/v1' if dialect == 'openai' else ''}"


def submissions(server: BatchServerProcess, name: str) -> dict[str, list[int]]:
    """Return the requests that were submitted, and at which place of their batches."""
    places: dict[str, list[int]] = {}
    for record in server.ledger(name, "create"):
        for place, (_, digest) in enumerate(record["lines"]):
            places.setdefault(digest, []).append(place)
    return places


def check_uses(path: Path, cases: int) -> None:
    """Check that every trial has its output, and that no line was used twice."""
    starts = {(event.trial, event.attempt): (event.batch, event.line) for event in events(path, AttemptStarted)}
    used = Counter(starts[event.trial, event.attempt] for event in events(path, AttemptSucceeded))

    assert cases == len({event.trial for event in events(path, TrialCompleted)}) == len(used)
    assert {1} == set(used.values())
    assert all(batch for batch, _ in used)
    assert 0 == evaljournal("verify", path).exit_code


def killed_at(rng: random.Random, process: Forked, server: BatchServerProcess, name: str) -> bool:
    """Kill a process at a moment of the ledger, or of its journal; return False if it ended before."""
    moment = rng.choice(["prepared", "upload", "create", "create", "list", "poll", "download"])
    count = len(server.ledger(name, moment)) + rng.randint(1, 2)
    prepared = prepared_batches() + 1

    def is_due() -> bool:
        is_prepared = moment == "prepared" and prepared_batches() >= prepared
        return is_prepared or len(server.ledger(name, moment)) >= count or process.poll() is not None

    deadline = time.monotonic() + 1.5  # Some moments do not occur: a process waits for a reply, or needs no list.
    wait_until(lambda: is_due() or time.monotonic() > deadline)
    time.sleep(rng.uniform(0, 0.01))  # Real time: it is a real process.
    process.send_signal(signal.SIGKILL)
    code, _, error = process.end()
    assert code in {0, 3, -signal.SIGKILL}, error
    return code == -signal.SIGKILL


def prepared_batches() -> int:
    """Return the number of batches in the journal."""
    return sum(file.read_bytes().count(b'"batch_prepared"') for file in RUN.glob("journal-*.jsonl"))


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(2, 30))])
def test_killed_again_and_again(forks: Forks, server: BatchServerProcess, seed: int) -> None:
    """The ledger of the server has each line once, and again only if its first result asks for it; each result is used once."""
    rng = random.Random(seed)
    write_cases(CASES)
    name, dialect = f"kills-{seed}", rng.choice(["openai", "anthropic"])
    fates = rng.choice(["ok", "ok", "ok+429+missing+500+ok"])
    faults = rng.choice(["ok", "hang", "lost+hang", "ok+hang", "unsent+ok+lost"])
    plan = f"polls:{rng.randint(1, 3)},create:{faults},lines:{fates},others:{rng.choice([0, 2])}"
    arguments = run_arguments(base_url(server, name, plan, dialect), "-s", f"batch-tokens={rng.choice([30, 10_000])}")
    for _ in range(KILLS):
        process = start(forks, *(["resume", RUN, "--wait"] if prepared_batches() else arguments))
        if not killed_at(rng, process, server, name):
            break

    server.set_plan(name, f"lines:{fates}")
    process = start(forks, *(["resume", RUN, "--wait"] if prepared_batches() else arguments))
    code, _, error = process.end()

    assert 0 == code, error
    kinds = fates.split("+")
    for places in submissions(server, name).values():
        assert 1 + (kinds[places[0] % len(kinds)] != "ok") == len(places)
    assert CASES == len(submissions(server, name))
    check_uses(RUN, CASES)


def collected_states() -> list[str]:
    """Return how the batches of the run ended."""
    return [event.state for event in events(RUN, BatchCollected)]


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
@pytest.mark.parametrize("fault", ["hang", "unsent"])
def test_killed_between_sent_and_answered(forks: Forks, server: BatchServerProcess, dialect: str, fault: str) -> None:
    """A batch that was created is found again; one that was not is sent again after two lists without it."""
    write_cases(CASES)
    name = f"sent-{dialect}-{fault}"
    process = start(forks, *run_arguments(base_url(server, name, f"create:{fault}+ok", dialect)))
    kind = "create" if fault == "hang" else "list"
    assert wait_until(lambda: bool(server.ledger(name, kind)))
    process.send_signal(signal.SIGKILL)
    process.end()
    lists = len(server.ledger(name, "list"))

    code, _, error = start(forks, "resume", RUN, "--wait").end()

    assert 0 == code, error
    assert {1} == {len(places) for places in submissions(server, name).values()}
    assert (["completed"] if fault == "hang" else ["not_sent", "completed"]) == [
        state.replace("ended", "completed") for state in collected_states()
    ]
    assert fault == "hang" or len(server.ledger(name, "list")) >= lists + 2
    check_uses(RUN, CASES)


@pytest.mark.parametrize("cases", [50, pytest.param(5_000, marks=pytest.mark.exhaustive)])
def test_collected_from_a_moved_directory(
    forks: Forks,
    server: BatchServerProcess,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    cases: int,
) -> None:
    """A run of 5,000 lines in 3 batches is left, moved to another directory, and collected there."""
    write_cases(cases)
    name, max_lines = f"moved-{cases}", 2 * cases // 5
    left_code, _, error = start(
        forks, *run_arguments(base_url(server, name, "-", "openai"), "--leave"), max_lines=max_lines
    ).end()
    lines = [len(event.trials) for event in events(RUN, BatchPrepared)]
    directory = tmp_path_factory.mktemp("moved") / "project"
    shutil.move(Path.cwd(), directory)
    monkeypatch.chdir(directory)
    code, _, error = start(forks, "resume", RUN).end()

    assert (3, [max_lines, max_lines, max_lines // 2], 0) == (left_code, lines, code), error
    assert (cases, {1}) == (len(submissions(server, name)), {len(place) for place in submissions(server, name).values()})
    check_uses(RUN, cases)
