"""A few words that say nothing about a value are not the names of variables, parameters or functions."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
SOURCES: Final = sorted((ROOT / "evaljournal").rglob("*.py"))
BETTER_NAMES: Final = {
    "begun": "`started`, or what was started",
    "each": "what it is: `trial`, `event`, `row`",
    "found": "what was found: `path`, `match`, `errors`",
    "given": "what it is: `settings`, `argument`, `value`",
    "held": "what is held: `lock`, `lines`, `slots`",
    "known": "what is known: `names`, `seqs`",
    "made": "what was made: `calls`, `request`",
    "most": "`maximum`, `limit`",
    "rest": "`remainder`, `tail`, or what it is: `lines`, `arguments`",
    "said": "`message`, `text`, `reply`",
    "told": "`reported`, or what was reported",
    "whole": "`total`, or what is complete: `line`, `document`",
}
"""Word → what to write instead."""


def names_in(source: str) -> Iterator[tuple[int, str]]:
    """Yield these names among the functions, parameters and variables of a module, each with its line."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.arg(arg=name)
                | ast.Name(id=name, ctx=ast.Store())
            ) if name.lstrip("_") in BETTER_NAMES:
                yield node.lineno, name
            case _:
                pass


def test_names() -> None:
    """No module has such a name."""
    assert SOURCES
    assert [] == [
        f"{file.relative_to(ROOT)}, line {line}: {name}; better: {BETTER_NAMES[name.lstrip('_')]}"
        for file in SOURCES
        for line, name in names_in(file.read_text(encoding="utf-8"))
    ]


def test_a_class_name_has_one_meaning() -> None:
    """No two public classes of the packages have the same name."""
    classes = re.compile(r"^class (\w+)", re.MULTILINE)
    names = Counter(name for file in SOURCES for name in classes.findall(file.read_text(encoding="utf-8")))

    assert [] == [name for name, count in names.items() if count > 1 and not name.startswith("_")]


def test_the_test() -> None:
    """Names of functions, parameters and variables are found; attributes and longer names are not."""
    source = """
def given(known, *, is_held):
    self.shown = found = known_names
    recorded_settings = [each for each in found]
"""

    assert [(2, "given"), (2, "known"), (3, "found"), (4, "each")] == sorted(names_in(source))
