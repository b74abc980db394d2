"""The steps of attempts: a task may record what it does, and an attempt reuses the completed steps of earlier ones.

An attempt has no steps until its code asks for them, or an earlier attempt has completed some. They are recorded in the loop of
the run, as long as the attempt is in flight; what a thread records later is discarded.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from evaljournal.journal import events
from evaljournal.journal.disk.files import Files
from evaljournal.journal.errors import BlobDamaged, Unserializable
from evaljournal.journal.events import StepEvent
from evaljournal.journal.readers.reader import RecordReader
from evaljournal.journal.threads import InThread
from evaljournal.replay.runs.trajectory import StepDetails, read_trajectory
from evaljournal.replay.state.steps import NOT_REUSED, RecordedStep, remaining_timeout, reuse_of
from evaljournal.replay.state.trial import unpack_location
from evaljournal.runner.calls.notes import StepRecorder
from evaljournal.runner.definition.settings import Settings
from evaljournal.runner.engine.call import CallOutcome, CallScope, Returned
from evaljournal.runner.engine.jobs import TrialWork
from evaljournal.runner.engine.layers import Layer
from evaljournal.runner.engine.recorder import LateRecorder, Recorder, RunLoop
from evaljournal.runner.steps.attempt_steps import AttemptSteps, CallGate, Key, RecordedResult, failed_step
from evaljournal.runner.steps.durable_requests import DurableRequests
from evaljournal.runner.steps.keys import KeyRules


class StepsLayer(Layer):
    """Attaches steps to the attempts that ask for them."""

    def __init__(
        self,
        recorder: Recorder,
        late_recorder: LateRecorder,
        loop: RunLoop,
        settings: Settings,
        *,
        new_calls: Callable[[TrialWork, CallScope], CallGate],
    ) -> None:
        """`new_calls` returns where the model calls inside an attempt wait for rate limits."""
        self._recorder = recorder
        self._late_recorder = late_recorder
        self._loop = loop
        self._settings = settings
        self._new_calls = new_calls
        self.on_first: Callable[[], object] | None = None
        """Called when the first step is recorded: from now on, attempts may reuse steps."""
        self._is_step = DurableRequests.parse(settings.durable).includes if settings.durable else None
        self._key_rules = KeyRules.parse(settings.key_without)

    def attach(self, kind: type, work: TrialWork, attempt: int, scope: CallScope) -> Any:
        """Return the steps of an attempt, or what records the model calls of our own tasks as steps."""
        if kind is AttemptSteps:
            return self.new_steps(work, attempt, scope)
        if kind is not StepRecorder:
            return None
        from evaljournal.runner.steps.durable import DurableSteps  # noqa: PLC0415  # attempts without steps do not need it

        return DurableSteps()

    def leave(self, objects: dict[type, Any], outcome: CallOutcome | None) -> CallOutcome | None:
        """End the model calls that still wait; one that can never start fails the attempt, whatever the task made of it."""
        steps: AttemptSteps | None = objects.get(AttemptSteps)
        if steps is None or steps.gate is None:
            return outcome
        steps.gate.close()
        if steps.gate.failure is not None and isinstance(outcome, Returned | Exception):
            return steps.gate.failure
        return outcome

    def new_steps(self, work: TrialWork, attempt: int, scope: CallScope) -> AttemptSteps:
        calls = self._new_calls(work, scope) if work.lane.is_live else None
        if calls is not None and (work.state.stage, work.state.attempts) != ("running", attempt):
            calls.close()

        loop = self._loop
        return AttemptSteps(
            work.trial,
            attempt,
            record=partial(loop.call, self._record, work, attempt),
            clock=self._recorder.clock.monotonic,
            token=loop.token,
            wait_durable=self._wait_durable if self._settings.write_ahead else None,
            sync=self._wait_durable,
            is_step=self._is_step,
            gate=calls,
            key_rules=self._key_rules,
        )

    def _record(self, work: TrialWork, attempt: int, event: StepEvent) -> None:
        """Record a step, unless its attempt was abandoned. One that cannot be stored is recorded as failed."""
        state = work.state
        if state.stage != "running" or state.attempts != attempt:
            return
        if self.on_first is not None:
            self.on_first()
            self.on_first = None
        try:
            self._late_recorder.record(event)
        except (Unserializable, RecursionError) as exc:  # A value may be nested too deeply in the record.
            self._late_recorder.record(failed_step(event, exc))

    async def _wait_durable(self) -> None:
        await self._recorder.journal.wait_durable(self._recorder.journal.appended_seq)


class ReuseLayer(Layer):
    """Lets attempts reuse the completed steps of earlier ones; attached with the first step of the run."""

    def __init__(
        self, steps: StepsLayer, recorder: Recorder, late_recorder: LateRecorder, settings: Settings, in_thread: InThread
    ) -> None:
        self._steps = steps
        self._recorder = recorder
        self._late_recorder = late_recorder
        self._reuse_steps = settings.reuse_steps
        self._in_thread = in_thread

    def fields(self, work: TrialWork) -> Mapping[str, Any]:
        """Return how many completed steps may be reused, and the seconds that they took."""
        open_steps = self._recorder.state.steps.open.get(work.trial)
        if open_steps is None:
            return {}
        reuses, spent = reuse_of(open_steps, work.state, self._reuse_steps)
        work.permits[self] = reuses, spent
        return {"reuses": reuses, "spent": spent}

    async def prepare(self, work: TrialWork, scope: CallScope, objects: dict[type, Any]) -> None:
        """Shorten the timeout by the seconds of earlier attempts, and offer the results of their steps."""
        reuses, spent = work.permits.pop(self, (0, 0.0))
        if spent:
            work.timeout = remaining_timeout(work.timeout, spent)
        if reuses:
            steps = objects[AttemptSteps] = self._steps.new_steps(work, work.state.attempts, scope)
            await self._offer_results(work, steps)

    async def _offer_results(self, work: TrialWork, steps: AttemptSteps) -> None:
        """Read the results of completed steps for reuse; a step whose result is damaged is executed again, which is noted."""
        journal, recorded_steps = self._recorder.journal, list(self._recorder.state.steps.open[work.trial])
        if not recorded_steps:
            return
        await journal.wait_durable(recorded_steps[-1].seq)
        results = await self._in_thread(lambda: list(_read_results(journal.path, recorded_steps, journal.files)))
        for (name, _), result in results:
            if isinstance(result, BlobDamaged):
                self._late_recorder.sink(work)({NOT_REUSED: {"step": name, "problem": str(result)}})
        steps.offer((key, result) for key, result in results if isinstance(result, RecordedResult))


def _read_results(path: Path, steps: list[RecordedStep], files: Files) -> Iterator[tuple[Key, RecordedResult | BlobDamaged]]:
    """Yield the results of completed steps, and the error in place of a result that cannot be read."""
    with RecordReader(path, files=files) as reader:
        for step in steps:
            try:
                event = reader.find(*unpack_location(step.location)).event
            except BlobDamaged as exc:
                yield (step.name, step.fingerprint), exc
                continue
            assert isinstance(event, events.StepCompleted)
            yield (
                (step.name, step.fingerprint),
                RecordedResult(step.seq, event.output, event.usage, number=(step.attempt, step.number), parent=step.parent),
            )


async def recorded_trajectory(recorder: Recorder, in_thread: InThread, work: TrialWork) -> list[StepDetails]:
    """Return the steps of the attempt that returned an output, for the scorers that take them."""
    locations = recorder.state.steps.records.get(work.trial)
    if locations is None:
        return []
    await recorder.journal.wait_durable(recorder.state.steps.last_seq)
    path, files, attempt = recorder.journal.path, recorder.journal.files, work.state.attempts
    return await in_thread(lambda: read_trajectory(path, locations, attempt, files))
