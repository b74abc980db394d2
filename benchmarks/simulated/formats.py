"""How providers write durations and times in their headers."""

from datetime import UTC, datetime
from email.utils import formatdate


def duration(seconds: float) -> str:
    """Return a duration as OpenAI and Groq write it, to the millisecond: `6m0s`, `1.5s`, `120ms`, `0s`."""
    milliseconds = round(1000 * max(seconds, 0.0))
    if 0 < milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, milliseconds = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    text = f"{milliseconds / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    return f"{hours}h{minutes}m{text}" if hours else f"{minutes}m{text}" if minutes else text


def rfc3339(timestamp: float) -> str:
    """Return a time as Anthropic writes it: whole seconds, UTC."""
    return f"{datetime.fromtimestamp(round(timestamp), UTC):%Y-%m-%dT%H:%M:%SZ}"


def http_date(timestamp: float) -> str:
    """Return the value of a `Date` header: whole seconds."""
    return formatdate(int(timestamp), usegmt=True)
