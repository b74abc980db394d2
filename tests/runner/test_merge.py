"""Merged shards: the same results as a run of all cases, and nothing but a complete run at the target."""

import itertools
import os
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import orjson
import pytest
import trio
import trio.testing

from evaljournal import arun, note
from evaljournal.journal import read, salvage, verify, writing
from evaljournal.journal.errors import JournalDamaged
from evaljournal.journal.events import AttemptStarted, RunFinished, RunStarted, RunStopped, SessionStarted, StepReused
from evaljournal.journal.fact import evolve_fact
from evaljournal.replay import RunState, load
from evaljournal.replay.auditing.auditor import audit
from evaljournal.replay.state.shards import missing_shards
from evaljournal.runner.retries.rules import retry_rules
from evaljournal.runner.runs.fork import fork
from evaljournal.runner.runs.merge import MergeResult, merge
from evaljournal.runner.sessions.rescore import Rescoring
from evaljournal.runner.testing import deterministic_options, inline
from tests.journal.samples import enqueued, finished, flip, segment, session, started, trial, write
from tests.runner.test_fork import FastDisk, StepAgent, interrupted_agent, outcome
from tests.runner.test_shards import PROGRAM, echo
from tests.runner_cli.commands import evaljournal
from tests.runs import define, events, flaky_evaluation, numbered_cases

COUNT = 3
FILES = FastDisk()
OFFLINE: Any = {"files": FILES, "in_thread": inline}
"""Options of a copy without syncs and threads."""
ON_DISK: Any = {"files": FILES, **deterministic_options()}
"""Options of a run without syncs."""


async def run_shard(defined: Any, path: Path, number: int, count: int = COUNT, **options: Any) -> Any:
    return await arun(defined, path / f"{number}of{count}", shard=f"{number}/{count}", **{**ON_DISK, **options})


async def run_shards(defined: Any, path: Path, count: int = COUNT, **options: Any) -> list[Path]:
    """Run all shards; return their paths."""
    return [(await run_shard(defined, path, number, count, **options)).path for number in range(1, count + 1)]


def missing_texts(result: MergeResult) -> list[str]:
    return [str(shard) for shard in missing_shards([source.shard for source in result.shards])]


async def merged(paths: list[Path], target: Path) -> MergeResult:
    """Merge shards; the result verifies, and every decision is reproduced."""
    result = await merge(paths, target, **OFFLINE)
    verification, audited = verify(target), audit(read(target), rules=retry_rules)
    not_recomputed = [note for note in audited.notes if "not recomputed" in note]
    assert (None, (), []) == (verification.problem, audited.findings, not_recomputed)
    assert (verification.head, state_of(target)) == (result.head, summary(result.state))
    return result


def state_of(path: Path) -> tuple[Any, ...]:
    """Return the parts of a run's state on disk that `summary` has."""
    return summary(load(path).state)


def summary(state: RunState) -> tuple[Any, ...]:
    """Return counts, duration and results of a run."""
    counts = state.completed, state.failed, state.totals.attempts, state.elapsed, state.sessions.planned, len(state.sessions)
    return *counts, state.outcome, outcome(state), dict(state.usage)


async def check_equal_to_undivided(path: Path, cases: int, first: int, count: int, repeats: int) -> None:
    """Assert that merged shards have the results of a run of all cases."""
    defined, _ = flaky_evaluation(cases, first)
    undivided = await arun(defined, path / "all", repeats=repeats, **ON_DISK)
    shards = await run_shards(flaky_evaluation(cases, first)[0], path, count, repeats=repeats)
    result = await merged(shards, path / "new")

    assert outcome(undivided.state) == outcome(result.state)
    assert ("finished", cases * repeats, []) == (result.state.outcome, result.state.sessions.planned, missing_texts(result))
    assert result.state.totals.attempts == undivided.state.totals.attempts
    last = events(path / "new", RunFinished)[-1]
    assert (undivided.state.completed, undivided.state.failed) == (last.completed, last.failed)


@pytest.mark.parametrize(("cases", "first", "count", "repeats"), [(9, 0, 3, 1), (5, 40, 2, 2), (2, 7, 4, 1)])
async def test_merged_shards_equal_a_run_of_all_cases(tmp_path: Path, cases: int, first: int, count: int, repeats: int) -> None:
    """Outcomes and scores are those of an undivided run, for any number of shards, including empty ones."""
    await check_equal_to_undivided(tmp_path, cases, first, count, repeats)


@pytest.mark.exhaustive
@hypothesis.settings(max_examples=40)
@hypothesis.given(st.integers(1, 30), st.integers(0, 999), st.integers(1, 6), st.integers(1, 3))
def test_random_runs_split_into_shards(
    tmp_path_factory: pytest.TempPathFactory, cases: int, first: int, count: int, repeats: int
) -> None:
    """Random runs that are split into shards give the same results."""
    path = tmp_path_factory.mktemp("shards")
    trio.run(check_equal_to_undivided, path, cases, first, count, repeats, clock=trio.testing.MockClock(autojump_threshold=0))


async def test_every_record_and_time_is_copied(tmp_path: Path) -> None:
    """Trial records keep their content and times; the first record names the shards with their heads."""
    shards = await run_shards(flaky_evaluation(12)[0], tmp_path)
    result = await merged(shards, tmp_path / "new")
    changed = (RunStarted, SessionStarted, RunFinished)

    def copied(path: Path) -> list[Any]:
        records = [record for record in read(path) if not isinstance(record.event, changed)]
        return [(record.at, record.t, record.event) for record in records if "segment" not in str(type(record.event)).lower()]

    (start,) = events(tmp_path / "new", RunStarted)
    assert [row for shard in shards for row in copied(shard)] == copied(tmp_path / "new")
    assert [verify(shard).head for shard in shards] == [entry["head"] for entry in start.merged_from]
    assert [("1/3", 1), ("2/3", 1), ("3/3", 1)] == [(entry["shard"], entry["sessions"]) for entry in start.merged_from]
    assert ("", ["1/3", "2/3", "3/3"]) == (start.shard, [session.shard for session in result.state.sessions])


async def killed(defined: Any, path: Path, number: int, after: float) -> Path:
    """Run a shard in a process that is killed after some seconds; return its path."""
    with trio.move_on_after(after):
        await run_shard(defined, path, number)
    shard = path / f"{number}of{COUNT}"
    record = next(reversed([record for record in read(shard) if isinstance(record.event, AttemptStarted)]))
    os.truncate(segment(shard, record.segment), next(other for other in read(shard) if other.seq == record.seq + 1).offset + 10)
    return shard


async def test_a_killed_shard_is_resumed_before_or_after_the_merge(tmp_path: Path) -> None:
    """A shard that died in an attempt can be resumed and merged, or merged and resumed; completed trials are not repeated."""
    defined, task = flaky_evaluation(15)
    undivided = await arun(flaky_evaluation(15)[0], tmp_path / "all", **ON_DISK)
    shards = [(await run_shard(defined, tmp_path, number)).path for number in (1, 3)]
    shards.append(await killed(defined, tmp_path, 2, 1.5))
    early = await merged(shards, tmp_path / "early")
    done = {name for name, trial in early.state.trials.items() if trial.stage == "completed"}
    task.calls.clear()
    resumed = await arun(defined, tmp_path / "early", resume=True, **ON_DISK)
    assert ("", True) == (early.state.outcome, bool(early.state.trials.running))
    assert not done & set(task.calls)

    await arun(defined, shards[-1], resume=True, **ON_DISK)
    late = await merged(shards, tmp_path / "late")
    assert outcome(undivided.state) == outcome(resumed.state) == outcome(late.state)
    assert (True, ()) == (verify(tmp_path / "early").ok, audit(read(tmp_path / "early"), rules=retry_rules).findings)
    assert ["1/3", "3/3", "2/3", ""] == [session.shard for session in resumed.state.sessions]
    assert ["1/3", "2/3", "2/3", "3/3"] == [session.shard for session in late.state.sessions]


async def test_missing_shards_leave_the_run_unfinished(tmp_path: Path) -> None:
    """Without all shards, the run is not finished; `resume` runs the missing cases only."""
    defined, task = flaky_evaluation(12)
    shards = await run_shards(defined, tmp_path)
    result = await merged(shards[1:], tmp_path / "new")
    task.calls.clear()
    resumed = await arun(defined, tmp_path / "new", resume=True, **ON_DISK)

    assert (["1/3"], "interrupted", 0) == (missing_texts(result), result.state.outcome, result.state.sessions.planned)
    assert ["2/3", "3/3"] == [session.shard for session in result.state.sessions]
    assert set(load(shards[0]).trials) == set(task.calls)
    assert outcome((await merged(shards, tmp_path / "all")).state) == outcome(resumed.state)
    assert ("finished", 12) == (resumed.state.outcome, resumed.state.sessions.planned)
    assert () == audit(read(tmp_path / "new"), rules=retry_rules).findings


async def test_steps_refer_to_their_copies(tmp_path: Path) -> None:
    """Records that name a completed step name its copy; unfinished bytes and recoveries of a shard are not copied."""
    await interrupted_agent(tmp_path / "agent", StepAgent(), FILES)
    paths = [tmp_path / f"{number}of2" for number in (1, 2)]
    for number, path in enumerate(paths, 1):
        await relabeled(tmp_path / "agent", path, f"{number}/2", suffix=str(number))
    result = await merge(paths, tmp_path / "new", **OFFLINE)
    records = {record.seq: record.event for record in read(tmp_path / "new")}
    reused = [event for event in records.values() if isinstance(event, StepReused)]

    assert 4 == result.state.completed
    assert {"a1", "b1", "a2", "b2"} == {event.trial for event in reused}
    assert all(event.trial == getattr(records[event.completed_seq], "trial", "") for event in reused)
    assert () == audit(read(tmp_path / "new"), rules=retry_rules).findings


async def relabeled(source: Path, target: Path, shard: str, suffix: str = "") -> None:
    """Write a run again as a shard, with another name for each trial."""
    numbers: dict[int, int] = {}
    records = iter(read(source))
    current = next(records)
    async with writing(target, new=True, clock=lambda: (current.at, current.t), **OFFLINE) as journal:
        for record in records:
            current, event = record, record.event
            name = type(event).__name__
            if name.startswith(("Segment", "JournalRecovered")):
                continue
            changes: dict[str, Any] = {"shard": shard} if isinstance(event, RunStarted) else {}
            changes |= {key: getattr(event, key) + suffix for key in ("trial", "case") if getattr(event, key, "")}
            if isinstance(event, StepReused):
                changes["completed_seq"] = numbers[event.completed_seq]
            if isinstance(event, RunFinished):
                changes["head"] = journal.head
            numbers[record.seq] = journal.append(evolve_fact(event, **changes)).seq


async def test_settings_and_adopted_changes_are_those_of_each_session(tmp_path: Path) -> None:
    """Sessions of a shard with other slots and a changed task are audited with them, and outputs of the older task counted."""
    cases, older = numbered_cases(12), []

    async def before(value: str) -> str:
        await trio.sleep(1)
        return value

    async def now(value: str) -> str:
        await trio.sleep(1)
        return f"new {value}"

    old, new = (define(task, cases, slots=2, name="same") for task in (before, now))
    for number in (1, 2):
        with trio.move_on_after(2.5):
            await run_shard(old, tmp_path, number, 2)
        path = tmp_path / f"{number}of2"
        state = (await arun(new, path, resume=True, adopt=True, slots=3, **ON_DISK)).state
        older.append(state.sessions.task_versions.older_outputs)
    result = await merged([tmp_path / "1of2", tmp_path / "2of2"], tmp_path / "new")

    assert 0 < result.state.sessions.task_versions.older_outputs == sum(older)
    assert [2, 3, 2, 3] == session_slots(tmp_path / "new")


def session_slots(path: Path) -> list[int]:
    state, slots = RunState(), list[int]()
    for record in read(path):
        state.apply(record)
        if isinstance(record.event, SessionStarted):
            slots.append(state.settings["slots"])
    return slots


async def test_large_values_are_copied(tmp_path: Path) -> None:
    """Outputs in blobs are in the merged run, too."""
    cases = numbered_cases(6)

    async def long(value: str) -> str:
        return value * 50_000

    shards = await run_shards(define(long, cases), tmp_path)
    result = await merged(shards, tmp_path / "new")

    assert 6 == verify(tmp_path / "new").blobs == len(dict(load(tmp_path / "new").outputs()))
    assert {case.name: case.name * 50_000 for case in cases} == dict(load(result.path).outputs())


def ticking(start: float) -> Any:
    """Return a clock that advances by a second with each record; `t` starts at 0."""
    ticks = itertools.count()

    def read_clock() -> tuple[str, float]:
        tick = next(ticks)
        return f"2026-11-15T00:00:{start + tick:09.6f}Z", float(tick)

    return read_clock


def shard_events(shard: str, name: str, **changes: Any) -> list[Any]:
    """Return the events of a shard with one trial."""
    return [evolve_fact(started(), shard=shard, trials=1, **changes), session(), *trial(name), finished()]


async def test_duration_and_timeline_use_wall_time(tmp_path: Path) -> None:
    """Time in which several shards ran counts once; their attempts in flight are added up, and wall times are kept."""
    paths = [tmp_path / "1of2", tmp_path / "2of2"]
    for number, path in enumerate(paths, 1):
        await write(path, shard_events(f"{number}/2", f"case-{number}"), clock=ticking(number / 2), **OFFLINE)
    last = next(record.t for record in read(paths[0]) if isinstance(record.event, RunFinished))
    result = await merge(paths, tmp_path / "new", **OFFLINE)
    run = load(tmp_path / "new")
    in_flight = [(t, value) for t, value, _ in run.timeline().points("in_flight")]

    assert last + 0.5 == result.state.elapsed == run.state.elapsed
    assert [0.0, 0.5] == [session.offset for session in run.timeline().sessions]
    assert [(4.0, 1), (4.5, 2), (5.0, 1), (5.5, 0)] == [point for point in in_flight if 4 <= point[0] < 6]
    assert ["1/2", "2/2"] == [session.shard for session in run.state.sessions]


async def test_a_salvaged_and_a_forked_shard_are_merged(tmp_path: Path) -> None:
    """A damaged shard can be salvaged, or forked before the damage, and then be resumed and merged."""
    defined, _ = flaky_evaluation(12)
    undivided = await arun(flaky_evaluation(12)[0], tmp_path / "all", **ON_DISK)
    paths = await run_shards(defined, tmp_path)
    flip(segment(paths[0]), list(read(paths[0]))[8].offset + 60)
    starts_of_attempts = [record for record in read(paths[1]) if isinstance(record.event, AttemptStarted)]
    await salvage(paths[0], tmp_path / "salvaged", **OFFLINE)
    await fork(paths[1], tmp_path / "forked", starts_of_attempts[-1].seq, **OFFLINE)
    for path in (tmp_path / "salvaged", tmp_path / "forked"):
        await arun(defined, path, resume=True, **ON_DISK)
    result = await merge([tmp_path / "forked", paths[2], tmp_path / "salvaged"], tmp_path / "new", **OFFLINE)
    audited = audit(read(tmp_path / "new"), rules=retry_rules)

    assert {True} == {shard.is_finished for shard in result.shards}
    assert outcome(undivided.state) == outcome(result.state)
    assert (True, (), True) == (verify(tmp_path / "new").ok, audited.findings, "salvaged" in audited.notes[0])
    assert not audited.notes[0].startswith("records 1 to")
    with pytest.raises(JournalDamaged):
        await merge([paths[0], *paths[1:]], tmp_path / "damaged", **OFFLINE)


async def test_a_salvaged_merged_run_is_not_accused(tmp_path: Path) -> None:
    """If the session of a shard is lost, its records are not checked against the settings of another shard."""
    defined, _ = flaky_evaluation(12)
    paths = [(await run_shard(defined, tmp_path, number, slots=slots)).path for number, slots in ((1, 1), (2, 4), (3, 1))]
    await merge(paths, tmp_path / "new", **OFFLINE)
    second_session = next(record for record in read(tmp_path / "new") if getattr(record.event, "session", 0) == 2)
    flip(segment(tmp_path / "new"), second_session.offset + 60)
    await salvage(tmp_path / "new", tmp_path / "salvaged", **OFFLINE)
    audited = audit(read(tmp_path / "salvaged"), rules=retry_rules)

    assert (True, ()) == (verify(tmp_path / "salvaged").ok, audited.findings)
    assert audited.notes[0].startswith("records 1 to")


def test_the_command_reports_missing_shards_and_checks_gates(tmp_path: Path) -> None:
    """Exit codes: 3 with missing shards, 1 if a gate of the merged run does not pass, 4 if a shard is damaged."""
    Path("ev.py").write_text(PROGRAM)
    for number in (1, 2):
        assert 0 == evaljournal("run", "ev.py", "--shard", f"{number}/2", "--fail-under", "wrong=1", "--limit", 6).exit_code
    shards = sorted(Path("runs/same").iterdir())
    missing = evaljournal("merge", shards[0], "-o", tmp_path / "missing", "--json")
    complete = evaljournal("merge", *shards, "-o", "runs/same/0001", "--json")
    answer = orjson.loads(complete.stdout)
    flip(segment(shards[1]), 900)
    damaged = evaljournal("merge", *shards, "-o", tmp_path / "damaged")

    assert (3, ["2/2"], 3) == (
        missing.exit_code,
        *(orjson.loads(missing.stdout)[key] for key in ("missing_shards", "exit_code")),
    )
    assert (1, [], 6) == (complete.exit_code, answer["missing_shards"], answer["trials"]["completed"])
    assert [("1/2", True), ("2/2", True)] == [(shard["shard"], shard["finished"]) for shard in answer["shards"]]
    assert (4, False) == (damaged.exit_code, (tmp_path / "damaged").exists())
    assert 0 == evaljournal("verify", "runs/same/0001").exit_code
    assert "missing shards: 2/2" in evaljournal("status", tmp_path / "missing").stdout
    assert 2 == evaljournal("replay", tmp_path / "missing", "--at-time", 1).exit_code
    assert 0 == evaljournal("resume", tmp_path / "missing", "--fail-under", "wrong=0").exit_code
    assert "missing shards" not in evaljournal("status", tmp_path / "missing").stdout


async def test_every_shard_has_its_own_budget(tmp_path: Path) -> None:
    """The audit counts what a shard has spent; a resumed merged run counts all shards, and needs a larger budget."""

    async def paid(value: str) -> str:
        await trio.sleep(1)
        note(cost=0.1)
        return value

    defined = define(paid, numbered_cases(20), slots=2, policy="fixed", budget={"cost": 0.5})
    shards = await run_shards(defined, tmp_path, 2)
    result = await merged(shards, tmp_path / "new")
    stopped = await arun(defined, tmp_path / "new", resume=True, **ON_DISK)
    resumed = await arun(defined, tmp_path / "new", resume=True, budget={"cost": 5}, **ON_DISK)

    assert (10, "budget") == (result.state.completed, result.state.outcome)
    assert ("budget", 10) == (stopped.stop_reason, stopped.state.completed)
    assert (20, "finished") == (resumed.state.completed, resumed.state.outcome)
    assert () == audit(read(tmp_path / "new"), rules=retry_rules).findings


@pytest.mark.parametrize(("number", "ending"), [(2, "interrupted"), (3, "finished")])
async def test_a_scored_merged_run_is_finished_only_with_all_shards(tmp_path: Path, number: int, ending: str) -> None:
    """Re-scored, a run with missing shards stays unfinished, and a complete one finished."""
    shards = await run_shards(define(echo, numbered_cases(9)), tmp_path)
    result = await merge(shards[:number], tmp_path / "new", **OFFLINE)
    scored = define(echo, numbered_cases(9))

    @scored.score
    def is_text(output: str) -> bool:
        return isinstance(output, str)

    await Rescoring(scored, tmp_path / "new", **OFFLINE).rescore()
    state = load(tmp_path / "new").state
    assert (ending, ending) == (result.state.outcome, state.outcome)
    assert () == audit(read(tmp_path / "new"), rules=retry_rules).findings


async def test_unfinished_shards_are_merged_in_any_state(tmp_path: Path) -> None:
    """A shard that was finished once and then resumed can follow one with open trials."""
    stopped = RunStopped(reason="interrupted")
    open_shard = [*shard_events("1/2", "a")[:2], enqueued("a"), stopped]
    resumed_shard = [*shard_events("2/2", "b"), session(2), enqueued("c"), stopped]
    for number, shard in enumerate((open_shard, resumed_shard), 1):
        await write(tmp_path / str(number), shard, **OFFLINE)
    result = await merge([tmp_path / "2", tmp_path / "1"], tmp_path / "new", **OFFLINE)

    assert (None, "interrupted") == (verify(tmp_path / "new").problem, result.state.outcome)
    assert {"a": "queued", "b": "completed", "c": "queued"} == {name: t.stage for name, t in result.state.trials.items()}


async def test_a_fork_of_a_merged_run_has_the_shards_up_to_it(tmp_path: Path) -> None:
    """Forked between two shards, a merged run is not finished; `resume` runs the cases of the others, as its own session."""
    defined, task = flaky_evaluation(12)
    result = await merged(await run_shards(defined, tmp_path), tmp_path / "new")
    second_shard = result.state.sessions[1].seq
    forked = await fork(tmp_path / "new", tmp_path / "fork", second_shard - 1, **OFFLINE)
    inside = await fork(tmp_path / "new", tmp_path / "inside", second_shard + 3, **OFFLINE)
    task.calls.clear()
    resumed = await arun(defined, tmp_path / "fork", resume=True, **ON_DISK)

    assert ("interrupted", ["2/3", "3/3"]) == (
        forked.state.outcome,
        [str(shard) for shard in missing_shards(forked.state.sessions.merged.shards)],
    )
    assert ["1/3", "2/3"] == [session.shard for session in inside.state.sessions]
    assert not set(forked.state.trials) & set(task.calls)
    assert ["1/3", ""] == [session.shard for session in resumed.state.sessions]
    assert (outcome(result.state), 12) == (outcome(resumed.state), resumed.state.sessions.planned)
    assert () == audit(read(tmp_path / "fork"), rules=retry_rules).findings
