"""A suite that is killed with SIGKILL at random moments: it can always be resumed, and only calls in flight are repeated."""

import random
import signal
import time
from collections import Counter
from pathlib import Path

import orjson
import pytest

from evaljournal.journal.disk.segments import is_run
from evaljournal.journal.events import TrialCompleted
from tests.processes import wait_until
from tests.runner_cli.commands import evaljournal, process
from tests.runs import events
from tests.server import Server

pytestmark = pytest.mark.slow

CASES = {"one": 12, "two": 20, "three": 28}
SLOTS = 2
KILLS = 3
SUITE = Path("runs/evals/0001")


def completed() -> set[str]:
    """Return the inputs of the trials that are recorded as completed."""
    return {event.trial for name in CASES if is_run(SUITE / name) for event in events(SUITE / name, TrialCompleted)}


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(1, 10))])
def test_killed_again_and_again(server: Server, name: str, seed: int) -> None:
    """Nothing that was completed before a kill is called again; the ledger of the server has every call."""
    rng = random.Random(seed)
    Path("evals").mkdir()
    for evaluation, cases in CASES.items():
        inputs = [f"{evaluation}-{number}" for number in range(cases)]
        rows = (orjson.dumps({"id": text, "input": text}) + b"\n" for text in inputs)
        Path(f"{evaluation}.jsonl").write_bytes(b"".join(rows))
        config = {"data": f"{evaluation}.jsonl", "endpoint": server.url(name, "ok"), "output-path": "output"}
        Path(f"evals/{evaluation}.toml").write_text("".join(f'{key} = "{value}"\n' for key, value in config.items()))

    def ledger() -> list[str]:
        return [orjson.loads(request["body"])["input"] for request in server.requests(name)]

    done: list[tuple[int, set[str]]] = []
    for kill in range(KILLS):
        command = ["run", "evals", "--slots", SLOTS, "--rpm", "1200"]  # 3 seconds in all.
        with process(*(command if not SUITE.exists() else ["resume", SUITE])) as killed:
            calls = len(ledger()) + rng.randrange(12)
            assert wait_until(lambda: killed.poll() is not None or (SUITE / "suite.json").exists())
            assert wait_until(lambda: killed.poll() is not None or len(ledger()) >= calls)  # noqa: B023  # called at once
            time.sleep(rng.uniform(0, 0.02))  # Real time: it is a real process.
            killed.send_signal(signal.SIGKILL)
            killed.communicate()
        assert -signal.SIGKILL == killed.returncode, f"kill {kill + 1}"
        done.append((len(ledger()), completed()))
    content = (SUITE / "suite.json").read_bytes()

    finished = evaljournal("resume", SUITE)

    assert 0 == finished.exit_code, finished.output
    calls_made = ledger()
    assert sum(CASES.values()) == len(completed()) == len(set(calls_made))
    for count, completed_before in done:
        assert set() == completed_before & set(calls_made[count:])
    repeated = sum(Counter(calls_made).values()) - len(set(calls_made))
    assert repeated <= KILLS * SLOTS * len(CASES)
    assert content == (SUITE / "suite.json").read_bytes()
    assert 0 == evaljournal("verify", SUITE).exit_code
