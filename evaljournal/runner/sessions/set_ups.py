"""The teardown of what earlier sessions of a run could not tear down, because their process was killed.

Each set-up without a teardown is torn down with its recorded handle, before any new attempt starts. An attempt that died before
its set-up was recorded is torn down, too, if the teardown does not need the handle: it finds the sandbox by the trial's id.
A teardown that fails is noted, and tried again by the next session.

Handles are passed to code of the user, so all sessions of the run must be the user's own.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import trio

from evaljournal.journal.disk.files import Files
from evaljournal.journal.events import Noted, TrialEnqueued
from evaljournal.journal.format.blobs import Blob
from evaljournal.journal.readers.reader import fetch
from evaljournal.journal.threads import InThread
from evaljournal.replay.state.set_ups import HANDLE, TORN_DOWN, Attempt
from evaljournal.replay.state.trial import TrialState
from evaljournal.runner.calls.function import FunctionTask
from evaljournal.runner.data.case import Case
from evaljournal.runner.definition.hooks import Hooks, arguments_for, hook_parameters
from evaljournal.runner.engine.recorder import Recorder
from evaljournal.runner.sessions.layers.hooks import call_teardown

_CONCURRENT: Final = 8


def recorded_case(path: Path, state: TrialState, files: Files, input_name: str = "input") -> Case:
    event = fetch(path, *state.input_location, files=files).event
    assert isinstance(event, TrialEnqueued)
    metadata = event.metadata if isinstance(event.metadata, dict) else {}
    return Case(name=event.case, input=event.input, expected=event.expected, metadata=metadata, input_name=input_name)


async def tear_down(recorder: Recorder, hooks: Hooks, teardown: FunctionTask, in_thread: InThread, limit: float) -> None:
    """Tear down what earlier sessions have left, several set-ups at a time; each may take `limit` seconds."""
    journal, set_ups, trials = recorder.journal, recorder.state.set_ups, recorder.state.trials
    value_name = hooks["setup"].name if "setup" in hooks else ""
    needs_value = value_name in hook_parameters(hooks["teardown"], hooks)
    places = trio.CapacityLimiter(_CONCURRENT)

    async def call(attempt: Attempt, handle: Any) -> None:
        async with places:
            trial, number = attempt
            case = await in_thread(lambda: recorded_case(journal.path, trials[trial], journal.files))
            arguments = {**arguments_for(trial, case), **({value_name: handle} if value_name else {})}
            error = await call_teardown(lambda: teardown.call(arguments, lambda _: None), limit)
            recorder.record(Noted(name=TORN_DOWN, value=error, trial=trial, attempt=number))

    outputs: dict[Attempt, Any] = {
        **({} if needs_value else {attempt: {HANDLE: None} for attempt in set_ups.died}),
        **set_ups.open,
    }
    async with trio.open_nursery() as nursery:
        for attempt, recorded in outputs.items():
            output = recorded.load() if isinstance(recorded, Blob) else recorded
            is_known = isinstance(output, Mapping) and (HANDLE in output or not needs_value)
            if is_known and attempt[0] in trials:
                nursery.start_soon(call, attempt, output.get(HANDLE))
