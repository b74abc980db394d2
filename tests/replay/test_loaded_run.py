"""A run as its journal tells it: the same as it was live, at every record, as far as the journal can be trusted."""

import random
import shutil
from pathlib import Path
from typing import Any

import attrs
import pytest
from rich.console import Console

from journal import Event, JournalError, Record, read
from journal.errors import BlobDamaged, InvalidRecord, JournalDamaged
from journal.events import AttemptStarted, Noted, SessionStarted, TrialWithdrawn
from replay import LoadedRun, fold, load
from replay.screen import panel
from replay.summary import in_json, summarise
from runner import Case, Fatal, RateLimited, Retry, arun, evaluation
from runner.engine.recorder import Recorder
from runner.testing import Answer, Fail, Hang, Scripted, Step, repeatable
from tests.journal.samples import (
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
    whole_run,
    written,
)
from tests.journal.test_format import GOLDEN


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Make a run of two trials."""
    written(tmp_path / "run", whole_run())
    return tmp_path / "run"


def drawn(history: LoadedRun, now: float) -> str:
    """Draw the screen as text."""
    console = Console(width=100, highlight=False, markup=False, emoji=False)
    with console.capture() as capture:
        console.print(
            panel(
                history.state,
                now=now,
                durable=history.durable,
                total=history.total,
                width=100,
                done_before=history.done_before,
                title=str(history.path),
            )
        )
    return capture.get()


@pytest.mark.parametrize("at", [None, *range(1, len(list(read(GOLDEN))) + 1)])
def test_a_run_can_be_loaded_at_any_record(at: int | None) -> None:
    """What `load` gives is what the records up to there say; everything that is derived is defined there."""
    history = load(GOLDEN, at)

    assert in_json(summarise(fold(read(GOLDEN), at=at))) == in_json(history.summary())
    assert (history.seq, history.is_last) == (history.timeline().seq, at in (None, len(list(read(GOLDEN)))))
    assert set(history.trials) == {name for name in history.trials if history.trial(name).trial == name}
    assert [name for name, _ in history.outputs()] == [name for name, known in history.trials.items() if known.output_location]


@pytest.mark.parametrize(("at", "said"), [(0, "has no record 0; the first is 1"), (99, "has no record 99; the last is 15")])
def test_a_record_that_is_not_there(run: Path, at: int, said: str) -> None:
    """A point before the first or behind the last record is refused, with the one that there is."""
    with pytest.raises(JournalError, match=said):
        load(run, at)


def test_outputs_come_from_disk_in_the_order_of_their_trials(tmp_path: Path) -> None:
    """Each output stands beside its trial, however large and whenever it came; what was withdrawn is left out."""
    slow, quick, gone = trial("slow", "x" * 300_000), trial("quick", None), trial("gone", 1)
    events = [
        started(),
        session(),
        slow[0],
        quick[0],
        *gone,
        TrialWithdrawn(trial="gone", why="removed"),
        *quick[1:],
        *slow[1:],
    ]
    written(tmp_path / "run", events)

    assert [("slow", "x" * 300_000), ("quick", None)] == list(load(tmp_path / "run").outputs())
    assert [("quick", None)] == list(load(tmp_path / "run", at=15).outputs())


def test_a_summary_by_a_key_of_the_metadata(tmp_path: Path) -> None:
    """What came of each group is counted apart, as it stood at the point that was asked for."""
    events: list[Event] = [started(), session()]
    for name, level in (("a", "easy"), ("b", "hard"), ("c", "easy")):
        life = trial(name)
        events += [attrs.evolve(enqueued(name), metadata={"level": level}), *life[1:]]  # type: ignore[misc]  # a fact is an attrs class
    written(tmp_path / "run", events)

    groups = load(tmp_path / "run").summary(by="level").groups
    assert {"easy": 2, "hard": 1} == {name: part.trials.completed for name, part in (groups or {}).items()}
    groups = load(tmp_path / "run", at=9).summary(by="level").groups
    assert {"easy": 1, "hard": 0} == {name: part.trials.completed for name, part in (groups or {}).items()}


def test_damage_is_told_and_what_stands_before_it_is_there(run: Path) -> None:
    """A damaged run is loaded up to the damage; to ask for what lies behind it raises the damage."""
    flip(segment(run), list(read(run))[9].offset + 60)
    history = load(run)

    assert (9, True) == (history.seq, isinstance(history.problem, JournalDamaged))
    assert 9 == history.timeline().seq
    assert [("case-1", "Lima")] == list(history.outputs())
    assert (5, None) == (load(run, 5).seq, load(run, 5).problem)
    with pytest.raises(JournalDamaged):
        load(run, 10)


def test_an_unfinished_end_is_no_damage(run: Path) -> None:
    """What a writer has left half done is told, and nothing is wrong with it."""
    lines = lines_of(run)
    overwrite(segment(run), b"".join(lines[:6]) + lines[6][:20])
    history = load(run)

    assert (6, None) == (history.seq, history.problem)
    assert history.unfinished is not None
    assert 7 == history.unfinished.seq


@pytest.mark.parametrize(
    ("fact", "said"),
    [
        (AttemptStarted(trial="b", attempt=1, slot=0), "it refers to 'b', which does not exist"),
        (
            {"type": "attempt_succeeded", "trial": "a", "attempt": 1, "output": 1, "elapsed": "long"},
            "",
        ),
    ],
)
def test_a_record_that_makes_no_sense_is_told(tmp_path: Path, fact: Any, said: str) -> None:
    """A journal that is whole, but that evaljournal did not write so, is loaded up to where that shows."""
    forge(tmp_path, [opened(), started(), session(), enqueued("a"), fact])
    history = load(tmp_path)

    assert isinstance(history.problem, InvalidRecord)
    assert (4, 5) == (history.seq, history.problem.seq)
    assert said in history.problem.reason
    assert 4 == history.timeline().seq


def test_the_story_of_a_trial(tmp_path: Path) -> None:
    """Everything that was recorded of a trial is in its story: every attempt with its waits, the output, the scores."""
    events = trial("a", retries=1)
    note = Noted(name="tokens", value=7, trial="a", attempt=2)
    written(tmp_path / "run", [started(), session(), *trial("b"), *events[:-2], note, *events[-2:], finished(2)])
    story = load(tmp_path / "run").trial("a")

    assert ("completed", "Where is the capital?", "Lima") == (story.stage, story.input, story.output)
    first, second = story.attempts
    assert (1, "unavailable", "OSError", "no") == (first.span.attempt, first.span.ending, first.error, first.message)
    assert (0.5, "unavailable") == (first.retry_delay, first.retry_cause)
    assert (2, "succeeded", [("tokens", 7)]) == (second.span.attempt, second.span.ending, second.notes)
    assert (0.001, 0.0) == pytest.approx((first.span.queue_time, first.span.backoff_time))
    assert (0.0, 0.001) == pytest.approx((second.span.queue_time, second.span.backoff_time))
    assert {"exact": True} == {name: said.value for name, said in story.scores.items()}
    assert story.times.run_time == pytest.approx(sum(each.span.end - each.span.start for each in story.attempts))


def test_the_story_of_a_trial_whose_output_is_gone(tmp_path: Path) -> None:
    """A value that cannot be loaded is named in the story, and the rest of it is told."""
    written(tmp_path / "run", [started(), session(), *trial("a", "x" * 300_000)])
    shutil.rmtree(tmp_path / "run" / "blobs")
    story = load(tmp_path / "run").trial("a")

    assert ("completed", BlobDamaged) == (story.stage, type(story.problem))
    assert {"exact"} == set(story.scores)


def anything(seed: int) -> Step:
    """Answer, fail or hang, as the seed says."""
    dice = random.Random(seed)
    after = dice.uniform(0, 3)
    steps: list[Step] = [
        Answer("yes", after),
        Answer("no", after),
        Fail(ConnectionError("down"), after),
        Fail(RateLimited(dice.choice([None, 2.0])), after),
        Fail(Fatal("never"), after),
        Fail(ValueError("odd"), after),
        Hang(),
    ]
    return dice.choice(steps)


def lose_the_end(path: Path, dice: random.Random) -> None:
    """Let the last process have died before, between two lines or within one; or not at all."""
    last = max(path.glob("journal-*.jsonl"))
    lines = last.read_bytes().splitlines(keepends=True)
    left = len(lines) - dice.choice([0, 2, 3, 5])
    if left < len(lines):
        overwrite(last, b"".join(lines[:left]) + dice.choice([b"", lines[left][:30]]))


@pytest.mark.parametrize("seed", range(6))
async def test_the_live_screen_is_the_replayed_screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """After every record of a run that fails, hangs, is stopped, cut off and resumed, replay draws what the run itself drew."""
    dice = random.Random(seed)
    task = Scripted(lambda name, times: anything(hash((seed, int(name), times))))

    async def ask(name: str) -> Any:
        return await task(name)

    cases = [Case(name=f"case-{number}", input=str(number)) for number in range(12)]
    asked = evaluation(cases=cases, slots=4, timeout=4, deadline=dice.uniform(3, 12), retry=Retry(base_delay=2.0), loop="trio")(
        ask
    )

    @asked.score
    def says_yes(output: str, case: Case[str, str]) -> bool:
        return output == "yes"

    path = tmp_path / "run"
    seen: dict[int, tuple[float, str]] = {}
    before = 0
    original = Recorder.record

    def record(self: Recorder, event: Any) -> Record:
        nonlocal before
        said = original(self, event)
        if isinstance(event, SessionStarted):
            before = self.state.done
        live = LoadedRun(path, self.state, durable=self.journal.durable, done_before=before)
        seen[said.seq] = self.clock.now(), drawn(live, self.clock.now())
        return said

    monkeypatch.setattr(Recorder, "record", record)
    for life in range(4):
        if life:
            lose_the_end(path, dice)
            left = sum(line.endswith(b"\n") for line in lines_of(path))
            seen = {seq: each for seq, each in seen.items() if seq <= left}  # The rest never happened.
        await arun(asked, path, resume=bool(life), grace=0.5, **repeatable(seed))

    replayed = LoadedRun(path)
    shown = {}
    for each in read(path, load_blobs=False):
        replayed.apply(each)
        if each.seq in seen:
            shown[each.seq] = seen[each.seq][0], drawn(replayed, seen[each.seq][0])
    assert seen == shown

    told = replayed.timeline()
    for span in told.spans:
        in_flight, limit = (
            [value for _, value, seq in told.steps(name, session=span.session) if seq <= span.seq][-1]
            for name in ("in_flight", "limit")
        )
        assert in_flight <= limit


async def test_the_timeline_shows_the_concurrency_that_there_was(tmp_path: Path) -> None:
    """The most attempts in flight at one time are as many as the task itself has counted, and they were in as many slots."""
    task = Scripted(lambda name, _: Answer(name, 1.0 + int(name) % 3))

    async def ask(name: str) -> Any:
        return await task(name)

    cases = [Case(name=f"case-{number}", input=str(number)) for number in range(40)]
    await arun(evaluation(cases=cases, slots=5, loop="trio")(ask), tmp_path / "run", policy="fixed", **repeatable())
    told = load(tmp_path / "run").timeline()

    assert task.most_in_flight == max(value for _, value, _ in told.steps("in_flight"))
    assert task.most_in_flight == len({span.slot for span in told.spans})
    assert {(times.run_time, times.attempts) for times in told.times.values()} <= {(1.0, 1), (2.0, 1), (3.0, 1)}
