"""Definition of an evaluation: a task, its cases, its scorers and its settings.

Mistakes in a definition are reported here, before anything runs.
"""

import copy
import enum
import functools
import inspect
import os
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import FunctionType, MappingProxyType
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, Protocol, cast, overload, runtime_checkable

import attrs
from typing_extensions import TypeVar, Unpack

from evaljournal.runner.calls import OpenableTask, is_async
from evaljournal.runner.data.case import Case
from evaljournal.runner.data.dataset import Dataset, Source
from evaljournal.runner.data.fingerprint import definition_of, digest, fingerprint_function
from evaljournal.runner.definition.hooks import Hook, Role, check_parameters, hook_parameters
from evaljournal.runner.definition.settings import DURATION_PROBLEM, SettingOptions, Settings, as_float, is_duration
from evaljournal.runner.definition.variants import Variant, VariantOptions, check_signature, selected_variants, variants_of
from evaljournal.runner.errors import UsageError, suggest
from evaljournal.runner.retries.retry import Retry
from evaljournal.runner.scorers.scorer import Scorer, Verdicts
from evaljournal.runner.secrets.masking import mask_values

InputT = TypeVar("InputT")
OutputT = TypeVar("OutputT")
ReturnT = TypeVar("ReturnT", default=Any)
ScorerT = TypeVar("ScorerT", bound=Callable[..., Verdicts | Awaitable[Verdicts]])
CallableT = TypeVar("CallableT", bound=Callable[..., Any])


class Inherited(enum.Enum):
    INHERITED = enum.auto()


INHERITED: Final = Inherited.INHERITED
"""Use the timeout of the run's attempts."""

_NAME = re.compile(r"\w[\w.-]*")
_SCORER_NAME = re.compile(r"\w[\w-]*")


@runtime_checkable
class CaseChecker(Protocol):
    """A task or a scorer that may reject a case, for example because its prompt needs a field that the case lacks."""

    def check(self, case: Case, /) -> None:
        """Raise a `UsageError` if the case lacks something."""


class Evaluation(Generic[InputT, OutputT, ReturnT]):
    """A task with its cases, scorers and settings. It can be called like the decorated function."""

    __test__ = False
    """pytest must not call it as a test function if its name starts with `test`."""

    def __init__(
        self,
        task: Callable[[InputT], ReturnT],
        *,
        cases: Dataset,
        settings: Settings,
        name: str | None,
        variants: VariantOptions | Mapping[str, Variant] | None = None,
        depends: Iterable[str | PathLike[str]] = (),
        namespace: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.name = _valid_name(task, name, _NAME)
        """Its runs are stored under this name."""
        _check_task(task, self.name, settings, has_variants=variants is not None)
        self.task: Callable[Concatenate[InputT, ...], ReturnT] = task

        self.variants = {} if variants is None else variants_of(task, variants, self.name)
        """Variants by name, in the order of the definition; empty if the task has none."""
        is_object = isinstance(task, OpenableTask)
        self._task_fingerprint = digest(b"variants") if self.variants and is_object else fingerprint_function(task)
        """Computed now because the file of the task may change during a run. Each variant has its own; for variants of an
        object, such as a chat model, this one is constant."""
        self._task_definition = definition_of(task)

        self.cases = cases
        for variant_task in self.tasks.values():
            self.cases = _add_check(self.cases, variant_task)

        self.settings = settings
        self.namespace = namespace
        """The variables of the module that defines it; empty for an evaluation without code."""
        self.depends = [_existing_file(file, namespace) for file in depends]
        """Files that its results depend on."""
        self.scorers: dict[str, Scorer] = {}
        """Scorers by name, in the order in which they were added."""
        self.hooks: dict[Role, Hook] = {}
        functools.update_wrapper(self, task, updated=())

    def __call__(self, value: InputT, /, **parameters: Any) -> ReturnT:
        """Call the task itself, without slots, retries or records; `parameters` are those of a variant."""
        return self.task(value, **parameters)

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the task, with its set-up and teardown."""
        versions = [f"{role} {hook.version}" for role, hook in sorted(self.hooks.items())]
        return digest("\n".join([self._task_fingerprint, *versions]).encode()) if versions else self._task_fingerprint

    @property
    def tasks(self) -> dict[str, Callable[[Any], Any]]:
        """Variant → the task with its parameters; without variants, the task itself under an empty name."""
        return {name: variant.task for name, variant in self.variants.items()} or {"": self.task}

    def with_variants(self, names: Sequence[str]) -> "Evaluation[InputT, OutputT, ReturnT]":
        """Return a copy with only these variants; with all of them if there are no names."""
        evaluation = copy.copy(self)
        evaluation.variants = selected_variants(self.variants, names, self.name)
        return evaluation

    if not TYPE_CHECKING:  # Type checkers report an unknown attribute themselves.

        def __getattr__(self, name: str) -> Any:
            hint = "; write @NAME.score to add a scorer" if name.startswith("scor") else ""
            raise AttributeError(f"an evaluation has no attribute {name!r}{hint}", name=name, obj=self)

    def __repr__(self) -> str:
        return f"<evaluation {self.name!r}, scorers: {', '.join(self.scorers) or 'none'}, {self.settings}>"

    @property
    def definition(self) -> dict[str, Any]:
        """The task and the scorers as a run records them, with secrets masked."""
        definition: dict[str, Any] = {
            "task": self._task_definition,
            "scorers": {name: scorer.definition for name, scorer in self.scorers.items()},
        }
        definition |= {role: hook.definition for role, hook in self.hooks.items()}
        if self.variants:
            definition["variants"] = {name: variant.definition for name, variant in self.variants.items()}
        return cast("dict[str, Any]", mask_values(definition))

    @property
    def is_async(self) -> bool:
        """Whether the task is a coroutine function."""
        return is_async(self.task)

    def setup(self, function: CallableT, /) -> CallableT:
        """Call a function before the task in each attempt; returns it unchanged: `@agent.setup` above `def sandbox(case)`.

        Its parameters are passed by name: any of input, expected, metadata, case and trial (its id). The task and the teardown
        get its value by the name of the function, if they have such a parameter. Its time is not part of the latency.
        """
        return self._add_hook("setup", function)

    def teardown(self, function: CallableT, /) -> CallableT:
        """Call a function after the task in each attempt that was set up, however it ended: `@agent.teardown`.

        Its parameters are those of a set-up, and the value of the set-up. If it fails, the output is kept.
        """
        return self._add_hook("teardown", function)

    def _add_hook(self, role: Role, function: CallableT) -> CallableT:
        name = _valid_name(function, None, _SCORER_NAME)
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise UsageError(f"{role} {name!r} is a generator; return the value, and clean up in @{self.name}.teardown")
        _check_function(function, name, role)
        if role in self.hooks and not _is_new_version(function, self.hooks[role].function):
            raise UsageError(f"{self.name!r} has a {role} already, {self.hooks[role].name!r}; call both in one function")
        self.hooks[role] = Hook(role, function)
        return function

    def check_parameters(self) -> None:
        """Raise a `UsageError` if a parameter of the task, the set-up or the teardown gets no value."""
        for variant, task in self.tasks.items():
            check_parameters(task, self.hooks, f"variant {variant!r} of {self.name!r}" if variant else f"task {self.name!r}")
        for hook in self.hooks.values():
            hook_parameters(hook, self.hooks)

    @overload
    def score(self, scorer: ScorerT, /) -> ScorerT: ...

    @overload
    def score(
        self,
        *,
        name: str | None = None,
        retry: Retry | None = None,
        timeout: float | Inherited | None = INHERITED,
        workers: bool = False,
    ) -> Callable[[ScorerT], ScorerT]: ...

    def score(
        self,
        scorer: Callable[..., Any] | None = None,
        *,
        name: str | None = None,
        retry: Retry | None = None,
        timeout: float | Inherited | None = INHERITED,
        workers: bool = False,
    ) -> Callable[..., Any]:
        """Add a scorer; returns it unchanged: `@capitals.score`, or `@capitals.score(name="judge", timeout=60)`.

        Its parameters are passed by name: any of output, expected, input, metadata, case, trajectory, declined, truncated,
        latency, cost, files and diff. `timeout` is in seconds for one call (default: the judge's own, otherwise the run's
        timeout; None: no limit). With `workers`, it is called in the workers of the run; use this if it executes code that a
        model wrote.
        """

        def add(function: CallableT) -> CallableT:
            scorer_name = _valid_name(function, name, _SCORER_NAME)
            _check_function(function, scorer_name, "scorer")
            if scorer_name in self.scorers and not _is_new_version(function, self.scorers[scorer_name].function):
                problem = f"{self.name!r} has a scorer {scorer_name!r} already"
                raise UsageError(f"{problem}; give this one another name: score(name=…)")

            own_timeout, task = timeout, cast("object", function)
            if timeout is INHERITED and isinstance(task, OpenableTask):
                own_timeout = getattr(task, "timeout", INHERITED)  # A judge has a timeout of its own; functions have none.

            self.scorers[scorer_name] = Scorer(
                name=scorer_name,
                function=function,
                retry=self.settings.retry if retry is None else retry,
                inherits_retry=retry is None,
                timeout=None if own_timeout is INHERITED else _valid_timeout(own_timeout),
                inherits_timeout=own_timeout is INHERITED,
                workers=workers,
            )
            self.cases = _add_check(self.cases, function)
            return function

        return add if scorer is None else add(scorer)


def _valid_timeout(timeout: float | None) -> float | None:
    seconds: float | None = as_float(timeout)
    if seconds is not None and not is_duration(seconds):
        raise UsageError(DURATION_PROBLEM, setting="timeout", value=timeout, hint="None turns it off")
    return seconds


def _is_new_version(function: object, old_function: object) -> bool:
    """Return whether a function replaces an older version of itself, as when a notebook cell is re-run.

    Two functions with the same name on different lines of a file, or created by the same function, are a mistake.
    """
    if not (isinstance(function, FunctionType) and isinstance(old_function, FunctionType)):
        return False
    code, old_code = function.__code__, old_function.__code__
    is_same_name = (function.__module__, function.__qualname__) == (old_function.__module__, old_function.__qualname__)
    is_rerun = code.co_filename != old_code.co_filename or code.co_firstlineno == old_code.co_firstlineno
    return is_same_name and is_rerun and code is not old_code


class EvaluationDecorator(Protocol):
    @overload
    def __call__(
        self, task: Callable[[InputT], Coroutine[Any, Any, OutputT]], /
    ) -> Evaluation[InputT, OutputT, Coroutine[Any, Any, OutputT]]: ...

    @overload
    def __call__(self, task: Callable[[InputT], OutputT], /) -> Evaluation[InputT, OutputT, OutputT]: ...

    @overload  # With variants, functions have further parameters.
    def __call__(
        self, task: Callable[Concatenate[InputT, ...], Coroutine[Any, Any, OutputT]], /
    ) -> Evaluation[InputT, OutputT, Coroutine[Any, Any, OutputT]]: ...

    @overload
    def __call__(self, task: Callable[Concatenate[InputT, ...], OutputT], /) -> Evaluation[InputT, OutputT, OutputT]: ...


def _require_cases(function: CallableT) -> CallableT:
    """Raise an error that shows the right form if the decorator is used without parentheses or cases."""

    @functools.wraps(function)
    def wrapper(*arguments: Any, **options: Any) -> Any:
        if arguments or "cases" not in options:
            name = getattr(arguments[0], "__name__", "the function") if arguments else "the function"
            raise UsageError(f"the cases are missing; write `@evaluation(cases=…)` above {name}, with a list or a file's path")
        return function(**options)

    return cast("CallableT", wrapper)


@_require_cases
def evaluation(
    *,
    cases: Source | Dataset,
    name: str | None = None,
    variants: VariantOptions | None = None,
    depends: str | PathLike[str] | Iterable[str | PathLike[str]] = (),
    **settings: Unpack[SettingOptions],
) -> EvaluationDecorator:
    """Turn a function that takes a case's input and returns an output into an evaluation.

    `cases` is a file's path, a DataFrame, a Hugging Face dataset, an iterable, a function that returns one of these, or a
    `Dataset`, which also names the columns. `name` defaults to the function's name. `variants` are the sets of parameters that
    the function is called with: `{"mini": {"model": "gpt-5.4-mini"}}`, or lists of values, to run every combination:
    `{"model": ["gpt-5.4", "gpt-5.4-mini"], "temperature": [0, 1]}`. `depends` names files that the results depend on, such as
    prompts that the function reads when it is called, relative to the evaluation's file; `resume` rejects a run if one of them
    has changed. For all other parameters see `Settings`; `run` can override each of them.
    """
    names = {field.name for field in attrs.fields(Settings)}
    for option in settings:
        if option in inspect.signature(Dataset).parameters:
            raise UsageError(f"{option!r} is an option of the dataset; write cases=Dataset(…, {option}=…)")
        if option in {"score", "scorer", "scorers"}:
            raise UsageError(f"scorers are added to the evaluation, not with {option}=…: write @NAME.score above each of them")
        if option not in names:
            raise UsageError(f"unknown setting {option!r}{suggest(option, names, limit=1)}")

    dataset = cases if isinstance(cases, Dataset) else Dataset(cases)
    own_settings = Settings().with_values(settings)
    files = [depends] if isinstance(depends, str | PathLike) else list(depends)

    frame = inspect.currentframe()
    caller = frame and frame.f_back and frame.f_back.f_back  # `_require_cases` is between them.
    namespace = caller.f_globals if caller else {}

    def define(task: Callable[[Any], Any]) -> Evaluation[Any, Any, Any]:
        return Evaluation(
            task, cases=dataset, settings=own_settings, name=name, variants=variants, depends=files, namespace=namespace
        )

    return cast("EvaluationDecorator", define)


def _add_check(cases: Dataset, task: object) -> Dataset:
    """Let a task or a scorer check the cases; the files in columns that a task sends are part of them."""
    if columns := getattr(task, "file_columns", ()):
        cases = cases.with_files(columns)
    return cases.with_check(task.check) if isinstance(task, CaseChecker) else cases


def _existing_file(file: str | PathLike[str], namespace: Mapping[str, Any]) -> Path:
    """Return the absolute path of a file that is relative to the evaluation's file, in a notebook to the working directory."""
    path = Path(os.path.abspath(Path(namespace.get("__file__") or "notebook").absolute().parent / file))
    if not path.is_file():
        problem = "is not a file; name the files in it" if path.exists() else "does not exist"
        raise UsageError(f"{path} {problem}; the path is relative to the evaluation's file", setting="depends", value=str(file))
    return path


def _valid_name(function: object, name: str | None, pattern: re.Pattern[str]) -> str:
    name = getattr(function, "__name__", type(function).__name__) if name is None else name
    if not isinstance(name, str) or not pattern.fullmatch(name):
        raise UsageError(f"{name!r} is not a valid name; use letters, digits, '_' and '-': name=…")
    return name


def _check_task(task: Callable[..., Any], name: str, settings: Settings, *, has_variants: bool) -> None:
    if isinstance(task, Evaluation):
        raise UsageError(f"{name!r} is already an evaluation; decorate the function once")
    _check_function(task, name, "task")
    if settings.loop and not is_async(task):
        raise UsageError(f"{name!r} is not an `async def`; omit the option", setting="loop", value=settings.loop)
    if not has_variants:  # Otherwise, the signature is checked with the parameters of each.
        check_signature(task, {}, f"task {name!r}")


def _check_function(function: Callable[..., Any], name: str, role: str) -> None:
    if not callable(function):
        raise UsageError(f"a {role} is a function, not {function!r}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError(f"{role} {name!r} is a generator; return the complete result instead of yielding parts")
