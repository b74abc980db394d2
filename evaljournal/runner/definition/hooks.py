"""Set-up and teardown: functions that are called before and after the task of each attempt, with arguments by name."""

import inspect
from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Any, Final, Literal

import attrs

from evaljournal.runner.calls import OpenableTask
from evaljournal.runner.data.case import Case
from evaljournal.runner.data.fingerprint import definition_of, fingerprint_function
from evaljournal.runner.errors import UsageError, suggest
from evaljournal.runner.scorers.scorer import parameters_of

Role = Literal["setup", "teardown"]

_PARAMETERS: Final = ("input", "expected", "metadata", "case", "trial")


@attrs.frozen
class Hook:
    role: Role
    function: Callable[..., Any]
    version: str = attrs.field(default=attrs.Factory(lambda hook: fingerprint_function(hook.function), takes_self=True))
    """Fingerprint of its source, taken when it was defined."""
    definition: Mapping[str, Any] = attrs.field(
        repr=False, eq=False, default=attrs.Factory(lambda hook: definition_of(hook.function), takes_self=True)
    )
    """The definition that a run records, taken at the same time."""

    @property
    def name(self) -> str:
        """Name of its function; that of a set-up is also the name of the parameter that gets its value."""
        return str(getattr(self.function, "__name__", type(self.function).__name__))

    @property
    def label(self) -> str:
        """Its name in messages and in the journal."""
        return f"{self.role} {self.name}"


Hooks = Mapping[Role, Hook]


def arguments_for(trial: str, case: Case) -> dict[str, Any]:
    """Return the arguments that a set-up may take."""
    return dict(zip(_PARAMETERS, (case.input, case.expected, case.metadata, case, trial), strict=True))


def hook_parameters(hook: Hook, hooks: Hooks) -> tuple[str, ...]:
    """Return the names of the parameters of a set-up or a teardown; raise a `UsageError` if it has unknown ones."""
    if hook.role == "setup" and hook.name in _PARAMETERS:
        raise UsageError(f"{hook.label}: a parameter named {hook.name!r} has another value already; rename the set-up")
    value_name = (_value_name(hooks),) if hook.role == "teardown" and "setup" in hooks else ()
    return parameters_of(hook.function, hook.label, (*value_name, *_PARAMETERS))


def task_parameters(task: Callable[..., Any], hooks: Hooks) -> tuple[str, ...]:
    """Return the name of the parameter of a task that gets the value of the set-up, if it has one."""
    name = _value_name(hooks)
    return (name,) if any(parameter.name == name for parameter in _parameters(task)[1]) else ()


def check_parameters(task: Callable[..., Any], hooks: Hooks, label: str) -> None:
    """Raise a `UsageError` if a parameter of a task gets no value, or would get that of a variant and of the set-up."""
    if isinstance(task, OpenableTask):
        return

    name = _value_name(hooks)
    if name in getattr(task, "keywords", {}):
        raise UsageError(f"{label}: parameter {name!r} is set by the variant and by the set-up; rename the set-up")
    first_name, further_parameters = _parameters(task)
    if name and name == first_name:
        problem = "the first parameter of the task gets the input, but has the name of the set-up"
        raise UsageError(f"{label}: {problem}; add a parameter")

    for parameter in further_parameters:
        if parameter.default is Parameter.empty and parameter.name != name:
            hint = suggest(parameter.name, [name], limit=1) if name else ""
            problem = f"{label}: parameter {parameter.name!r} of the task has no value{hint}"
            remedy = "give it a default, a value in the variant, or a set-up with its name (@NAME.setup)"
            raise UsageError(f"{problem}; {remedy}. The task's signature is {inspect.signature(task)}")


def _value_name(hooks: Hooks) -> str:
    return hooks["setup"].name if "setup" in hooks else ""


def _parameters(task: Callable[..., Any]) -> tuple[str, list[Parameter]]:
    """Return the name of the first parameter of a task, which gets the case's input, and the parameters after it."""
    try:
        parameters = list(inspect.signature(task).parameters.values())
    except ValueError:
        return "", []  # Some builtins have no signature.
    first_name = parameters[0].name if parameters else ""
    kinds = {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}
    return first_name, [parameter for parameter in parameters[1:] if parameter.kind not in kinds]
