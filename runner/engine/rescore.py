"""Re-scoring: a session of a run in which no attempt is made, and recorded outputs are scored.

A score of a scorer's present version replaces what it said before; the earlier records stay in the journal.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final, Literal, cast

import attrs
import trio

from journal import read, writing
from journal.events import SCORER_PREFIX, AttemptSucceeded, RunStopped, SessionStarted, StopReason, TrialEnqueued
from journal.files import DISK, Files
from journal.reader import fetch
from journal.threads import InThread, run_in_thread
from replay import RunState, TrialState, fold
from runner.concurrency import POLICIES, Policy
from runner.data.case import Case
from runner.definition.settings import Settings
from runner.engine.environment import Environment
from runner.engine.executor import Executor
from runner.engine.intake import SOON
from runner.engine.open_tasks import Opening
from runner.engine.rate_limits import scorer_keys, scorer_slots
from runner.engine.recorder import Clock, Recorder
from runner.engine.session import Outcome
from runner.engine.trial_work import Work
from runner.errors import UsageError
from runner.recompute.rules import new_policy, recorded_policy, recorded_retry
from runner.retries.retry import Retry
from runner.scorers.scorer import Scorer
from runner.signals import STOP_SIGNALS, handle_signals

_HAS_OUTPUT: Final = ("answered", "completed")


@attrs.frozen
class Rescored:
    """How a re-scoring ended."""

    outcome: Outcome
    outputs: int
    """Outputs that were scored by at least one scorer."""
    current: int
    """Outputs that all these scorers had scored already, in their present version."""
    left: int
    """Outputs that were not scored, because it was stopped."""


async def rescore(
    path: Path,
    scorers: Sequence[Scorer],
    *,
    again: bool = False,
    slots: int | None = None,
    input_name: str = "input",
    signals: bool = False,
    files: Files = DISK,
    in_thread: InThread = run_in_thread,
) -> Rescored:
    """Score every output of a run; with `again` also those that have a score of the scorer's present version.

    The journal does not record what the input was called in its dataset; scorers with templates may call it `input_name`.
    """
    if not scorers:
        raise UsageError("the evaluation has no scorer; name one: --score exact, or --judge MODEL, or @….score in Python")
    here = await in_thread(Environment.here)
    before = await in_thread(lambda: fold(read(path, load_blobs=False, files=files)))
    if before.started is not None and not list(_unscored(before, scorers, again=again)):
        return Rescored(Outcome(path, before, before.head, "", ""), 0, _answered(before), 0)  # Nothing is written.
    clock = Clock()
    async with writing(path, new=False, stamp=clock.stamp, files=files, in_thread=in_thread) as journal:
        state = await in_thread(lambda: fold(read(path, load_blobs=False, files=files), at=journal.initial_seq))
        if state.started is None:
            raise UsageError(f"{path} was cut off before it said what it is a run of; there is nothing to score")
        ending = "finished" if _is_finished(state) else state.ending
        recorder, settings = Recorder(journal, state, clock), _settings(state.settings)
        limits = scorer_slots({scorer.name: scorer for scorer in scorers}, None, None, slots)
        changed = None if state.settings.get("scorer_slots") == limits else {"scorer_slots": limits}
        policies = _policies(settings, state, limits)
        recorder.record(
            SessionStarted(n=len(state.sessions) + 1, pid=here.pid, host=here.host, boot_id=here.boot_id, settings=changed)
        )
        recorder.close_attempts()
        outputs = _Outputs(recorder, scorers, again=again, files=files, input_name=input_name)
        async with AsyncExitStack() as stack:
            opening = Opening(stack, journal.run, grace=1.0, in_thread=in_thread)
            own = [scorer.under(scorer.retry, settings.timeout) for scorer in scorers]
            keys = scorer_keys(own, None, None)
            opened = [await opening.scorer(scorer, keys[scorer.name]) for scorer in own]
            executor = Executor(recorder, None, opened, policies, settings, most_failures=0, in_thread=in_thread)
            await _execute(executor, outputs, signals=signals)
        left, why = outputs.total - executor.completed, _why(executor, outputs.total)
        if not why and ending == "finished":
            recorder.finish()
        else:
            recorder.record(RunStopped(reason=why or cast("StopReason", ending or "interrupted")))
    outcome = Outcome(path, state, journal.head, why, executor.why)
    return Rescored(outcome, executor.completed, _answered(state) - outputs.total, left)


def _why(executor: Executor, outputs: int) -> StopReason | Literal[""]:
    """Return why a re-scoring was stopped; empty if it came to its end all the same."""
    return "" if executor.stopped is None or executor.completed == outputs else executor.stopped


async def _execute(executor: Executor, outputs: "_Outputs", *, signals: bool) -> None:
    """Score the outputs; a signal stops it in good order, a second one at once."""
    if not signals:
        await executor.run(outputs)
        return
    token = trio.lowlevel.current_trio_token()
    with handle_signals(lambda _, __: token.run_sync_soon(executor.interrupt), *STOP_SIGNALS):
        await executor.run(outputs)


def _settings(recorded: Mapping[str, Any]) -> Settings:
    """Return what of a run's settings its re-scoring needs; a policy that is not one of ours cannot be used again."""
    policy, seed, timeout = recorded_policy(recorded), recorded.get("seed"), recorded.get("timeout")
    return Settings(
        policy=policy if policy in POLICIES else "adaptive",
        seed=seed if isinstance(seed, int) else 0,
        timeout=timeout if isinstance(timeout, int | float) else None,
        retry=recorded_retry(recorded) if "retry" in recorded else Retry(),
    )


def _policies(settings: Settings, state: RunState, limits: Mapping[str, int]) -> Callable[[str], Policy]:
    return lambda key: new_policy(settings.policy, limits[key.removeprefix(SCORER_PREFIX)], state.settings, state.planned)


def _is_finished(state: RunState) -> bool:
    """Whether every trial has come to its end, though a re-scoring since then may have been stopped."""
    return any(session.ended == "finished" for session in state.sessions) and state.done >= max(state.total, state.planned)


def _answered(state: RunState) -> int:
    return sum(known.answer is not None and known.stage in _HAS_OUTPUT for known in state.trials.values())


def _unscored(state: RunState, scorers: Sequence[Scorer], *, again: bool) -> Iterator[tuple[str, frozenset[str]]]:
    """Find the trials whose output a scorer has not scored in its present version, and the scorers that have."""
    for trial, known in state.trials.items():
        if known.answer is None or known.stage not in _HAS_OUTPUT:
            continue
        current = {(name.partition(".")[0], version) for name, (version, _) in (known.scores or {}).items()}
        scored = frozenset(scorer.name for scorer in scorers if not again and (scorer.name, scorer.version) in current)
        if len(scored) < len(scorers):
            yield trial, scored


class _Outputs:
    """The intake of a re-scoring: outputs are read from the journal when they are due."""

    def __init__(self, recorder: Recorder, scorers: Sequence[Scorer], *, again: bool, files: Files, input_name: str) -> None:
        self._recorder = recorder
        self._files = files
        self._input_name = input_name
        self._scorers = {scorer.name for scorer in scorers}
        unscored = list(_unscored(recorder.state, scorers, again=again))
        self.total = len(unscored)
        self._left = iter(unscored)
        self.found: deque[Work] = deque()

    def read(self, most: int) -> bool:
        """Read the next outputs and their cases."""
        now, number = self._recorder.clock.now, 0
        until = now() + SOON
        for number, (trial, scored) in enumerate(self._left, 1):
            self.found.append(self._work(trial, scored))
            if number == most or now() > until:
                break
        return number > 0

    def _work(self, trial: str, scored: frozenset[str]) -> Work:
        state, path = self._recorder.state, self._recorder.journal.path
        known = state.trials[trial]
        assert known.answer is not None
        asked = fetch(path, *known.asked, files=self._files).event
        answer = fetch(path, *known.answer, files=self._files).event
        assert isinstance(asked, TrialEnqueued)
        assert isinstance(answer, AttemptSucceeded)
        case = Case(
            name=asked.case,
            input=asked.input,
            expected=asked.expected,
            metadata=asked.metadata if isinstance(asked.metadata, dict) else {},
            input_name=self._input_name,
        )
        return Work(
            trial=trial,
            case=case,
            attempts=known.attempts,
            is_answered=True,
            completes=known.stage == "answered" and self._covers(known),
            output=answer.output,
            scored=scored,
        )

    def _covers(self, known: TrialState) -> bool:
        """Whether no scorer of the run is left, once these have scored a trial; otherwise a resumed run completes it."""
        started = self._recorder.state.started
        named = {*self._scorers, *(name.partition(".")[0] for name in (*(known.scores or ()), *known.unscored))}
        return started is not None and named.issuperset(started.scorers)

    def admit(self, item: Work) -> Work:
        """Nothing is recorded of an output that is read again."""
        return item

    def close(self) -> None:
        """Nothing follows."""
