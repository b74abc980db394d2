"""The teardown of what earlier sessions of a run could not tear down, because their process was killed.

Each set-up without a teardown is torn down with its recorded handle, before any new attempt starts. An attempt that died before
its set-up was recorded is torn down, too, if the teardown does not need the handle: it finds the sandbox by the trial's id.
A teardown that fails is noted, and tried again by the next session.

Handles are passed to code of the user, so all sessions of the run must be the user's own.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from evaljournal.journal.disk.files import Files
from evaljournal.journal.events import Noted, TrialEnqueued
from evaljournal.journal.format.blobs import Blob
from evaljournal.journal.ownership import start_events
from evaljournal.journal.readers.reader import fetch
from evaljournal.journal.threads import InThread
from evaljournal.replay.state.set_ups import HANDLE, TORN_DOWN, Attempt
from evaljournal.replay.state.trial import TrialState
from evaljournal.runner.calls.function import FunctionTask
from evaljournal.runner.data.case import Case
from evaljournal.runner.definition.hooks import Hook, Hooks, arguments_for, hook_parameters
from evaljournal.runner.engine.recorder import Recorder
from evaljournal.runner.retries.classify import describe
from evaljournal.runner.signals import is_from_signal

_CONCURRENT: Final = 8


@attrs.frozen
class _PastTrial:
    trial: str
    case: Case


def recorded_case(path: Path, state: TrialState, files: Files, input_name: str = "input") -> Case:
    """Return the case of a trial as it is recorded."""
    event = fetch(path, *state.input_location, files=files).event
    assert isinstance(event, TrialEnqueued)
    metadata = event.metadata if isinstance(event.metadata, dict) else {}
    return Case(name=event.case, input=event.input, expected=event.expected, metadata=metadata, input_name=input_name)


def is_own(path: Path) -> bool:
    """Return whether all sessions of a run are the user's own."""
    return all(is_own_start for _, is_own_start in start_events(path))


class PastSetUps:
    """The set-ups of earlier sessions that are torn down now."""

    def __init__(
        self, recorder: Recorder, hooks: Hooks, teardown: FunctionTask, in_thread: InThread, *, timeout: float | None
    ) -> None:
        self._in_thread = in_thread
        self._recorder = recorder
        self._hook: Hook = hooks["teardown"]
        self._teardown = teardown
        self._value_name = hooks["setup"].name if "setup" in hooks else ""
        self._needs_value = self._value_name in hook_parameters(self._hook, hooks)
        self._timeout = timeout
        self._places = trio.CapacityLimiter(_CONCURRENT)

    async def tear_down(self) -> None:
        """Tear down what is possible, several at a time."""
        set_ups, trials = self._recorder.state.set_ups, self._recorder.state.trials
        values: dict[Attempt, Any] = dict(set_ups.open)
        if not self._needs_value:
            values = {**{attempt: {HANDLE: None} for attempt in set_ups.died}, **values}
        async with trio.open_nursery() as nursery:
            for attempt, recorded in values.items():
                output = recorded.load() if isinstance(recorded, Blob) else recorded
                is_known = isinstance(output, Mapping) and (HANDLE in output or not self._needs_value)
                if is_known and attempt[0] in trials:
                    nursery.start_soon(self._call, attempt, output.get(HANDLE))

    async def _call(self, attempt: Attempt, handle: Any) -> None:
        recorder, (trial, number) = self._recorder, attempt
        journal = recorder.journal
        async with self._places:
            case = await self._in_thread(partial(recorded_case, journal.path, recorder.state.trials[trial], journal.files))
            arguments = {**arguments_for(_PastTrial(trial, case)), **({self._value_name: handle} if self._value_name else {})}
            value: dict[str, str] = {}
            error: BaseException | None = None
            with trio.move_on_after(float("inf") if self._timeout is None else self._timeout) as scope:
                try:
                    await self._teardown.call(arguments, lambda _: None)
                except trio.Cancelled:
                    raise
                except BaseException as exc:
                    if is_from_signal(exc):
                        raise
                    error = exc
            if scope.cancelled_caught:
                error = TimeoutError(f"it did not end within {self._timeout:g} s")
            if error is not None:
                description = describe(error)
                value = {"error": description.type, "message": description.message}
            recorder.record(Noted(name=TORN_DOWN, value=value, trial=trial, attempt=number))
