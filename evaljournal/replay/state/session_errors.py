"""Errors of a session: the last of attempts and scorers, the one that the first trials failed with, an unauthorized scorer.

The trials and the scorer calls report failures to `SessionErrors`, because they know how many outputs there are by then. A
session begins without errors.
"""

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

import attrs

from evaljournal.journal import Record, events

UNAUTHORIZED: Final = f"{events.NOTE_PREFIX}unauthorized"
QUOTA: Final = f"{events.NOTE_PREFIX}quota"
"""Notes with the scorer that stops the run: `scorer` and `message`."""
ERROR_CHARS: Final = 200
NOT_FOUND: Final = re.compile(r"\b404\b|model_not_found")
"""In the error of an endpoint that does not know the model or the path."""
_NAMES_MODEL: Final = re.compile(
    r"model_not_found|\b404\b.*(?:model|/chat/completions|/responses|/messages|/embeddings|generateContent)",
    re.IGNORECASE | re.DOTALL,
)
"""In such an error of the API of a model. A task may also get a 404 from an address that its case names."""
_DECIDING_TRIALS: Final = 2
"""Trials with such an error that stop a run without an output."""
_HOLDING_CATEGORIES: Final = frozenset({"error", "parse_error", "fatal"})
_DIFFERENT: Final = ("", "", False)
"""What failed attempts have in common if their errors differ."""


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
    """The error of the first trials that ended in a session, as long as all failed with it and none has an output.

    Or that of the first outputs that a scorer was called with, as long as none has a score.

    After `stop_on_same_error` trials it stops the run; of fatal errors that name the model or the path, two are enough,
    because no input causes them. Until then it holds starts, so that a broken task does not pay for every trial: the trials
    that failed first are retried, and all others wait for their outcome. An output, or a failure in another way, ends this.
    Rate limits, outages and timeouts hold nothing: they have rules of their own.
    """

    type: str = ""
    location: str = ""
    """The line of the user's code that raised it."""
    trials: int = 0
    """Trials that failed with it, until one had an output or failed in another way."""
    is_over: bool = False
    """Whether a trial has had an output or failed in another way."""
    is_decided: bool = False
    """Whether two trials failed with an error that names the model or the path."""
    failed_trials: dict[str, int] = attrs.field(factory=dict[str, int])
    """Trial with a failed attempt → its number, from 0, in the order of their first failures."""
    _attempt_error: tuple[str, str, bool] | None = None
    """What the failed attempts have in common: type, line, and whether each error names the model or the path."""

    def count(self, type_: str, location: str) -> None:
        """Count a failed trial; `type_` is empty if it failed without an exception."""
        if not type_ or (self.trials > 0 and (type_, location) != (self.type, self.location)):
            self.end()
        if not self.is_over:
            self.type, self.location, self.trials = type_, location, self.trials + 1
            self.is_decided = self.is_decided or (self._names_model and self.trials >= _DECIDING_TRIALS)

    def count_attempt(self, trial: str, category: str, type_: str, location: str, message: str) -> None:
        """Count a failed attempt, or a failed call of a scorer."""
        if self.is_over or category not in _HOLDING_CATEGORIES:
            return
        error = type_, location, category == "fatal" and _NAMES_MODEL.search(message) is not None
        if self._attempt_error in {None, error}:
            self._attempt_error = error
            self.failed_trials.setdefault(trial, len(self.failed_trials))
        else:
            self._attempt_error = _DIFFERENT
            self.failed_trials.clear()

    @property
    def _names_model(self) -> bool:
        return self._attempt_error is not None and self._attempt_error[2]

    def end(self) -> None:
        self.is_over = True
        self.failed_trials.clear()

    def holds(self, trial: str, settings: Mapping[str, Any], *, is_in_flight: bool) -> bool:
        """Return whether an attempt at a trial must not start yet; `is_in_flight`: one in flight may decide."""
        limit = settings.get("stop_on_same_error")
        if not isinstance(limit, int):
            return False
        return (self._names_model and is_in_flight) or self.failed_trials.get(trial, len(self.failed_trials)) >= limit

    def stops_run(self, settings: Mapping[str, Any], *, early: bool = True) -> bool:
        """Return whether it stops a run with these settings, or has stopped it; `early`: also after two trials."""
        limit = settings.get("stop_on_same_error")
        return isinstance(limit, int) and (self.trials >= limit or (early and self.is_decided))


@attrs.define(eq=False)
class SessionErrors:
    """What fails in the current session, and does it fail in the same way again and again?"""

    last_error: LastError | None = None
    repeated_errors: defaultdict[str, RepeatedError] = attrs.field(factory=lambda: defaultdict(RepeatedError))
    """Scorer that was called in this session → the error of the first outputs that it was called with; that of the first trials
    is under the empty name."""
    scorer_errors: dict[str, LastError] = attrs.field(factory=dict[str, LastError])
    """Scorer → the error of its last call in this session; scorers whose last call succeeded are not in it."""
    stopping_scorer: StoppingScorer | None = None

    def count_attempt(self, message: str, t: float, outputs: int) -> None:
        """Count a failed attempt; `outputs` is the number of outputs before it."""
        last_error = self.last_error
        previous_count = last_error.consecutive if last_error is not None and last_error.outputs == outputs else 0
        self.last_error = LastError(message, t, previous_count + 1, outputs)

    def count_call(self, event: events.ScorerCallFailed, t: float, outputs: int) -> None:
        """Count a failed call of a scorer; without a delay, it is not repeated."""
        repeated_error = self.repeated_errors[event.scorer]
        repeated_error.count_attempt(event.trial, event.category, event.error, "", event.message)
        if event.delay is None:
            repeated_error.count("" if event.category == "timed_out" else event.error, "")
        last_error, message = self.scorer_errors.get(event.scorer), f"{event.error}: {event.message}"[:ERROR_CHARS]
        count = 1 if last_error is None else last_error.consecutive + 1
        self.scorer_errors[event.scorer] = LastError(message, t, count, outputs)

    def note_stop(self, event: events.Noted) -> None:
        if isinstance(event.value, dict):
            scorer, message = str(event.value.get("scorer", "")), str(event.value.get("message", ""))
            self.stopping_scorer = StoppingScorer(scorer, message[:ERROR_CHARS])

    def _on_session_started(self, _: events.SessionStarted, __: Record) -> None:
        self.last_error = self.stopping_scorer = None
        self.repeated_errors.clear()
        self.scorer_errors.clear()
