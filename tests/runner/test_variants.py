"""Runs with variants: order, resuming, adopted changes, and the rate-limit keys of variants."""

import random
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from evaljournal import Case, UsageError, step, verify
from evaljournal.journal import read
from evaljournal.journal.events import (
    AttemptSucceeded,
    RunStarted,
    RunStopped,
    SessionStarted,
    StepReused,
    TrialCompleted,
    TrialEnqueued,
    TrialWithdrawn,
)
from evaljournal.replay import fold
from evaljournal.replay.state.definition import variant_fingerprints
from evaljournal.runner.data.dataset import Dataset
from evaljournal.runner.errors import RunChanged
from tests.journal.disk import SimulatedDisk
from tests.runs import (
    PATH,
    AnyEvaluation,
    define,
    define_real,
    events,
    findings,
    numbered_cases,
    run_killed,
    run_real,
    run_virtual,
)

FOUR = {name: {"model": name} for name in ("nano", "mini", "medium", "large")}


class Calls:
    """A task that counts its calls by case and model."""

    def __init__(self, seconds: float = 1.0) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.seconds = seconds

    def define(self, variants: Mapping[str, Mapping[str, Any]] | None, cases: int = 6, **options: Any) -> AnyEvaluation:
        """Return an evaluation with these variants."""

        async def task(value: str, model: str = "") -> str:
            self.counts[value, model] += 1
            await trio.sleep(self.seconds)
            return f"{model} {value}"

        settings = {"slots": 2, "policy": "fixed", **options}
        return define(task, numbered_cases(cases), **({} if variants is None else {"variants": variants}), **settings)

    def by_model(self) -> dict[str, int]:
        """Return model → calls."""
        models: Counter[str] = Counter()
        for (_, model), count in self.counts.items():
            models[model] += count
        return dict(models)


async def test_all_variants_of_a_case_come_before_the_next_case(disk: SimulatedDisk) -> None:
    """Trials are enqueued case by case, with all variants and their repeats; case, variant and repeat are recorded."""
    variants = {name: FOUR[name] for name in ("mini", "large")}
    outcome = await run_virtual(Calls().define(variants, cases=2, repeats=2), disk)

    assert [
        ("case-0@mini", "case-0", "mini", 1),
        ("case-0@mini#2", "case-0", "mini", 2),
        ("case-0@large", "case-0", "large", 1),
        ("case-0@large#2", "case-0", "large", 2),
    ] == [(event.trial, event.case, event.variant, event.repeat) for event in events(disk, TrialEnqueued)[:4]]
    assert (8, 8, ["mini", "large"]) == (
        outcome.state.sessions.planned,
        outcome.state.totals.done,
        list(outcome.state.variants),
    )
    (started,) = events(disk, RunStarted)
    assert {"mini": {"model": "mini"}, "large": {"model": "large"}} == {
        name: variant["parameters"] for name, variant in started.definition["variants"].items()
    }
    assert [] == findings(disk)


@given(st.integers(1, 4), st.lists(st.sampled_from("abcd"), min_size=1, unique=True), st.integers(1, 3))
def test_the_order_of_trials(cases: int, variants: list[str], repeats: int) -> None:
    """After any number of trials, no variant is more than one case ahead of another; every trial occurs once."""
    trials = list(Dataset(numbered_cases(cases)).select(repeats=repeats, variants=variants))

    assert cases * len(variants) * repeats == len({trial.id for trial in trials})
    complete: Counter[str] = Counter()
    for trial in trials:
        complete[trial.variant] += 1
        done = [complete[variant] / repeats for variant in variants]
        assert max(done) - min(done) <= 1


def test_ids_are_unique_whatever_the_names() -> None:
    """A case whose name looks like a trial with a variant or a repeat clashes with no other."""
    names = ["a", "a@x", "a@x#2", "a#2", "a@x@x"]
    trials = Dataset([Case(name=name, input=name) for name in names]).select(variants=["x", "y"])

    assert 10 == len({trial.id for trial in trials})


async def test_a_killed_run_with_four_variants_is_resumed_with_a_fifth() -> None:
    """After a kill, exactly the open trials and those of the adopted variant are called."""
    killed, resumed = Calls(), Calls()
    disk = await run_killed(killed.define(FOUR), SimulatedDisk(), after=5.5)
    done = {event.trial for event in events(disk, TrialCompleted)}
    five = resumed.define({**FOUR, "huge": {"model": "huge"}})
    with pytest.raises(RunChanged, match="1 variant added: 'huge'"):
        await run_virtual(five, disk, resume=True)
    outcome = await run_virtual(five, disk, resume=True, adopt=True)

    assert 0 < len(done) < 24
    expected = {(f"case-{n}", model) for n in range(6) for model in (*FOUR, "huge")}
    expected -= {(trial.split("@")[0], trial.split("@")[1]) for trial in done}
    assert dict.fromkeys(expected, 1) == resumed.counts
    assert (30, 30, 0) == (outcome.state.sessions.planned, outcome.state.completed, outcome.state.totals.stages["withdrawn"])
    assert ["variant huge (new)"] == [*outcome.state.sessions[-1].adopted]
    assert [] == findings(disk)


async def test_a_changed_variant_runs_only_its_own_trials_again(disk: SimulatedDisk) -> None:
    """Adopting a changed variant withdraws its trials as changed, and runs them again; the others keep their results."""
    first, second = Calls(), Calls()
    await run_virtual(first.define(FOUR), disk)
    changed = second.define({**FOUR, "mini": {"model": "mini-2"}})
    with pytest.raises(RunChanged, match="1 variant changed: 'mini'; only their trials would run again") as rejected:
        await run_virtual(changed, disk, resume=True, retry_failed=True)
    outcome = await run_virtual(changed, disk, resume=True, adopt=True)

    assert any("-" in line and "model: mini" in line for line in rejected.value.changes)
    assert {"mini-2": 6} == second.by_model()
    assert {("changed", 6)} == set(Counter(event.reason for event in events(disk, TrialWithdrawn)).items())
    assert (24, 0, 0) == (
        outcome.state.completed,
        outcome.state.totals.stages["withdrawn"],
        outcome.state.sessions.task_versions.older_outputs,
    )
    assert [] == findings(disk)


async def test_a_removed_variant_is_withdrawn(disk: SimulatedDisk) -> None:
    """Adopting that a variant was removed withdraws its trials; nothing is called."""
    first, second = Calls(), Calls()
    await run_virtual(first.define(FOUR), disk)
    fewer = second.define({name: FOUR[name] for name in ("nano", "mini", "large")})
    with pytest.raises(RunChanged, match="1 variant removed: 'medium'; their trials would be withdrawn"):
        await run_virtual(fewer, disk, resume=True, retry_failed=True)
    outcome = await run_virtual(fewer, disk, resume=True, adopt=True)

    assert {} == second.by_model()
    assert (18, 18, 6) == (outcome.state.sessions.planned, outcome.state.completed, outcome.state.totals.stages["withdrawn"])
    assert {"removed"} == {event.reason for event in events(disk, TrialWithdrawn)}
    assert [] == findings(disk)


async def test_variants_that_are_added_to_a_run_without_any(disk: SimulatedDisk) -> None:
    """The trials of a run without variants are withdrawn if variants are adopted, even if an id is the same."""
    first, second = Calls(), Calls()
    cases = [Case(name="a@mini", input="1"), Case(name="a", input="1")]
    await run_virtual(define(first.define(None).task, cases), disk)
    changed = define(second.define({"mini": {"model": "m"}}).task, cases[1:], variants={"mini": {"model": "m"}})
    outcome = await run_virtual(changed, disk, resume=True, adopt=True)

    assert {"m": 1} == second.by_model()
    trial = outcome.state.trials["a@mini"]
    assert ("a", "mini", "completed") == (trial.case, trial.variant, trial.stage)
    assert (1, 1) == (outcome.state.completed, outcome.state.totals.stages["withdrawn"])
    assert [] == findings(disk)


async def test_an_id_is_not_enough_to_match_a_trial() -> None:
    """A recorded trial with the id and the content of another case's repeat is withdrawn, not taken for it."""
    disk, calls = SimulatedDisk(), Calls()
    task = calls.define(None).task
    await run_virtual(define(task, [Case(name="a#2", input="1")]), disk)
    outcome = await run_virtual(define(task, [Case(name="a", input="1")], repeats=2), disk, resume=True, adopt=True)

    trial = outcome.state.trials["a#2"]
    assert (2, "a", 2) == (outcome.state.completed, trial.case, trial.repeat)
    assert ["changed"] == [event.reason for event in events(disk, TrialWithdrawn)]


@pytest.mark.parametrize("seconds", [0.0, 1.5])
async def test_a_change_that_was_adopted_by_a_killed_session(seconds: float) -> None:
    """A kill after a changed variant was adopted leaves none of its old results, without adopting it again."""
    disk = SimulatedDisk()
    await run_virtual(Calls().define(FOUR), disk)
    changed = {**FOUR, "mini": {"model": "mini-2"}}
    disk = await run_killed(Calls().define(changed), disk, after=seconds, resume=True, adopt=True)
    last = Calls()
    outcome = await run_virtual(last.define(changed), disk, resume=True)

    assert {"mini-2"} == set(last.by_model())
    assert 24 == outcome.state.completed
    assert 24 + 6 == len(events(disk, TrialEnqueued))
    assert [] == findings(disk)


async def test_steps_are_reused_only_by_the_same_variant() -> None:
    """After a kill, a variant reuses its own steps; one whose parameters have changed reuses none."""

    def evaluation_of(variants: Mapping[str, Mapping[str, Any]]) -> AnyEvaluation:
        async def task(value: str, *, model: str) -> str:
            async def plan() -> str:
                await trio.sleep(1)
                return value

            plans = [await step("plan", plan) for _ in range(3)]
            return f"{model} {len(plans)}"

        return define(task, numbered_cases(1), variants=variants, slots=2, policy="fixed")

    two = {name: FOUR[name] for name in ("mini", "large")}
    disk = await run_killed(evaluation_of(two), SimulatedDisk(), after=2.5)
    changed = {**two, "mini": {"model": "mini-2"}}
    outcome = await run_virtual(evaluation_of(changed), disk, resume=True, adopt=True)

    assert {("case-0@large", 2)} == set(Counter(event.trial for event in events(disk, StepReused)).items())
    assert 2 == outcome.state.completed
    assert [] == findings(disk)


async def test_a_run_of_some_variants() -> None:
    """A run with only some variants is finished when these are; resuming it stays with them."""
    calls, disk = Calls(), SimulatedDisk()
    defined = calls.define(FOUR)
    outcome = await run_virtual(defined, disk, only_variants=["mini", "large"])

    assert ({"mini": 6, "large": 6}, 12, "") == (calls.by_model(), outcome.state.sessions.planned, outcome.stop_reason)
    assert "" == (await run_virtual(defined, disk, resume=True, retry_failed=True)).stop_reason


async def test_variants_are_added_to_a_run_of_some(disk: SimulatedDisk) -> None:
    """A run of some variants gets another one if that is adopted; it is then part of the run."""
    await run_virtual(Calls().define(FOUR), disk, only_variants=["mini"])
    added, last = Calls(), Calls()
    with pytest.raises(RunChanged, match=r"has only the variants 'mini'; .* adds 'large'"):
        await run_virtual(added.define(FOUR), disk, resume=True, retry_failed=True, only_variants="large")
    outcome = await run_virtual(added.define(FOUR), disk, resume=True, adopt=True, only_variants="large")

    assert ({"large": 6}, 12, "") == (added.by_model(), outcome.state.completed, outcome.stop_reason)
    assert 12 == (await run_virtual(last.define(FOUR), disk, resume=True, adopt=True)).state.completed
    assert {} == last.by_model()
    assert [] == findings(disk)


async def test_a_session_of_some_variants() -> None:
    """A session may resume only some variants; the others stay open, and the next session runs them."""
    disk = await run_killed(Calls().define(FOUR), SimulatedDisk(), after=1.5)
    calls, remaining_calls = Calls(), Calls()
    outcome = await run_virtual(calls.define(FOUR), disk, resume=True, only_variants="mini")

    assert ({"mini"}, "interrupted") == (set(calls.by_model()), outcome.stop_reason)
    assert (6, 24) == (outcome.state.variants["mini"].done, outcome.state.sessions.planned)
    assert "interrupted" == events(disk, RunStopped)[-1].reason
    last = await run_virtual(remaining_calls.define(FOUR), disk, resume=True)
    assert ({"nano", "medium", "large"}, 24, "") == (set(remaining_calls.by_model()), last.state.completed, last.stop_reason)
    assert [] == findings(disk)


@pytest.mark.parametrize(
    ("variants", "only", "message"),
    [(FOUR, "mni", "has no variant 'mni'; did you mean 'mini'"), (None, "mini", "has no variants")],
)
async def test_unknown_variants(variants: Any, only: str, message: str) -> None:
    """The name of a variant that does not exist is an error before anything starts."""
    with pytest.raises(UsageError, match=message):
        await run_virtual(Calls().define(variants), SimulatedDisk(), only_variants=only)


async def test_more_than_a_thousand_variants_need_a_confirmation(disk: SimulatedDisk) -> None:
    """A product of more than 1,000 variants is rejected before anything starts, unless `yes` is set."""
    many: Any = {"model": [f"m{number}" for number in range(1_001)]}
    with pytest.raises(UsageError, match="has 1,001 variants, more than 1,000"):
        await run_virtual(Calls().define(many, cases=1), disk)
    outcome = await run_virtual(Calls().define(many, cases=1), disk, yes=True, deadline=0.5)

    assert (1_001, "deadline") == (outcome.state.sessions.planned, outcome.stop_reason)


def test_a_definition_that_is_a_blob(path: Path) -> None:
    """Variants with large prompts are compared as well: only the changed one runs again."""

    def task(value: str, *, prompt: str) -> str:
        called.append(prompt[:1])
        return f"{value}{len(prompt)}"

    called: list[str] = []
    before = {name: {"prompt": name * 200_000} for name in "ab"}
    run_real(define_real(task, variants=before), path, quiet=True)
    changed = define_real(task, variants={**before, "b": {"prompt": "c" * 200_000}})
    with pytest.raises(RunChanged, match="1 variant changed: 'b'"):
        run_real(changed, path, quiet=True, resume=True, retry_failed=True)
    outcome = run_real(changed, path, quiet=True, resume=True, adopt=True)

    assert ["a", "b", "c"] == [*sorted(called[:2]), *called[2:]]
    assert (2, ("variant b",)) == (outcome.state.completed, outcome.state.sessions[-1].adopted)
    assert (path / "blobs").is_dir()
    assert verify(path).ok


async def test_a_session_records_what_it_adopted(disk: SimulatedDisk) -> None:
    """The session that adopts variants records their fingerprints and the new definition."""
    await run_virtual(Calls().define({"mini": FOUR["mini"]}, cases=1), disk)
    await run_virtual(Calls().define(FOUR, cases=1), disk, resume=True, adopt=True)

    session = events(disk, SessionStarted)[-1]
    assert list(FOUR) == list(session.adopted["variants"]) == list(session.definition["variants"])


@pytest.mark.parametrize("seed", [*range(5), *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(5, 200))])
def test_variants_change_from_session_to_session(seed: int) -> None:
    """However variants are added, changed and removed, and sessions killed, the last session calls exactly the open trials."""
    rng, disk = random.Random(seed), SimulatedDisk()

    async def session(calls: Calls, variants: Mapping[str, Mapping[str, Any]], seconds: float | None) -> None:
        nonlocal disk
        defined, resume = calls.define(variants, cases=4), disk.exists(str(PATH))
        if seconds is None:
            await run_virtual(defined, disk, resume=resume, adopt=resume)
            return
        with suppress(IndexError):  # It was finished before the kill.
            disk = await run_killed(defined, disk, after=seconds, resume=resume, adopt=resume)

    def chosen() -> dict[str, dict[str, Any]]:
        names = rng.sample("abcd", rng.randint(1, 4))
        return {name: {"model": f"{name}{rng.randint(1, 2)}"} for name in sorted(names)}

    clock = trio.testing.MockClock
    for _ in range(rng.randint(1, 4)):
        trio.run(session, Calls(), chosen(), rng.uniform(0, 9), clock=clock(autojump_threshold=0))
    last, calls = chosen(), Calls()
    before = fold(read(PATH, files=disk))
    recorded = variant_fingerprints(before.started.definition if before.started else None)
    trio.run(session, calls, last, None, clock=clock(autojump_threshold=0))

    definition = calls.define(last).definition["variants"]
    unchanged_names = {name for name in last if recorded.get(name) == definition[name]["fingerprint"]}
    done = {
        (trial.case, last[trial.variant]["model"])
        for trial in before.trials.values()
        if trial.variant in unchanged_names and trial.output_location is not None and trial.stage in {"scoring", "completed"}
        if not before.variants.is_outdated(trial)
    }
    trials = {(f"case-{number}", parameters["model"]) for number in range(4) for parameters in last.values()}
    assert dict.fromkeys(trials - done, 1) == calls.counts
    state = fold(read(PATH, files=disk))
    assert (len(trials), len(trials), "finished") == (state.completed, state.totals.total, state.outcome)
    recorded_outputs = {event.trial: event.output for event in events(disk, AttemptSucceeded)}
    assert {f"{case}@{name}": f"{last[name]['model']} {case}" for name in last for case, _ in trials} == {
        trial: output for trial, output in recorded_outputs.items() if state.trials[trial].stage == "completed"
    }
    assert [] == findings(disk)
