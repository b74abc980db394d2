"""Shards: which cases belong to one, and a run of one."""

from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import orjson
import pytest
import trio

from evaljournal import Case, UsageError, arun
from evaljournal.replay.state.shards import Shard
from evaljournal.runner.data.dataset import Dataset, Selection, parse_shard
from evaljournal.runner.runs.paths import next_path
from evaljournal.runner.testing import deterministic_options
from tests.runner.test_fork import FastDisk
from tests.runner_cli.commands import evaljournal
from tests.runs import define, numbered_cases

PROGRAM = """
from evaljournal import Case, evaluation

@evaluation(cases=[Case(name=f"case-{number}", input=number) for number in range(40)])
def same(number: int) -> int:
    return number

@same.score
def wrong(output: int) -> bool:
    return False
"""


async def echo(value: Any) -> Any:
    """Return the input."""
    return value


def names(cases: Any, shard: str | None, **selection: Any) -> list[str]:
    trials = Dataset(cases).select(Selection(**selection), shard=parse_shard(shard))
    return [trial.case.name for trial in trials]


@hypothesis.given(
    st.lists(st.integers(0, 999), min_size=1, max_size=30, unique=True),
    st.lists(st.integers(1_000, 1_999), max_size=30, unique=True),
    st.integers(1, 9),
)
def test_every_case_is_in_one_shard_and_stays_there(before: list[int], added: list[int], count: int) -> None:
    """The shards have all cases, each once; new cases and another order or name do not move one to another shard."""
    shards = [f"{number}/{count}" for number in range(1, count + 1)]
    cases_by_shard = [set(names(before, shard)) for shard in shards]
    larger_by_shard = [set(names([*added, *reversed(before)], shard)) for shard in shards]
    renamed = [Case(name=f"n{number}", input=number) for number in before]

    assert sorted(names(before, None)) == sorted(name for shard_cases in cases_by_shard for name in shard_cases)
    assert all(shard_cases <= larger for shard_cases, larger in zip(cases_by_shard, larger_by_shard, strict=True))
    assert [len(shard_cases) for shard_cases in cases_by_shard] == [len(names(renamed, shard)) for shard in shards]


def test_cases_are_selected_before_they_are_divided() -> None:
    """`limit`, `only` and `shuffle` choose the same cases for all shards, and all shards have the same fingerprint."""
    cases, selection = numbered_cases(50), Selection(limit=20, shuffle=True, only=("case-*",))
    shards = [Dataset(cases).select(selection, repeats=2, shard=Shard(number, 4)) for number in range(1, 5)]
    undivided = Dataset(cases).select(selection, repeats=2)

    assert sorted(trial.id for trial in undivided) == sorted(trial.id for shard in shards for trial in shard)
    assert {undivided.fingerprint} == {shard.fingerprint for shard in shards}
    assert [20] * 4 == [shard.all_cases for shard in shards]
    assert 20 == sum(shard.cases or 0 for shard in shards)


@pytest.mark.parametrize("value", ["0/8", "9/8", "3/0", "3", "-1/8", "3/8/1", " 3/8", "٣/8", "1/100001", "", "x", 3, 0.5])
def test_an_invalid_shard_is_rejected(value: Any) -> None:
    """Anything but K/N with K from 1 to N is a usage error."""
    with pytest.raises(UsageError) as raised:
        trio.run(lambda: arun(define(echo, [1]), "run", shard=value))

    assert ("shard", value) == (raised.value.setting, raised.value.value)
    assert not Path("run").exists()


async def test_a_run_of_a_shard_records_it_and_keeps_it(path: Path) -> None:
    """The shard is recorded, the default slots are divided, and a resumed run keeps it; another one is rejected."""
    defined, files = define(echo, numbered_cases(30)), FastDisk()
    first = await arun(defined, path, shard="2/8", files=files, **deterministic_options())
    resumed = await arun(defined, path, resume=True, adopt=True, files=files, **deterministic_options())
    with pytest.raises(UsageError, match="is shard 2/8") as raised:
        await arun(defined, path, resume=True, adopt=True, shard="3/8", files=files, **deterministic_options())

    assert first.state.started is not None
    assert ("2/8", 100 // 8) == (first.state.started.shard, first.state.settings["slots"])
    assert sorted(names(numbered_cases(30), "2/8")) == sorted(first.state.trials) == sorted(resumed.state.trials)
    assert len(first.state.trials) == first.state.sessions.planned
    assert "shard" == raised.value.setting


@pytest.mark.parametrize("cases", [numbered_cases(1), lambda: iter(numbered_cases(1))])
async def test_a_shard_without_cases_finishes(path: Path, cases: Any) -> None:
    """With fewer cases than shards, some shards have none; an empty dataset is still rejected."""
    [empty] = [shard for shard in ("1/2", "2/2") if not names(numbered_cases(1), shard)]
    outcome = await arun(define(echo, cases), path, shard=empty, files=FastDisk(), **deterministic_options())

    assert ("finished", 0) == (outcome.state.outcome, outcome.state.totals.total)
    with pytest.raises(UsageError, match="has no cases"):
        await arun(define(echo, []), path.with_name("other"), shard=empty)


def test_default_paths_of_shards_have_one_number() -> None:
    """Shards that start together get the same number; the next run of a shard, and a run of all cases, get the next."""
    for name in ("0004", "0005-1of8", "0005-2of8", "0009-x", "0006-3of4"):
        (Path("runs/e") / name).mkdir(parents=True)

    assert Path("runs/e/0005-3of8") == next_path("e", Shard(3, 8))
    assert Path("runs/e/0006-2of8") == next_path("e", Shard(2, 8))
    assert Path("runs/e/0007") == next_path("e")


def test_run_and_dry_run_of_a_shard() -> None:
    """A dry run prints the totals of all shards; the gates of a shard are not checked, and `resume` cannot change it."""
    Path("ev.py").write_text(PROGRAM)
    dry = orjson.loads(evaljournal("run", "ev.py", "--shard", "1/3", "--dry-run", "--json").stdout)
    text = evaljournal("run", "ev.py", "--shard", "1/3", "--dry-run").stdout
    result = evaljournal("run", "ev.py", "--shard", "1/3", "--json", "--fail-under", "wrong=1")

    assert ("1/3", 40, 10, 30) == tuple(dry[key] for key in ("shard", "cases_of_all_shards", "slots", "slots_of_all_shards"))
    assert "shard 1/3; all shards: 40 cases, at most 30 slots" in text
    assert (0, "runs/same/0001-1of3") == (result.exit_code, orjson.loads(result.stdout)["path"])
    assert dry["cases"] == orjson.loads(result.stdout)["planned_trials"]
    assert 2 == evaljournal("resume", "runs/same/0001-1of3", "--shard", "2/3").exit_code
    for value in ("0/8", "9/8", "3/0", "text"):
        assert 2 == evaljournal("run", "ev.py", "--shard", value).exit_code
