"""Rate-limit headers of providers, as data.

Nearly every hosted model sends the size of its limits, what remains of them, and when they are full again. One table maps the
names of the headers to limits, for both who read them: the known limits, which need a size and what remains of it, and the
retries, which need the time until a limit resets. Unknown names are ignored, and so is a limit whose values make no sense.
Headers are untrusted.
"""

import math
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from http import HTTPStatus
from typing import Final

from evaljournal.journal.events import LimitUnit
from evaljournal.replay.state.known_limits import DAY, MINUTE
from evaljournal.runner.retries.retry_after import LONGEST_WAIT, parse_number, parse_seconds, server_time

_LONGEST_RESET: Final = 31 * DAY
"""Providers have quotas of up to a month; a limit with a later reset or a longer period makes no sense."""
LARGEST_LIMIT: Final = 1e15
"""A larger limit is none; sums of such numbers would not be exact."""
_MAX_LENGTH: Final = 64
"""Characters of the longest reset that makes sense."""


AdvertisedLimit = tuple[str, LimitUnit, float, float, float, float | None, bool, bool]
"""A limit as a reply describes it. Tuples with names would take a tenth of the time that limits add to a call.

The header with its size; its unit; its size; the seconds of its window; what remains; the seconds until it is full again, None
if unknown; whether such headers are so often wrong that they count only after a 429; whether it is a fixed window, which ends
at the reset.
"""

_UNITS: Final[dict[str, LimitUnit]] = {
    "requests": "requests",
    "tokens": "tokens",
    "project-tokens": "tokens",
    "project-requests": "requests",
    "input-tokens": "input_tokens",
    "output-tokens": "output_tokens",
    "bysize": "tokens",
    "": "requests",
}
_PATTERNS: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?P<scope>(?:llm_provider-)?x-ratelimit-(?:\w{1,64}-)??)(?P<field>limit|remaining|reset|renewalperiod)-(?P<unit>[a-z-]+)",
        r"(?P<scope>(?:llm_provider-)?anthropic-ratelimit-)(?P<unit>[a-z-]+)-(?P<field>limit|remaining|reset)",
        r"(?:x-)?(?P<scope>ratelimit(?P<unit>bysize)-)(?P<field>limit|remaining|reset)(?:-minute)?",
        r"(?P<scope>(?:x-)?ratelimit-)(?P<field>limit|remaining|reset)",
        r"(?P<scope>(?:llm_provider-)?(?:[a-z]+-)?ratelimit-)(?P<field>remaining|reset|renewalperiod)(?:-(?P<unit>.+))?",
        r"(?P<scope>(?:llm_provider-)?(?:[a-z]+-)?ratelimit-)(?P<unit>.+)-(?P<field>remaining|reset)",
    )
)
"""Names of headers: OpenAI and its kin, Anthropic, Mistral, the general ones without a unit, and others, of which only the
resets are read."""
_MARK: Final = "ratelimit"
"""Part of the name of every header with a limit."""
_IETF: Final = re.compile(r'"(?P<name>[\w.-]{1,64})"\s*;\s*(?P<values>[a-z0-9=; .]+)', re.ASCII)
"""The IETF draft: `ratelimit: "default";r=50;t=30` and `ratelimit-policy: "default";q=100;w=60`."""


_LimitHeaders = tuple[LimitUnit, float, bool, bool, str, str, str, str]
"""How headers describe one limit: its unit; the seconds of its window, if no header states them; whether it is advice, or a
fixed window; and the names of the headers with limit, remaining, reset and renewal period, an absent one empty."""


def _names_by_limit(names: Iterable[str]) -> dict[tuple[str, str], dict[str, str]]:
    """Group the names of headers by limit, which is a scope and a unit; in it, by what the header says."""
    limits: dict[tuple[str, str], dict[str, str]] = {}
    for name in names:
        if _MARK not in name:
            continue
        matches = (pattern.fullmatch(name) for pattern in _PATTERNS)
        if match := next(filter(None, matches), None):
            parts = match.groupdict(default="")
            limits.setdefault((parts["scope"], parts.get("unit", "")), {})[parts["field"]] = name
    return limits


@lru_cache(maxsize=64)
def _limits_named(names: tuple[str, ...], host: str) -> list[_LimitHeaders]:
    """Return the limits that headers with these names describe; the replies of a host repeat the same names."""
    fields = _names_by_limit(names)
    limits: list[_LimitHeaders] = []
    for (scope, unit), names_by_field in fields.items():
        is_sum = unit == "tokens" and (scope, "input-tokens") in fields  # Anthropic sends it beside its parts.
        if unit in _UNITS and not is_sum and {"limit", "remaining"} <= names_by_field.keys():
            reset, period = names_by_field.get("reset", ""), names_by_field.get("renewalperiod", "")
            window = DAY if host == "api.groq.com" and unit == "requests" else MINUTE
            header_names = names_by_field["limit"], names_by_field["remaining"], reset, period
            limits.append((_UNITS[unit], window, not unit, unit == "bysize", *header_names))
    return limits


@lru_cache(maxsize=1024)
def _seconds_after(date: str, text: str) -> float | None:
    """Parse a reset, given the date of its reply: replies of the same second, and resets of requests, repeat."""
    sent_at = server_time({"date": date}, math.nan)
    return None if math.isnan(sent_at) else parse_seconds(text, sent_at)


def limit_headers(status: int, headers: Mapping[str, str]) -> dict[str, str] | None:
    """Return the headers of a reply that are about limits, with its date; None if it says nothing of limits and is no 429.

    Names of headers are in lower case.
    """
    relevant_headers = {name: text for name, text in headers.items() if _MARK in name}
    if not relevant_headers and status != HTTPStatus.TOO_MANY_REQUESTS:
        return None
    return relevant_headers | {"date": headers["date"]} if "date" in headers else relevant_headers


def wait_until_reset(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds until the rate limit resets; for a 429 only, since some servers always send these headers.

    Requests and tokens may have separate resets. The longest of those with nothing remaining counts; if there is none, the
    shortest of all. Azure sends the length of a period instead.
    """
    sent_at = server_time(headers, now)
    resets: list[float] = []
    exhausted_resets: list[float] = []

    for names in _names_by_limit(headers).values():
        is_exhausted = parse_number(headers.get(names.get("remaining", ""), "")) == 0
        for field in ("reset", "renewalperiod"):
            wait = parse_seconds(headers.get(names.get(field, ""), ""), sent_at)
            if wait is None:
                continue
            if is_exhausted:
                exhausted_resets.append(wait)
            elif field == "reset":
                resets.append(wait)

    for match in _IETF.finditer(headers.get("ratelimit", "")):
        values = _ietf_values(match["values"])
        if "t" in values:
            (exhausted_resets if values.get("r") == 0 else resets).append(values["t"])
    return max(exhausted_resets) if exhausted_resets else min(resets, default=None)


def advertised_limits(headers: Mapping[str, str], now: float, host: str = "") -> list[AdvertisedLimit]:
    """Return the limits in the headers of a reply.

    `headers` have lower-case names; `now` is wall time in seconds since 1970, in case the reply has no `date`. Groq, at `host`
    api.groq.com, counts requests per day.
    """
    limits: list[AdvertisedLimit] = []
    date = headers.get("date", "")
    for unit, window, is_advice, is_window, limit, remaining_name, reset_name, period in _limits_named(tuple(headers), host):
        try:
            size, remaining, reset = float(headers[limit]), float(headers[remaining_name]), None
        except ValueError:
            continue
        if not (1.0 <= size <= LARGEST_LIMIT and 0.0 <= remaining <= size):
            continue

        if reset_name:
            text = headers[reset_name]
            reset = _seconds_after(date, text) if len(text) <= _MAX_LENGTH else math.inf
            if reset is None:  # Without a date, ours counts.
                reset = parse_seconds(text, now)
            if reset is None or reset > _LONGEST_RESET:
                continue

        if period or is_advice:
            window = _sensible(parse_number(headers[period]) if period else reset)  # noqa: PLW2901
            if window > _LONGEST_RESET:
                continue
        limits.append((limit, unit, size, window, remaining, reset, is_advice, is_window))

    if "ratelimit" in headers and "ratelimit-policy" in headers:
        limits += _ietf_limits(headers["ratelimit"], headers["ratelimit-policy"])
    return limits


def _sensible(window: float | None) -> float:
    """Return a window in seconds that can be computed with; a minute if it is unknown."""
    return min(max(window, 1.0), LONGEST_WAIT) if window else MINUTE


def _ietf_limits(state: str, policy: str) -> list[AdvertisedLimit]:
    policies = {match["name"]: _ietf_values(match["values"]) for match in _IETF.finditer(policy)}
    limits: list[AdvertisedLimit] = []
    for match in _IETF.finditer(state):
        values = policies.get(match["name"], {}) | _ietf_values(match["values"])
        if {"q", "w", "r"} <= values.keys() and 1 <= values["q"] <= LARGEST_LIMIT and values["r"] <= values["q"]:
            header = f'ratelimit-policy "{match["name"]}"'
            window, reset = _sensible(values["w"]), values.get("t")
            limits.append((header, "requests", values["q"], window, values["r"], reset, True, False))
    return limits


def _ietf_values(text: str) -> dict[str, float]:
    pairs = (part.strip().partition("=") for part in text.split(";"))
    return {name: number for name, _, value in pairs if (number := parse_number(value)) is not None}
