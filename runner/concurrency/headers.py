"""Rate-limit headers of providers, as data.

Nearly every hosted model sends the size of its limits, what remains of them, and when they are full again. A table maps the
names of the headers to limits; unknown names are ignored, and so is a limit whose values make no sense. Headers are untrusted.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from evaljournal.journal.events import LimitUnit
from evaljournal.runner.retries.retry_after import parse_number, parse_seconds, server_time

MINUTE, DAY = 60.0, 86_400.0
_LARGEST: Final = 1e15
"""A larger limit is none; sums of such numbers would not be exact."""


class AdvertisedLimit(NamedTuple):
    """A limit as a reply describes it."""

    header: str
    """The header with its size."""
    unit: LimitUnit
    size: float
    """What may be used per window."""
    window: float
    """Seconds."""
    remaining: float
    reset: float | None
    """Seconds until the limit is full again; None if unknown."""
    is_advice: bool = False
    """Whether such headers are so often wrong that they count only after a 429."""


_UNITS: Final[dict[str, LimitUnit]] = {
    "requests": "requests",
    "tokens": "tokens",
    "project-tokens": "tokens",
    "project-requests": "requests",
    "input-tokens": "input_tokens",
    "output-tokens": "output_tokens",
}
_PATTERNS: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?P<scope>(?:llm_provider-)?x-ratelimit-(?:\w+-)??)(?P<field>limit|remaining|reset|renewalperiod)-(?P<unit>[a-z-]+)",
        r"(?P<scope>(?:llm_provider-)?anthropic-ratelimit-)(?P<unit>[a-z-]+)-(?P<field>limit|remaining|reset)",
        r"(?P<scope>x-ratelimitbysize-)(?P<field>limit|remaining)-minute",
        r"(?P<scope>ratelimitbysize-)(?P<field>reset)",
        r"(?P<scope>(?:x-)?ratelimit-)(?P<field>limit|remaining|reset)",
    )
)
"""Names of headers: OpenAI and its kin, Anthropic, Mistral (two), and the general ones without a unit."""
_IETF: Final = re.compile(r'"(?P<name>[^"]*)"\s*;\s*(?P<values>[a-z0-9=; .]+)')
"""The IETF draft: `ratelimit: "default";r=50;t=30` and `ratelimit-policy: "default";q=100;w=60`."""


class _Name(NamedTuple):
    limit: tuple[str, str]
    """Scope and unit, which the fields of one limit share."""
    field: str


@lru_cache(maxsize=1024)
def _parse_name(name: str) -> _Name | None:
    for pattern in _PATTERNS:
        if match := pattern.fullmatch(name):
            parts = match.groupdict()
            scope = parts["scope"].replace("x-ratelimitbysize", "ratelimitbysize")
            unit = "tokens" if scope.startswith("ratelimitbysize") else parts.get("unit") or ""
            return None if unit and unit not in _UNITS else _Name((scope, unit), parts["field"])
    return None


def advertised_limits(headers: Mapping[str, str], now: float, host: str = "") -> list[AdvertisedLimit]:
    """Return the limits in the headers of a reply.

    `headers` have lower-case names; `now` is wall time in seconds since 1970, in case the reply has no `date`. Groq, at `host`
    api.groq.com, counts requests per day.
    """
    fields: dict[tuple[str, str], dict[str, str]] = {}
    for name, value in headers.items():
        if "ratelimit" in name and (parsed := _parse_name(name)) is not None:
            fields.setdefault(parsed.limit, {})[parsed.field] = value
    limits: list[AdvertisedLimit] = []
    for (scope, unit), values in fields.items():
        if unit == "tokens" and (scope, "input-tokens") in fields:
            continue  # Anthropic's sum of the two others.
        is_per_day = unit == "requests" and host == "api.groq.com"
        window = (parse_number(values.get("renewalperiod", "")) or MINUTE) if not is_per_day else DAY
        reset_text = values.get("reset")
        reset = None if reset_text is None else parse_seconds(reset_text, server_time(headers, now))
        size, remaining = parse_number(values.get("limit", "")), parse_number(values.get("remaining", ""))
        if size is None or remaining is None or (reset is None and reset_text is not None):
            continue
        header = f"{scope}limit-{unit}" if "anthropic" not in scope else f"{scope}{unit}-limit"
        if not unit:
            window = reset or MINUTE
        limits.append(
            AdvertisedLimit(header.rstrip("-"), _UNITS.get(unit, "requests"), size, window, remaining, reset, not unit)
        )
    if "ratelimit" in headers and "ratelimit-policy" in headers:
        limits += _ietf_limits(headers["ratelimit"], headers["ratelimit-policy"])
    return [limit for limit in limits if 0 < limit.size <= _LARGEST and limit.remaining <= limit.size and limit.window > 0]


def _ietf_limits(state: str, policy: str) -> list[AdvertisedLimit]:
    policies = {match["name"]: _ietf_values(match["values"]) for match in _IETF.finditer(policy)}
    limits: list[AdvertisedLimit] = []
    for match in _IETF.finditer(state):
        values = {**policies.get(match["name"], {}), **_ietf_values(match["values"])}
        if {"q", "w", "r"} <= values.keys():
            limits.append(
                AdvertisedLimit(
                    "ratelimit-policy", "requests", values["q"], values["w"], values["r"], values.get("t"), is_advice=True
                )
            )
    return limits


def _ietf_values(text: str) -> dict[str, float]:
    pairs = (part.strip().partition("=") for part in text.split(";"))
    return {name: number for name, _, value in pairs if (number := parse_number(value)) is not None}
