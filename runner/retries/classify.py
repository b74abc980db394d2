"""What an exception from the user's code means for its trial, and how it is put into words.

Exceptions are recognised by their shape (a status code, headers, the names of their classes), so that no SDK need be
installed, let alone imported. Nothing here waits, retries or reads a clock.
"""

import errno
import os
import socket
import ssl
import traceback
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from types import TracebackType
from typing import Any, cast

import outcome
from attrs import evolve, frozen

from journal.events import FailureCategory
from runner.retries.retry_after import requested_wait, wait_until_reset
from runner.secrets import mask


class RateLimited(Exception):
    """Raise this from a task to say that the other side refused for now; it never spends the trial's attempts."""

    def __init__(self, retry_after: float | None = None, message: str = "rate limited") -> None:
        super().__init__(retry_after, message)
        self.retry_after = retry_after
        """Seconds that the other side asked for, if it did."""
        self.message = message

    def __str__(self) -> str:
        return self.message if self.retry_after is None else f"{self.message}; retry after {self.retry_after} s"


class Fatal(Exception):
    """Raise this from a task to say that no further attempt at this trial can succeed."""


@frozen(kw_only=True)
class Failure:
    """What an exception means."""

    kind: FailureCategory
    """`error`: may work next time. `rate_limited`: refused for now. `unavailable`: the other side is ill, or out of
    reach. `fatal`: the next attempt would end the same way."""
    why: str = ""
    """What it was recognised by, in a few words for people."""
    retry_after: float | None = None
    """Seconds that the other side asked us to wait, counted from the failure."""
    stop_run: bool = False
    """Every other call would fail in the same way: the key was refused, or the account has no money left."""


@frozen(kw_only=True)
class Description:
    """An exception as plain text: what may be kept when the exception itself, and the frames it holds, are let go."""

    type: str
    """Its class: `ValueError`, `openai.RateLimitError`, or `evaljournal.RateLimited` for one of ours."""
    message: str
    """Its text, masked and of bounded length."""
    traceback: str
    """Where it was raised and what caused it, masked and of bounded length."""


_MAY_PASS_LATER = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.CONFLICT, HTTPStatus.TOO_EARLY}
"""The refusals below 500 that speak of a moment, not of the request; 409 is a lock that was held."""

_KEY_REFUSED = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.PROXY_AUTHENTICATION_REQUIRED}

_NO_MONEY = {"insufficient_quota", "billing_hard_limit_reached", "billing_not_active"}
"""Sent with status 429, but waiting does not help."""

_TOO_LARGE = "request too large"
"""Sent with status 429 for a request above the whole quota: it would be refused for ever."""

_RATE_LIMITED = {"RateLimitError", "TooManyRequests", "TooManyRequestsException", "ResourceExhausted"}

_THROTTLED = ("throttl", "toomanyrequests", "slowdown", "requestlimitexceeded")
"""In the error codes of AWS, whose status is sometimes 400."""

_UNAVAILABLE = {
    "TransportError",  # httpx
    "ConnectError",
    "ReadError",
    "WriteError",
    "ConnectTimeout",
    "ReadTimeout",
    "WriteTimeout",
    "PoolTimeout",
    "RemoteProtocolError",
    "APIConnectionError",  # the openai and anthropic SDKs
    "APITimeoutError",
    "ClientConnectionError",  # aiohttp
    "ClientPayloadError",
    "ServerDisconnectedError",
    "ServerTimeoutError",
    "ConnectionError",  # requests and botocore have their own
    "Timeout",
    "ChunkedEncodingError",
    "HTTPClientError",
    "ProxyError",
    "ProtocolError",  # urllib3
    "TimeoutError",
    "MaxRetryError",
    "URLError",  # urllib
    "IncompleteRead",  # http.client
    "BrokenResourceError",  # trio
    "TooSlowError",
}
_WRONG_ADDRESS = {"UnsupportedProtocol", "LocalProtocolError", "InvalidURL"}
"""Kin of the above that say the request itself was malformed."""

_NETWORK = {
    errno.ENETDOWN,
    errno.ENETUNREACH,
    errno.ENETRESET,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.EADDRNOTAVAIL,  # no local port left
}

_PROGRAMMING = (TypeError, AttributeError, NameError, ImportError, NotImplementedError)
"""Mistakes in the code: the same line fails the same way each time.

Not among them, because the model's next answer may well pass: KeyError, IndexError and ValueError (the answer lacks a
field, or is not JSON), AssertionError (many a task asserts on the answer) and SyntaxError (others parse it as code).
"""

_DEEPEST = 20
"""How many causes of causes are looked at; a chain can be a ring."""

_MESSAGE, _TRACEBACK = 2_000, 16_000
"""The most characters that are kept."""

_OURS = (os.path.join(os.path.dirname(os.path.dirname(__file__)), ""), os.path.join(os.path.dirname(outcome.__file__), ""))
"""Where the frames between us and a task come from: this package, and what carries an exception out of a thread."""

_OUR_PACKAGES = ("journal", "replay", "runner")
_OUR_TASKS = "runner.tasks."
"""What is raised in there says all that there is to say; a traceback would lead into our own code and the client's."""


def classify(exc: BaseException, *, now: float) -> Failure:
    """Say what an exception means for its trial.

    `now` is wall time, in seconds since 1970, for headers that name a date. Of a group, the worst counts; see `worst`.
    """
    return worst([_classify(leaf, now) for leaf in leaves(exc)])


def leaves(exc: BaseException) -> Iterator[BaseException]:
    """Yield what an exception group holds, however deep; a nursery in the user's task wraps even one error in one."""
    if not isinstance(exc, BaseExceptionGroup):
        yield exc
        return
    for each in cast("BaseExceptionGroup[BaseException]", exc).exceptions:
        yield from leaves(each)


def _classify(exc: BaseException, now: float) -> Failure:
    for link in _chain(exc):
        if isinstance(link, Exception) and (found := _by_shape(link, now)):
            return found
    name = type(exc).__name__
    if isinstance(exc, _PROGRAMMING):
        return Failure(kind="fatal", why=f"{name} is a mistake in the code")
    if not isinstance(exc, Exception) and name != "CancelledError":  # That of asyncio leaks from careless libraries.
        return Failure(kind="fatal", why=f"the task raised {name}")  # SystemExit and its kin: a wish, not an accident
    return Failure(kind="error", why=name)


def worst(failures: list[Failure]) -> Failure:
    """One meaning for a group: what rules out another attempt decides, then what asks for the longest wait."""
    order: tuple[FailureCategory, ...] = ("fatal", "rate_limited", "unavailable", "error")
    worst = min(failures, key=lambda failure: (order.index(failure.kind), -(failure.retry_after or 0)))
    return evolve(worst, stop_run=any(failure.stop_run for failure in failures))


def describe(exc: BaseException) -> Description:
    """Put an exception into words that can be kept for ever."""
    cls = type(exc)
    name = public_name(cls)
    try:
        message = str(exc)
    except Exception as second:  # noqa: BLE001 - the user's class may do anything here, and the trial still needs its record
        message = f"(its text could not be had: {type(second).__name__})"
    if cls.__module__.startswith(_OUR_TASKS):
        return Description(type=name, message=_shorten(message, _MESSAGE), traceback="")
    try:
        trace = "".join(traceback.format_exception(cls, exc, _theirs(exc.__traceback__)))
    except Exception as second:  # noqa: BLE001 - the same
        trace = f"(its traceback could not be had: {type(second).__name__})"
    return Description(type=name, message=_shorten(message, _MESSAGE), traceback=_shorten(trace, _TRACEBACK))


def public_name(cls: type) -> str:
    """Return the name under which a class is recorded; that of one of ours does not depend on the module it is defined in."""
    package = cls.__module__.partition(".")[0]
    if package == "builtins":
        return cls.__qualname__
    return f"{'evaljournal' if package in _OUR_PACKAGES else cls.__module__}.{cls.__qualname__}"


def _theirs(trace: TracebackType | None) -> TracebackType | None:
    """Begin a traceback in the user's own code: how we came to call it is the same for every attempt, and no help."""
    link = trace
    while link is not None and link.tb_frame.f_code.co_filename.startswith(_OURS):
        link = link.tb_next
    return link or trace


def _shorten(text: str, most: int) -> str:
    """Mask a text and keep its two ends: a traceback says at the end what went wrong, and at the start where from."""
    spare = 4 * most  # Cut before masking, or a huge text takes long; far enough out that no half of a key survives.
    if len(text) > 2 * spare:
        text = f"{text[:spare]}{text[-spare:]}"
    text = mask(text).encode("utf-8", "backslashreplace").decode()
    if len(text) <= most:
        return text
    head = most // 4
    return f"{text[:head]}\n… {len(text) - most:,} characters left out …\n{text[head - most :]}"


def _chain(exc: BaseException) -> Iterator[BaseException]:
    """Yield the exception, then what it was raised `from`: frameworks wrap what the SDK said."""
    link: BaseException | None = exc
    for _ in range(_DEEPEST):
        if link is None:
            return
        yield link
        link = link.__cause__


def _by_shape(exc: BaseException, now: float) -> Failure | None:
    """Recognise an exception by what it carries; None where it carries nothing that we know."""
    wait = _wait(exc, now)
    if isinstance(exc, RateLimited | Fatal):
        return Failure(kind="fatal" if isinstance(exc, Fatal) else "rate_limited", why="the task said so", retry_after=wait)
    names = {cls.__name__ for cls in type(exc).__mro__}
    status, code = _status(exc), _code(exc)
    if status == HTTPStatus.TOO_MANY_REQUESTS or names & _RATE_LIMITED or any(word in code for word in _THROTTLED):
        return _refused(exc, code, status, _wait(exc, now, refused=True))
    if status is not None:
        return _by_status(status, wait)
    if names & _WRONG_ADDRESS or isinstance(exc, ssl.SSLCertVerificationError):
        return Failure(kind="fatal", why=type(exc).__name__)
    network = isinstance(exc, socket.gaierror | ssl.SSLError) or (isinstance(exc, OSError) and exc.errno in _NETWORK)
    if network or names & _UNAVAILABLE:
        return Failure(kind="unavailable", why=type(exc).__name__, retry_after=wait)
    return None


def _refused(exc: BaseException, code: str, status: int | None, wait: float | None) -> Failure:
    """There are three sorts of 429: come back later, pay first, and never with a request of this size."""
    if code in _NO_MONEY:
        return Failure(kind="fatal", why=f"429 {code}", stop_run=True)
    if _TOO_LARGE in str(exc)[:_MESSAGE].lower():
        return Failure(kind="fatal", why="429 for a request that is larger than the whole quota")
    return Failure(kind="rate_limited", why=str(status or code or type(exc).__name__), retry_after=wait)


def _by_status(status: int, wait: float | None) -> Failure:
    if status in _KEY_REFUSED:
        return Failure(kind="fatal", why=f"{status}: the key was refused", stop_run=True)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _MAY_PASS_LATER:
        return Failure(kind="unavailable", why=str(status), retry_after=wait)
    return Failure(kind="fatal", why=str(status))


def _status(exc: BaseException) -> int | None:
    """Find the HTTP status that refused us, wherever this library keeps it."""
    response = _attribute(exc, "response")
    for found in (
        _attribute(exc, "status_code"),
        _attribute(exc, "status"),
        _attribute(exc, "code"),
        _attribute(response, "status_code"),
        _attribute(response, "status"),
        _member(_member(response, "ResponseMetadata"), "HTTPStatusCode"),
    ):
        if isinstance(found, bool) or not isinstance(found, int | str):
            continue
        number = int(found) if isinstance(found, int) or (len(found) == 3 and found.isdecimal()) else 0  # noqa: PLR2004
        if 400 <= number <= 599:  # noqa: PLR2004 - what HTTP calls an error
            return number
    return None


def _code(exc: BaseException) -> str:
    """Find the provider's own word for the error, in lower case: OpenAI's `code`, AWS's `Error.Code`."""
    aws = _member(_member(_attribute(exc, "response"), "Error"), "Code")
    for found in (_attribute(exc, "code"), aws):
        if isinstance(found, str):
            return found.lower()
    return ""


def _wait(exc: BaseException, now: float, *, refused: bool = False) -> float | None:
    """Seconds that the exception, or the response it carries, asks us to wait."""
    said = _attribute(exc, "retry_after")
    if isinstance(said, int | float) and 0 <= said < float("inf"):
        return float(said)
    response = _attribute(exc, "response")
    for headers in (
        _attribute(response, "headers"),
        _attribute(exc, "headers"),
        _member(_member(response, "ResponseMetadata"), "HTTPHeaders"),
    ):
        known = _lower(headers)
        wait = requested_wait(known, now)
        if wait is None and refused:
            wait = wait_until_reset(known, now)
        if wait is not None:
            return wait
    return None


def _lower(headers: Any) -> dict[str, str]:
    """Headers as a plain dict with lower-case names, from any of the many classes that hold them."""
    try:
        return {str(name).lower(): str(value) for name, value in headers.items()}
    except Exception:  # noqa: BLE001 - not headers, then; the shape is a guess about somebody else's class
        return {}


def _attribute(thing: Any, name: str) -> Any:
    """Read an attribute, or None; a property of somebody else's exception may raise anything."""
    try:
        return getattr(thing, name, None)
    except Exception:  # noqa: BLE001 - what cannot be read is not there
        return None


def _member(thing: Any, name: str) -> Any:
    return cast("Mapping[str, Any]", thing).get(name) if isinstance(thing, Mapping) else None
