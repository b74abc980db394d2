"""Values, numbers and times as short text, safe to print on a terminal."""

import contextlib
import json
import math
import re
import shlex
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import accumulate, takewhile
from textwrap import wrap
from typing import Any, Final
from unicodedata import category, east_asian_width

import orjson

from evaljournal.journal import Blob

UNKNOWN: Final = "-"
"""In place of a figure that is unknown."""
BELOW_IN_MS: Final = 0.1
"""Seconds; shorter times are shown in milliseconds."""
_WIDTH: Final = 60
_MINUTE: Final = 60
_HOUR: Final = 3600
_DAY: Final = 86_400
_YEAR: Final = 366 * _DAY
_MAX_IN_FULL: Final = 1e15
"""Numbers from here on are shown with an exponent."""
_STAGES: Final = {
    "completed": "output",
    "failed": "error",
    "backing_off": "in backoff",
    "scoring": "being scored",
    "unsettled": "queued",
    "interrupted": "queued",
}
"""Stage of a trial → its words, where they differ."""
_REASONS: Final = {
    "exhausted": "retries used up",
    "fatal": "not retried",
    "ambiguous": "interrupted, not repeated",
    "unserializable": "output is not JSON",
    "budget": "over its budget",
}
"""Why a trial has an error → its words, where they differ."""
_WINDOWS: Final = {1.0: "second", 60.0: "minute", 3_600.0: "hour", 86_400.0: "day"}
_NOT_ASCII: Final = re.compile(r"[^\x00-\x7f]")
_VARIABLE_PARTS: Final = re.compile(r"\breq_\w+|[0-9a-f]{8}-[0-9a-f-]{27}|0x[0-9a-f]+|\d+(?:\.\d+)?")
"""Request ids, UUIDs, addresses and numbers."""


def as_text(value: Any) -> str:
    """Return text unchanged, and any other value as JSON."""
    if isinstance(value, str):
        return value
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # An integer of more than 64 bits.
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def as_lines(value: Any, width: int) -> str:
    """Return a value like `as_text`, but as indented JSON if it is longer than `width`."""
    text = as_text(value)
    if len(text) > width and not isinstance(value, str):
        with contextlib.suppress(TypeError):  # Like in `as_text`.
            return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()
    return text


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else as_text(value)


def quote(path: Any) -> str:
    """Return a path, or another argument, as a word of a shell command that can be copied from a terminal."""
    return printable(shlex.quote(str(path)), 1_000)


def escape_char(char: str) -> str:
    r"""Return a character as a Python escape: `\x1b`, `\u202e`, `\n`."""
    return char.encode("unicode_escape").decode()


def escape_controls(text: str) -> str:
    """Return text that cannot control a terminal: all but printable characters, spaces, tabs and line feeds are escaped.

    Everything that a command prints passes through here: names, messages and paths may come from a foreign run.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in "\n\t" or category(char) == "Zs" else escape_char(char) for char in text
    )


def _escaped(text: str) -> str:
    return text if text.isprintable() else "".join(char if char.isprintable() else escape_char(char) for char in text)


def printable(value: Any, width: int = _WIDTH) -> str:
    """Return a value in at most `width` characters, with control characters escaped."""
    if isinstance(value, Blob):
        return f"({value.bytes:,} bytes in a blob)"
    text = _escaped(as_text(value)[: width + 1])
    return text if len(text) <= width else f"{text[: width - 1]}…"


def one_line(text: str, width: int = _WIDTH) -> str:
    """Return text like `printable`, with line breaks and runs of blanks as single blanks."""
    return printable(" ".join(text.split()), width)


def cell_width(text: str) -> int:
    """Return how many columns of a terminal a text takes: two for a wide character, such as 東, none for a combining one."""
    if text.isascii():
        return len(text)
    others = _NOT_ASCII.findall(text)
    widths = (2 if east_asian_width(char) in "WF" else category(char) not in {"Mn", "Me"} for char in others)
    return len(text) - len(others) + sum(widths)


def pad(text: str, width: int) -> str:
    """Return text with blanks up to a number of columns."""
    return text + " " * (width - cell_width(text))


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of cells as lines, with the cells of a column below each other."""
    widths = [max(map(cell_width, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(pad, row, widths)).rstrip() for row in rows]


def shorten(text: str, width: int) -> str:
    """Return text in at most `width` columns, at least one, with control characters escaped; a long one lacks its middle."""
    width = max(1, width)
    ends = text if len(text) <= 2 * width else f"{text[:width]}…{text[-width:]}"
    escaped_text = _escaped(ends)
    if cell_width(escaped_text) <= width:
        return escaped_text
    tail = width // 3
    return f"{_crop(escaped_text, width - tail - 1)}…{_crop(escaped_text[::-1], tail)[::-1]}"


def _crop(text: str, width: int) -> str:
    """Return the start of a text that takes at most `width` columns."""
    if text[: width + 1].isascii():
        return text[:width]
    ends = accumulate(map(cell_width, text))
    return text[: sum(1 for _ in takewhile(width.__ge__, ends))]


def wrap_cells(text: str, width: int) -> list[str]:
    """Return text in lines of at most `width` columns, at least two, broken between words, or anywhere in wide text."""
    if cell_width(text) == len(text):
        return wrap(text, width)
    lines: list[str] = []
    while text:
        line = _crop(text, max(2, width))
        lines.append(line)
        text = text[len(line) :]
    return lines


def without_variable_parts(message: str) -> str:
    """Return an error message without numbers and ids, equal for all occurrences of the same error."""
    return _VARIABLE_PARTS.sub("#", message)


def as_words(name: str) -> str:
    """Return a recorded name as words: `rate limited`."""
    return printable(name).replace("_", " ")


def stage_text(stage: str) -> str:
    """Return what a trial has, or what it waits for: `output`, `error`, `queued`."""
    return _STAGES.get(stage) or as_words(stage)


def reason_text(reason: str) -> str:
    """Return why a trial has an error: `retries used up`, `timed out`."""
    return _REASONS.get(reason) or as_words(reason)


def duration(seconds: float) -> str:
    """Return a time with its unit: `0.93 ms`, `0.24 s`, `12 s`, `3 min 20 s`, `10 min`, `2 h 5 min`."""
    if 0 < seconds < BELOW_IN_MS:
        return f"{digits(1000 * seconds, 2)} ms"
    if seconds < 10:  # noqa: PLR2004
        return f"{digits(max(0.0, seconds), 2)} s"
    whole_seconds = round(seconds)
    if whole_seconds < _MINUTE:
        return f"{whole_seconds} s"
    if whole_seconds < _HOUR:
        return f"{whole_seconds // _MINUTE} min" + (f" {remainder} s" if (remainder := whole_seconds % _MINUTE) else "")
    return f"{whole_seconds // _HOUR:,} h" + (f" {remainder} min" if (remainder := whole_seconds % _HOUR // _MINUTE) else "")


def number(value: float) -> str:
    """Return an integer in full, and any other number with four significant digits."""
    return f"{value:,.0f}" if float(value).is_integer() else digits(value, 4)


def digits(value: float, count: int) -> str:
    """Return a number with this many significant digits, but at least all before the point: `0.0123`, `1,235`."""
    text = f"{value:.{count}g}"
    return f"{value:,.0f}" if "e+" in text and abs(value) < _MAX_IN_FULL else text


def money(dollars: float) -> str:
    """Return an amount of money, below a dollar with three significant digits: `$1,234.50`, `$0.0234`, `$0.0000234`."""
    if not abs(dollars) < 1:
        return f"${dollars:,.2f}"
    decimals = 2 if dollars == 0 else max(2, 2 - math.floor(math.log10(abs(dollars))))
    return f"${dollars:.{decimals}f}"


def or_dash(value: float | None, text: Callable[[float], str]) -> str:
    """Return a value as text, or `UNKNOWN`."""
    return UNKNOWN if value is None else text(value)


def plural(count: int, singular: str, plural_form: str = "") -> str:
    """Return a count with its noun: `1 trial`, `2 trials`, `2 retries`."""
    return f"{count:,} {singular if count == 1 else plural_form or f'{singular}s'}"


def short_amount(value: float) -> str:
    """Return an amount with at most three digits: `812`, `1.5k`, `148k`, `2M`."""
    for factor, unit in ((1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * factor:
            return f"{digits(value / factor, 3)}{unit}"
    return digits(value, 3)


def window_text(seconds: float) -> str:
    """Return the window of a rate limit: `minute`, `10 s`."""
    return _WINDOWS.get(seconds) or duration(seconds)


def rate_limit_text(unit: str, size: float, window: float) -> str:
    """Return a rate limit: `500 requests per minute`."""
    return f"{short_amount(size)} {as_words(unit)} per {window_text(window)}"


def day_limit_text(seconds: float, wall: float) -> str:
    """Return when a run that was stopped by a declared limit per day can be resumed; see `resume_text`."""
    return f"{resume_text(seconds, wall)}; the declared limit of requests per day (rpd) is used up"


def resume_text(seconds: float, wall: float) -> str:
    """Return when a run can be resumed: `resume after 00:00 UTC (9 h 54 min)`; empty if that is more than a year away.

    `wall` is the time in seconds since 1970. The time is rounded up to a minute, and has a date from 24 hours on.
    """
    if not 0 <= seconds <= _YEAR:
        return ""
    time = datetime.fromtimestamp(-(-(wall + seconds) // _MINUTE) * _MINUTE, UTC)
    date = f"{time:%Y-%m-%d} " if seconds >= _DAY else ""
    return f"resume after {date}{time:%H:%M} UTC ({duration(seconds)})"
