"""A set-up and a teardown around a task. They run where the task runs, and their values stay there.

Each phase of an attempt has a timeout of its own: the set-up the same as the task, the teardown until its own end, because it
must run when the task was cancelled.
"""

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import orjson
import trio

from evaljournal.journal.errors import Unserializable
from evaljournal.journal.format.codec import json_round_trip
from evaljournal.replay.state.attempt_warnings import TEARDOWN_FAILED
from evaljournal.replay.state.set_ups import HANDLE
from evaljournal.runner.calls import OnLateResult, Task, TrialInput, WrappedTask
from evaljournal.runner.calls.function import FunctionTask
from evaljournal.runner.calls.notes import PHASE_NOTE, attachments, note_sink, set_attachments, start_phase
from evaljournal.runner.definition.hooks import Hook, Role, arguments_for
from evaljournal.runner.engine.call import CallScope
from evaljournal.runner.engine.jobs import TrialWork
from evaljournal.runner.engine.layers import Layer
from evaljournal.runner.retries.classify import describe
from evaljournal.runner.secrets.masking import mask_values
from evaljournal.runner.signals import is_from_signal
from evaljournal.runner.steps.attempt_steps import Step, current_steps
from evaljournal.runner.steps.inputs import step_input

_MAX_HANDLE: Final = 64 * 1024
"""Maximum bytes of a handle."""


class PhasesLayer(Layer):
    """What a layer has in common that does something before and after the task, such as a set-up."""

    def __init__(self, timeout: float | None) -> None:
        """A set-up may take `timeout` seconds, as an attempt may."""
        self.timeout = timeout

    def noted(self, work: TrialWork, scope: CallScope, values: Mapping[str, Any]) -> bool:
        """Start the timeout of a phase of the attempt; a teardown has a limit of its own."""
        match values.get(PHASE_NOTE):  # Sent in the loop of the run.
            case None:
                return False
            case "setup":
                scope.restart(self.timeout)
            case "task":
                scope.restart(work.timeout)
            case "teardown":
                scope.restart(None)
            case _:
                pass  # Another process sent something else.
        return True


class HooksLayer(PhasesLayer):
    def __init__(
        self,
        hooks: Mapping[Role, tuple[Hook, FunctionTask]],
        *,
        timeout: float | None,
        grace: float,
    ) -> None:
        """A teardown may take `timeout` seconds, or `grace` if its attempt was cancelled.

        Functions are called with their arguments by name.
        """
        super().__init__(timeout)
        self._hooks = hooks
        self._grace = grace

    def wrap(self, task: Task, variant: str) -> Task:  # noqa: ARG002
        return WrappedTask(task, self._call)

    async def _call(self, task: Task, trial: TrialInput, on_late: OnLateResult) -> Any:
        """Set up, call the task and tear down; the error of a teardown is noted."""
        arguments = arguments_for(trial.trial, trial.case)
        if "setup" in self._hooks:
            hook, function = self._hooks["setup"]
            # A plain function cannot be cancelled, and the teardown needs its value.
            with trio.CancelScope(shield=function.loop is None and "teardown" in self._hooks):
                arguments[hook.name] = await self._set_up(hook, function, arguments)
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
            start_phase("task")
            return await task.call(trial if task.takes_trial else arguments, on_late)
        finally:
            if "teardown" in self._hooks:
                await self._tear_down(arguments)

    async def _set_up(self, hook: Hook, function: FunctionTask, arguments: Mapping[str, Any]) -> Any:
        has_handle = "teardown" in self._hooks
        value = await _run_phase(hook, function, arguments, has_handle=has_handle)
        if has_handle:
            with trio.CancelScope(shield=True):
                await _sync_steps()  # Otherwise a kill could leave a sandbox without a handle.
        return value

    async def _tear_down(self, arguments: Mapping[str, Any]) -> None:
        limit = self._grace if trio.current_effective_deadline() == -math.inf else self.timeout or math.inf
        error = await call_teardown(lambda: _run_phase(*self._hooks["teardown"], arguments), limit, shield=True)
        if error and (sink := note_sink()) is not None:
            sink({TEARDOWN_FAILED: error})


async def call_teardown(call: Callable[[], Awaitable[object]], limit: float, *, shield: bool = False) -> dict[str, str]:
    """Call a teardown, which may take `limit` seconds; return its error as it is noted, or nothing."""
    error: BaseException = TimeoutError(f"it did not end within {limit:g} s")
    with trio.CancelScope(shield=shield, deadline=trio.current_time() + limit) as scope:
        try:
            await call()
        except trio.Cancelled:
            raise
        except BaseException as exc:
            if is_from_signal(exc):
                raise
            error = error if scope.cancel_called else exc
        else:
            return {}

    description = describe(error)
    return {"error": description.type, "message": description.message}


async def _run_phase(hook: Hook, function: FunctionTask, arguments: Mapping[str, Any], *, has_handle: bool = False) -> Any:
    """Call a set-up or a teardown, and record it as a step; the calls inside it are not steps, which could be reused."""
    steps = current_steps()
    assert steps is not None
    start_phase(hook.role)
    if has_handle:
        await _sync_steps()  # Otherwise a kill could leave a sandbox that no record knows.

    step = Step(hook.label, "other", step_input(None, hook.label), reusable=False, phase=hook.role)
    steps.begin(step)
    outer = attachments()
    set_attachments(None)
    try:
        value = await function.call(arguments, lambda _: None)
    except BaseException as exc:
        steps.fail(step, TimeoutError("it was cancelled before it ended") if isinstance(exc, trio.Cancelled) else exc)
        raise
    finally:
        set_attachments(outer)
    steps.complete(step, _handle(value) if has_handle else None, None)
    return value


async def _sync_steps() -> None:
    """Wait until the steps of the attempt, and its start, are on disk."""
    if (steps := current_steps()) is not None and steps.sync is not None:
        await steps.sync()


def _handle(value: Any) -> dict[str, Any]:
    """Return what the step of a set-up records: the handle for a later session, if JSON can represent it."""
    try:
        is_json = json_round_trip(value) == value and len(orjson.dumps(value)) <= _MAX_HANDLE
    except (TypeError, RecursionError, Unserializable):
        return {}
    return {HANDLE: value} if is_json and mask_values(value) == value else {}
