"""The name of a variable or function is a noun or a verb, not a bare participle, adjective or preposition.

Fields are exempt: many are members of events, keys of `--json` or counters.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent
PACKAGES: Final = ("journal", "replay", "runner", "evaljournal")
EXCLUDED: Final = """
    actual after again ago ahead all ambiguous basic before begun both bottom broken busy certain coarse common
    compact consecutive cut due each earlier earliest effective eligible explicit extra fewer finite first flat
    found free frozen full given held higher highest hung idle incomplete inner innermost inside intact invalid kept
    known large larger largest late later latest left live local longest lost lower lowest made middle more most
    near new newest next old older oldest on only optional original other others outer over overridden own plain
    present previous proven quickest quiet random ready real recent rest safe said second sent short shortest shown
    slow slower small smallest stuck told top torn transient unavailable unique unknown unproven unread unreadable
    until usable usual valid visible where whole withdrawn within without worst written
"""
"""Excluded words other than those in -ed and -ing."""
ALLOWED: Final = """
    beginning ceiling closing coding elapsed embed encoding ending expected feed finding framing grouping heading need
    opening pairing recording scoring seed setting shed smoothing speed steering string swing thread warning writing
"""
"""Words in -ed and -ing that are nouns, verbs or terms of the project."""
_EXCLUDED: Final = frozenset(EXCLUDED.split())
_ALLOWED: Final = frozenset(ALLOWED.split())


def _is_excluded(name: str) -> bool:
    word = name.lstrip("_")
    return word in _EXCLUDED or (word.islower() and "_" not in word and word.endswith(("ed", "ing")) and word not in _ALLOWED)


def _is_bool(annotation: ast.expr | None) -> bool:
    return annotation is not None and ast.unparse(annotation) == "bool"


def _exempt_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the names of fields, properties and flags, and the parameters of click's `shell_complete`."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(body=body):
                for child in body:
                    if isinstance(child, ast.AnnAssign):
                        yield child.target
                    elif isinstance(child, ast.FunctionDef) and any(
                        ast.unparse(part) == "property" for part in child.decorator_list
                    ):
                        yield child
            case ast.AnnAssign(target=target, annotation=annotation) if _is_bool(annotation):
                yield target
            case ast.arg(arg=name, annotation=annotation) if _is_bool(annotation) or name == "incomplete":
                yield node
            case _:
                pass


def names_in(source: str) -> Iterator[tuple[int, str]]:
    """Yield the excluded names of the functions, parameters and variables of a module, each with its line."""
    tree = ast.parse(source)
    exempt_nodes = set(_exempt_nodes(tree))
    for node in ast.walk(tree):
        match node:
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.arg(arg=name)
                | ast.Name(id=name, ctx=ast.Store())
            ) if _is_excluded(name) and node not in exempt_nodes:
                yield node.lineno, name
            case _:
                pass


def _modules() -> Iterator[Path]:
    for package in PACKAGES:
        yield from sorted((ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("path", list(_modules()), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_names(path: Path) -> None:
    """No module has an excluded name."""
    assert [] == [f"line {line}: {name}" for line, name in names_in(path.read_text(encoding="utf-8"))]


def test_the_test() -> None:
    """Excluded names of functions, parameters and variables are found; fields, properties, flags and longer names are not."""
    source = """
class Totals:
    failed: int = 0
    @property
    def loaded(self): ...
    def merged(self, given, elapsed, *, cached: bool):
        self.shown = found = given
        closed: bool = cached
        recorded_settings = [each for each in found]
"""

    assert [(6, "given"), (6, "merged"), (7, "found"), (9, "each")] == sorted(names_in(source))
