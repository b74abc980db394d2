"""The files that the results of an evaluation depend on: project modules, files read while it was loaded, and `depends`.

`resume` compares their digests with the recorded ones. A module that is imported inside a function, and a file that is opened
there or by a library in C, are not detected.

Of the source of a module, what it imports counts, and the part that affects the results of an evaluation.
"""

import ast
import contextlib
import functools
import inspect
import io
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any, Final, TypeVar, cast

from evaljournal.journal.disk import segments
from evaljournal.replay.state.definition import recorded_files
from evaljournal.runner.data.fingerprint import digest, parse, strip_comments, unwrap_partial
from evaljournal.runner.definition.evaluation import Evaluation
from evaljournal.runner.secrets.shapes import mask_shapes

_DEFINITION: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_IMPORT: Final = (ast.Import, ast.ImportFrom)

T = TypeVar("T")
Namespace = Mapping[str, Any]

_PROJECT_FILES: Final = ("pyproject.toml", "setup.py", "setup.cfg")
_EXCLUDED_DIRECTORIES: Final = frozenset({"site-packages", "dist-packages", "node_modules", "__pycache__"})
OWN_DIRECTORY: Final = str(Path(__file__).parents[2]) + os.sep
_MAX_WHOLE_FILE: Final = 16 * 2**20
"""Of a larger file, only its size, its beginning and its end count, so that a run starts quickly."""
_MAX_MASKED_FILE: Final = 2**20
_PART: Final = 2**22

_loaded_files: Final[dict[str, set[str]]] = {}
"""File of an evaluation → the files that were opened, and those of the modules that were imported, while it was loaded."""
_opened_files: Final[dict[str, set[str]]] = {}
"""File of a module → the files that it opened while it was imported."""
_recordings: Final[list[set[str]]] = []
"""The sets that files opened for reading are added to."""


def imports(source: str) -> list[tuple[int, str, list[str]]]:
    """Return the imports of a module: number of leading dots, module, names; without those inside functions."""
    result: list[tuple[int, str, list[str]]] = []
    nodes: list[ast.AST] = [parse(source)]
    while nodes:
        match nodes.pop():
            case ast.Import(names):
                result += ((0, alias.name, []) for alias in names)
            case ast.ImportFrom(module, names, level):
                result.append((level or 0, module or "", [alias.name for alias in names]))
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.expr():
                pass
            case node:
                nodes += ast.iter_child_nodes(node)
    return result


def relevant_source(source: str, lines: frozenset[int], evaluations: frozenset[str]) -> str:
    """Return the statements of an evaluation's file that the functions which start at these lines may depend on.

    The functions themselves and the cases have fingerprints of their own. Other evaluations, with the names `evaluations`, the
    settings in decorators and the statements that start a run do not matter.
    """
    tree = parse(source)
    nodes = list(_split_imports(tree.body))
    names, bound_names = {node: _names(node) for node in nodes}, {node: _bound_names(node) for node in nodes}
    own_names = set[str]().union(*(bound_names[node] for node in nodes if not isinstance(node, _IMPORT)))

    keywords = (node for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "cases")
    case_names = own_names & _names(*keywords)

    run_names, needed_names = set(evaluations), set[str]()
    optional_nodes, relevant_nodes = set[ast.stmt](), set[ast.stmt]()
    for node in nodes:
        rows, is_definition = _rows(node), isinstance(node, _DEFINITION)
        is_of_run = (names[node] | bound_names[node]) & run_names
        if _is_ignored(node):
            pass
        elif is_definition and rows.start in lines:
            needed_names |= _names(*(child for child in ast.iter_child_nodes(node) if child not in _decorators(node)))
        elif lines.intersection(rows):
            relevant_nodes.add(node)  # One of the functions is defined inside it.
        elif is_of_run and not is_definition:
            run_names |= bound_names[node]  # The outcome of a run.
            needed_names |= names[node] - case_names
        elif is_of_run or _only_binds(node):
            optional_nodes.add(node)
        elif not names[node] & case_names:
            relevant_nodes.add(node)

    needed_names = needed_names.union(*(names[node] for node in relevant_nodes))
    while new_nodes := {node for node in optional_nodes - relevant_nodes if bound_names[node] & needed_names}:
        relevant_nodes |= new_nodes
        needed_names = needed_names.union(*(names[node] for node in new_nodes))

    source_lines = io.StringIO(source).readlines()
    import_lines = sorted(f"{ast.unparse(node)}\n" for node in relevant_nodes if isinstance(node, _IMPORT))
    other_nodes = (node for node in nodes if node in relevant_nodes and not isinstance(node, _IMPORT))
    return "".join(import_lines) + "".join(source_lines[row - 1] for node in other_nodes for row in _rows(node))


def _split_imports(nodes: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements, an import of several names as several; those of evaljournal's own names are not the user's code."""
    for node in nodes:
        match node:
            case ast.ImportFrom("evaljournal"):
                pass
            case ast.Import(names):
                yield from (ast.copy_location(ast.Import([alias]), node) for alias in names)
            case ast.ImportFrom(module, names, level):
                yield from (ast.copy_location(ast.ImportFrom(module, [alias], level), node) for alias in names)
            case _:
                yield node


def _is_ignored(node: ast.stmt) -> bool:
    """Return whether a statement is a docstring, or the block that is executed only if the file is the main program."""
    match node:
        case ast.Expr(ast.Constant()) | ast.If(ast.Compare(ast.Name("__name__"))):
            return True
        case _:
            return False


def _only_binds(node: ast.stmt) -> bool:
    """Return whether a statement only binds names, so that it matters only to the users of these names."""
    if isinstance(node, _DEFINITION):
        return not _decorators(node)
    return isinstance(node, (*_IMPORT, ast.Assign, ast.AnnAssign, ast.AugAssign)) and bool(_bound_names(node) - {"*"})


def _decorators(node: ast.stmt) -> list[ast.expr]:
    return getattr(node, "decorator_list", [])


def _rows(node: ast.stmt) -> range:
    """Return the lines of a statement, from its first decorator on."""
    return range(min([node.lineno, *(child.lineno for child in _decorators(node))]), (node.end_lineno or node.lineno) + 1)


def _names(*nodes: ast.AST) -> set[str]:
    return {child.id for node in nodes for child in ast.walk(node) if isinstance(child, ast.Name)}


def _bound_names(node: ast.stmt) -> set[str]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return {node.name}
        case ast.Import() | ast.ImportFrom():
            return {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        case _:
            return {child.id for child in ast.walk(node) if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store)}


def record_files(load: Callable[[], ModuleType]) -> ModuleType:
    """Import a module, and remember the files that are read and the modules that are imported meanwhile.

    If it is imported again, other modules are not, so that they do not read their files again.
    """
    _add_audit_hook()
    opened_files, names = set[str](), set(sys.modules)
    _recordings.append(opened_files)
    try:
        module = load()
    finally:
        _recordings.pop()

    module_files = (_file_of(_namespace(name)) for name in sys.modules.keys() - names)
    _loaded_files.setdefault(_file_of(vars(module)), set()).update(opened_files, module_files)
    return module


@functools.cache
def _add_audit_hook() -> None:
    sys.addaudithook(_on_audit_event)


def _on_audit_event(event: str, arguments: tuple[Any, ...]) -> None:
    if not _recordings or event != "open":
        return
    path, mode, flags = arguments
    is_read = "r" in mode if isinstance(mode, str) else flags & (os.O_WRONLY | os.O_RDWR) != os.O_WRONLY
    if is_read and isinstance(path, str | bytes):
        with contextlib.suppress(OSError, ValueError):  # The working directory may have been removed.
            file = os.path.abspath(os.fsdecode(path))
            for files in (*_recordings, _opened_files.setdefault(_importing_file(), set())):
                files.add(file)


def _importing_file() -> str:
    """Return the file of the module that is being imported; empty if there is none."""
    frame: FrameType | None = sys._getframe()  # noqa: SLF001  # as `inspect.currentframe`
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    return "" if frame is None else os.path.abspath(frame.f_code.co_filename)


def code_files(evaluation: Evaluation[Any, Any, Any], recorded_definition: Any = None) -> dict[str, Any]:
    """Return the field `code` of a recorded definition: `files` (path → digest), and whether it `includes_opened` files.

    Paths are relative to the evaluation's file, so that a project can be moved. It is empty for an evaluation without code.
    If Python has loaded the evaluation, the files that were opened are unknown; those of `recorded_definition` are used.
    """
    hooks, scorers = evaluation.hooks.values(), evaluation.scorers.values()
    functions = [evaluation.task, *(hook.function for hook in hooks), *(scorer.function for scorer in scorers)]
    functions = [inspect.unwrap(unwrap_partial(function)) for function in functions]
    namespaces = [evaluation.namespace, *(getattr(function, "__globals__", {}) for function in functions)]

    own_file = _file_of(evaluation.namespace)
    directory = os.path.dirname(own_file) or os.getcwd()
    project = _Project(directory, evaluation.cases.source)
    files = {file: namespace for namespace in namespaces if (file := _file_of(namespace)) in project}

    loaded_files = [_loaded_files[file] for file in files if file in _loaded_files]
    includes_opened, used_files = bool(loaded_files), set[str]().union(*loaded_files)

    imported_files = set(_imported_files(namespaces, functions, project))
    # Another evaluation may have imported a module before: the files that the module opened then count, too.
    used_files |= imported_files.union(*(_opened_files.get(file, ()) for file in imported_files if loaded_files))

    if not loaded_files:
        includes_opened, recorded_digests = recorded_files(recorded_definition) if own_file in project else (False, {})
        if includes_opened:
            used_files |= {os.path.abspath(os.path.join(directory, path)) for path in recorded_digests if "\0" not in path}

    project_files = {file for file in used_files if file in project}
    digests = {file: _digest(file) for file in {*files, *project_files, *map(str, evaluation.depends)}}

    # Of the file that defines the evaluation, only what its functions may depend on counts, not its other evaluations.
    lines = _first_lines(functions)
    for file, namespace in files.items():
        evaluations = {name: value for name, value in namespace.items() if isinstance(value, Evaluation)}
        is_defined_here = file in lines or any(value.task is evaluation.task for value in evaluations.values())
        is_own = file == own_file or not evaluation.namespace  # Other modules may use anything in a module of scorers.
        if is_own and is_defined_here:
            digests[file] = _digest(file, frozenset(lines.get(file, ())), frozenset(evaluations))

    digests_by_path = {_relative(file, directory): value for file, value in sorted(digests.items()) if value is not None}
    return {"code": {"includes_opened": includes_opened, "files": digests_by_path}} if digests_by_path else {}


class _Project:
    """The project of an evaluation: the files below its root, without installed packages, hidden directories and runs."""

    def __init__(self, directory: str, source: object) -> None:
        directories = [Path(directory), *Path(directory).parents]
        repository = next((path for path in directories if (path / ".git").exists()), None)
        packages = (path for path in directories if any((path / name).exists() for name in _PROJECT_FILES))
        self._root = os.path.join(repository or next(packages, directory), "")
        self._directory = os.path.join(directory, "")
        prefixes = {os.path.join(prefix, "") for prefix in (sys.prefix, sys.base_prefix)}
        self._excluded = (OWN_DIRECTORY, *(prefix for prefix in prefixes if prefix.startswith(self._root)))
        self._dataset = os.path.abspath(source) if isinstance(source, Path) else ""

    def __contains__(self, file: str) -> bool:
        if not file.startswith(self._root) or file.startswith(self._excluded) or file == self._dataset:
            return False
        base = self._directory if file.startswith(self._directory) else self._root
        directories = file[len(base) :].split(os.sep)[:-1]
        if any(name.startswith(".") or name in _EXCLUDED_DIRECTORIES for name in directories):
            return False
        return not file.endswith(".pyc") and (file.endswith(".py") or segments.enclosing_run(Path(file)) is None)


def _file_of(namespace: Namespace) -> str:
    """Return the path of a module's file; empty if it has none, such as a cell of a notebook."""
    file = namespace.get("__file__")
    return os.path.abspath(file) if isinstance(file, str) else ""


def _namespace(module: str) -> Namespace:
    """Return the variables of a module by its name; empty if it is not imported."""
    return getattr(sys.modules.get(module), "__dict__", {})


def _relative(file: str, directory: str) -> str:
    try:
        name = os.path.relpath(file, directory)
    except ValueError:  # On another drive.
        name = file
    return Path(name).as_posix().encode(errors="backslashreplace").decode()


def _first_lines(functions: Iterable[Any]) -> dict[str, set[int]]:
    lines: dict[str, set[int]] = {}
    for function in functions:
        code = getattr(function, "__code__", None)
        if isinstance(code, CodeType):
            lines.setdefault(os.path.abspath(code.co_filename), set()).add(code.co_firstlineno)
    return lines


def _imported_files(namespaces: Iterable[Namespace], functions: Iterable[Any], project: _Project) -> Iterator[str]:
    """Yield the files of the project's modules that these namespaces import, directly or not."""
    queue, visited_files = list(namespaces), set[str]()
    names = {name for function in functions for name in _global_modules(function)}  # A notebook has no file to search.
    while queue or names:
        for name in names:
            namespace = _namespace(name)
            file = _file_of(namespace)
            if file in project and file not in visited_files:
                visited_files.add(file)
                queue.append(namespace)
                yield file
        names = set(_imported_names(queue.pop())) if queue else set()


def _global_modules(function: Any) -> Iterator[str]:
    """Yield the names of the modules that a function reads, or whose functions and classes it reads."""
    try:
        variables = inspect.getclosurevars(function).globals.values()
    except (TypeError, ValueError):  # Not a function, or a variable that is not assigned yet.
        return
    for value in variables:
        name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        if isinstance(name, str):
            yield from _with_parents(name)


def _imported_names(namespace: Namespace) -> Iterator[str]:
    """Yield the names of the modules that a module imports when it is executed, and of their packages."""
    package = namespace.get("__package__") or ""
    yield from _with_parents(package)
    for level, base, names in _read(_file_of(namespace), imports) or ():
        parts = package.split(".")[: len(package.split(".")) - level + 1] if level else []
        name = ".".join(filter(None, [*parts, base]))
        yield from _with_parents(name)
        yield from (f"{name}.{imported}" for imported in names)


def _with_parents(name: str) -> Iterator[str]:
    parts = name.split(".") if name else []
    yield from (".".join(parts[: index + 1]) for index in range(len(parts)))


def _read(file: str, parse: Callable[..., T], *arguments: Any) -> T | None:
    """Return what `parse` makes of the source of a file; None if it cannot be read."""
    try:
        status = os.stat(file)
        return cast("T", _cached_read(file, status.st_mtime_ns, status.st_size, parse, *arguments))
    except (OSError, ValueError, SyntaxError, RecursionError):
        return None


@functools.lru_cache(1_000)
def _cached_read(file: str, _mtime: int, _size: int, parse: Callable[..., Any], *arguments: Any) -> Any:
    return parse(Path(file).read_text(encoding="utf-8"), *arguments)


def _digest(file: str, lines: frozenset[int] | None = None, evaluations: frozenset[str] = frozenset()) -> str | None:
    """Return the digest of a file; None if it is not a regular file.

    Comments, blank lines and secrets do not count. `lines`: of an evaluation's file; see `relevant_source`.
    """
    if file.endswith(".py"):
        value = _read(file, _digest_code) if lines is None else _read(file, _digest_own_code, lines, evaluations)
        if value is not None:
            return value

    try:
        status = os.stat(file)
        if not stat.S_ISREG(status.st_mode):
            return None
        with open(file, "rb") as content:
            if status.st_size <= _MAX_MASKED_FILE:
                return digest(_without_secrets(content.read(_MAX_MASKED_FILE), os.path.basename(file)))
            if status.st_size <= _MAX_WHOLE_FILE:
                return digest(content.read(_MAX_WHOLE_FILE))
            beginning = content.read(_PART)
            content.seek(-_PART, os.SEEK_END)
            return digest(b"%d %b%b" % (status.st_size, beginning, content.read(_PART)))
    except OSError:  # It was removed after it had been opened.
        return None


def _without_secrets(content: bytes, name: str) -> bytes:
    """Mask keys, so that a run can be resumed with a new one; in a file such as `.env`, also passwords by their names."""
    try:
        return mask_shapes(content.decode(), certain=not name.startswith(".env")).encode()
    except UnicodeDecodeError:
        return content


def _digest_code(source: str) -> str:
    return digest(mask_shapes(strip_comments(source), certain=True).encode())


def _digest_own_code(source: str, lines: frozenset[int], evaluations: frozenset[str]) -> str:
    return _digest_code(relevant_source(source, lines, evaluations))
