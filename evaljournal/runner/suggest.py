"""Suggestions for mistyped words, and commands to copy."""

import difflib
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path


def suggest(word: str, words: Iterable[str], *, limit: int = 3, render: Callable[[str], str] = repr) -> str:
    """Return `; did you mean …?` with the most similar words, or an empty string."""
    matches = difflib.get_close_matches(word, list(words), n=limit)
    return f"; did you mean {' or '.join(map(render, matches))}?" if matches else ""


def command(verb: str, path: Path, options: str = "") -> str:
    """Return a command for a run, in backquotes and ready to be copied."""
    return f"`evaljournal {verb} {shlex.quote(str(path))}{options}`"
