"""A live page follows a run to its end and through a resume, and receives only what it does not have."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest

from evaljournal.journal import read
from evaljournal.replay import LoadedRun
from evaljournal.replay.page.page_columns import PageCursor, columns, encode_json
from evaljournal.replay.page.page_content import Content
from tests.browser.conftest import OpenTab
from tests.browser.pages import random_run
from tests.cases.test_golden_merge import GOLDEN as MERGED
from tests.journal.samples import session, started, write_sync
from tests.processes import Process
from tests.replay.eventful_run import eventful_run, first_session, minute_clock, second_session
from tests.replay.trial_events import failed

MERGED_SHARDS = 101
"""Records of the golden merged run that existed before it was resumed."""
COMMAND = "from evaljournal.runner.cli import main; main()"

SERVE = """
from functools import partial
from pathlib import Path
import trio
from evaljournal.runner.cli.servers.server import serve

trio.run(partial(serve, Path({run!r}), 0, {port}, on_ready=partial(print, flush=True), token="the-same"))
"""

EVALUATION = """
from pathlib import Path
import trio
from evaljournal import Case, evaluation

CASES = [Case(name=f"case-{number}", input=number, expected=number) for number in range(12)]

@evaluation(cases=CASES, slots=2)
async def patient(number: int) -> int:
    while number >= 6 and not Path("go").exists():
        await trio.sleep(0.02)
    return number

@patient.score
def exact(output: int, case: Case[int, int]) -> bool:
    return output == case.expected
"""


@pytest.fixture
def start_process(tmp_path: Path) -> Iterator[Any]:
    """Return a function that starts a process, which is killed at the end of the test."""
    processes: list[Process] = []

    def start(*args: str, code: str = COMMAND) -> Process:
        process = Process([sys.executable, "-c", code, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def test_follows_a_run_through_stop_and_resume(tmp_path: Path, start_process: Any, open_tab: OpenTab) -> None:
    """The page shows a run while it runs, when it is stopped, and when another process resumes it to its end."""
    (tmp_path / "evals.py").write_text(EVALUATION)
    running = start_process("run", "evals.py", "-o", "run", "-s", "grace=0")
    while not (tmp_path / "run" / "journal-000001.jsonl").exists():
        assert running.poll() is None, running.communicate()
    address = start_process("view", "run").stdout.readline().strip()

    tab = open_tab(address)
    tab.page.wait_for_function("() => page.run.info.summary.trials.completed === 6 && page.run.info.status === 'running'")
    assert "patient: running. 6 of 12 trials done, 100.0 % exact, no errors." == tab.text("h1")
    assert 2 == tab.counters()["running"]
    assert tab.text("#live").startswith("live · seq ")

    running.send_signal(signal.SIGINT)
    running.communicate()
    tab.page.wait_for_function("() => page.run.info.status === 'stopped'")

    (tmp_path / "go").touch()
    resumed = start_process("resume", "run")
    resumed.communicate()
    tab.page.wait_for_function("() => page.run.info.status === 'finished'")
    assert 0 == resumed.returncode
    assert "patient: finished. All 12 trials done, 100.0 % exact, no errors." == tab.text("h1")
    assert 12 == tab.counters()["completed"]
    assert tab.text("#live").startswith("up to date · seq ")
    assert 2 == tab.evaluate("() => page.run.sessions.length")
    assert [] == tab.messages
    assert {address, f"{address}events"} == set(tab.requests)


def test_reconnects_and_continues(tmp_path: Path, start_process: Any, open_tab: OpenTab) -> None:
    """A page whose server has exited shows that, reconnects to the next one, and receives only what it does not have."""
    run = tmp_path / "run"
    write_sync(run, first_session(), clock=minute_clock(0))
    server = start_process(code=SERVE.format(run=str(run), port=0))
    address = server.stdout.readline().strip()
    tab = open_tab(address)
    seq = tab.evaluate("() => page.run.seq")

    server.kill()
    tab.page.wait_for_function("() => document.getElementById('live').textContent === 'reconnecting …'")
    write_sync(run, second_session(), new=False, clock=minute_clock(10))
    tab.evaluate(
        "() => { const { update } = page; page.update = (data) => { page.from = data.columns.from; update.call(page, data); } }"
    )
    second = start_process(code=SERVE.format(run=str(run), port=address.split(":")[2].partition("/")[0]))

    assert address == second.stdout.readline().strip()
    tab.page.wait_for_function("() => document.getElementById('live').textContent === 'up to date · seq 50'")
    assert seq == tab.evaluate("() => page.from")


def test_errors_are_updated(tmp_path: Path, start_process: Any, open_tab: OpenTab) -> None:
    """Errors are grouped as they occur; opened sections stay open and keep the focus."""
    run = tmp_path / "run"
    write_sync(run, [started(), session(), *failed("peru", message="no city 1")], clock=minute_clock(0))
    tab = open_tab(start_process(code=SERVE.format(run=str(run), port=0)).stdout.readline().strip())
    table = tab.page.locator(".errors tbody tr")
    assert [["1", "1", "no city 1"]] == [_columns(row) for row in table.all_inner_texts()]
    tab.open_execution()
    tab.page.click("footer summary >> text=Settings")

    more = [*failed("chad", message="no city 2"), *failed("oslo", message="the map is torn")]
    write_sync(run, [session(2), *more], new=False, clock=minute_clock(10))
    tab.page.wait_for_function("() => document.querySelectorAll('.errors tbody tr').length === 2")

    assert [["2", "2", "no city 1"], ["1", "1", "the map is torn"]] == [_columns(row) for row in table.all_inner_texts()]
    assert ["Settings", True] == tab.evaluate(
        "() => [document.activeElement.textContent, document.activeElement.parentNode.open]"
    )
    assert [] == tab.messages


def _columns(row: str) -> list[str]:
    attempts, trials, *_, message = row.split("\t")
    return [attempts, trials, message]


def seeded(path: Path, seed: int) -> Path:
    """Write a random run."""
    return random_run(path, seed, 150)


@pytest.mark.parametrize(
    ("write", "first"), [(partial(seeded, seed=3), 0), (partial(seeded, seed=4), 0), (lambda _: MERGED, MERGED_SHARDS)]
)
def test_updates_add_up(write: Callable[[Path], Path], first: int, tmp_path: Path, open_report: OpenTab) -> None:
    """A page that received a run in updates has the same data as one that received it in one message.

    The times of trials that are not done are excluded: they are sent when something happens to the trial.
    """
    run = write(tmp_path / "run")
    loaded, content, cursor = LoadedRun(run), Content(), PageCursor()
    parts = []

    def part(cursor: PageCursor) -> Any:
        return orjson.loads(b"".join(encode_json({"columns": columns(content, loaded.state, cursor)})))

    for record in read(run):
        content.apply(loaded, record)
        if record.seq >= first and record.seq % 7 == 0:
            parts.append(part(cursor))
            cursor = PageCursor.parse(str(PageCursor.end(content)))
    parts.append(part(cursor))

    tab = open_report(eventful_run(tmp_path / "other"))
    both = tab.evaluate(
        """([full, parts]) => {
            const one = new Run(full), other = new Run(parts[0]);
            for (const part of parts.slice(1)) other.update(part);
            for (const run of [one, other]) for (const [trial] of run.trials.name.entries()) {
                for (const [scorer, scores] of run.trials.scores.entries()) scores[trial] = run.scoreOf(scorer, trial);
                if (!["completed", "failed", "withdrawn"].includes(run.stageOf(trial))) {
                    for (const name of ["queue_time", "backoff_time", "run_time", "scoring_time"]) run.trials[name][trial] = 0;
                }
            }
            const content = (run) => JSON.stringify([run.seq, run.x, run.events, run.spans, run.trials, run.lanes, run.scores,
                run.errors, run.errorGroups, run.limits, run.limitChanges, run.pauses, [...run.backoffs],
                run.checkpoints.map((counts) => [...counts]),
                Object.values(run.series).map((series) => [97, 98, 99].map((count) => samples(series, [0, run.endX], count)))]);
            return [content(one), content(other)];
        }""",
        [part(PageCursor()), parts],
    )

    assert orjson.loads(both[0]) == orjson.loads(both[1])
