"""Admits trials slightly ahead of need: all of a new run, and the remaining ones of a resumed run.

Cases are read in a thread and recorded in the loop.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Final, Protocol

import trio

from evaljournal.journal.errors import JournalError, SegmentLost
from evaljournal.journal.events import AttemptSucceeded, RetryScheduled, TrialEnqueued, TrialFailed, TrialWithdrawn
from evaljournal.journal.readers.reader import fetch
from evaljournal.journal.threads import InThread
from evaljournal.replay.text import plural
from evaljournal.runner.data.case import Trial
from evaljournal.runner.definition.settings import Settings
from evaljournal.runner.engine.changes import examples, is_same
from evaljournal.runner.engine.options import Options
from evaljournal.runner.engine.recorder import Recorder
from evaljournal.runner.engine.scheduler import Scheduler
from evaljournal.runner.engine.trial_work import TrialWork
from evaljournal.runner.errors import RunChanged
from evaljournal.runner.retries.classify import describe
from evaljournal.runner.retries.retry import settle
from evaljournal.runner.signals import is_from_signal

READ_TIME: Final = 0.02
"""Seconds after which the trials read so far are admitted, for datasets that are slow to read."""


class TrialSource(Protocol):
    """Where trials come from."""

    is_closed: bool
    """Whether all of them were read and admitted."""

    @property
    def items(self) -> Iterator[Any]:
        """The trials, read in a thread: reading may block and must record nothing."""
        ...

    def admit(self, item: Any) -> TrialWork | None:
        """Record that a trial is admitted; return None if nothing is left to do for it. Must not block."""
        ...

    def close(self) -> None:
        """Record the consequences of reaching the end; called after the last trial."""
        ...


class Admission:
    """Feeds a scheduler from a source of trials."""

    def __init__(self, scheduler: Scheduler, in_thread: InThread, key_of: Callable[[TrialWork], str] | None) -> None:
        """Call `key_of` for the rate-limit key of a trial; None if there is only one key."""
        self._scheduler = scheduler
        self._in_thread = in_thread
        self._key_of = key_of
        self._read_items: deque[Any] = deque()
        """Trials that were read in a thread and are not admitted yet."""
        self._failure: BaseException | None = None
        """The exception that ended reading, until the trials before it are admitted."""

    async def run(self, source: TrialSource) -> None:
        """Admit trials as they are needed."""
        scheduler, shutdown = self._scheduler, self._scheduler.shutdown
        try:
            while shutdown.reason is None:
                room = scheduler.admission_room
                if not room:
                    await scheduler.wait_admission_needed()
                    continue
                await scheduler.recorder.journal.wait_room()
                if not await self._read(source, room):
                    source.close()
                    break
        except SegmentLost:
            if shutdown.reason is None:  # If it waited for room, the calls in flight have their grace period.
                raise
        except BaseException as exc:
            if isinstance(exc, JournalError | trio.Cancelled) or is_from_signal(exc):
                raise
            error = describe(exc)
            shutdown.stop("dataset_failed", f"reading the cases failed: {error.type}: {error.message}")
        scheduler.is_admission_done = True
        scheduler.end_if_done()

    async def _read(self, source: TrialSource, limit: int) -> bool:
        """Read trials and admit them, the first ones before the last one is read; return whether there were any."""
        results: list[bool | BaseException] = []
        read_end = trio.Event()

        def read() -> None:
            try:
                results.append(self._fill(source.items, limit))
            except BaseException as exc:  # noqa: BLE001  # raised below
                results.append(exc)
            self._scheduler.loop.call(read_end.set)

        with trio.move_on_after(READ_TIME):
            await self._in_thread(read)
        self._admit(source)
        if not read_end.is_set():
            await read_end.wait()
            self._admit(source)
        if isinstance(results[0], BaseException):
            raise results[0]
        return results[0]

    def _fill(self, items: Iterator[Any], limit: int) -> bool:
        """Read up to `limit` trials, or until `READ_TIME` is over; return whether there were any."""
        if self._failure is not None:
            raise self._failure
        now, number = self._scheduler.recorder.clock.now, 0
        end_time = now() + READ_TIME
        try:
            for number, item in enumerate(items, 1):
                self._read_items.append(item)
                if number == limit or now() > end_time:
                    break
        except BaseException as exc:
            if not number:
                raise
            self._failure = exc
        return number > 0

    def _admit(self, source: TrialSource) -> None:
        while self._read_items:
            work = source.admit(self._read_items.popleft())
            if work is not None:
                if self._key_of is not None:
                    work.key = self._key_of(work)
                self._scheduler.admit(work)
        self._scheduler.stop_on_same_error()
        self._scheduler.wake()


class PendingTrials:
    """Reads the cases, compares each with its recorded state, and admits what is left to do; a `TrialSource`."""

    def __init__(
        self, recorder: Recorder, trials: Iterable[Trial], settings: Settings, options: Options, variants: Collection[str]
    ) -> None:
        """Read `trials`, which have these variants; trials of others are left for another session."""
        self._recorder = recorder
        self._state = recorder.state
        self._path = recorder.journal.path
        self._settings = settings
        self._options = options
        self.items = self._pending_trials(trials)
        self.is_closed = False
        """Whether every case was read, and every recorded trial is accounted for."""
        self._missing_trials = {
            trial for trial, state in recorder.state.trials.items() if state.stage != "withdrawn" and state.variant in variants
        }
        """Recorded trials whose cases were not read yet."""

    def withdraw_variants(self, variants: Collection[str]) -> None:
        """Withdraw the trials of variants that have changed or are not in `variants`, those of the run now.

        The user has adopted the change, in this session or in one that was interrupted before all were withdrawn.
        """
        for trial, state in list(self._state.trials.items()):
            is_removed = state.variant not in variants
            if state.stage != "withdrawn" and (is_removed or self._state.variants.is_outdated(state)):
                self._recorder.record(TrialWithdrawn(trial=trial, reason="removed" if is_removed else "changed"))
                self._missing_trials.discard(trial)

    def _pending_trials(self, trials: Iterable[Trial]) -> Iterator[tuple[Trial, Any]]:
        """Yield the trials that may have something left to do, with their output if only scores are missing."""
        for trial in trials:
            state = self._state.trials.get(trial.id)
            output = None
            if self._options.trials is not None and trial.id not in self._options.trials:
                self._missing_trials.discard(trial.id)
                continue
            if state is not None and is_same(state, trial):
                self._missing_trials.discard(trial.id)
                if state.stage == "completed" or (state.stage == "failed" and not self._options.retry_failed):
                    continue
                if state.output_location is not None and state.stage == "scoring":
                    event = fetch(self._path, *state.output_location, files=self._options.files).event
                    assert isinstance(event, AttemptSucceeded)
                    output = event.output
            yield trial, output

    def admit(self, item: tuple[Trial, Any]) -> TrialWork | None:
        """Record that a trial is admitted or settled; return what is left to do, if anything."""
        trial, output = item
        state = self._state.trials.get(trial.id)
        if state is not None and state.stage != "withdrawn" and not is_same(state, trial):
            if not self._options.adopt:
                problem = f"case {trial.case.name!r} has changed since the run was started"
                raise self._changed_error(problem, "runs it again and keeps the results of the others")
            self._missing_trials.discard(trial.id)
            self._recorder.record(TrialWithdrawn(trial=trial.id, reason="changed"))
            state = None
        if state is None or state.stage == "withdrawn":
            return self._enqueue(trial)
        return self._resume(TrialWork(trial=trial.id, case=trial.case, state=state, output=output))

    def _changed_error(self, problem: str, effect: str) -> RunChanged:
        return RunChanged(problem, hint=f"{self._options.how_to_resume(self._path, adopt=True)} {effect}")

    def _enqueue(self, trial: Trial) -> TrialWork:
        case = trial.case
        self._recorder.record(
            TrialEnqueued(
                trial=trial.id,
                case=case.name,
                variant=trial.variant,
                repeat=trial.repeat,
                input=case.input,
                expected=case.expected,
                metadata=dict(case.metadata) or None,
                fingerprint=case.fingerprint,
            )
        )
        return TrialWork(trial=trial.id, case=case, state=self._state.trials[trial.id])

    def _resume(self, work: TrialWork) -> TrialWork | None:
        """Return what is left to do for a recorded trial, if anything."""
        state = work.state
        match state.stage:
            case "scoring":
                work.has_output = True
                work.done_scorers = frozenset(name.partition(".")[0] for name in (*(state.scores or ()), *state.unscored))
            case "backing_off":
                work.delay = self._state.backing_off[work.trial]
            case "unsettled" | "failed":
                return self._settle(work)
            case "interrupted" if self._must_settle(work):
                return self._settle(work)
            case _:
                pass  # Queued, or interrupted and to be repeated.
        return work

    def _must_settle(self, work: TrialWork) -> bool:
        """Return whether `settle` must decide if an interrupted trial is repeated."""
        is_ambiguous = self._options.on_ambiguous == "fail" and work.trial not in self._state.uncalled_trials
        return is_ambiguous or work.state.ended_with_worker or self._state.is_over_budget(work.trial)

    def _settle(self, work: TrialWork) -> TrialWork | None:
        """Record whether a trial is retried or fails, by the rules of the executor; return what is left to do, if anything."""
        event = settle(
            work.trial,
            work.state,
            self._settings.retry,
            self._settings.seed,
            over_budget=self._state.is_over_budget(work.trial),
            ambiguous=self._options.on_ambiguous == "fail",
        )
        self._recorder.record(event)
        if isinstance(event, TrialFailed):
            return None
        assert isinstance(event, RetryScheduled)
        work.delay = event.delay
        return work

    def close(self) -> None:
        """Withdraw the trials whose cases were removed, or raise if that is not adopted; called after the last case."""
        if self._missing_trials and not self._options.adopt:
            trials = f"{plural(len(self._missing_trials), 'trial')} were removed: {examples(sorted(self._missing_trials))}"
            raise self._changed_error(f"the cases of {trials}", "withdraws them")
        for trial in sorted(self._missing_trials):
            self._recorder.record(TrialWithdrawn(trial=trial, reason="removed"))
        self.is_closed = True
