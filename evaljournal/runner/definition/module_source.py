"""The source of a module: what it imports, and the part that affects the results of an evaluation."""

import ast
import io
from collections.abc import Iterable, Iterator
from typing import Final

from evaljournal.runner.data.fingerprint import parse

_DEFINITION: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_IMPORT: Final = (ast.Import, ast.ImportFrom)


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
