"""Numbers, times and untrusted text in a few characters, as people write them."""

from typing import Any, Final

from journal import Blob
from replay.text import as_text, escaped

_WIDTH: Final = 60
_MINUTE: Final = 60
_HOUR: Final = 3600
_READABLE: Final = 1e15
"""From here on, a number in full says less than its power of ten."""


def printable(value: Any, width: int = _WIDTH) -> str:
    """Show a value in a few characters, none of which can do anything to a terminal."""
    if isinstance(value, Blob):
        return f"({value.bytes:,} bytes in a blob)"
    text = "".join(char if char.isprintable() else escaped(char) for char in as_text(value)[: width + 1])
    return text if len(text) <= width else f"{text[: width - 1]}…"


def duration(seconds: float) -> str:
    """Write a time as people do: `0.93 ms`, `0.24 s`, `12 s`, `3 min 20 s`, `10 min`, `2 h 5 min`."""
    if 0 < seconds < 0.1:  # noqa: PLR2004 - below, the zeros would be in the way
        return f"{digits(1000 * seconds, 2)} ms"
    if seconds < 10:  # noqa: PLR2004 - below, parts of a second matter
        return f"{digits(max(0.0, seconds), 2)} s"
    whole = round(seconds)
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} min" + (f" {rest} s" if (rest := whole % _MINUTE) else "")
    return f"{whole // _HOUR:,} h" + (f" {rest} min" if (rest := whole % _HOUR // _MINUTE) else "")


def number(value: float) -> str:
    """Show a count in full, and anything else in four digits."""
    return f"{value:,.0f}" if float(value).is_integer() else digits(value, 4)


def digits(value: float, most: int) -> str:
    """Show so many digits of a number, and all of those before its point: `0.0123`, `12.3`, `1,235`."""
    plain = f"{value:.{most}g}"
    return f"{value:,.0f}" if "e+" in plain and abs(value) < _READABLE else plain


def plural(count: int, one: str, many: str = "") -> str:
    """Count things: `1 trial`, `2 trials`, `2 retries`."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"
