"""Errors of a session: the last of attempts and scorers, the one that the first trials failed with, an unauthorized scorer."""

from collections.abc import Mapping
from typing import Any, Final

import attrs

ERROR_CHARS: Final = 200
"""Maximum length of a kept error."""


@attrs.frozen
class LastError:
    """The last failure of any attempt, or of any call of a scorer, in the current session."""

    message: str
    """Type and message, shortened."""
    t: float
    """When it was recorded, in seconds of `t`."""
    consecutive: int
    """Attempts that have failed or timed out since the last output, or calls since the last score; this one included."""
    outputs: int
    """Outputs recorded by then."""


@attrs.frozen
class StoppingScorer:
    """A scorer that stops the run: its call was unauthorized, or a quota is used up."""

    scorer: str
    message: str
    """Type and message of the error, shortened."""


@attrs.define
class RepeatedError:
    """The error of the first trials that ended in a session, as long as all failed with it and none has an output."""

    type: str = ""
    location: str = ""
    """The line of the user's code that raised it."""
    trials: int = 0
    """Trials that failed with it, until one had an output or failed in another way."""
    is_over: bool = False
    """Whether a trial has had an output or failed in another way."""

    def count(self, type_: str, location: str) -> None:
        """Count a failed trial; `type_` is empty if it failed without an exception."""
        self.is_over = self.is_over or not type_ or (self.trials > 0 and (type_, location) != (self.type, self.location))
        if not self.is_over:
            self.type, self.location, self.trials = type_, location, self.trials + 1

    def stops_run(self, settings: Mapping[str, Any]) -> bool:
        """Return whether it stops a run with these settings, or has stopped it."""
        limit = settings.get("stop_on_same_error")
        return isinstance(limit, int) and self.trials >= limit
