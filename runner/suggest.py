"""Suggestions for mistyped words."""

import difflib
from collections.abc import Callable, Iterable


def nearest(word: str, words: Iterable[str], *, most: int = 3, shown: Callable[[str], str] = repr) -> str:
    """Return `; did you mean …?` with the most similar words, or an empty string."""
    close = difflib.get_close_matches(word, list(words), n=most)
    return f"; did you mean {' or '.join(map(shown, close))}?" if close else ""
