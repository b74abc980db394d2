"""The source of a module: what it imports, and the part that affects the results of an evaluation."""

import ast
import io
from collections.abc import Iterable, Iterator

import attrs


def imports(source: str) -> list[tuple[int, str, list[str]]]:
    """Return the imports of a module: number of leading dots, module, names; without those inside functions."""
    result: list[tuple[int, str, list[str]]] = []
    nodes: list[ast.AST] = [ast.parse(source)]
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


@attrs.frozen(eq=False)
class _Statement:
    """A statement at the top level of a module; an import of several names is several statements."""

    node: ast.stmt
    names: frozenset[str]
    """The names that it uses, without those of its decorators."""
    decorator_names: frozenset[str]
    bound_names: frozenset[str]
    first_line: int
    last_line: int

    @classmethod
    def of(cls, node: ast.stmt) -> "_Statement":
        """Describe a statement."""
        decorators: list[ast.expr] = getattr(node, "decorator_list", [])
        children = (child for child in ast.iter_child_nodes(node) if child not in decorators)
        return cls(
            node,
            names=frozenset(name for child in children for name in _names(child)),
            decorator_names=frozenset(name for decorator in decorators for name in _names(decorator)),
            bound_names=frozenset(_bound_names(node)),
            first_line=min([node.lineno, *(decorator.lineno for decorator in decorators)]),
            last_line=node.end_lineno or node.lineno,
        )

    @property
    def is_definition(self) -> bool:
        """Whether it defines a function or a class."""
        return isinstance(self.node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)

    @property
    def is_import(self) -> bool:
        """Whether it imports a name."""
        return isinstance(self.node, ast.Import | ast.ImportFrom)

    @property
    def has_no_effect(self) -> bool:
        """Whether it only binds names, so that it matters only to the users of these names."""
        if self.is_definition:
            return not self.decorator_names
        is_assignment = isinstance(self.node, ast.Assign | ast.AnnAssign | ast.AugAssign)
        return (self.is_import or is_assignment) and bool(self.bound_names - {"*"})

    @property
    def is_ignored(self) -> bool:
        """Whether it is a docstring, or the block that is executed only if the file is the main program."""
        match self.node:
            case ast.Expr(ast.Constant()) | ast.If(ast.Compare(ast.Name("__name__"))):
                return True
            case _:
                return False


def relevant_source(source: str, lines: frozenset[int], evaluations: frozenset[str]) -> str:
    """Return the statements of an evaluation's file that the functions which start at these lines may depend on.

    The functions themselves and the cases have fingerprints of their own. Other evaluations, with the names `evaluations`, the
    settings in decorators and the statements that start a run do not matter.
    """
    tree = ast.parse(source)
    statements = [_Statement.of(node) for node in _split_imports(tree.body)]
    own_names = {name for statement in statements if not statement.is_import for name in statement.bound_names}
    keywords = (node for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "cases")
    case_names = own_names.intersection(name for keyword in keywords for name in _names(keyword))
    run_names, needed_names = set(evaluations), set[str]()
    optional_statements: list[_Statement] = []
    relevant_statements: dict[_Statement, None] = {}
    for statement in statements:
        is_of_run = (statement.decorator_names | statement.bound_names | statement.names) & run_names
        if statement.is_ignored:
            pass
        elif statement.is_definition and statement.first_line in lines:
            needed_names |= statement.names
        elif lines.intersection(range(statement.first_line, statement.last_line + 1)):
            relevant_statements[statement] = None  # One of the functions is defined inside it.
        elif is_of_run and not statement.is_definition:
            run_names |= statement.bound_names  # The outcome of a run.
            needed_names |= statement.names - case_names
        elif is_of_run or statement.has_no_effect:
            optional_statements.append(statement)
        elif not statement.names & case_names:
            relevant_statements[statement] = None
    new_statements = list(relevant_statements)
    while True:
        needed_names = needed_names.union(*(statement.names | statement.decorator_names for statement in new_statements))
        new_statements = [statement for statement in optional_statements if statement.bound_names & needed_names]
        optional_statements = [statement for statement in optional_statements if statement not in new_statements]
        if not new_statements:
            break
        relevant_statements |= dict.fromkeys(new_statements)
    source_lines = io.StringIO(source).readlines()
    import_lines = sorted(f"{ast.unparse(statement.node)}\n" for statement in relevant_statements if statement.is_import)
    return "".join(import_lines) + "".join(
        line
        for statement in statements
        if statement in relevant_statements and not statement.is_import
        for line in source_lines[statement.first_line - 1 : statement.last_line]
    )


def _split_imports(nodes: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements, an import of several names as several; those of evaljournal's own names are not the user's code."""
    for node in nodes:
        match node:
            case ast.ImportFrom("evaljournal" | "runner"):
                pass
            case ast.Import(names):
                yield from (ast.copy_location(ast.Import([alias]), node) for alias in names)
            case ast.ImportFrom(module, names, level):
                yield from (ast.copy_location(ast.ImportFrom(module, [alias], level), node) for alias in names)
            case _:
                yield node


def _names(node: ast.AST) -> Iterator[str]:
    return (child.id for child in ast.walk(node) if isinstance(child, ast.Name))


def _bound_names(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield node.name
        case ast.Import() | ast.ImportFrom():
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
        case _:
            yield from (
                child.id for child in ast.walk(node) if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store)
            )
