"""No text that a user or contributor reads has a phrase that the vocabulary excludes.

`python -m tests.test_language PATH…` checks files or directories.
"""

import ast
import functools
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import click
import pytest

from evaljournal.runner.cli import COMMANDS, cli

ROOT: Final = Path(__file__).parent.parent
PACKAGES: Final = ("evaljournal",)
PHRASES: Final = (
    "anew",
    "asked to be left alone",
    "back end",
    "back-end",
    "can be given again",
    "cut off",
    "cut short",
    "for ever",
    "given up",
    "go on with",
    "goes on with",
    "illness",
    "in the air",
    "is ill",
    "left behind",
    "made again",
    "nobody",
    "power cut",
    "refused",
    "somebody",
    "someone",
    "the like",
    "the other side",
    "way on",
    "whoever",
)
ALLOWED: Final = ("connection refused",)
TRIAL_WORDS: Final = re.compile(
    r"\b(recovered|exhausted|ambiguous|stages?)\b"
    r"|\bfailed (trials?|scorers?)\b|\btrials? (have |had |has |that )?(all )?fail(s|ed)?\b|\bscorer fail\w*",
    re.IGNORECASE,
)
"""Words of event types and JSON keys; in prose, a trial has an output or an error, a score passes or fails, and an attempt can
fail and be retried."""
GONE_MODELS: Final = re.compile(
    r"\b(gpt-(?:3\.5|4)[\w.-]*|gpt-5(?!\.\d|-?\w)|o[13]\b(?:-\w+)?|o4-mini|claude-(?:[123]\b|instant)[\w.-]*|gemini-(?:1|2\.0)[\w.-]*)"
)
"""Models that are shut down, or will be by January 2027: no example or default names one."""
CODE: Final = re.compile(r"```.*?```|`[^`]*`|--[\w-]+", re.DOTALL)
"""Names of keys, options and types in a text."""
_ALTERNATIVES: Final = "|".join(phrase.replace(" ", r"\s+") for phrase in (*ALLOWED, *PHRASES))
_PATTERN: Final = re.compile(rf"; else |\b(?:{_ALTERNATIVES})\b", re.IGNORECASE)


def phrases_in(text: str) -> Iterator[tuple[int, str]]:
    """Yield each phrase in a text, with its line."""
    for match in _PATTERN.finditer(text):
        phrase = " ".join(match[0].lower().split())
        if phrase not in ALLOWED:
            yield text.count("\n", 0, match.start()) + 1, phrase


def _texts_of_python(source: str) -> Iterator[tuple[int, str]]:
    """Yield the string literals, docstrings and comments of a module, each with its first line."""
    for line, text, _ in _strings(source):
        yield line, text
    if _PATTERN.search(source):  # Otherwise no comment has a phrase; to find the comments takes most of the time.
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string


def findings(path: Path) -> list[str]:
    """Return `file, line N: phrase` for each phrase in a file."""
    source = path.read_text(encoding="utf-8")
    texts = _texts_of_python(source) if path.suffix == ".py" else [(1, source)]
    phrases = {(first + line - 1, phrase) for first, text in texts for line, phrase in phrases_in(text)}
    return [f"{path.relative_to(ROOT)}, line {line}: {phrase}" for line, phrase in sorted(phrases)]


def _messages(path: Path) -> Iterable[tuple[int, str]]:
    """Return the messages of a module, or a whole page, each with its first line."""
    source = path.read_text(encoding="utf-8")
    return _messages_of_python(source) if path.suffix == ".py" else [(1, source)]


def _messages_of_python(source: str) -> Iterator[tuple[int, str]]:
    """Yield the string literals of a module that are not docstrings and have several words, each with its line."""
    for line, text, is_docstring in _strings(source):
        if " " in text and not is_docstring:
            yield line, text


@functools.cache
def _strings(source: str) -> list[tuple[int, str, bool]]:
    """Return the string literals of a module, each with its first line and whether it is a docstring."""
    nodes = list(ast.walk(ast.parse(source)))
    docstrings = {node.value for node in nodes if isinstance(node, ast.Expr)}
    return [
        (node.lineno, node.value, node in docstrings)
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def trial_words_in(text: str) -> Iterator[tuple[int, str]]:
    """Yield each word of `TRIAL_WORDS` in a text, outside code, with its line."""
    prose = CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    for match in TRIAL_WORDS.finditer(prose):
        yield prose.count("\n", 0, match.start()) + 1, match[0].lower()


def _files() -> Iterator[Path]:
    yield ROOT / "README.md"
    yield from sorted((ROOT / "docs").rglob("*.md"))
    for package in PACKAGES:
        yield from sorted(
            path for path in (ROOT / package).rglob("*") if path.suffix in {".py", ".js", ".html", ".css"} and path.is_file()
        )


def test_files() -> None:
    """No file has a phrase of the list."""
    assert [] == [finding for path in _files() for finding in findings(path)]


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help(name: str) -> None:
    """No help text has a phrase of the list."""
    command = cli.get_command(click.Context(cli), name) if name else cli
    assert command is not None
    text = command.get_help(click.Context(command, info_name=f"evaljournal {name}".strip(), **cli.context_settings))

    found = [*phrases_in(text), *trial_words_in(text)]
    assert [] == [f"evaljournal {name} --help, line {line}: {phrase}" for line, phrase in found]


def test_trial_words() -> None:
    """Messages and docs, except the format's, say output or error of a trial, and pass or fail of a score."""
    paths = [path for path in _files() if path.suffix in {".md", ".py"} and path.name not in {"format.md", "page_columns.py"}]
    words = [
        f"{path.relative_to(ROOT)}, line {first + line - 1}: {word}"
        for path in paths
        for first, text in _messages(path)
        for line, word in trial_words_in(text)
    ]

    assert len(paths) > 500
    assert [] == words


def test_models() -> None:
    """The product, its docs and its examples name no model that is gone; only the price table has some, with their reason."""
    examples = [path for path in (ROOT / "examples").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    paths = [*_files(), *examples, *(ROOT / "docs").glob("*.py")]
    models = [
        f"{path.relative_to(ROOT)}: {model}"
        for path in paths
        for model in GONE_MODELS.findall(path.read_text(encoding="utf-8"))
    ]

    assert len(paths) > 500
    assert [] == models


def test_results_are_worded_once() -> None:
    """Intervals, n and waits are worded in one module of phrases; other text has them only in docstrings and help."""
    worded = re.compile(r'f"[^"]*(?:95 % CI|\bn = \{|\bwaited \{)')
    files = [
        path for package in ("replay", "runner", "integrations") for path in (ROOT / "evaljournal" / package).rglob("*.py")
    ]
    modules = {path.relative_to(ROOT).as_posix() for path in files if worded.search(path.read_text())}

    assert {"evaljournal/replay/render/phrases.py", "evaljournal/integrations/ray/workers.py"} == modules


def test_the_test() -> None:
    """A phrase is found in a docstring, an f-string and a comment, across a line break; an allowed phrase is not.

    A word that is wrong in prose is found outside code. A model that is gone is found, its successor is not.
    """
    source = '"""First.\n\nIn the\nair."""\nx = f"{1} is ill"  # Nobody.\ny = "Connection refused"; z = "N; else 4"\n'
    phrases = sorted(
        (first + line - 1, phrase) for first, text in _texts_of_python(source) for line, phrase in phrases_in(text)
    )

    assert [(1, "recovered"), (2, "failed trials")] == [*trial_words_in("2 recovered `stage`\nfailed trials, --on-ambiguous")]
    assert [(2, "1 stage")] == [*_messages_of_python('"""A stage."""\nx = "1 stage"; y = "stage"')]
    models = "gpt-5, gpt-5. gpt-4o-mini gpt-3.5-turbo o3 o4-mini claude-3-5-haiku-latest gemini-1.5-pro"
    assert ["gpt-5", *models.replace("gpt-5, gpt-5.", "gpt-5").split()] == GONE_MODELS.findall(models)
    assert [] == GONE_MODELS.findall("gpt-5.4 gpt-5-mini gpt-5.6-luna claude-haiku-5-5 gemini-3.8-flash zoo3")
    assert [(3, "in the air"), (5, "is ill"), (5, "nobody"), (6, "; else")] == phrases


if __name__ == "__main__":
    paths = [Path(argument).resolve() for argument in sys.argv[1:]] or [ROOT]
    lines = [line for path in _files() if any(path.is_relative_to(directory) for directory in paths) for line in findings(path)]
    sys.stdout.write("\n".join(lines or ["no phrases found"]) + "\n")
    sys.exit(bool(lines))
