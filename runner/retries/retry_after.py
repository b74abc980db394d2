"""How long a server asks us to stay away, read from the headers of its refusal.

Dates are turned into seconds here, against the server's own `Date` where it sent one: its clock and ours may differ.
Nothing here reads a clock; who calls says what time it is.
"""

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

_EPOCH = 1_000_000_000
"""A number this large is a point in time (September 2001 or later), not a number of seconds to wait."""

_UNSURE = 60.0
"""Seconds to wait at most for a date that comes without the server's own time."""

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+")
_RESET = re.compile(r"(?:[a-z]+-)?ratelimit-(?:reset(?:-.+)?|(?P<before>.+)-reset)")


def requested_wait(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds that `retry-after-ms` or `Retry-After` asks for; None where neither does.

    `headers` have lower-case names; `now` is wall time, in seconds since 1970.
    """
    milliseconds = number_in(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000
    text = headers.get("retry-after", "")
    wait = seconds_in(text, time_there(headers, now))
    is_date = number_in(text) is None and _moment(text) is not None
    if wait is not None and is_date and _moment(headers.get("date", "")) is None:
        return min(wait, _UNSURE)  # The server's clock is not known, and may be minutes ahead of ours.
    return wait


def wait_until_reset(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds until what was used up is refilled; to be asked after a 429 only, since some servers always send it.

    A server may count several things (requests, tokens), each with its own reset. Those of which nothing remains
    refused us, and the longest of them counts. If none says so, the shortest counts: it is only a lower bound.
    """
    every: list[float] = []
    empty: list[float] = []
    for name, value in headers.items():
        if not (found := _RESET.fullmatch(name)):
            continue
        if (wait := seconds_in(value, time_there(headers, now))) is None:
            continue
        every.append(wait)
        remaining = name.replace("reset", "remaining") if found["before"] is None else f"{name[:-6]}-remaining"
        if number_in(headers.get(remaining, "")) == 0:
            empty.append(wait)
    if empty:
        return max(empty)
    return min(every, default=None)


def time_there(headers: Mapping[str, str], now: float) -> float:
    """Tell what time it is where the headers come from."""
    said = _moment(headers.get("date", ""))
    return now if said is None else said


def seconds_in(text: str, now: float) -> float | None:
    """Seconds from now, from any of: `3`, `1.5`, `6m0s`, `20ms`, an HTTP date, an ISO date, seconds since 1970."""
    number = number_in(text)
    if number is not None:
        return number if number < _EPOCH else max(0.0, number - now)
    if _DURATION.fullmatch(text.strip()):
        return sum(float(n) * _UNITS[unit] for n, unit in re.findall(r"([\d.]+)(ms|s|m|h|d)", text))
    moment = _moment(text)
    return None if moment is None else max(0.0, moment - now)


def number_in(text: str) -> float | None:
    """Read a number that is 0 or more; None if the text is none."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _moment(text: str) -> float | None:
    """Seconds since 1970 of an HTTP date or an ISO date; a date without a zone is UTC, as HTTP has it."""
    for parse in (parsedate_to_datetime, datetime.fromisoformat):
        try:
            moment = parse(text.strip())
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            continue
    return None
