"""Opens the tasks and the scorers of an evaluation for the duration of a session, and what surrounds the calls of tasks."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from evaljournal.journal.threads import InThread, run_in_thread
from evaljournal.runner.calls import OpenableTask, Task, is_async
from evaljournal.runner.calls.function import FunctionTask, Loop
from evaljournal.runner.calls.hand_over import FunctionThreads, SharedThreads
from evaljournal.runner.data.fingerprint import unwrap_partial
from evaljournal.runner.definition.hooks import Hook, Hooks, hook_parameters, task_parameters
from evaljournal.runner.engine.layers import Layer
from evaljournal.runner.scorers.scorer import OpenScorer, Scorer

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

    async def tasks(self, tasks: Mapping[str, Any], loop: Loop | None, hooks: Hooks) -> dict[str, Task]:
        """Open the tasks, without their layers."""
        return {name: await self._open(task, _with_value(task, hooks) if hooks else task, loop) for name, task in tasks.items()}

    async def layers(
        self,
        hooks: Hooks,
        loop: Loop | None,
        *,
        timeout: float | None,  # noqa: ASYNC109  # that of attempts
        grace: float,
        gateway: bool = False,
    ) -> list[Layer]:
        """Open what surrounds the calls of the tasks, the innermost first; with `gateway`, they call models through one.

        For `timeout` and `grace` see `HooksLayer`.
        """
        hooks_layers, layers = list[Layer](), list[Layer]()
        if hooks:
            from evaljournal.runner.sessions.layers.hooks import HooksLayer  # noqa: PLC0415  # few runs need it

            hooks_layers.append(
                HooksLayer(
                    {role: (hook, await self.hook(hook, hooks, loop)) for role, hook in hooks.items()},
                    timeout=timeout,
                    grace=grace,
                )
            )

        if self._workers is not None and self._workers.runs_tasks:
            from evaljournal.runner.sessions.layers.remote import RemoteLayer  # noqa: PLC0415  # few runs need it

            layers += [*hooks_layers, RemoteLayer(self._workers)]  # A set-up and a teardown run in the workers.
            hooks_layers = []
        if gateway:
            from evaljournal.runner.sessions.layers.remote import GatewayLayer  # noqa: PLC0415  # few runs need it
            from evaljournal.runner.steps.gateway.gateway import open_gateway  # noqa: PLC0415  # an HTTP client is slow to import
            from evaljournal.runner.steps.gateway.providers import providers_from_environment  # noqa: PLC0415  # an HTTP client is slow to import

            gateway_of_run = await self._stack.enter_async_context(open_gateway(providers_from_environment()))
            layers.append(GatewayLayer(gateway_of_run))
        return [*layers, *hooks_layers]

    async def hook(self, hook: Hook, hooks: Hooks, loop: Loop | None) -> FunctionTask:
        return await self._open_function(_with_arguments(hook.function, hook_parameters(hook, hooks)), loop)

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
