"""Opens the tasks and the scorers of an evaluation for the duration of a session.

A set-up and a teardown run where the task runs, and their values stay there.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import trio

from evaljournal.journal.threads import InThread, run_in_thread
from evaljournal.replay.state.attempt_warnings import TEARDOWN_FAILED
from evaljournal.runner.calls import OnLateResult, OpenableTask, Task, TrialInput, is_async
from evaljournal.runner.calls.function import FunctionTask, Loop
from evaljournal.runner.calls.hand_over import FunctionThreads, SharedThreads
from evaljournal.runner.calls.notes import note_sink, start_phase
from evaljournal.runner.data.fingerprint import unwrap_partial
from evaljournal.runner.definition.hooks import Hook, Hooks, Role, arguments_for, hook_parameters, task_parameters
from evaljournal.runner.retries.classify import describe
from evaljournal.runner.scorers.scorer import OpenScorer, Scorer
from evaljournal.runner.signals import is_from_signal
from evaljournal.runner.steps.attempt_steps import Step, current_steps, set_steps
from evaljournal.runner.steps.inputs import step_input

if TYPE_CHECKING:
    from evaljournal.runner.workers.driver import Workers


class TaskOpener:
    """Converts functions to tasks, and opens tasks that hold connections; all are closed with the stack."""

    def __init__(
        self, stack: AsyncExitStack, run: str, *, grace: float, in_thread: InThread, workers: "Workers | None" = None
    ) -> None:
        """Scorers that are defined with `workers=True` are called in `workers`, and tasks are if `workers.runs_tasks`."""
        self._stack = stack
        self._run = run
        self._grace = grace
        self._in_thread = None if in_thread is run_in_thread else in_thread
        self._workers = workers
        self._threads: FunctionThreads | None = None
        self._scorer_threads: SharedThreads | None = None

    async def tasks(
        self,
        tasks: Mapping[str, Any],
        loop: Loop | None,
        *,
        gateway: bool,
        hooks: Hooks,
        timeout: float | None,  # noqa: ASYNC109  # that of attempts
        grace: float,
    ) -> dict[str, Task]:
        """Open the tasks of all variants; with `gateway`, their attempts call models through one.

        For `hooks`, `timeout` and `grace` see `HookedTask`.
        """
        open_tasks: dict[str, Task] = {
            variant: await self._open(task, _with_value(task, hooks) if hooks else task, loop)
            for variant, task in tasks.items()
        }
        open_hooks: dict[Role, tuple[Hook, FunctionTask]] = {}
        for role, hook in hooks.items():
            function = _with_arguments(hook.function, hook_parameters(hook, hooks))
            open_hooks[role] = hook, await self._open_function(function, loop)

        def with_hooks(tasks: dict[str, Task]) -> dict[str, Task]:
            return {variant: HookedTask(task, open_hooks, timeout=timeout, grace=grace) for variant, task in tasks.items()}

        if (workers := self._workers) is not None and workers.runs_tasks:
            from evaljournal.runner.workers.remote_task import RemoteTask  # noqa: PLC0415  # few runs need it

            if hooks:
                open_tasks, hooks = with_hooks(open_tasks), {}  # They run in the workers.
            open_tasks = {variant: RemoteTask(task, variant, workers) for variant, task in open_tasks.items()}
        if gateway:
            open_tasks = await self._with_gateway(open_tasks)
        return with_hooks(open_tasks) if hooks else open_tasks

    async def _with_gateway(self, tasks: dict[str, Task]) -> dict[str, Task]:
        from evaljournal.runner.steps.gateway.gateway import GatewayTask, open_gateway  # noqa: PLC0415  # an HTTP client is slow to import
        from evaljournal.runner.steps.gateway.providers import providers_from_environment  # noqa: PLC0415  # an HTTP client is slow to import

        shared_gateway = await self._stack.enter_async_context(open_gateway(providers_from_environment()))
        return {variant: GatewayTask(task, shared_gateway) for variant, task in tasks.items()}

    async def scorer(self, scorer: Scorer, key: str, slots: int | None = None) -> OpenScorer:
        """Open a scorer with its rate-limit key; with `slots`, that many calls of plain functions may be in flight."""
        if scorer.workers and self._workers is not None:
            from evaljournal.runner.workers.remote_task import RemoteScorer  # noqa: PLC0415  # few runs need it

            return OpenScorer(scorer=scorer, task=RemoteScorer(scorer.name, self._workers), key=key)
        task = await self._open(scorer.function, _with_loop(scorer.call, scorer.function), None)
        if slots is None or not scorer.is_plain:
            return OpenScorer(scorer=scorer, task=task, key=key)
        if self._scorer_threads is None:
            self._scorer_threads = await self._stack.enter_async_context(SharedThreads(slots, self._in_thread))
        self._scorer_threads.limit = min(slots, self._scorer_threads.limit)
        return OpenScorer(scorer=scorer, task=task, key=key, threads=self._scorer_threads)

    async def _open(self, target: object, function: Callable[[Any], Any], loop: Loop | None) -> Task:
        if isinstance(target, OpenableTask):
            return await self._stack.enter_async_context(target.open_session(self._run))
        return await self._open_function(function, loop)

    async def _open_function(self, function: Callable[[Any], Any], loop: Loop | None) -> FunctionTask:
        if self._threads is None:
            self._threads = await self._stack.enter_async_context(FunctionThreads(grace=self._grace))
        return FunctionTask(function, loop=loop, threads=self._threads, in_thread=self._in_thread)


class HookedTask:
    """A task with a set-up, a teardown, or both."""

    takes_trial: bool = True

    def __init__(
        self,
        task: Task,
        hooks: Mapping[Role, tuple[Hook, FunctionTask]],
        *,
        timeout: float | None,
        grace: float,
    ) -> None:
        """A teardown may take `timeout` seconds, or `grace` if its attempt was cancelled.

        Functions are called with their arguments by name.
        """
        self._task = task
        self._hooks = hooks
        self._timeout = math.inf if timeout is None else timeout
        self._grace = grace
        self.request = getattr(task, "request", None)
        self.loop = getattr(task, "loop", "trio")
        """The event loop of the task; None for a plain function."""

    @property
    def blocking_calls(self) -> int:
        """Number of consecutive calls, up to the last one, that blocked the event loop; see `FunctionTask`."""
        return getattr(self._task, "blocking_calls", 0)

    async def call(self, trial: TrialInput, on_late: OnLateResult, /) -> Any:
        """Set up, call the task and tear down; the error of a teardown is noted."""
        arguments = arguments_for(trial)
        if "setup" in self._hooks:
            hook, function = self._hooks["setup"]
            # A plain function cannot be cancelled, and the teardown needs its value.
            with trio.CancelScope(shield=function.loop is None and "teardown" in self._hooks):
                arguments[hook.name] = await _run_phase(hook, function, arguments)
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
            start_phase("task")
            return await self._task.call(trial if self._task.takes_trial else arguments, on_late)
        finally:
            if "teardown" in self._hooks:
                await self._tear_down(arguments)

    async def _tear_down(self, arguments: Mapping[str, Any]) -> None:
        limit = self._grace if trio.current_effective_deadline() == -math.inf else self._timeout
        error: BaseException = TimeoutError(f"it did not end within {limit:g} s")
        with trio.CancelScope(shield=True, deadline=trio.current_time() + limit) as scope:
            try:
                await _run_phase(*self._hooks["teardown"], arguments)
            except trio.Cancelled:
                raise
            except BaseException as exc:
                if is_from_signal(exc):
                    raise
                error = error if scope.cancel_called else exc
            else:
                return
        if (sink := note_sink()) is not None:
            description = describe(error)
            sink({TEARDOWN_FAILED: {"error": description.type, "message": description.message}})


async def _run_phase(hook: Hook, function: FunctionTask, arguments: Mapping[str, Any]) -> Any:
    """Call a set-up or a teardown, and record it as a step; the calls inside it are not steps, which could be reused."""
    steps = current_steps()
    assert steps is not None
    start_phase(hook.role)
    step = Step(hook.label, "other", step_input(None, hook.label), reusable=False, phase=hook.role)
    steps.begin(step)
    set_steps(None)
    try:
        value = await function.call(arguments, lambda _: None)
    except BaseException as exc:
        steps.fail(step, TimeoutError("it was cancelled before it ended") if isinstance(exc, trio.Cancelled) else exc)
        raise
    finally:
        set_steps([steps])
    steps.complete(step, None, None)
    return value


def _with_value(task: Any, hooks: Hooks) -> Callable[[Any], Any]:
    """Return a function that calls a task with the input, and the value of the set-up if it takes that, in a mapping."""
    return _with_arguments(task, () if isinstance(task, OpenableTask) else task_parameters(task, hooks), takes_input=True)


def _with_arguments(function: Callable[..., Any], names: Sequence[str], *, takes_input: bool = False) -> Callable[[Any], Any]:
    """Return a function that calls another one with some of the arguments in a mapping."""

    def call(arguments: Mapping[str, Any]) -> Any:
        return function(*([arguments["input"]] if takes_input else []), **{name: arguments[name] for name in names})

    return _with_loop(call, function)


def _with_loop(call: Callable[[Any], Any], function: Callable[..., Any]) -> Callable[[Any], Any]:
    """Return a function that makes a call of another one; it is async if that one is, and runs in the same event loop."""
    if not is_async(function):
        return call

    async def await_call(value: Any) -> Any:
        return await call(value)

    await_call.__wrapped__ = unwrap_partial(function)  # type: ignore[attr-defined]
    return await_call
