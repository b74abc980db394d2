"""Simulations of recorded runs, with results that can be computed by hand."""

import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import attrs
import orjson
import pytest
import trio
import trio.testing
from click.testing import CliRunner, Result

from journal import Record, read
from journal.events import AttemptFailed, AttemptSucceeded, AttemptTimedOut
from runner import Case, Fatal, RateLimited, Retry, UsageError
from runner.api import arun
from runner.cli import cli
from runner.recompute.simulation import LIMITATION, Recording
from runner.testing import Action, Fail, Hang, Return, Scripted, deterministic_options
from tests.journal.disk import SimulatedDisk
from tests.journal.samples import UNSYNCED_DISK, complete_run, enqueued, flip, session, started, write_sync
from tests.runs import PATH, AnyEvaluation, define, flaky_evaluation, numbered_cases


def virtually(main: Callable[[], Any]) -> Any:
    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def recording_of(records: Iterable[Record]) -> Recording:
    recording = Recording()
    for record in records:
        recording.apply(record)
    return recording


def recorded(defined: AnyEvaluation, *sessions: dict[str, Any]) -> Recording:
    """Run an evaluation in several sessions, and return its recording."""
    disk = SimulatedDisk()
    for number, options in enumerate(sessions):
        virtually(
            functools.partial(
                arun, defined, PATH, **{**deterministic_options(3), "files": disk, "resume": number > 0, **options}
            )
        )
    return recording_of(read(PATH, files=disk))


def steady(count: int, seconds: float = 1.0) -> AnyEvaluation:
    return define(Scripted(lambda *_: Return("yes", seconds)), numbered_cases(count))


@pytest.mark.parametrize(("slots", "seconds"), [(1, 12.0), (4, 3.0), (5, 3.0), (12, 1.0), (64, 1.0)])
def test_twice_the_slots_take_half_the_time(slots: int, seconds: float) -> None:
    """Twelve answers of a second take twelve seconds in one slot, three in four, and one in twelve or more."""
    figures = recorded(steady(12), {"policy": "fixed", "slots": 2}).simulate(slots=slots)

    assert (seconds, 12, 0, min(slots, 12)) == (figures.duration, figures.calls, figures.rate_limited, figures.max_in_flight)


def test_recorded_figures() -> None:
    """The recorded figures are those of the run itself."""
    recording = recorded(steady(12), {"policy": "fixed", "slots": 3})

    figures = recording.figures
    assert ("fixed", 3, 4.0, 12, 0, 3) == (
        figures.policy,
        figures.slots,
        figures.duration,
        figures.calls,
        figures.rate_limited,
        figures.max_in_flight,
    )
    assert (12, 0) == (figures.completed, figures.failed)


@pytest.mark.parametrize("policy", ["adaptive", "aimd", "fixed"])
def test_the_same_policy_gives_the_same_run(policy: str) -> None:
    """Simulated under the recorded policy, slots and seed, all figures are the same."""
    defined, _ = flaky_evaluation(40)
    recording = recorded(defined, {"policy": policy})

    assert recording.figures == recording.simulate()
    assert recording.figures.failed > 0
    assert recording.figures.calls > 40


def test_another_policy_takes_another_time() -> None:
    """The same latencies take longer under a policy that starts with three slots than under one with twelve."""
    recording = recorded(steady(60), {"policy": "fixed", "slots": 12})
    figures = recording.simulate(policy="aimd")

    assert (5.0, 12) == (recording.figures.duration, recording.figures.max_in_flight)
    assert ("aimd", 12, 60) == (figures.policy, figures.slots, figures.calls)
    assert figures.duration > 10
    assert figures.max_in_flight < 12


def test_scorer_calls_are_simulated() -> None:
    """Scorer calls take their recorded time, under the limit of the scorer and not in a slot of the task."""
    defined = steady(4)

    @defined.score
    async def judge(output: str, case: Any) -> bool:
        await trio.sleep(2)
        return True

    recording = recorded(defined, {"policy": "fixed", "slots": 1})

    assert (9.0, 9.0, 3.0) == (recording.figures.duration, recording.simulate().duration, recording.simulate(slots=4).duration)


def test_each_key_has_its_own_slots() -> None:
    """Rate-limit keys are kept: with twice the keys there are twice the attempts in flight."""
    defined = define(
        Scripted(lambda *_: Return(1, 1.0)),
        [Case(name=name, input=name, metadata={"to": name[0]}) for name in ("a1", "a2", "b1", "b2")],
    )
    recording = recorded(defined, {"policy": "fixed", "slots": 1, "limit_key": "to"})

    assert (2.0, 2) == (recording.figures.duration, recording.figures.max_in_flight)
    assert recording.figures == recording.simulate()


def test_failures_are_simulated() -> None:
    """Rate limits, timeouts and fatal failures recur, and are retried under the recorded settings."""
    script: dict[Any, list[Action]] = {
        "case-0": [Fail(RateLimited(5.0), 1), Return(1, 1)],
        "case-1": [Hang(), Return(1, 1)],
        "case-2": [Fail(Fatal("no"), 1)],
        "case-3": [Fail(ConnectionError("no"), 1), Fail(ValueError("odd"), 1), Return(1, 1)],
    }
    recording = recorded(
        define(Scripted(script), numbered_cases(4), timeout=7, retry=Retry(errors=2)), {"policy": "fixed", "slots": 4}
    )
    figures = recording.simulate(slots=2)

    assert (8, 1, 3, 1) == (figures.calls, figures.rate_limited, figures.completed, figures.failed)
    recorded_figures = recording.figures
    assert (8, 1, 3, 1) == (
        recorded_figures.calls,
        recorded_figures.rate_limited,
        recorded_figures.completed,
        recorded_figures.failed,
    )
    assert figures.duration > recording.figures.duration


def test_sessions_are_added_up() -> None:
    """Of a resumed run, the time between sessions does not count, and interrupted calls do."""
    recording = recorded(
        steady(6, 2.0), {"policy": "fixed", "slots": 2, "deadline": 3.0, "grace": 0}, {"policy": "fixed", "deadline": None}
    )
    expected, figures = recording.figures, recording.simulate()

    assert (7.0, 8) == (expected.duration, expected.calls)
    assert (6.0, 6) == (figures.duration, figures.calls)


def test_a_retried_trial_is_simulated_once() -> None:
    """A failed trial that the user retried is simulated with its last attempts."""
    task = Scripted({"case-0": [Fail(Fatal("no"), 1), Return(1, 1)], "case-1": [Return(1, 1)]})
    recording = recorded(define(task, numbered_cases(2)), {"policy": "fixed"}, {"retry_failed": True})

    assert (3, 2, 2) == (recording.figures.calls, recording.simulate().calls, recording.simulate().completed)


def test_unfinished_trials_are_excluded() -> None:
    """Of a stopped run, only trials that are done are simulated."""
    recording = recorded(steady(10), {"policy": "fixed", "slots": 2, "deadline": 2.5, "grace": 0})

    assert (4, 6) == (len(recording.done_trials), recording.excluded_count)
    assert (4, 1.0) == (recording.simulate(slots=4).completed, recording.simulate(slots=4).duration)


def test_a_run_without_finished_trials_is_rejected(tmp_path: Path) -> None:
    """Without a finished trial, or without a recorded policy, there is nothing to simulate."""
    write_sync(tmp_path / "empty", [started(), session(), enqueued("a")])
    write_sync(tmp_path / "old", complete_run())

    with pytest.raises(UsageError, match="nothing to simulate"):
        recording_of(read(tmp_path / "empty")).simulate()
    with pytest.raises(UsageError, match="pass both"):
        recording_of(read(tmp_path / "old")).simulate()
    assert 2 == recording_of(read(tmp_path / "old")).simulate(policy="fixed", slots=1).completed


@pytest.mark.parametrize("elapsed", [-1.0, 1e300])
def test_invalid_times_do_not_hang(elapsed: float) -> None:
    """A simulation ends, whatever times a journal records."""
    disk = SimulatedDisk()
    evaluation, _ = flaky_evaluation(6)
    virtually(functools.partial(arun, evaluation, PATH, **deterministic_options(), files=disk))

    def altered(record: Record) -> Record:
        is_altered = isinstance(record.event, AttemptSucceeded | AttemptFailed | AttemptTimedOut)
        return record._replace(event=attrs.evolve(record.event, elapsed=elapsed)) if is_altered else record  # type: ignore[misc]

    figures = recording_of(map(altered, read(PATH, files=disk))).simulate()

    assert 6 == figures.completed + figures.failed


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of twelve trials of a second each, in three slots."""
    monkeypatch.chdir(tmp_path)
    defined = define(Scripted(lambda *_: Return("yes", 1.0)), [Case(name=f"n{number}", input=number) for number in range(12)])
    virtually(
        functools.partial(
            arun,
            defined,
            tmp_path / "run",
            **{**deterministic_options(), "files": UNSYNCED_DISK, "policy": "fixed", "slots": 3},
        )
    )
    return Path("run")


def evaljournal(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def test_the_command_shows_figures_side_by_side(run: Path) -> None:
    """Recorded and simulated figures, line by line, with a note on their limits; nothing is written."""
    before = sorted(run.parent.rglob("*"))
    result = evaljournal("simulate", run, "--slots", "6")

    assert 0 == result.exit_code
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["run:", "12", "trials", "simulated", "on", "a", "virtual", "clock"] == lines[0]
    assert ["slots", "3", "6"] in lines
    assert ["duration", "4", "s", "2", "s"] in lines
    assert ["calls", "12", "12"] in lines
    assert ["rate", "limited", "0", "0"] in lines
    assert LIMITATION.split() == lines[-1]
    assert before == sorted(run.parent.rglob("*"))


def test_the_command_in_json(run: Path) -> None:
    """`simulate --json` prints the figures as JSON."""
    figures = orjson.loads(evaljournal("simulate", run, "--policy", "aimd", "--json").stdout)

    assert (4.0, "fixed") == (figures["recorded"]["duration"], figures["recorded"]["policy"])
    assert ("aimd", 12, 3) == (
        figures["simulated"]["policy"],
        figures["simulated"]["calls"],
        figures["simulated"]["max_in_flight"],
    )
    assert LIMITATION == figures["limitation"]


def test_a_damaged_run_is_simulated_up_to_the_damage(run: Path) -> None:
    """The records before the damage are simulated, and the exit code is 4."""
    offsets = [record.offset for record in read(run)]
    flip(run / "journal-000001.jsonl", offsets[len(offsets) * 2 // 3] + 40)
    result = evaljournal("simulate", run)

    assert 4 == result.exit_code
    assert "excluded: " in result.stdout
    assert "is damaged at record" in result.stderr


@pytest.mark.parametrize("arguments", [["--policy", "bold"], ["--slots", "0"], ["nowhere"]], ids=lambda arguments: arguments[0])
def test_the_command_rejects_invalid_arguments(run: Path, arguments: list[str]) -> None:
    """An unknown policy, no slots, no run: code 2."""
    assert 2 == evaljournal("simulate", *arguments).exit_code


def test_the_command_rejects_a_run_without_finished_trials(tmp_path: Path) -> None:
    """The error names the run, and the exit code is 2."""
    write_sync(tmp_path / "empty", [started(), session(), enqueued("a")])
    result = evaljournal("simulate", tmp_path / "empty")

    assert 2 == result.exit_code
    assert f"{tmp_path / 'empty'}: no trial of this run is done" in result.stderr
