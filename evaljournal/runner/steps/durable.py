"""`step` and `durable`: calls whose results are recorded, so that an interrupted trial can continue.

After an interruption, a rate limit or an outage, the next attempt at the trial gets the recorded result of each step with the
same input, and executes only the others.
"""

import functools
import inspect
import types
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, ParamSpec, TypeVar, overload

import attrs
import orjson

from evaljournal.journal.errors import Unserializable
from evaljournal.journal.events import StepKind
from evaljournal.journal.format.codec import reject_large
from evaljournal.runner.calls import ReportedStep, is_async
from evaljournal.runner.calls.call_size import CallSize
from evaljournal.runner.calls.usage import usage_of_response
from evaljournal.runner.data.fingerprint import canonical
from evaljournal.runner.data.to_json import to_json
from evaljournal.runner.errors import UsageError
from evaljournal.runner.retries.classify import Fatal
from evaljournal.runner.secrets.masking import mask_output, sent_secrets
from evaljournal.runner.steps.attempt_steps import AttemptSteps, LimitedCall, Step, current_steps, enter_step, leave_step
from evaljournal.runner.steps.inputs import step_input
from evaljournal.runner.steps.waiting import admit_in_loop, wait_in_loop, wait_in_thread

P = ParamSpec("P")
R = TypeVar("R")

_KINDS: Final[tuple[StepKind, ...]] = ("model", "tool", "other")


class StepNotRecordable(Fatal):
    """The input or the result of a step cannot be recorded as JSON."""


@attrs.frozen
class _Definition:
    """How the calls of a function become steps."""

    function: Callable[..., Any]
    name: str
    kind: StepKind = "other"
    reuse: bool = True
    key: Callable[..., Any] | None = None
    usage: Callable[[Any], Any] | None = None
    call_size: CallSize | None = None
    """The size of the model call that the task itself makes; it waits for rate limits."""
    parameters: tuple[str, ...] = attrs.field(
        init=False, default=attrs.Factory(lambda self: _parameters(self.function), takes_self=True)
    )

    def step(self, steps: AttemptSteps, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Step:
        value: Any = _arguments_by_name(self.parameters, args, kwargs) if self.key is None else self.key(*args, **kwargs)
        try:
            return Step(self.name, self.kind, step_input(value, self.name, earlier_inputs=steps.inputs), self.reuse)
        except (UsageError, Unserializable) as exc:
            raise StepNotRecordable(f"{exc}; pass key=…, a function of the arguments that returns JSON") from exc

    def record_result(self, steps: AttemptSteps, step: Step, result: Any) -> Any:
        """Record the result of a step; return it as a later attempt will read it: a tuple as a list."""
        try:
            output = result if _is_unchanged_by_json(result) else _as_json(result, f"the result of step {self.name!r}")
            if sent_secrets:
                output = mask_output(output)
            usage = self._usage_of(steps, step, result, output) if self.usage is not None or isinstance(output, dict) else None
        except (UsageError, Unserializable) as exc:
            error = StepNotRecordable(f"{exc}; return JSON values from a step, such as the text of a reply")
            steps.fail(step, error)
            raise error from exc
        except Exception as exc:  # Raised by the user's `usage`.
            steps.fail(step, exc)
            raise

        steps.complete(step, output, usage)
        return output

    def _usage_of(self, steps: AttemptSteps, step: Step, result: Any, output: Any) -> Any:
        if self.usage is not None:
            return _as_json(self.usage(result), f"the usage of step {self.name!r}")
        return None if steps.has_inner_usage(step) else usage_of_response(output) or None


def _is_unchanged_by_json(value: Any) -> bool:
    """Return whether JSON certainly preserves a value; for most replies this avoids a copy."""
    return value is None or value.__class__ is bool or (value.__class__ is str and value.isascii())


def _as_json(value: Any, name: str) -> Any:
    """Return a value as it is read back from the journal; `name` is its name in errors."""
    reject_large(value, name)
    try:
        text = orjson.dumps(value, option=orjson.OPT_PASSTHROUGH_DATACLASS)
        has_null = b"null" in text
    except TypeError:
        value = to_json(value)
        text, has_null = canonical(value, name), False
    if has_null:
        canonical(value, name)  # NaN would be read as null.
    return orjson.loads(text)


def _arguments_by_name(names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments by the names of their parameters; `self` is omitted, others without a name are under `args`."""
    if not args:
        return kwargs
    if names and names[0] == "self":
        names, args = names[1:], args[1:]
    arguments = {**dict(zip(names, args)), **kwargs}  # noqa: B905  # `strict=False` takes time
    return arguments if len(args) <= len(names) else arguments | {"args": list(args[len(names) :])}


def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of a function's positional parameters; reading its code is far cheaper than `inspect.signature`."""
    function = inspect.unwrap(function)
    plain_function = function.__func__ if isinstance(function, types.MethodType) else function
    code = getattr(plain_function, "__code__", None)
    names: tuple[str, ...] = code.co_varnames[: code.co_argcount] if isinstance(code, types.CodeType) else ()
    return names[1:] if plain_function is not function else names


@overload
def durable(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def durable(
    *,
    name: str | None = None,
    kind: StepKind = "other",
    reuse: bool = True,
    key: Callable[..., Any] | None = None,
    usage: Callable[[Any], Any] | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def durable(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    kind: StepKind = "other",
    reuse: bool = True,
    key: Callable[..., Any] | None = None,
    usage: Callable[[Any], Any] | None = None,
) -> Any:
    """Make each call of a function a step: `@durable`, or `@durable(kind="tool")`.

    Its result is recorded as JSON, and returned in that form: a tuple as a list. An attempt after an interruption, a rate limit
    or an outage gets the recorded result of a call with the same arguments instead of calling the function again. Outside an
    attempt, it is a plain call.

    - `name`: name of the step (default: name of the function).
    - `kind`: kind of the step: `model`, `tool` or `other`.
    - `reuse=False`: it is recorded but always executed, for steps with side effects, such as writing a file in a sandbox.
    - `key`: returns JSON that identifies a call from its arguments; needed if they are not JSON.
    - `usage`: returns tokens and cost from the result (default: read from replies of OpenAI and Anthropic).
    """
    if function is None:
        return functools.partial(durable, name=name, kind=kind, reuse=reuse, key=key, usage=usage)
    if name is not None and not _is_name(name):
        raise UsageError(f"the name of a step must be a string, not {name!r}")
    if kind not in _KINDS:
        raise UsageError(f"kind must be one of {', '.join(map(repr, _KINDS))}, not {kind!r}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError(f"{function.__name__} is a generator; a step returns one result")
    if not callable(function):
        raise UsageError(f"a step calls a function, not {type(function).__name__}")

    definition = _Definition(function, name or str(getattr(function, "__name__", "step")), kind, reuse, key, usage)
    wrapper = _async_wrapper(definition) if inspect.iscoroutinefunction(function) else _plain_wrapper(definition)
    return functools.wraps(function)(wrapper)


def _is_name(name: object) -> bool:
    """Return whether a value is a string that the journal can store."""
    return isinstance(name, str) and bool(name) and (name.isascii() or name.encode(errors="ignore").decode() == name)


def step(name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a function once, as a step; see `durable`, which has more options.

    `await step("plan", ask, question)` calls `ask(question)`; for a plain function, omit `await`.
    """
    if not _is_name(name):
        raise UsageError('the first argument of step is its name: step("plan", ask, question)')
    if not callable(function):
        raise UsageError(f"step({name!r}, …) calls a function; it got {type(function).__name__}")
    definition = _Definition(function, name)
    return (_async_wrapper(definition) if is_async(function) else _plain_wrapper(definition))(*args, **kwargs)


class DurableSteps:
    """Records the model calls of our own tasks as steps of the attempt in flight; see `StepRecorder`."""

    async def model_step(
        self, name: str, request: Any, call: Callable[[], Awaitable[Any]], usage: Callable[[], Any], size: CallSize
    ) -> Any:
        definition = _Definition(call, name, "model", key=lambda: request, usage=lambda _: usage(), call_size=size)
        return await _async_wrapper(definition)()

    def record_steps(self, steps: Sequence[ReportedStep], duration: float) -> None:
        if (attempt_steps := current_steps()) is not None:
            attempt_steps.add_reported(steps, duration)


def _plain_wrapper(definition: _Definition) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        steps = current_steps()
        if steps is None:
            return definition.function(*args, **kwargs)

        step = definition.step(steps, args, kwargs)
        if (earlier_result := steps.begin(step)) is not None:
            return earlier_result.output

        outer_token = enter_step(step.number)
        try:
            result = definition.function(*args, **kwargs)
        except Exception as exc:
            steps.fail(step, exc)
            raise
        finally:
            leave_step(outer_token)

        if inspect.isawaitable(result):  # The method of an async client may be a plain function.
            return _await_and_record(definition, steps, step, result)
        output = definition.record_result(steps, step, result)
        wait_in_thread(steps)
        return output

    return call


def _async_wrapper(definition: _Definition) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        steps = current_steps()
        if steps is None:
            return await definition.function(*args, **kwargs)

        step = definition.step(steps, args, kwargs)
        if (earlier_result := steps.begin(step)) is not None:
            return earlier_result.output
        if definition.call_size is not None:
            step.call = LimitedCall("", (), "", definition.call_size)
            await admit_in_loop(steps, step)
        return await _await_and_record(definition, steps, step, definition.function(*args, **kwargs))

    return call


async def _await_and_record(definition: _Definition, steps: AttemptSteps, step: Step, result: Awaitable[Any]) -> Any:
    outer_token = enter_step(step.number)
    try:
        value = await result
    except Exception as exc:
        steps.fail(step, exc)
        raise
    finally:
        leave_step(outer_token)

    output = definition.record_result(steps, step, value)
    if steps.wait_durable is not None:
        await wait_in_loop(steps)
    return output
