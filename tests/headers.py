"""Advertised limits, as the headers of a reply describe them."""

from evaljournal.journal.events import LimitUnit
from evaljournal.runner.retries.limit_headers import AdvertisedLimit


def advertised_limit(  # noqa: PLR0917  # in the order of the limit
    header: str,
    unit: LimitUnit,
    size: float,
    window: float,
    remaining: float,
    reset: float | None,
    *,
    is_advice: bool = False,
    is_window: bool = False,
) -> AdvertisedLimit:
    """Return a limit, with names for what is rarely true."""
    return header, unit, size, window, remaining, reset, is_advice, is_window
