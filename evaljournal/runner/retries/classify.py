"""Classify an exception that a task raised, and describe it as text.

Exceptions are recognized by shape (status code, headers, class names), so that no SDK has to be imported.
"""

import errno
import math
import os
import socket
import ssl
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from http import HTTPStatus
from traceback import walk_tb
from types import TracebackType
from typing import Any, Literal, TypeVar, cast

import outcome
from attrs import field, frozen

from evaljournal.journal.events import FailureCategory
from evaljournal.replay.text import resume_text
from evaljournal.runner.retries.limit_headers import wait_until_reset
from evaljournal.runner.retries.provider_errors import ErrorFields, Rule, error_fields, matching_rule
from evaljournal.runner.retries.retry_after import (
    LONGEST_WAIT,
    MAX_RESET,
    requested_wait,
    seconds_to_date,
    wait_in_error,
)
from evaljournal.runner.secrets.masking import mask
from evaljournal.runner.signals import is_from_signal

T = TypeVar("T")


class RateLimited(Exception):
    """Raise this from a task when a call was rate limited; it does not count against the trial's retries after errors."""

    def __init__(self, retry_after: float | None = None, message: str = "rate limited") -> None:
        super().__init__(retry_after, message)
        self.retry_after = retry_after
        """Seconds from `Retry-After` or an equivalent; None if unknown."""
        self.message = message

    def __str__(self) -> str:
        return self.message if self.retry_after is None else f"{self.message}; retry after {self.retry_after} s"


class Fatal(Exception):
    """Raise this from a task when no further attempt at this trial can succeed."""


def _limit_wait(seconds: float | None) -> float | None:
    return None if seconds is None else min(seconds, LONGEST_WAIT)


@frozen(kw_only=True)
class Failure:
    """What an exception means for its trial."""

    category: FailureCategory
    """`error`: may succeed next time. `parse_error`: the output may have been invalid. `rate_limited`. `unavailable`: 5xx or a
    connection error. `fatal`: the next attempt would fail in the same way."""
    retry_after: float | None = field(default=None, converter=_limit_wait)
    """Seconds to wait before the next call, counted from the failure, from `Retry-After` or an equivalent."""
    stop_reason: Literal["unauthorized", "quota"] | None = None
    """Why the run stops, if every other call would fail in the same way: the API key is unauthorized or the account has no
    credit, or a quota of a day or month is used up."""
    resets: str = ""
    """When that quota resets: `resume after 03:17 UTC (10 h 17 min)`; empty if unknown."""


@frozen(kw_only=True)
class Description:
    """An exception as text; the exception itself, with the frames it holds, need not be kept."""

    type: str
    """Its class: `ValueError`, `openai.RateLimitError`, or `evaljournal.RateLimited` for one of ours."""
    message: str
    """Its message, shortened, with secrets masked."""
    traceback: str
    """Its traceback, shortened, with secrets masked."""
    location: str = ""
    """The innermost line of the user's own code, as `file:line`; empty if there is none."""


class RemoteError(Exception):
    """An exception that a task raised in another process, which classified and described it; the exception stays there."""

    def __init__(self, failure: Failure, description: Description) -> None:
        super().__init__(description.type, description.message)
        self.failure = failure
        self.description = description


_HOUR, _DAY = 3_600, 86_400
_TEMPORARY_STATUSES = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.CONFLICT, HTTPStatus.TOO_EARLY}
"""Statuses below 500 that may succeed later; 409 means that a lock was held."""

_UNAUTHORIZED_STATUSES = {
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.PAYMENT_REQUIRED,
    HTTPStatus.FORBIDDEN,
    HTTPStatus.PROXY_AUTHENTICATION_REQUIRED,
}

_RATE_LIMIT_CLASSES = {"RateLimitError", "TooManyRequests", "TooManyRequestsException", "ResourceExhausted"}

_THROTTLING_CODES = ("throttl", "toomanyrequests", "slowdown", "requestlimitexceeded", "rate_limit")
"""Parts of error codes of AWS, whose status is sometimes 400, and of error events in streams."""

_OVERLOAD_CODES = {"overloaded_error", "api_error", "server_error", "timeout_error"}
"""Error codes of events in streams, which have no status."""

_UNAVAILABLE_BY_LIBRARY = {
    "httpx": ("TransportError", "ConnectError", "ReadError", "WriteError", "RemoteProtocolError"),
    "httpx, timeouts": ("ConnectTimeout", "ReadTimeout", "WriteTimeout", "PoolTimeout"),
    "openai and anthropic": ("APIConnectionError", "APITimeoutError"),
    "aiohttp": ("ClientConnectionError", "ClientPayloadError", "ServerDisconnectedError", "ServerTimeoutError"),
    "requests and botocore": ("ConnectionError", "Timeout", "ChunkedEncodingError", "HTTPClientError", "ProxyError"),
    "urllib3": ("ProtocolError", "TimeoutError", "MaxRetryError"),
    "urllib and http.client": ("URLError", "IncompleteRead"),
    "trio": ("BrokenResourceError", "TooSlowError"),
}
_UNAVAILABLE_CLASSES = {name for names in _UNAVAILABLE_BY_LIBRARY.values() for name in names}
_MALFORMED_REQUEST_CLASSES = {"UnsupportedProtocol", "LocalProtocolError", "InvalidURL"}

_ERRNOS = {errno.ENETDOWN, errno.ENETUNREACH, errno.ENETRESET, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL}
"""EADDRNOTAVAIL means that no local port is free."""

PROGRAMMING_ERRORS = (TypeError, AttributeError, NameError, ImportError, NotImplementedError, AssertionError)
"""Errors that are fatal if the user's own code raised them, because the same line would fail again. Raised by a library, they
may depend on what an endpoint returned."""

_PARSE_ERRORS = (KeyError, IndexError, ValueError)
"""Errors that often come from parsing an output; the next output may be valid."""

_MAX_CAUSES = 20
"""Maximum length of a chain of causes, which may contain a cycle."""

_MAX_MESSAGE, _MAX_TRACEBACK = 2_000, 16_000
"""Maximum characters that are kept."""

_OWN_FRAMES = (
    os.path.join(os.path.dirname(os.path.dirname(__file__)), ""),
    os.path.join(os.path.dirname(outcome.__file__), ""),
)
"""Directories of the frames between the engine and a task."""

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
_LIBRARY_PREFIXES = (
    "<frozen ",
    "<attrs generated ",
    os.path.join(os.path.dirname(os.__file__), ""),
    os.path.join(_ROOT, ""),
)
"""Path prefixes of the standard library and of evaljournal."""
_TESTING_MODULE = os.path.join(_ROOT, "runner", "testing.py")
"""Simulated tasks for tests; they count as the user's own code."""
_PACKAGE_DIRECTORIES = frozenset({"site-packages", "dist-packages"})
_OWN_TASKS = "evaljournal.runner.calls."
"""Module prefix of our own task errors, whose traceback would only show our own code."""


def classify(exc: BaseException, *, now: float) -> Failure:
    """Classify an exception; of an exception group, the worst exception counts.

    `now` is wall time in seconds since 1970, for headers that contain a date.
    """
    return worst_failure([_classify(leaf, now) for leaf in leaves(exc)])


def leaves(exc: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions in a group, at any depth; a nursery wraps even a single error in a group."""
    if not isinstance(exc, BaseExceptionGroup):
        yield exc
        return
    for exception in cast("BaseExceptionGroup[BaseException]", exc).exceptions:
        yield from leaves(exception)


def _classify(exc: BaseException, now: float) -> Failure:
    for link in _chain(exc):
        if isinstance(link, Exception) and (failure := _recognize(link, now)):
            return failure
    if isinstance(exc, PROGRAMMING_ERRORS):
        return Failure(category="fatal" if _is_raised_by_user(exc) else "error")
    if isinstance(exc, _PARSE_ERRORS):
        return Failure(category="parse_error")
    if not isinstance(exc, Exception) and type(exc).__name__ != "CancelledError":  # Some libraries leak one.
        return Failure(category="fatal")  # SystemExit and KeyboardInterrupt are intended.
    return Failure(category="error")


def worst_failure(failures: list[Failure]) -> Failure:
    """Return the worst failure: one that stops the run, otherwise by category and, within it, the longest wait."""
    order: tuple[FailureCategory, ...] = ("fatal", "rate_limited", "unavailable", "parse_error", "error")
    return min(failures, key=lambda item: (not item.stop_reason, order.index(item.category), -(item.retry_after or 0)))


def describe(exc: BaseException) -> Description:
    if isinstance(exc, RemoteError):
        return exc.description

    cls = type(exc)
    name = public_name(cls)
    message = _call_safely(lambda: str(exc), lambda error: f"(its str() raised {type(error).__name__})")
    if str(cls.__module__).startswith(_OWN_TASKS):
        return Description(type=name, message=_shorten(message, _MAX_MESSAGE), traceback="")
    trace = _call_safely(
        lambda: "".join(traceback.format_exception(cls, exc, _user_frames(exc.__traceback__))),
        lambda error: f"(formatting its traceback raised {type(error).__name__})",
    )

    return Description(
        type=name,
        message=_shorten(message, _MAX_MESSAGE),
        traceback=_shorten(trace, _MAX_TRACEBACK),
        location=_user_line(exc),
    )


def _call_safely(call: Callable[[], T], fallback: Callable[[BaseException], T]) -> T:
    """Call code of an unknown exception class, which may raise anything, even SystemExit; a signal still interrupts."""
    try:
        return call()
    except BaseException as exc:
        if is_from_signal(exc):
            raise
        return fallback(exc)


def public_name(cls: type) -> str:
    """Return the name under which a class is recorded; the names of our own classes do not depend on their modules."""
    package = str(cls.__module__).partition(".")[0]
    if package == "builtins":
        return cls.__qualname__
    return f"{package if package == 'evaljournal' else cls.__module__}.{cls.__qualname__}"


def _user_frames(trace: TracebackType | None) -> TracebackType | None:
    link = trace
    while link is not None and link.tb_frame.f_code.co_filename.startswith(_OWN_FRAMES):
        link = link.tb_next
    return link or trace


def _user_line(exc: BaseException) -> str:
    """Return the innermost line of the user's own code in the traceback of an exception, or of the first in a group."""
    location = ""
    for trace in (exc.__traceback__, next(leaves(exc)).__traceback__):
        for frame, line in walk_tb(trace):
            if not _is_library(frame.f_code.co_filename):
                location = f"{frame.f_code.co_filename}:{line}"
    return location


def _is_raised_by_user(exc: BaseException) -> bool:
    files = [frame.f_code.co_filename for frame, _ in walk_tb(exc.__traceback__)]
    return not files or not _is_library(files[-1])


@cache
def _is_library(file: str) -> bool:
    """Return whether a file belongs to the standard library, an installed package or evaljournal."""
    if file == _TESTING_MODULE:
        return False
    return file.startswith(_LIBRARY_PREFIXES) or not _PACKAGE_DIRECTORIES.isdisjoint(file.replace("\\", "/").split("/"))


def _shorten(text: str, limit: int) -> str:
    """Mask the secrets in a text, and omit its middle if it is too long."""
    margin = 4 * limit  # Shortened before masking, for speed, with enough margin that no part of a secret is kept.
    if len(text) > 2 * margin:
        text = f"{text[:margin]}{text[-margin:]}"
    text = mask(text).encode("utf-8", "backslashreplace").decode()
    if len(text) <= limit:
        return text
    head = limit // 4
    return f"{text[:head]}\n… {len(text) - limit:,} characters omitted …\n{text[head - limit :]}"


def _chain(exc: BaseException) -> Iterator[BaseException]:
    """Yield an exception, then its causes: frameworks wrap the errors of an SDK."""
    link: BaseException | None = exc
    for _ in range(_MAX_CAUSES):
        if link is None:
            return
        yield link
        link = link.__cause__


def _recognize(exc: BaseException, now: float) -> Failure | None:
    """Recognize an exception by its attributes and class names; None if it is unknown."""
    if isinstance(exc, RateLimited | Fatal):
        category: FailureCategory = "fatal" if isinstance(exc, Fatal) else "rate_limited"
        return Failure(category=category, retry_after=_seconds_to_wait(exc, now))

    names = {cls.__name__ for cls in type(exc).__mro__}
    status, code = _status(exc), _error_code(exc)
    if rule := matching_rule(status, _fields(exc)):
        return _failure_of_rule(rule, exc, now)
    if status == HTTPStatus.TOO_MANY_REQUESTS or names & _RATE_LIMIT_CLASSES or any(word in code for word in _THROTTLING_CODES):
        return Failure(category="rate_limited", retry_after=_seconds_to_wait(exc, now, max_reset=MAX_RESET))
    if status in _UNAUTHORIZED_STATUSES:
        return Failure(category="fatal", stop_reason="unauthorized")
    if _is_unavailable(exc, names, status, code):
        return Failure(category="unavailable", retry_after=_seconds_to_wait(exc, now))
    return Failure(category="fatal") if status is not None or _is_malformed(exc, names) else None


def is_declined(exc: BaseException) -> bool:
    """Return whether an error means that a provider's content filter declined the request."""
    rule = matching_rule(_status(exc), _fields(exc))
    return rule is not None and rule.verdict == "declined"


def _is_malformed(exc: BaseException, names: set[str]) -> bool:
    return bool(names & _MALFORMED_REQUEST_CLASSES) or isinstance(exc, ssl.SSLCertVerificationError)


def _is_unavailable(exc: BaseException, names: set[str], status: int | None, code: str) -> bool:
    if status is not None or _is_malformed(exc, names):
        return status is not None and (status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _TEMPORARY_STATUSES)
    is_network_error = isinstance(exc, socket.gaierror | ssl.SSLError) or (isinstance(exc, OSError) and exc.errno in _ERRNOS)
    return is_network_error or bool(names & _UNAVAILABLE_CLASSES) or code in _OVERLOAD_CODES


def _failure_of_rule(rule: Rule, exc: BaseException, now: float) -> Failure:
    wait = _seconds_to_wait(exc, now, max_reset={"rate_limited": MAX_RESET, "quota": math.inf}.get(rule.verdict))
    match rule.verdict:
        case "rate_limited" | "unavailable" as category:
            return Failure(category=category, retry_after=wait)
        case "unauthorized":
            return Failure(category="fatal", stop_reason="unauthorized")
        case "quota":
            # The reply may name the wait for a limit of a minute, which was exceeded, too.
            reset = None if rule.reset_hour is None else _DAY - (now - _HOUR * rule.reset_hour) % _DAY
            wait = reset or wait or seconds_to_date(_fields(exc), now)
            return Failure(category="fatal", stop_reason="quota", resets=resume_text(wait, now) if wait else "")
        case "fatal" | "declined":
            return Failure(category="fatal")


def _fields(exc: BaseException) -> ErrorFields:
    """Return the fields of the provider's error in an exception, as far as its class keeps them."""
    body = next((value for name in ("body", "details") if isinstance(value := _attribute(exc, name), Mapping | list)), None)
    fields = error_fields(body)
    if isinstance(code := _attribute(exc, "code"), str):
        fields.setdefault("code", []).append(code)
    if "message" not in fields:
        fields["message"] = [_call_safely(lambda: str(exc), lambda _: "")[:_MAX_MESSAGE]]
    return fields


def _status(exc: BaseException) -> int | None:
    """Return the HTTP status in an exception; each library stores it under another name."""
    response = _attribute(exc, "response")
    values = [_attribute(exc, name) for name in ("status_code", "status", "code")]
    values += [_attribute(response, name) for name in ("status_code", "status")]
    for value in (*values, _field(_field(response, "ResponseMetadata"), "HTTPStatusCode")):
        if isinstance(value, bool) or not isinstance(value, int | str):
            continue
        number = int(value) if isinstance(value, int) or (len(value) == 3 and value.isdecimal()) else 0  # noqa: PLR2004
        if 400 <= number <= 599:  # noqa: PLR2004 - the error statuses of HTTP
            return number
    return None


def _error_code(exc: BaseException) -> str:
    """Return the provider's error code in lower case: OpenAI's `code`, AWS's `Error.Code`."""
    aws_code = _field(_field(_attribute(exc, "response"), "Error"), "Code")
    for value in (_attribute(exc, "code"), aws_code):
        if isinstance(value, str):
            return value.lower()
    return ""


def _seconds_to_wait(exc: BaseException, now: float, *, max_reset: float | None = None) -> float | None:
    seconds = _attribute(exc, "retry_after")
    if isinstance(seconds, int | float) and 0 <= seconds < float("inf"):
        return float(seconds)

    response = _attribute(exc, "response")
    aws_headers = _field(_field(response, "ResponseMetadata"), "HTTPHeaders")
    litellm_headers = _attribute(exc, "litellm_response_headers")
    sources = (_attribute(response, "headers"), _attribute(exc, "headers"), aws_headers, litellm_headers)
    all_headers = [_lower_case_headers(headers) for headers in sources]
    waits = [requested_wait(headers, now) for headers in all_headers]

    if max_reset is not None:
        fields = _fields(exc)
        repeated_headers = {name.lower(): values[0] for name, values in fields.items()}  # OpenRouter repeats headers in bodies.
        waits.append(wait_in_error(fields))
        resets = [wait_until_reset(headers, now) for headers in (*all_headers, repeated_headers)]
        waits += [min(wait, max_reset) for wait in resets if wait is not None]
    return next((wait for wait in waits if wait is not None), None)


def _lower_case_headers(headers: Any) -> dict[str, str]:
    return _call_safely(lambda: {str(name).lower(): str(value) for name, value in headers.items()}, lambda _: {})


def _attribute(value: Any, name: str) -> Any:
    return _call_safely(lambda: getattr(value, name, None), lambda _: None)


def _field(value: Any, name: str) -> Any:
    return cast("Mapping[str, Any]", value).get(name) if isinstance(value, Mapping) else None
