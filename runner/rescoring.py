"""New scores for outputs that are there already: nobody is asked again, and nothing that was said before is changed.

A rescoring is a session of its own in the same journal. What a scorer says now stands beside what it said then, under its new
version, and is what counts from here on.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final, Literal, cast

import attrs
import trio

from journal import fetch, read, writing
from journal.events import AttemptSucceeded, Noted, Reason, RunStopped, SessionStarted, TrialEnqueued
from journal.files import DISK, Files
from journal.threads import InThread, in_a_thread
from replay import RunState, fold
from runner.attempt import Flight, Home
from runner.case import Case
from runner.errors import UsageError
from runner.failure import describe
from runner.notes import Sink
from runner.plain import plain
from runner.recorder import Clock, Recorder
from runner.score import Scorer
from runner.scoring import Scoring
from runner.session import Outcome
from runner.signals import STOPS, unless_told
from runner.surroundings import Surroundings
from runner.tasks import Task
from runner.tasks.opening import Opening
from runner.work import Work

_HAS_OUTPUT: Final = ("answered", "completed")
_LATER: Final = Case(input=None, name="later")
"""Stands for a case that is not read yet."""


@attrs.frozen
class Rescored:
    """How a rescoring ended."""

    outcome: Outcome
    outputs: int
    """Outputs that were scored anew by at least one scorer."""
    current: int
    """Outputs that all these scorers had scored already, in their present version."""
    left: int
    """Outputs that it did not come to."""


async def rescore(
    path: Path,
    scorers: Sequence[Scorer],
    *,
    again: bool = False,
    slots: int = 32,
    input_name: str = "input",
    signals: bool = False,
    files: Files = DISK,
    in_thread: InThread = in_a_thread,
) -> Rescored:
    """Let scorers judge every output of a run; `again` also those that they have judged in their present version.

    The journal does not say what the input was called where it came from; scorers with templates may call it `input_name`.
    """
    if not scorers:
        raise UsageError("the evaluation has no scorer; name one: --score exact, or --judge MODEL, or @….score in Python")
    here = await in_thread(Surroundings.here)
    before = await in_thread(lambda: fold(read(path, load_blobs=False, files=files)))
    if before.started is not None and not list(_to_do(before, scorers, again=again)):
        return Rescored(Outcome(path, before, before.head, "", ""), 0, _answered(before), 0)  # And nothing is written.
    clock = Clock()
    async with writing(path, new=False, stamp=clock.stamp, files=files, in_thread=in_thread) as journal:
        state = await in_thread(lambda: fold(read(path, load_blobs=False, files=files), at=journal.found))
        if state.started is None:
            raise UsageError(f"{path} was cut off before it said what it is a run of; there is nothing to score")
        ending = "finished" if _is_finished(state) else state.ending
        recorder = Recorder(journal, state, clock)
        recorder.record(SessionStarted(n=len(state.sessions) + 1, pid=here.pid, host=here.host, boot=here.boot))
        recorder.close_attempts()
        left = list(_to_do(state, scorers, again=again))
        async with AsyncExitStack() as stack:
            opening = Opening(stack, journal.run, grace=1.0, in_thread=in_thread)
            tasks = {scorer.name: (scorer, await opening.scorer(scorer)) for scorer in scorers}
            run = _Rescoring(recorder, tasks, path, files, in_thread, input_name=input_name)
            done = await run.work_off(left, slots, signals=signals)
        why: Reason | Literal[""] = "" if done else "refused" if run.refusal else "interrupted"
        if done and ending == "finished":
            recorder.finish()
        else:
            recorder.record(RunStopped(reason=why or cast("Reason", ending or "interrupted")))
    outcome = Outcome(path, state, journal.head, why, run.refusal)
    return Rescored(outcome, run.scored, _answered(state) - len(left), len(left) - run.scored)


def _is_finished(state: RunState) -> bool:
    """Whether every trial has come to its end, though a rescoring since then may have been stopped."""
    return any(session.ended == "finished" for session in state.sessions) and state.done >= max(state.total, state.planned)


def _answered(state: RunState) -> int:
    return sum(known.answer is not None and known.stage in _HAS_OUTPUT for known in state.trials.values())


def _to_do(state: RunState, scorers: Sequence[Scorer], *, again: bool) -> Iterator[Work]:
    """Find the trials whose output some scorer has not judged, as it is now; its case and output are read when it is due."""
    for trial, known in state.trials.items():
        if known.answer is None or known.stage not in _HAS_OUTPUT:
            continue
        current = {(name.partition(".")[0], version) for name, (version, _) in (known.scores or {}).items()}
        scored = frozenset(scorer.name for scorer in scorers if not again and (scorer.name, scorer.version) in current)
        if len(scored) < len(scorers):
            yield Work(trial=trial, case=_LATER, attempts=known.attempts, scored=scored)


def _sinks(recorder: Recorder) -> Callable[[Work], Sink]:
    """Make what takes the notes of scorers."""
    home = Home()

    def record(trial: str, attempt: int, values: dict[str, Any]) -> None:
        for name, value in values.items():
            recorder.record(Noted(name=name, value=plain(value), trial=trial, attempt=attempt))

    return lambda work: lambda values: home.call(record, work.trial, work.attempts, values)


class _Rescoring:
    """The outputs that are still to be scored."""

    def __init__(
        self,
        recorder: Recorder,
        tasks: dict[str, tuple[Scorer, Task]],
        path: Path,
        files: Files,
        in_thread: InThread,
        *,
        input_name: str,
    ) -> None:
        self._recorder = recorder
        self._scoring = Scoring(tasks, recorder, seed=0, sink=_sinks(recorder), refused=self._refuse)
        self._all = trio.CancelScope()
        self._path = path
        self._files = files
        self._in_thread = in_thread
        self._input_name = input_name
        self.scored = 0
        self.refusal = ""
        """Why nothing more is scored, where a scorer was refused as it would be each time."""

    def _refuse(self, exc: BaseException) -> None:
        said = describe(exc)
        self.refusal = f"every other output would meet the same: {said.type}: {said.message}"
        self._all.cancel()

    async def work_off(self, left: Sequence[Work], slots: int, *, signals: bool) -> bool:
        """Score them all; say whether it came to that, or was stopped."""
        works = iter(left)

        async def score() -> None:
            with self._all:
                async with trio.open_nursery() as nursery:
                    for _ in range(min(slots, len(left))):
                        nursery.start_soon(self._slot, works)

        await (unless_told(score, *STOPS) if signals else score())
        return self.scored == len(left)

    async def _slot(self, works: Iterator[Work]) -> None:
        for work in works:
            asked, answer = await self._in_thread(lambda: self._fetched(work.trial))  # noqa: B023  # called at once
            metadata = asked.metadata if isinstance(asked.metadata, dict) else {}
            work.case = Case(
                name=asked.case,
                input=asked.input,
                expected=asked.expected,
                metadata=metadata,
                input_name=self._input_name,
            )
            work.output = answer.output
            flight = Flight()
            with flight.scope:
                await self._scoring.score(work, flight)
            work.output = None
            if not flight.is_over:
                self.scored += 1

    def _fetched(self, trial: str) -> tuple[TrialEnqueued, AttemptSucceeded]:
        """Read what was asked and answered again."""
        known = self._state.trials[trial]
        assert known.answer is not None
        asked = fetch(self._path, *known.asked, files=self._files).event
        answer = fetch(self._path, *known.answer, files=self._files).event
        assert isinstance(asked, TrialEnqueued)
        assert isinstance(answer, AttemptSucceeded)
        return asked, answer

    @property
    def _state(self) -> RunState:
        return self._recorder.state
