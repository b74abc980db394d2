"""`Retry-After`, and the waits in errors, as seconds.

Dates are compared with the server's `Date` header where there is one, because its clock may differ from ours.
"""

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache

from evaljournal.runner.retries.provider_errors import ErrorFields

_MIN_TIMESTAMP, _MIN_MILLISECONDS = 1_000_000_000, 1_000_000_000_000
"""The smallest numbers that are read as seconds or milliseconds since 1970 (September 2001), not as a duration."""

LONGEST_WAIT = 1e9
"""Longest wait in seconds, which a journal can record."""

_MAX_UNVERIFIED_WAIT = 60.0
"""Longest wait, in seconds, for a date that comes without the server's own time."""

MAX_RESET = 120.0
"""Longest wait, in seconds, until a reset before the next call is tried: it says when a limit is full again, not when the next
call succeeds. OpenAI's own client does not wait longer for a `Retry-After` either."""

_MAX_LENGTH = 64
"""Characters of the longest duration or date that is parsed."""

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LAST_OF_DURATION = frozenset("smhd")
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_AGAIN = re.compile(rf"(?:try again|retry) in ((?:{_DURATION_PART.pattern})+)", re.IGNORECASE)
_DATE = re.compile(r"\bon (\d{4}-\d\d-\d\d) at (\d\d:\d\d) UTC\b", re.ASCII)


def requested_wait(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds in `retry-after-ms` or `Retry-After`, or None.

    `headers` have lower-case names; `now` is wall time in seconds since 1970.
    """
    if milliseconds := parse_number(headers.get("retry-after-ms", "")):
        return milliseconds / 1000
    text = headers.get("retry-after", "")
    if parse_number(text) == 0:
        return None  # Azure sends 0 for an unknown time.
    wait = parse_seconds(text, server_time(headers, now))
    is_date = parse_number(text) is None and _timestamp(text) is not None
    if wait is not None and is_date and _timestamp(headers.get("date", "")) is None:
        return min(wait, _MAX_UNVERIFIED_WAIT)  # The server's clock may be minutes ahead of ours.
    return wait


def wait_in_error(fields: ErrorFields) -> float | None:
    """Return the seconds that the error itself asks for: Google's `retryDelay`, or "try again in 7m12s" in the message."""
    matches = [match for text in fields.get("message", ()) for match in _AGAIN.finditer(text)]
    texts = [*fields.get("retryDelay", ()), *(match[1] for match in matches)]
    return next((seconds for text in texts if (seconds := parse_seconds(text, 0.0))), None)


def seconds_to_date(fields: ErrorFields, now: float) -> float | None:
    """Return the seconds until the date in the message of an error: "You will regain access on 2026-12-01 at 00:00 UTC"."""
    match = next((match for text in fields.get("message", ()) if (match := _DATE.search(text))), None)
    timestamp = None if match is None else _timestamp(f"{match[1]}T{match[2]}:00Z")
    return None if timestamp is None else max(timestamp - now, 0.0)


def server_time(headers: Mapping[str, str], now: float) -> float:
    """Return the `Date` of a response, or `now` if it has none."""
    date = _timestamp(headers.get("date", ""))
    return now if date is None else date


def parse_seconds(text: str, now: float) -> float | None:
    """Parse seconds from now: `3`, `1.5`, `6m0s`, `20ms`, an HTTP date, an ISO date, or seconds since 1970."""
    text = text.strip()
    if len(text) > _MAX_LENGTH:
        return None
    if text[-1:] in _LAST_OF_DURATION:
        return _parse_duration(text)
    number = parse_number(text) if ":" not in text else None  # A date with a time.
    if number is not None:
        if number < _MIN_TIMESTAMP:
            return number
        return max(0.0, (number / 1000 if number >= _MIN_MILLISECONDS else number) - now)
    timestamp = _timestamp(text)
    return None if timestamp is None else max(0.0, timestamp - now)


@lru_cache(maxsize=1024)
def _parse_duration(text: str) -> float | None:
    seconds, length = 0.0, 0
    for number, unit in _DURATION_PART.findall(text):
        seconds += float(number) * _UNITS[unit]
        length += len(number) + len(unit)
    return seconds if length == len(text) else None


def parse_number(text: str) -> float | None:
    """Parse a number that is 0 or more, or return None."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 <= number < math.inf else None


@lru_cache(maxsize=256)
def _timestamp(text: str) -> float | None:
    """Return the seconds since 1970 of an HTTP date or an ISO date; without a time zone it is UTC, as in HTTP.

    Every reply has a date, and many have the same; parsing takes longer than everything else that is read from the headers.
    """
    if len(text) > _MAX_LENGTH:
        return None
    parse = datetime.fromisoformat if text[:4].isdigit() else parsedate_to_datetime
    try:
        date = parse(text.strip())
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
