"""`run --export nat:DIR`: files that are updated with the run, from its journal, and never block it."""

import functools
import itertools
import logging
import os
import sys
import threading
from collections.abc import Callable, Collection
from pathlib import Path

import orjson
import pytest

from evaljournal.integrations.nat.files import line
from evaljournal.integrations.nat.output import OWNER, NatOutput
from evaljournal.journal import JournalError, read
from evaljournal.journal.events import AttemptStarted, AttemptSucceeded, RetryScheduled, TrialCompleted
from evaljournal.replay.runs.trial import TrialDetails
from tests.journal.samples import session, started, trial, write_sync
from tests.processes import wait_until
from tests.replay.eventful_run import first_session, minute_clock, second_session
from tests.runner_cli.commands import QUICK, SLOW, evaljournal, process, rejected

FILES = ["exact_output.json", "workflow_output.json", "workflow_output.jsonl", "workflow_output_atif.json"]


@pytest.fixture(autouse=True)
def evaluations() -> None:
    """Write two evaluations to the working directory."""
    Path("quick.py").write_text("FAILS = 'cuba'" + QUICK)
    Path("slow.py").write_text(SLOW)


def ids(directory: Path | str = "nat") -> list[str]:
    """Return the trials in the growing file."""
    return [orjson.loads(line)["id"] for line in Path(directory, "workflow_output.jsonl").read_bytes().splitlines()]


def test_the_files_equal_an_export() -> None:
    """After a run, the files are those of `export --format nat`, failed trials included."""
    result = evaljournal("run", "quick.py", "--export", "nat:nat")
    evaljournal("export", "-f", "nat", "-o", "exported")

    assert 1 == result.exit_code
    assert FILES == sorted(os.listdir("exported"))
    assert all(Path("nat", name).read_bytes() == Path("exported", name).read_bytes() for name in FILES)
    assert {"peru", "chile", "cuba", "france", "japan"} == set(ids())


def test_the_file_grows_and_survives_a_kill() -> None:
    """Each trial is written when it is done; after `kill -9` and resume, each is there once."""
    with process("run", "slow.py", "--slots", "4", "-s", "policy=fixed", "--export", "nat:nat", hold=True) as killed:
        assert wait_until(lambda: Path("nat/workflow_output.jsonl").exists() and len(ids()) >= 6)
        killed.kill()
    grown = ids()
    evaljournal("export", "-f", "nat", "-o", "exported")
    with process("resume", "--export", "nat:nat") as resumed:
        resumed.communicate()

    assert [f"t{number}" for number in range(6)] == sorted(grown) == sorted(ids("exported"))
    assert 0 == resumed.returncode
    assert 40 == len(ids()) == len(set(ids()))
    assert grown == ids()[:6]


def test_two_runs_never_share_a_file() -> None:
    """A directory with another run's output is rejected before the start, by run and by resume."""
    evaljournal("run", "quick.py", "--export", "nat:nat")
    before = Path("nat/workflow_output.jsonl").read_bytes()
    repeated = rejected("run", "quick.py", "--export", "nat:nat")
    evaljournal("run", "quick.py")

    assert "nat holds the output of another run; pass another directory" in repeated
    assert repeated == rejected("resume", "runs/capitals/0002", "--export", "nat:nat")
    assert before == Path("nat/workflow_output.jsonl").read_bytes()
    assert ["0001", "0002"] == sorted(os.listdir("runs/capitals"))


def test_resume_of_a_finished_run_writes_the_files() -> None:
    """Resuming a finished run writes the files again; the run's own directory is rejected."""
    evaljournal("run", "quick.py")
    result = evaljournal("resume", "--export", "nat:nat")

    assert "is inside the run" in rejected("resume", "--export", "nat:runs/capitals/0001/nat")
    assert (1, [OWNER, *FILES]) == (result.exit_code, sorted(os.listdir("nat")))


def test_a_directory_that_cannot_be_created() -> None:
    """A directory that cannot be created is rejected before the start, by run and by resume."""
    Path("file").write_text("")
    errors = [rejected("run", "quick.py", "--export", "nat:file/nat")]
    evaljournal("run", "quick.py", "-o", "one")
    errors.append(rejected("resume", "one", "--export", "nat:file/nat"))

    assert ["Error: file/nat cannot be written: Not a directory; pass another directory\n"] * 2 == errors
    assert not Path("runs").exists()


def test_a_write_error_is_repeated_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that could not be written are the last line, with the item and the cause, and the exit code is 1."""
    Path("quick.py").write_text("FAILS = None" + QUICK)

    def fail_at_cuba(details: TrialDetails, step_filter: Collection[str]) -> dict[str, object]:
        if details.trial == "cuba":
            raise OSError(28, "No space left on device")
        return {"id": details.trial}

    monkeypatch.setattr(sys.modules["evaljournal.integrations.nat.files"], "item", fail_at_cuba)
    result = evaljournal("run", "quick.py", "-o", "run", "--export", "nat:nat", "--json")

    assert (1, 1) == (result.exit_code, orjson.loads(result.stdout)["exit_code"])
    rewrite = "`evaljournal export run --format nat -o nat --force` rewrites it"
    cause = "[Errno 28] No space left on device: 'nat/workflow_output.json'"
    assert f"Error: nat could not be written at item 'cuba': {cause}; {rewrite}" == result.stderr.splitlines()[-1]


def test_a_damaged_value_is_reported_at_the_end() -> None:
    """An output that cannot be read is null in the files; the item is named last, and the exit code is 1."""
    Path("quick.py").write_text(QUICK.replace("FAILS", "None").replace("name.upper()\n\n", "name.upper() * 100_000\n\n"))
    evaljournal("run", "quick.py", "-o", "run", "--only", "cuba")
    (blob,) = Path("run/blobs").rglob("*.json")
    blob.chmod(0o600)
    blob.write_text("damaged")
    result = evaljournal("resume", "run", "--export", "nat:nat")

    assert 1 == result.exit_code
    assert [None] == [item["generated_answer"] for item in orjson.loads(Path("nat/workflow_output.json").read_bytes())]
    last_line = result.stderr.splitlines()[-1]
    assert last_line.startswith("Error: nat is incomplete: a value of item 'cuba' is damaged: run: blobs/")


def test_no_file_is_touched_on_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """All reads and writes during the run are in another thread."""
    threads: list[threading.Thread] = []
    for name in ("_start", "_apply", "_write"):
        original = getattr(NatOutput, name)

        def record_thread(*arguments: object, original: object = original) -> object:
            threads.append(threading.current_thread())
            return original(*arguments)  # type: ignore[operator]  # one of the three

        monkeypatch.setattr(NatOutput, name, record_thread)
    # Otherwise the run could end before its journal is followed.
    Path("held.py").write_text(
        SLOW.replace("    await trio.sleep(0", "    while not os.path.isdir('nat'):\n        await trio.sleep(0")
    )
    evaljournal("run", "held.py", "--export", "nat:nat")

    assert threads
    assert threading.main_thread() not in threads


# The tests below pass batches of records to `NatOutput` directly.


def start_output(names: str) -> list[Callable[[], None]]:
    """Start to update the files of a new run, and record these trials in it; return a function for each that applies it."""
    path, output = Path("run"), NatOutput(Path("nat"))
    write_sync(path, [started(), session()])
    index = output._start(path)
    write_sync(path, [session(2), *itertools.chain.from_iterable(map(trial, names))], new=False)
    records = list(read(path, load_blobs=False))
    ends = [0, *(number for number, record in enumerate(records, 1) if isinstance(record.event, TrialCompleted))]
    return [functools.partial(output._apply, index, records[start:end]) for start, end in itertools.pairwise(ends)]


def test_a_failed_write_is_repeated(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A failed write is repeated with the next trial; a partial line is removed; each change of state is logged in a line."""
    apply_a, apply_b, apply_c, apply_d = start_output("abcd")
    apply_a()
    append = NatOutput._append

    def append_part(self: NatOutput, data: bytes) -> None:
        with Path("nat/workflow_output.jsonl").open("ab") as file:
            file.write(data[:20])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(NatOutput, "_append", append_part)
    apply_b()
    apply_c()
    monkeypatch.setattr(NatOutput, "_append", append)
    apply_d()

    assert ["a", "b", "c", "d"] == ids()
    assert [
        (
            logging.ERROR,
            "nat/workflow_output.jsonl cannot be written (No space left on device); it is retried with each trial",
        ),
        (logging.WARNING, "nat/workflow_output.jsonl is written again; nothing is missing"),
    ] == [(logged.levelno, logged.getMessage()) for logged in caplog.records]
    assert not any(logged.exc_info for logged in caplog.records)


def test_a_removed_file_is_written_again() -> None:
    """A removed file is written again, with all trials."""
    apply_a, apply_b, apply_c = start_output("abc")
    apply_a()
    Path("nat/workflow_output.jsonl").unlink()
    apply_b()
    apply_c()

    assert ["a", "b", "c"] == ids()


def test_an_error_in_one_trial(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """An error is logged with the trial's name; the others are written."""

    def line_or_error(result: TrialDetails, step_filter: Collection[str]) -> bytes:
        if result.trial == "a":
            raise JournalError("its line is gone")
        return line(result, step_filter)

    monkeypatch.setattr("evaljournal.integrations.nat.output.line", line_or_error)
    for apply in start_output("ab"):
        apply()

    assert ["b"] == ids()
    assert "the output of a could not be read" in caplog.text
    assert "its line is gone" in caplog.text
    assert logging.ERROR == caplog.records[-1].levelno


def test_a_retried_trial_is_written_once() -> None:
    """With --retry-failed, a failed trial is not in the file until it has ended again."""
    write_sync(Path("run"), first_session(), clock=minute_clock(0))
    write_sync(Path("run"), second_session(), new=False, clock=minute_clock(10))
    plain, retrying = NatOutput(Path("nat")), NatOutput(Path("again"), retry_failed=True)
    plain._start(Path("run"))
    index = retrying._start(Path("run"))
    before = ids("again")
    answered = AttemptSucceeded(trial="chad", attempt=3, output="N'Djamena", elapsed=0.1)
    started_event = AttemptStarted(trial="chad", attempt=3, slot=0)
    requested = RetryScheduled(trial="chad", attempt=3, delay=0.0, reason="requested")
    done = trial("chad")[-1]
    done.attempts = 3  # type: ignore[misc,union-attr]  # the last event of a trial
    write_sync(Path("run"), [session(3), requested, started_event, answered, done], new=False, clock=minute_clock(20))
    retrying._apply(index, list(read("run", load_blobs=False)))

    assert ["peru", "chad", "chad#2", "oslo"] == ids("nat")
    assert ["peru", "chad#2", "oslo"] == before
    assert ["peru", "chad#2", "oslo", "chad"] == ids("again")


def test_a_step_filter() -> None:
    """Types of steps after the directory are those that are written; an unknown type is rejected before the start."""
    option = "nat:nat?workflow_output_step_filter="
    error = rejected("run", "quick.py", "--export", f"{option}LLM")
    evaljournal("run", "quick.py", "-o", "run", "--export", f"{option}WORKFLOW_START,LLM_END")
    items = [orjson.loads(line) for line in Path("nat/workflow_output.jsonl").read_bytes().splitlines()]

    assert "'LLM' is not a type" in error
    assert {"WORKFLOW_START"} == {step["payload"]["event_type"] for item in items for step in item["intermediate_steps"]}
