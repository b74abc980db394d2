"""Which word may have been meant, where one was mistyped."""

import difflib
from collections.abc import Callable, Iterable


def nearest(word: str, words: Iterable[str], *, most: int = 3, shown: Callable[[str], str] = repr) -> str:
    """Ask, at the end of a sentence, whether one of the words was meant that are like this one; say nothing if none is."""
    close = difflib.get_close_matches(word, list(words), n=most)
    return f"; did you mean {' or '.join(map(shown, close))}?" if close else ""
