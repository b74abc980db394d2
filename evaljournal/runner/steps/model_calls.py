"""Model calls as steps: how a request is identified, and how its reply is recorded and replayed.

Requests and replies are untrusted. Headers may contain API keys; only the content type and encoding of a reply are recorded.
"""

import base64
import json
from collections.abc import Iterable, Mapping
from functools import cached_property
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlsplit

import orjson

from evaljournal.journal.errors import Unserializable
from evaljournal.replay.provider.reports import Report, StreamReport
from evaljournal.runner.calls.http.reply import (
    EXCERPT_LENGTH,
    BadStatus,
    ErrorReply,
    IncompleteReply,
    InvalidReply,
    Redirected,
    Reply,
    ReplyTooLarge,
)
from evaljournal.runner.calls.usage import reported_usage
from evaljournal.runner.data.exact_json import read_json
from evaljournal.runner.data.fingerprint import canonical
from evaljournal.runner.errors import UsageError
from evaljournal.runner.secrets.masking import excerpt, mask, mask_output
from evaljournal.runner.secrets.shapes import mask_shapes
from evaljournal.runner.steps.attempt_steps import LimitedCall, Step, limited_call
from evaljournal.runner.steps.durable_requests import is_gemini, model_endpoint
from evaljournal.runner.steps.inputs import RecordedInputs, step_input
from evaljournal.runner.steps.keys import NO_RULES, KeyRules

NO_SDK_RETRY: Final = ("x-should-retry", "false")
"""A reply header that keeps the SDKs of OpenAI and Anthropic from retrying; evaljournal retries instead."""

COMPARED_HEADERS: Final = ("anthropic-version", "anthropic-beta", "content-type")
_MAX_NAME: Final = 200


def step_of_request(
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    earlier_inputs: RecordedInputs | None = None,
    api_keys: Iterable[str] = (),
    key_rules: KeyRules = NO_RULES,
) -> Step:
    """Return the step of a request; `headers` have lower-case names, and `earlier_inputs` are those of earlier steps.

    `api_keys` are those of a model call, which waits for the rate limits of its key.

    Two requests are the same step only if method, URL, body and some headers are equal, byte by byte. Of the body of a model
    call, `key_rules` say what is compared. In its URL, API keys are not: they may be replaced between two sessions.
    """
    parts = urlsplit(url)
    endpoint = model_endpoint(method, parts.path)
    value = content = _request_content(body)
    compared_url, compared_body = url, body
    call: LimitedCall | None = None
    if endpoint is None:
        name = mask(f"{method} {parts.hostname or ''}{parts.path}")
        value = {"method": method, "url": url} | ({"body": content} if body else {})
    else:
        if is_gemini(parts.path) and isinstance(content, dict):
            value = content = {"model": parts.path.rpartition("/")[2].partition(":")[0], **content}
        model = content.get("model") if isinstance(content, dict) else None
        name = endpoint.replace("/", ".") + (f" {model}" if isinstance(model, str) else "")
        compared_url, compared_body = mask_shapes(url), key_rules.body(endpoint, content, body)
        call = limited_call(url, api_keys, content, body)

    name = name[:_MAX_NAME]
    key = orjson.dumps([method, compared_url, [headers.get(header) for header in COMPARED_HEADERS]]) + compared_body
    try:
        request_input = step_input(value, name, key=key, earlier_inputs=earlier_inputs)
    except (UsageError, Unserializable):  # A number may have more than 64 bits.
        request_input = step_input(_text(body), name, key=key)
    return Step(name, "tool" if endpoint is None else "model", request_input, reusable=True, call=call)


def _request_content(body: bytes) -> Any:
    try:
        return read_json(body)
    except ValueError:
        return _text(body)


def _text(body: bytes) -> str:
    return body.decode("utf-8", "replace")


class StepReply(Reply):
    """A reply that is the result of a step, recorded when it is complete; it may be a stream of events."""

    def __init__(self, status: int, headers: Mapping[str, str], *, ends_by_closing: bool | None = None) -> None:
        super().__init__(status, headers, ends_by_closing=ends_by_closing)
        self._events = StreamReport() if self.media == "text/event-stream" else None
        self._has_ended = False

    @property
    def is_success(self) -> bool:
        return self.status // 100 == 2  # noqa: PLR2004  # the class of the status

    @property
    def is_event_stream(self) -> bool:
        return self._events is not None

    def on_content(self, content: bytes) -> None:
        """Read the events of a stream; a proxy may have changed its media type."""
        is_first = self._size == len(content)
        if is_first and self._events is None and content.startswith((b"data:", b"event:")):
            self._events = StreamReport()
        if self._events is not None:
            self._events.feed(content)

    def end(self) -> None:
        self._has_ended = True
        if self._events is not None:
            self._events.end()

    @property
    def is_complete(self) -> bool:
        """Whether a success was received completely: to the last event of a stream, or to its end, without an error."""
        if not self.is_success or self.problem is not None:
            return False
        if self._events is not None:
            if self._events.error is not None:
                return False
            return self._events.is_done or (self._has_all_data and (not self.ends_by_closing or self._events.has_finish_reason))
        return self._has_all_data and (not self._is_json or not self.is_readable or self._json is not None)

    @property
    def _has_all_data(self) -> bool:
        return self._has_ended and not self.is_incomplete

    @property
    def is_ending(self) -> bool:
        """Whether only the last event of a stream is missing."""
        return self._events is not None and self._events.is_ending and not self._events.is_done

    @property
    def _is_json(self) -> bool:
        return self.media == "application/json" or self.media.endswith("+json")

    @cached_property
    def _json(self) -> Any:
        """The complete body as a JSON value; None if it is not JSON. It may contain NaN and lone surrogates, as in Python."""
        try:
            return self.json() if self._is_json and self.is_readable else None
        except InvalidReply:
            return _lenient_json(self.body)
        except ReplyTooLarge:
            return None

    @property
    def has_failed(self) -> bool:
        """Whether the reply can no longer become a result; one that was not read to its end has not failed."""
        has_error = self.problem is not None or (self._events is not None and self._events.error is not None)
        return not self.is_success or has_error or (self._has_ended and not self.is_complete)

    def error(self, url: str) -> Exception:
        """Return the error of a reply that is not a result."""
        if not self.is_success:
            return (BadStatus if self.status >= HTTPStatus.BAD_REQUEST else Redirected)(self, url)
        if self.problem is not None:
            return self.problem
        if self._events is not None and self._events.error is not None:
            data, error = self._events.error
            return ErrorReply(f"the stream contains an error: {excerpt(data, EXCERPT_LENGTH)}", error)
        return IncompleteReply(f"the reply from {url} ended before it was complete")

    def step_output(self) -> dict[str, Any]:
        """Return the reply as JSON, the output of its step; `body` is an object, a list or text."""
        output: dict[str, Any] = {"status": self.status, "content_type": self.headers.get("content-type", "")}
        content = self.body
        try:
            if not self.is_readable:
                raise UnicodeError
            text = content.decode()
            output["body"] = self._json if _is_storable(self._json) else text
        except UnicodeError:
            output["base64"] = base64.b64encode(content).decode()
            if not self.is_readable:
                output["content_encoding"] = self.coding

        masked_output: dict[str, Any] = mask_output(output)
        return masked_output

    def usage(self) -> dict[str, float | str]:
        """Return the tokens and their cost; empty if the reply does not report them."""
        report: Report | None = self._events
        if report is None:
            report, value = Report(), self._json
            for part in value if isinstance(value, list) else [value]:  # A list is a stream of Gemini without `alt=sse`.
                report.add(part)
        usage = reported_usage(report)
        return usage if _is_storable(usage) else {}


def _lenient_json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _is_storable(value: Any) -> bool:
    """Return whether a value is a JSON object or list that the journal stores without loss."""
    if not isinstance(value, dict | list):
        return False
    try:
        canonical(value, "the reply")
    except UsageError:  # NaN, a lone surrogate, a number of more than 64 bits, or too many levels.
        return False
    return True


def _header_text(value: Any) -> str:
    """Return a header's value, without characters that some clients reject."""
    return "".join(character for character in str(value) if " " <= character <= "~")


def reply_from_output(output: Any) -> tuple[int, dict[str, str], bytes]:
    """Return the status, the headers and the body of a reply that is the output of a step."""
    try:
        status, headers = int(output["status"]), {"content-type": _header_text(output["content_type"])}
        if "base64" in output:
            content = base64.b64decode(output["base64"], validate=True)
            headers |= {"content-encoding": _header_text(output["content_encoding"])} if "content_encoding" in output else {}
        else:
            body = output["body"]
            content = body.encode() if isinstance(body, str) else orjson.dumps(body)
    except (LookupError, TypeError, ValueError) as exc:
        raise InvalidReply("the recorded result of the step is not a reply") from exc
    return status, headers | {"content-length": str(len(content))}, content
