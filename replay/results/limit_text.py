"""Rate limits as text: `500 requests per minute`."""

from typing import Final

from evaljournal.replay.text import digits, duration

_WINDOWS: Final = {1.0: "second", 60.0: "minute", 3_600.0: "hour", 86_400.0: "day"}
_THOUSAND: Final = 1_000
_MILLION: Final = 1_000_000


def short_amount(value: float) -> str:
    """Return an amount with at most three digits and a unit: `812`, `1.5k`, `148k`, `2M`."""
    for factor, unit in ((_MILLION, "M"), (_THOUSAND, "k")):
        if value >= 0.9995 * factor:
            return f"{digits(value / factor, 3)}{unit}"
    return digits(value, 3)


def window_text(seconds: float) -> str:
    """Return a window: `minute`, `10 s`."""
    return _WINDOWS.get(seconds) or duration(seconds)


def unit_text(unit: str) -> str:
    """Return what a limit counts: `input tokens`."""
    return unit.replace("_", " ")


def limit_text(unit: str, size: float, window: float) -> str:
    """Return a limit: `500 requests per minute`."""
    return f"{short_amount(size)} {unit_text(unit)} per {window_text(window)}"
