"""The frames between a session and its workers: lines of JSON, each an object whose first key is its kind.

From the session: `open` (what to import), `begin` (the run), `call` (an attempt) or `score` (a scorer), `cancel` and `answer`
(to a `question`). From a worker: `ready` or `rejected`, then for each call any number of `note`, `step`, `sync` (its steps must
be on disk), `admit` (a model call waits for rate limits), `again` (it was rejected) and `reply` (its head), and one `end`.
"""

from typing import Any, Final, get_args

import attrs
import orjson

from evaljournal.journal.events import FailureCategory
from evaljournal.runner.calls.call_size import CallSize
from evaljournal.runner.calls.http.reply import MAX_VALUES, has_too_many_values
from evaljournal.runner.calls.notes import REPLY_NOTE
from evaljournal.runner.errors import is_whole_number
from evaljournal.runner.retries.classify import Description, Failure, RemoteError
from evaljournal.runner.retries.retry_after import LONGEST_WAIT
from evaljournal.runner.scorers.scorer import Score
from evaljournal.runner.steps.attempt_steps import LimitedCall

MAX_FRAME: Final = 64 << 20
"""Maximum bytes of a frame from a worker; one that sends more is killed."""
MAX_NOTE: Final = 1 << 20
"""Maximum bytes of a frame with notes, which are searched for secrets in the loop of the run."""
_MAX_TEXT: Final = 20_000
"""Maximum characters of a text about an error; workers shorten them to fewer."""


class InvalidFrame(Exception):
    """A worker sent something that is not a valid frame."""


CANCELLED: Final = object()
"""The outcome of a call that ended because it was cancelled."""


class ConvertedOutput:
    """An output that is not JSON in the worker, such as the response object of an SDK, and was converted there."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def model_dump(self, *, mode: str) -> Any:  # noqa: ARG002  # the interface of pydantic, which `to_json` uses
        return self._value


def parse_frame(frame: bytes) -> dict[str, Any]:
    if has_too_many_values(frame):
        raise InvalidFrame(f"it sent a frame of more than {MAX_VALUES:,} values")
    try:
        fields = orjson.loads(frame)
    except ValueError as exc:
        raise InvalidFrame(f"it sent a line that is not JSON: {frame[:80]!r}") from exc
    if not isinstance(fields, dict):
        raise InvalidFrame(f"it sent a line that is not an object: {frame[:80]!r}")
    return fields


def parse_admit(fields: dict[str, Any]) -> tuple[int, LimitedCall]:
    """Return the number of the step and the model call in an `admit` frame."""
    try:
        step, (base_url, digests, model, input_bytes, max_output) = fields["step"], fields["call"]
        texts, numbers = [base_url, model, *digests], [step, input_bytes, *([] if max_output is None else [max_output])]
    except (KeyError, TypeError, ValueError) as exc:
        raise InvalidFrame("it sent an invalid model call") from exc
    if not all(isinstance(text, str) for text in texts) or not all(is_whole_number(number, 0) for number in numbers):
        raise InvalidFrame("it sent an invalid model call")
    return step, LimitedCall(base_url, tuple(digests), model, CallSize(input_bytes, max_output))


def parse_again(fields: dict[str, Any]) -> tuple[int, Failure]:
    """Return the number of the step and the rejection in an `again` frame."""
    step, category, retry_after = fields.get("step"), fields.get("category"), fields.get("retry_after")
    is_seconds = retry_after is None or (isinstance(retry_after, float | int) and 0 <= retry_after <= LONGEST_WAIT)
    if not is_whole_number(step, 0) or category not in ("rate_limited", "unavailable") or not is_seconds:
        raise InvalidFrame("it sent an invalid rejection of a model call")
    assert isinstance(step, int)
    return step, Failure(category=category, retry_after=retry_after)


def parse_question(fields: dict[str, Any]) -> int:
    """Return the number of the question in a frame; 0 if no answer is awaited."""
    question = fields.get("question", 0)
    if not is_whole_number(question, 0):
        raise InvalidFrame("it sent an invalid question")
    return int(question)


def parse_reply(fields: dict[str, Any]) -> tuple[int, int, dict[str, str]]:
    """Return the number of the step, the status and the headers in a `reply` frame."""
    head, step = _parse_head(fields), fields.get("step")
    if not isinstance(step, int):
        raise InvalidFrame("it sent an invalid reply")
    return step, head["status"], head["headers"]


def parse_notes(fields: dict[str, Any], size: int) -> dict[str, Any]:
    notes = fields.get("values")
    if size > MAX_NOTE or not isinstance(notes, dict):
        raise InvalidFrame("it sent invalid notes")
    return {**notes, REPLY_NOTE: _parse_head(notes[REPLY_NOTE])} if REPLY_NOTE in notes else notes


def _parse_head(fields: Any) -> dict[str, Any]:
    """Return the status and the headers of a reply, as `note_reply` sends them; headers that are no text are ignored."""
    status, headers = (fields.get("status"), fields.get("headers")) if isinstance(fields, dict) else (None, None)
    if not isinstance(status, int) or not isinstance(headers, dict):
        raise InvalidFrame("it sent an invalid reply")
    return {"status": status, "headers": {name: value for name, value in headers.items() if isinstance(value, str)}}


def parse_end(fields: dict[str, Any]) -> Any:
    """Return the outcome in an `end` frame: the result, a `RemoteError`, or `CANCELLED`."""
    if "output" in fields:
        return ConvertedOutput(fields["output"]) if fields.get("converted") else fields["output"]
    if "scores" in fields:
        return _parse_scores(fields["scores"])
    if fields.get("cancelled"):
        return CANCELLED

    try:
        failure, error = fields["failure"], fields["error"]
        retry_after, category, stop_reason = failure["retry_after"], failure["category"], failure["stop_reason"]
        resets = failure["resets"]
        texts = {name: error[name] for name in ("type", "message", "traceback", "location")}
    except (KeyError, TypeError) as exc:
        raise InvalidFrame("it sent the end of a call without an outcome") from exc

    is_valid = (
        category in get_args(FailureCategory)
        and stop_reason in (None, "unauthorized", "quota")
        and (retry_after is None or (isinstance(retry_after, int | float) and retry_after >= 0))
        and all(isinstance(text, str) and len(text) <= _MAX_TEXT for text in (resets, *texts.values()))
    )
    if not is_valid:
        raise InvalidFrame("it sent an invalid failure")

    wait = None if retry_after is None else float(retry_after)
    return RemoteError(
        Failure(category=category, retry_after=wait, stop_reason=stop_reason, resets=resets), Description(**texts)
    )


def failure_fields(failure: Failure, error: Description) -> dict[str, Any]:
    """Return the fields of an `end` frame for a failure."""
    return {"failure": attrs.asdict(failure), "error": attrs.asdict(error)}


def score_fields(scores: Any) -> dict[str, Any]:
    """Return the fields of an `end` frame for a score, or for scores by name."""
    if isinstance(scores, Score):
        return {"scores": [scores.value, scores.reason]}
    return {"scores": {name: [score.value, score.reason] for name, score in scores.items()}}


def _parse_scores(value: Any) -> Any:
    try:
        return {name: Score(*score) for name, score in value.items()} if isinstance(value, dict) else Score(*value)
    except Exception as exc:
        raise InvalidFrame("it sent an invalid score") from exc
