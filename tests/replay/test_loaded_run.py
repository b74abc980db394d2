"""A run loaded from its journal: the same as it was live, at every record, up to any damage."""

import random
import shutil
from pathlib import Path
from typing import Any

import attrs
import pytest
from rich.console import Console

from evaljournal import Case, Fatal, RateLimited, Retry, arun, evaluation
from evaljournal.journal import Event, JournalError, Record, read
from evaljournal.journal.errors import BlobDamaged, InvalidRecord, JournalDamaged
from evaljournal.journal.events import AttemptStarted, Noted, TrialWithdrawn
from evaljournal.replay import LoadedRun, fold, load
from evaljournal.replay.render.screen import panel
from evaljournal.replay.results.summary import summarize
from evaljournal.runner.engine.recorder import Recorder
from evaljournal.runner.testing import Action, Fail, Hang, Return, Scripted, deterministic_options
from tests.journal.samples import (
    complete_run,
    enqueued,
    finished,
    flip,
    forge,
    lines_of,
    opened,
    overwrite,
    segment,
    session,
    started,
    trial,
    write_sync,
)
from tests.journal.test_format import GOLDEN


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Write a run of two trials."""
    write_sync(tmp_path / "run", complete_run())
    return tmp_path / "run"


def screen_text(run: LoadedRun, now: float) -> str:
    """Return the screen as text."""
    console = Console(width=100, highlight=False, markup=False, emoji=False)
    with console.capture() as capture:
        console.print(panel(run.state, now=now, durable=run.durable, total=run.total, width=100, title=str(run.path)))
    return capture.get()


@pytest.mark.parametrize("at", [None, *range(1, len(list(read(GOLDEN))) + 1)])
def test_load_at_any_record(at: int | None) -> None:
    """`load` returns the state after any record; everything derived from it is defined there."""
    run = load(GOLDEN, at)

    assert attrs.asdict(summarize(fold(read(GOLDEN), at=at))) == attrs.asdict(run.summary())
    assert (run.seq, run.is_last) == (run.timeline().seq, at in (None, len(list(read(GOLDEN)))))
    assert set(run.trials) == {name for name in run.trials if run.trial(name).trial == name}
    assert [name for name, _ in run.outputs()] == [name for name, trial in run.trials.items() if trial.output_location]


@pytest.mark.parametrize(("at", "message"), [(0, "has no record 0; the first is 1"), (99, "has no record 99; the last is 15")])
def test_load_at_a_missing_record(run: Path, at: int, message: str) -> None:
    """A record before the first or after the last is an error that names the nearest one."""
    with pytest.raises(JournalError, match=message):
        load(run, at)


def test_outputs(tmp_path: Path) -> None:
    """Outputs are in the order of their trials, large ones included; withdrawn trials are excluded."""
    slow, quick, withdrawn = trial("slow", "x" * 300_000), trial("quick", None), trial("gone", 1)
    removed = [*withdrawn, TrialWithdrawn(trial="gone", reason="removed")]
    write_sync(tmp_path / "run", [started(), session(), slow[0], quick[0], *removed, *quick[1:], *slow[1:]])

    assert [("slow", "x" * 300_000), ("quick", None)] == list(load(tmp_path / "run").outputs())
    assert [("quick", None)] == list(load(tmp_path / "run", at=15).outputs())


def test_summary_by_metadata(tmp_path: Path) -> None:
    """Each group is counted separately, as of the requested record."""
    events: list[Event] = [started(), session()]
    for name, level in (("a", "easy"), ("b", "hard"), ("c", "easy")):
        events += [attrs.evolve(enqueued(name), metadata={"level": level}), *trial(name)[1:]]  # type: ignore[misc]  # an event is an attrs class
    write_sync(tmp_path / "run", events)

    groups = load(tmp_path / "run").summary(by="level").groups
    assert {"easy": 2, "hard": 1} == {name: part.trials.completed for name, part in (groups or {}).items()}
    groups = load(tmp_path / "run", at=9).summary(by="level").groups
    assert {"easy": 1, "hard": 0} == {name: part.trials.completed for name, part in (groups or {}).items()}


def test_damaged_run(run: Path) -> None:
    """A damaged run is loaded up to the damage; loading a later record raises the damage."""
    flip(segment(run), list(read(run))[9].offset + 60)
    loaded = load(run)

    assert (9, True) == (loaded.seq, isinstance(loaded.problem, JournalDamaged))
    assert 9 == loaded.timeline().seq
    assert [("case-1", "Lima")] == list(loaded.outputs())
    assert (5, None) == (load(run, 5).seq, load(run, 5).problem)
    with pytest.raises(JournalDamaged):
        load(run, 10)


def test_unfinished_last_line(run: Path) -> None:
    """An unfinished last line is reported, and is not damage."""
    lines = lines_of(run)
    overwrite(segment(run), b"".join(lines[:6]) + lines[6][:20])
    loaded = load(run)

    assert (6, None) == (loaded.seq, loaded.problem)
    assert loaded.unfinished is not None
    assert 7 == loaded.unfinished.seq


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (AttemptStarted(trial="b", attempt=1, slot=0), "unknown reference 'b'"),
        ({"type": "attempt_succeeded", "trial": "a", "attempt": 1, "output": 1, "elapsed": "long"}, ""),
    ],
)
def test_invalid_record(tmp_path: Path, event: Any, reason: str) -> None:
    """A journal with correct hashes and an invalid record is loaded up to that record."""
    forge(tmp_path, [opened(), started(), session(), enqueued("a"), event])
    run = load(tmp_path)

    assert isinstance(run.problem, InvalidRecord)
    assert (4, 5) == (run.seq, run.problem.seq)
    assert reason in run.problem.reason
    assert 4 == run.timeline().seq


def test_trial(tmp_path: Path) -> None:
    """A trial has every attempt with its waits, the output and the scores."""
    events = trial("a", retries=1)
    note = Noted(name="tokens", value=7, trial="a", attempt=2)
    write_sync(tmp_path / "run", [started(), session(), *trial("b"), *events[:-2], note, *events[-2:], finished(2)])
    loaded = load(tmp_path / "run").trial("a")

    assert ("completed", "Where is the capital?", "Lima") == (loaded.stage, loaded.input, loaded.output)
    first, second = loaded.attempts
    assert (1, "unavailable", "OSError", "no") == (first.span.attempt, first.span.outcome, first.error, first.message)
    assert (0.5, "unavailable") == (first.retry_delay, first.retry_reason)
    assert (2, "succeeded", [("tokens", 7)]) == (second.span.attempt, second.span.outcome, second.notes)
    assert (0.001, 0.0) == pytest.approx((first.span.queue_time, first.span.backoff_time))
    assert (0.0, 0.001) == pytest.approx((second.span.queue_time, second.span.backoff_time))
    assert {"exact": True} == {name: score.value for name, score in loaded.scores.items()}
    assert loaded.times.run_time == pytest.approx(sum(attempt.span.end - attempt.span.start for attempt in loaded.attempts))


def test_trial_with_a_missing_blob(tmp_path: Path) -> None:
    """A value that cannot be loaded is reported; the rest of the trial is returned."""
    write_sync(tmp_path / "run", [started(), session(), *trial("a", "x" * 300_000)])
    shutil.rmtree(tmp_path / "run" / "blobs")
    loaded = load(tmp_path / "run").trial("a")

    assert ("completed", BlobDamaged) == (loaded.stage, type(loaded.problem))
    assert {"exact"} == set(loaded.scores)


def random_step(seed: int) -> Action:
    """Return a random answer, failure or hang."""
    rng = random.Random(seed)
    after = rng.uniform(0, 3)
    steps: list[Action] = [
        Return("yes", after),
        Return("no", after),
        Fail(ConnectionError("down"), after),
        Fail(RateLimited(rng.choice([None, 2.0])), after),
        Fail(Fatal("never"), after),
        Fail(ValueError("odd"), after),
        Hang(),
    ]
    return rng.choice(steps)


def truncate_randomly(path: Path, rng: random.Random) -> None:
    """Truncate the journal at a random place in its last session, between two lines or within one; or not at all."""
    last = max(path.glob("journal-*.jsonl"))
    lines = last.read_bytes().splitlines(keepends=True)
    remaining = len(lines) - rng.choice([0, 2, 3, 5])
    if remaining < len(lines):
        overwrite(last, b"".join(lines[:remaining]) + rng.choice([b"", lines[remaining][:30]]))


@pytest.mark.parametrize("seed", range(6))
async def test_replayed_screen_equals_the_live_screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """After every record of a run that fails, hangs, is stopped, interrupted and resumed, replay draws what was live."""
    rng = random.Random(seed)
    task = Scripted(lambda name, times: random_step(hash((seed, int(name), times))))

    async def ask(name: str) -> Any:
        return await task(name)

    cases = [Case(name=f"case-{number}", input=str(number)) for number in range(12)]
    definition = evaluation(
        cases=cases, slots=4, timeout=4, deadline=rng.uniform(3, 12), retry=Retry(base_delay=2.0), loop="trio"
    )(ask)

    @definition.score
    def says_yes(output: str, case: Case[str, str]) -> bool:
        return output == "yes"

    path = tmp_path / "run"
    live_screens: dict[int, tuple[float, str]] = {}
    connect = Recorder.__init__

    def connect_and_show(self: Recorder, *arguments: Any) -> None:
        connect(self, *arguments)
        apply = self.journal.on_append
        assert apply is not None

        def apply_and_show(record: Record) -> None:
            apply(record)
            live = LoadedRun(path, self.state, durable=self.journal.durable_seq)
            live_screens[record.seq] = self.clock.now(), screen_text(live, self.clock.now())

        self.journal.on_append = apply_and_show

    monkeypatch.setattr(Recorder, "__init__", connect_and_show)
    for session_number in range(4):
        if session_number:
            truncate_randomly(path, rng)
            remaining = sum(line.endswith(b"\n") for line in lines_of(path))
            live_screens = {seq: screen for seq, screen in live_screens.items() if seq <= remaining}  # The others were lost.
        await arun(definition, path, resume=bool(session_number), grace=0.5, **deterministic_options(seed))

    replayed = LoadedRun(path)
    replayed_screens = {}
    for written_record in read(path, load_blobs=False):
        replayed.apply(written_record)
        if (seq := written_record.seq) in live_screens:
            replayed_screens[seq] = live_screens[seq][0], screen_text(replayed, live_screens[seq][0])
    assert live_screens == replayed_screens

    timeline = replayed.timeline()
    for span in timeline.spans:
        in_flight, limit = (
            [value for _, value, seq in timeline.points(name, session=span.session) if seq <= span.seq][-1]
            for name in ("in_flight", "limit")
        )
        assert in_flight <= limit
