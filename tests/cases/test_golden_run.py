"""The golden run: with the same seed and clock, the runner writes the same bytes.

`runner.testing.deterministic_options` fixes what depends on the machine; the task is compiled under a fixed file name, so that
tracebacks are the same everywhere. After an intended change, `python -m tests.cases.test_golden_run` writes the run again.
"""

import textwrap
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import attrs
import trio
import trio.testing
from trio._core import _run as scheduler

from evaljournal import Case, Retry, evaluation
from evaljournal.journal import read, verify
from evaljournal.journal.events import (
    AttemptFailed,
    AttemptInterrupted,
    AttemptTimedOut,
    IntakePaused,
    RetryScheduled,
    RunFinished,
    RunStopped,
    ScoringFailed,
    SessionStarted,
    TrialFailed,
    TrialScored,
)
from evaljournal.replay import fold
from evaljournal.replay.results.summary import summarize
from evaljournal.runner.sessions.api import arun
from evaljournal.runner.testing import deterministic_options, events_of
from tests.journal.disk import SimulatedDisk
from tests.journal.samples import content, overwrite
from tests.runs import PATH, AnyEvaluation

GOLDEN = Path(__file__).parents[1] / "golden" / "run-v2"
T = TypeVar("T")

TASK = """
    calls = Counter()

    async def answer(question):
        calls[question] += 1
        note(tokens=len(question))
        await trio.sleep(0.25 + 0.125 * (len(question) % 5))
        if question == "Chile?" and calls[question] == 1:
            raise RateLimited(2.0)
        if question == "Cuba?" and calls[question] <= 2:
            raise ConnectionError("connection closed")
        if question == "Ghana?":
            raise KeyError("answer")
        if question == "Japan?":
            return {"text": open}
        if question == "Kenya?" and calls[question] == 1:
            await trio.sleep_forever()
        if question == "Malta?" and calls[question] == 1:
            await trio.sleep(60)
        return question.removesuffix("?")[::-1]

    async def judge(output, case):
        await trio.sleep(0.0625)
        if case.name == "france":
            raise ValueError("the judge has no opinion")
        return {"right": output == case.expected, "length": float(len(output))}
"""
"""The user's code: one trial is rate limited, one fails twice, one always, one returns a value that is not JSON, one times out,
and one is in flight at the deadline of the first session."""

NAMES = ("kenya", "peru", "chile", "cuba", "france", "ghana", "japan", "malta", "nepal", "norway", "oman", "qatar")


def golden_evaluation() -> AnyEvaluation:
    """Compile the user's code under a file name that does not exist."""
    namespace: dict[str, Any] = {}
    header = "from collections import Counter\nimport trio\nfrom evaljournal import RateLimited, note\n"
    exec(compile(header + textwrap.dedent(TASK), "evals/capitals.py", "exec"), namespace)  # noqa: S102  # our own, above
    for name in ("answer", "judge"):
        namespace[name].fingerprint = f"{name}-v1"  # There is no source, and bytecode differs between Python versions.
    cases = [Case(name=name, input=f"{name.capitalize()}?", expected=name.capitalize()[::-1]) for name in NAMES]
    retry = Retry(errors=2, timeouts=1)
    # A fixed policy, so that tuning the adaptive one does not change the run.
    define = evaluation(cases=cases, slots=3, policy="fixed", timeout=8, deadline=10, loop="trio", retry=retry, name="capitals")
    evaluation_: AnyEvaluation = define(namespace["answer"])
    evaluation_.score(namespace["judge"])
    evaluation_.namespace = namespace  # Otherwise the files of the tests would be a part of the evaluation.
    return evaluation_


def golden_options(**changes: Any) -> dict[str, Any]:
    """Return the options of a golden run, with changes of its environment."""
    options = deterministic_options(seed=1)
    environment = partial(attrs.evolve, options["environment"](), **changes)
    return {**options, "environment": environment, "grace": 1, "task": "evals/capitals.py:answer"}


def run_seeded(main: Callable[[], Awaitable[T]]) -> T:
    """Run an async function on a virtual clock, with the same order of tasks each time."""
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]  # trio's own switch for tests, declared Final
    scheduler._r.seed(1)
    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def run_golden() -> dict[str, bytes]:
    """Return the files of the run: one session up to the deadline, a second one to the end."""

    async def main() -> SimulatedDisk:
        evaluation_, disk = golden_evaluation(), SimulatedDisk()
        for resume in (False, True):
            await arun(evaluation_, PATH, **golden_options(), files=disk, resume=resume)
        return disk

    disk = run_seeded(main)
    return {name.removeprefix(f"{PATH}/"): bytes(inode.visible) for name, inode in disk.files() if not name.endswith("LOCK")}


def test_the_golden_run_is_reproduced() -> None:
    """The same seed and clock give the same bytes."""
    assert content(GOLDEN) == run_golden()


def test_the_golden_run_covers_every_outcome() -> None:
    """The golden run has rate limits, failures, timeouts, invalid outputs, failed scorers, a stop, an interruption, an end."""
    events = events_of(GOLDEN)

    categories = {event.category for event in events if isinstance(event, AttemptFailed)}
    assert {"rate_limited", "unavailable", "parse_error", "fatal"} == categories
    assert {"exhausted", "unserializable"} == {event.reason for event in events if isinstance(event, TrialFailed)}
    reasons = {event.reason for event in events if isinstance(event, RetryScheduled)}
    assert {"rate_limited", "unavailable", "error", "timed_out"} <= reasons
    for kind in (AttemptTimedOut, AttemptInterrupted, IntakePaused, ScoringFailed, TrialScored, RunStopped, RunFinished):
        assert any(isinstance(event, kind) for event in events), kind
    assert 2 == sum(isinstance(event, SessionStarted) for event in events)


def test_the_golden_run_has_its_figures() -> None:
    """It verifies, and the figures of its replay are unchanged."""
    summary = attrs.asdict(summarize(fold(read(GOLDEN))))

    assert verify(GOLDEN).ok
    assert {"completed": 10, "failed": 2, "recovered": 3} == {
        name: summary["trials"][name] for name in ("completed", "failed", "recovered")
    }


if __name__ == "__main__":
    for name, data in run_golden().items():
        GOLDEN.mkdir(parents=True, exist_ok=True)
        overwrite(GOLDEN / name, data)
