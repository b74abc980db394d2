"""A live page goes along with a run, through its end and its resumption, and is told no more than it lacks."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from journal import read
from replay import LoadedRun
from replay.export.page_columns import Cursor, columns
from replay.export.page_content import Content
from tests.browser.conftest import Opens
from tests.browser.test_report import made_up, reported
from tests.journal.samples import session, started, written
from tests.processes import Process
from tests.replay.lives import failed
from tests.replay.stories import eventful, first_session, second_session, stamps

COMMAND = "from runner.cli import main; main()"

SERVE = """
from functools import partial
from pathlib import Path
import trio
from runner.cli._server import serve

trio.run(partial(serve, Path({run!r}), 0, {port}, ready=partial(print, flush=True), token="the-same"))
"""

EVALUATION = """
from pathlib import Path
import trio
from runner import Case, evaluation

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
def starts(tmp_path: Path) -> Iterator[Any]:
    """Give a function that starts our command in a process of its own, which ends with the test."""
    processes: list[Process] = []

    def started(*args: str, code: str = COMMAND) -> Process:
        process = Process([sys.executable, "-c", code, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        processes.append(process)
        return process

    yield started
    for process in processes:
        process.kill()
        process.communicate()


def test_follows_a_run_through_its_end_and_its_resumption(tmp_path: Path, starts: Any, opens: Opens) -> None:
    """The page shows a run that goes on, sees it stopped, and goes along when another process resumes it to its end."""
    (tmp_path / "evals.py").write_text(EVALUATION)
    running = starts("run", "evals.py", "-o", "run", "--grace", "0")
    while not (tmp_path / "run" / "journal-000001.jsonl").exists():
        assert running.poll() is None, running.communicate()
    address = starts("view", "run").stdout.readline().strip()

    tab = opens(address)
    tab.page.wait_for_function("() => page.run.facts.summary.trials.completed === 6 && page.run.facts.status === 'running'")
    assert "patient: running. 6 of 12 trials done, 100.0 % exact, none failed." == tab.text("h1")
    assert 2 == tab.numbers()["running"]
    assert tab.text("#live").startswith("live · seq ")

    running.send_signal(signal.SIGINT)
    running.communicate()
    tab.page.wait_for_function("() => page.run.facts.status === 'stopped'")

    (tmp_path / "go").touch()
    resumed = starts("resume", "run")
    resumed.communicate()
    tab.page.wait_for_function("() => page.run.facts.status === 'finished'")
    assert 0 == resumed.returncode
    assert "patient: finished. All 12 trials done, 100.0 % exact, none failed." == tab.text("h1")
    assert 12 == tab.numbers()["completed"]
    assert tab.text("#live").startswith("up to date · seq ")
    assert 2 == tab.ask("() => page.run.sessions.length")
    assert [] == tab.said
    assert {address, f"{address}events"} == set(tab.requests)


def test_connects_again_from_where_it_stands(tmp_path: Path, starts: Any, opens: Opens) -> None:
    """A page whose server is gone says so, comes back when there is one again, and is told only what it lacks."""
    run = tmp_path / "run"
    written(run, first_session(), stamp=stamps(0))
    served = starts(code=SERVE.format(run=str(run), port=0))
    address = served.stdout.readline().strip()
    tab = opens(address)
    known = tab.ask("() => page.run.seq")

    served.kill()
    tab.page.wait_for_function("() => document.getElementById('live').textContent === 'connecting again …'")
    written(run, second_session(), new=False, stamp=stamps(10))
    tab.ask(
        "() => { const take = page.take; page.take = (told) => { page.told = told.columns.from; take.call(page, told); }; }"
    )
    again = starts(code=SERVE.format(run=str(run), port=address.split(":")[2].partition("/")[0]))

    assert address == again.stdout.readline().strip()
    tab.page.wait_for_function("() => document.getElementById('live').textContent === 'up to date · seq 50'")
    assert known == tab.ask("() => page.told")


def test_errors_are_told_as_they_come(tmp_path: Path, starts: Any, opens: Opens) -> None:
    """Errors are grouped by class and message as they come; what is unfolded stays so, and what has the focus keeps it."""
    run = tmp_path / "run"
    written(run, [started(), session(), *failed("peru", message="no city 1")], stamp=stamps(0))
    tab = opens(starts(code=SERVE.format(run=str(run), port=0)).stdout.readline().strip())
    table = tab.page.locator(".errors tbody tr")
    assert [["1", "1", "no city 1"]] == [_some(row) for row in table.all_inner_texts()]
    tab.page.click("footer summary >> text=Settings")

    more = [*failed("chad", message="no city 2"), *failed("oslo", message="the map is torn")]
    written(run, [session(2), *more], new=False, stamp=stamps(10))
    tab.page.wait_for_function("() => document.querySelectorAll('.errors tbody tr').length === 2")

    assert [["2", "2", "no city 1"], ["1", "1", "the map is torn"]] == [_some(row) for row in table.all_inner_texts()]
    assert ["Settings", True] == tab.ask("() => [document.activeElement.textContent, document.activeElement.parentNode.open]")
    assert [] == tab.said


def _some(row: str) -> list[str]:
    attempts, trials, *_, message = row.split("\t")
    return [attempts, trials, message]


@pytest.mark.parametrize("seed", [3, 4])
def test_a_page_that_is_told_bit_by_bit(seed: int, tmp_path: Path, opens: Opens) -> None:
    """A page that was told a run in pieces knows exactly what one knows that was told it at once.

    But for one thing: how long trials that are not done have waited is told when something happens to them.
    """
    run = made_up(tmp_path / "run", seed, 150)
    history, content, known = LoadedRun(run), Content(), Cursor()
    parts = []
    for record in read(run):
        history.take(record)
        content.take(history, record)
        if record.seq % 7 == 0:
            parts.append({"columns": columns(content, history.state, known)})
            known = Cursor.parse(str(Cursor.end(content)))
    parts.append({"columns": columns(content, history.state, known)})
    whole = {"columns": columns(content, history.state)}
    given = orjson.loads(orjson.dumps([whole, parts], option=orjson.OPT_NON_STR_KEYS))

    tab = opens(reported(tmp_path / "report.html", eventful(tmp_path / "other")))
    both = tab.ask(
        """([whole, parts]) => {
            const one = new Run(whole), other = new Run(parts[0]);
            for (const part of parts.slice(1)) other.take(part);
            for (const run of [one, other]) for (const [trial] of run.trials.name.entries()) {
                if (!["completed", "failed", "withdrawn"].includes(run.stageOf(trial))) {
                    for (const name of ["waited", "backed_off", "served", "scored"]) run.trials[name][trial] = 0;
                }
            }
            const told = (run) => JSON.stringify([run.seq, run.x, run.events, run.spans, run.trials, run.lanes, run.scores,
                run.errors, run.groups, run.limits, run.marks, run.pauses, [...run.waits], run.sums.map((each) => [...each]),
                Object.values(run.steps).map((steps) => [0, 1, 2, 3].map((at) => columnsOf(steps, [0, run.endX], 97 + at)))]);
            return [told(one), told(other)];
        }""",
        given,
    )

    assert orjson.loads(both[0]) == orjson.loads(both[1])
