"""Import evaluations by reference: `evals/capitals.py`, `evals/capitals.py:capitals` or `package.module:capitals`.

The user's directory and the working directory are appended to `sys.path`, so that a `rich.py` or `json.py` in them cannot
replace a package.
Errors are `UsageError`s with a traceback of the user's code only.
"""

import contextlib
import importlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Callable, Generator
from contextvars import ContextVar
from importlib.machinery import SourceFileLoader
from inspect import isfunction
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Final, NamedTuple, TypeAlias, cast

from evaljournal.runner.definition.code_files import OWN_DIRECTORY, record_files
from evaljournal.runner.definition.evaluation import Evaluation
from evaljournal.runner.errors import UsageError, suggest

AnyEvaluation: TypeAlias = Evaluation[Any, Any, Any]

imports_for_worker: Final[ContextVar[bool]] = ContextVar("evaljournal_imports_for_worker", default=False)
"""Whether a worker imports a file, which must not start a run."""

_REFERENCE: Final = re.compile(r"(?P<module>.+?)(?::(?P<name>[^:/\\]*))?", re.DOTALL)
_MODULE: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_user_modules: Final[set[str]] = set()
"""Names of modules that were loaded from a user's file; the next file of that name replaces the module."""


class LoadedEvaluation(NamedTuple):
    """An evaluation, and the reference that loads it again from the same working directory."""

    evaluation: AnyEvaluation
    reference: str


def load_evaluation(reference: str) -> LoadedEvaluation:
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        raise UsageError("the reference is empty; pass a file, such as evals/capitals.py")
    module_path, name = match["module"], match["name"]
    if name == "":
        raise UsageError(f"{reference!r} ends with a colon; add the evaluation's name after the colon, or remove the colon")
    return _choose(_import_user_module(module_path), module_path, name)


def load_evaluations(file: Path) -> list[LoadedEvaluation]:
    """Import a Python file; return all evaluations in it, in the order of their definition."""
    module = _import_user_module(str(file))
    return [LoadedEvaluation(getattr(module, name), f"{file}:{name}") for name in _names(module)]


def load_function(reference: str) -> Callable[..., Any]:
    """Import a function, such as a scorer, by reference: `file.py:name` or `package.module:name`."""
    module_path, _, name = reference.rpartition(":")
    if not module_path or not name.isidentifier():
        raise UsageError(f"{reference!r} is not a reference to a function; use file.py:name or package.module:name")

    module = _import_user_module(module_path)
    function = getattr(module, name, None)
    if not callable(function):
        names = (name for name, value in vars(module).items() if callable(value))
        hint = suggest(name, names, limit=1, render=lambda name: f"{module_path}:{name}")
        raise UsageError(f"{module_path} has no function {name!r}{hint}")
    return cast("Callable[..., Any]", function)


def load_functions(module_path: str) -> dict[str, Callable[..., Any]]:
    """Import a file or a module; return the functions that it defines by name."""
    module = _import_user_module(module_path)
    return {name: value for name, value in vars(module).items() if isfunction(value) and value.__module__ == module.__name__}


def _import_user_module(module_path: str) -> ModuleType:
    is_module = _MODULE.fullmatch(module_path) and not module_path.endswith(".py") and not Path(module_path).exists()
    return record_files(lambda: _import_module(module_path) if is_module else _import_file(Path(module_path)))


def _choose(module: ModuleType, module_path: str, name: str | None) -> LoadedEvaluation:
    """Return the evaluation with this name, its own or that of its variable; without a name, the only evaluation."""
    names = _names(module)
    if name is None:
        if not names:
            raise UsageError(f"{module_path} defines no evaluation; put @evaluation(cases=…) above a function in it")
        if len(names) > 1:
            choices = ", ".join(f"{module_path}:{variable}" for variable in names)
            raise UsageError(f"{module_path} defines {len(names)} evaluations; pass one of them: {choices}")
        name = names[0]
    elif not isinstance(getattr(module, name, None), Evaluation):
        matches = [variable for variable in names if getattr(module, variable).name == name]
        if len(matches) != 1:
            raise _no_such_name_error(module, module_path, name, names)
        name = matches[0]

    return LoadedEvaluation(getattr(module, name), f"{module_path}:{name}")


def _names(module: ModuleType) -> list[str]:
    """Return the variables of a module that are evaluations; of several for the same one, the first."""
    evaluations = {variable: value for variable, value in vars(module).items() if isinstance(value, Evaluation)}
    first_variables = {id(value): variable for variable, value in reversed(evaluations.items())}
    return [variable for variable, value in evaluations.items() if first_variables[id(value)] == variable]


def _no_such_name_error(module: ModuleType, module_path: str, name: str, names: list[str]) -> UsageError:
    if hasattr(module, name):
        kind = type(getattr(module, name)).__name__
        return UsageError(f"{module_path}:{name} is a {kind}, not an evaluation; put @evaluation(cases=…) above the function")
    hint = suggest(name, names) or (f"; it defines {', '.join(map(repr, names))}" if names else "")
    return UsageError(f"{module_path} defines no evaluation {name!r}{hint}")


def _import_module(name: str) -> ModuleType:
    _append_to_path(Path.cwd())
    with _report_user_errors(name, Path.cwd()):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as exc:
            if exc.name is not None and (name == exc.name or name.startswith(f"{exc.name}.")):
                path = Path(*name.split(".")).with_suffix(".py")
                hint = f"; did you mean {path}?" if path.exists() else ""
                raise UsageError(f"no file or module {name!r}{hint}") from None
            raise


def _import_file(path: Path) -> ModuleType:
    _check_file(path)
    path = path.resolve()
    directory, name = _import_location(path)
    _append_to_path(directory)
    _append_to_path(Path.cwd())  # As `python -m pytest` has it, whose runs are resumed.

    with _report_user_errors(str(path), directory):
        package = name.rpartition(".")[0]
        if package:
            _check_package(importlib.import_module(package), path)

        spec = importlib.util.spec_from_file_location(name, path, loader=_UncachedLoader(name, str(path)))
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # Added before it runs, because dataclasses and pickle look up a class's module by its name.
        _user_modules.add(name)

        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return module


class _UncachedLoader(SourceFileLoader):
    """Compiles a file as it is now: Python uses a cached version if size and time in seconds are the same."""

    def path_stats(self, path: Any) -> Any:
        """Raise an OSError, so that no cached version is used."""
        raise OSError(path)


def _check_file(path: Path) -> None:
    if path.is_dir():
        examples = sorted(path.glob("*.py"))[:3]
        hint = f", such as {' or '.join(map(str, examples))}" if examples else ""
        raise UsageError(f"{path} is a directory; pass a Python file{hint}")
    if not path.exists():
        directory = path.parent if path.parent.is_dir() else Path()
        hint = suggest(path.name, (file.name for file in directory.glob("*.py")), render=lambda name: str(directory / name))
        raise UsageError(f"{path} does not exist{hint}")
    if path.suffix != ".py":
        raise UsageError(f"{path} is not a Python file; pass a file that ends with .py")


def _import_location(path: Path) -> tuple[Path, str]:
    """Return the directory from which a file is imported, and its module name: `evals.capitals` if evals is a package."""
    directory, names = path.parent, [path.stem]
    while (directory / "__init__.py").exists() and directory.name.isidentifier():
        names.insert(0, directory.name)
        directory = directory.parent
    name = ".".join(names)
    if _is_taken(name, path):
        return path.parent, f"_evaluation_{path.stem}"
    return directory, name


def _is_taken(name: str, path: Path) -> bool:
    """Return whether another module has the name, imported or not: a file such as json.py or rich.py must not replace it."""
    module = sys.modules.get(name)
    if module is not None:
        return name not in _user_modules and getattr(module, "__file__", None) != str(path)
    spec = None if "." in name else importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None and Path(spec.origin).resolve() != path


def _check_package(package: ModuleType, path: Path) -> None:
    """Raise a UsageError if another package of the same name is imported: relative imports would use it."""
    file = getattr(package, "__file__", None)
    if file is None or not Path(file).exists() or not Path(file).samefile(path.parent / "__init__.py"):
        raise UsageError(f"{path.parent} is hidden by another package {package.__name__!r}, {file}; rename the directory")


def _append_to_path(directory: Path) -> None:
    """Append the user's directory to `sys.path`, after everything that is installed."""
    if str(directory) not in sys.path:
        sys.path.append(str(directory))
        importlib.invalidate_caches()


@contextlib.contextmanager
def _report_user_errors(module_path: str, directory: Path) -> Generator[None]:
    """Turn errors of an import into UsageErrors with the user's own lines."""
    try:
        yield
    except UsageError as exc:
        stack = [frame for frame in _user_frames(exc.__traceback__) if "site-packages" not in frame.filename]
        if not stack:
            raise
        raise UsageError(str(exc), path=stack[-1].filename, line=stack[-1].lineno) from exc
    except (Exception, SystemExit) as exc:
        lines = [*traceback.format_list(_user_frames(exc.__traceback__)), *traceback.format_exception_only(exc)]
        trace = "".join(lines).rstrip()
        raise UsageError(f"{module_path} cannot be imported{_shadowing_hint(exc, directory)}:\n{trace}") from exc


def _user_frames(trace: TracebackType | None) -> traceback.StackSummary:
    """Return a traceback without our frames and those of the import system."""
    prefixes = (OWN_DIRECTORY, "<frozen importlib", "<attrs generated")
    suffixes = ("importlib/__init__.py", "importlib\\__init__.py")
    return traceback.StackSummary.from_list(
        frame
        for frame in traceback.extract_tb(trace)
        if not frame.filename.startswith(prefixes) and not frame.filename.endswith(suffixes)
    )


def _shadowing_hint(exc: BaseException, directory: Path) -> str:
    """Return a hint if a module of the user is hidden by another one with the same name."""
    if isinstance(exc, ImportError):
        name = exc.name
    else:
        name = getattr(exc.obj, "__name__", None) if isinstance(exc, AttributeError) else None

    top_name = (name or "").partition(".")[0]
    module_file = getattr(sys.modules.get(top_name), "__file__", None)
    if not top_name or module_file is None:
        return ""

    for file in (directory / f"{top_name}.py", directory / top_name / "__init__.py"):
        if file.exists() and not file.samefile(module_file):
            return f", perhaps because {file} is hidden by another {top_name!r} ({module_file}); rename it"
    return ""
