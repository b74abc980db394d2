"""What an endpoint says of its own rate limit in the headers of an answer, before it refuses anything.

Providers write the same three numbers in several ways; all of them are known here. What is done about them is decided in
`runner.concurrency.headers`.
"""

import math
from collections.abc import Mapping

from runner.retry_after import number_in, seconds_in, time_there

_FORMS = (
    "x-ratelimit-{}-requests",  # OpenAI, and those who speak like it
    "anthropic-ratelimit-requests-{}",
    "x-ratelimit-{}",
    "ratelimit-{}",  # the drafts of the standard
)
_NAMES = tuple({what: form.format(what) for what in ("remaining", "reset", "limit")} for form in _FORMS)


def quota_in(headers: Mapping[str, str]) -> dict[str, float] | None:
    """Read how many requests are left, and for how many seconds; None where that is not said, or no concern yet.

    `headers` have lower-case names. A date is held against the headers' own; without that, it tells nothing. While half of the
    quota is left, there is nothing to heed, and it need not be written down with every answer.
    """
    if not any("ratelimit" in name for name in headers):
        return None  # As in most answers, each of which is looked at.
    for names in _NAMES:
        remaining = number_in(headers.get(names["remaining"], ""))
        if remaining is None:
            continue
        reset = seconds_in(headers.get(names["reset"], ""), time_there(headers, math.inf))
        limit = number_in(headers.get(names["limit"], ""))
        if reset is None or (limit is not None and remaining >= limit / 2):
            return None
        said = {"remaining": remaining, "reset": round(reset, 3)}
        return said if limit is None else {**said, "limit": limit}
    return None
