"""Classification of exceptions by their shape, without the libraries that raise them."""

import asyncio
import email.message
import json
import socket
import ssl
import urllib.error
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import trio

from evaljournal import Retry, evaluation, run
from evaljournal.journal.events import AttemptFailed
from evaljournal.runner.retries.classify import Fatal, RateLimited, classify, describe
from evaljournal.runner.retries.limit_headers import wait_until_reset
from evaljournal.runner.retries.retry_after import requested_wait
from evaljournal.runner.testing import Fail, Scripted
from tests.runs import events

NOW = 1_800_000_000.0  # Fri, 15 Jan 2027 08:00:00 GMT


class Response:
    """A response as in httpx and requests; false for an error, as in requests."""

    def __init__(self, status_code: int, headers: dict[str, str] | None = None) -> None:
        self.status_code = status_code
        self.headers = headers or {}

    def __bool__(self) -> bool:
        return self.status_code < 400


def status_error(name: str, status: int, *, code: str | None = None, message: str = "", **headers: str) -> Exception:
    """Return an exception like those of the openai and anthropic SDKs."""
    error: Any = type(name, (type("APIStatusError", (Exception,), {}),), {})(message)
    error.status_code, error.code, error.body = status, code, None
    error.response = Response(status, {key.replace("_", "-"): value for key, value in headers.items()})
    return error  # type: ignore[no-any-return]  # a class of this test


def error_named(*names: str, base: type[Exception] = Exception, **attributes: Any) -> Exception:
    """Return an exception whose classes have these names, its own last."""
    for name in names:
        base = type(name, (base,), {})
    error = base("")
    for name, value in attributes.items():
        setattr(error, name, value)
    return error


def boto_error(code: str, status: int, **headers: str) -> Exception:
    """Return an exception like those of botocore: everything in one dict."""
    metadata = {"HTTPStatusCode": status, "HTTPHeaders": {name.replace("_", "-"): value for name, value in headers.items()}}
    return error_named("ClientError", response={"Error": {"Code": code}, "ResponseMetadata": metadata})


def urllib_error(status: int, **headers: str) -> Exception:
    """Return an exception of urllib, which is also an OSError."""
    message = email.message.Message()
    for key, value in headers.items():
        message[key.replace("_", "-")] = value
    return urllib.error.HTTPError("https://x", status, "the reason phrase", message, None)


def caused(outer: Exception, inner: BaseException) -> Exception:
    outer.__cause__ = inner
    return outer


@pytest.mark.parametrize(
    ("exc", "meaning"),
    [
        (RateLimited(), ("rate_limited", None)),
        (RateLimited(3), ("rate_limited", 3)),
        (RateLimited(float("nan")), ("rate_limited", None)),
        (status_error("RateLimitError", 429), ("rate_limited", None)),
        (status_error("RateLimitError", 429, code="rate_limit_exceeded", retry_after="3"), ("rate_limited", 3)),
        (status_error("RateLimitError", 429, Retry_After="1.5"), ("rate_limited", 1.5)),
        (status_error("RateLimitError", 429, x_ratelimit_reset_tokens="6m0s"), ("rate_limited", 120)),
        (error_named("HTTPStatusError", response=Response(429, {"Retry-After": "3"})), ("rate_limited", 3)),
        (error_named("ClientResponseError", status=429, headers={"Retry-After": "3"}), ("rate_limited", 3)),
        (error_named("HTTPError", base=OSError, response=Response(429, {"Retry-After": "3"})), ("rate_limited", 3)),
        (urllib_error(429, Retry_After="3"), ("rate_limited", 3)),
        (boto_error("ThrottlingException", 400), ("rate_limited", None)),
        (boto_error("SlowDown", 503, retry_after="3"), ("rate_limited", 3)),
        (error_named("ResourceExhausted", code=HTTPStatus.TOO_MANY_REQUESTS), ("rate_limited", None)),
        (error_named("APIError", code="429"), ("rate_limited", None)),
        (error_named("RateLimitError"), ("rate_limited", None)),
        (caused(RuntimeError("chain failed"), status_error("RateLimitError", 429, retry_after="3")), ("rate_limited", 3)),
        (ExceptionGroup("", [ValueError(), RateLimited(1), RateLimited(5)]), ("rate_limited", 5)),
        (status_error("InternalServerError", 500), ("unavailable", None)),
        (status_error("OverloadedError", 529, retry_after="3"), ("unavailable", 3)),
        (status_error("InternalServerError", 500, x_ratelimit_reset_tokens="6m0s"), ("unavailable", None)),
        (status_error("APIStatusError", 408), ("unavailable", None)),
        (status_error("ConflictError", 409), ("unavailable", None)),
        (error_named("APIConnectionError"), ("unavailable", None)),
        (error_named("TransportError", "NetworkError", "ConnectError"), ("unavailable", None)),
        (error_named("TransportError", "TimeoutException", "ReadTimeout"), ("unavailable", None)),
        (error_named("ClientError", "ClientConnectionError", "ServerDisconnectedError"), ("unavailable", None)),
        (error_named("BotoCoreError", "ConnectionError", "EndpointConnectionError"), ("unavailable", None)),
        (ConnectionResetError(), ("unavailable", None)),
        (TimeoutError(), ("unavailable", None)),
        (socket.gaierror(-2, "Name or service not known"), ("unavailable", None)),
        (OSError(101, "Network is unreachable"), ("unavailable", None)),
        (ssl.SSLError(1, "unexpected eof"), ("unavailable", None)),
        (urllib.error.URLError(ConnectionRefusedError()), ("unavailable", None)),
        (caused(RuntimeError(), ConnectionResetError()), ("unavailable", None)),
        (status_error("BadRequestError", 400), ("fatal", None)),
        (status_error("NotFoundError", 404), ("fatal", None)),
        (error_named("TransportError", "UnsupportedProtocol"), ("fatal", None)),
        (ssl.SSLCertVerificationError(1, "self-signed"), ("fatal", None)),
        (TypeError(), ("fatal", None)),
        (AttributeError(), ("fatal", None)),
        (UnboundLocalError(), ("fatal", None)),
        (ModuleNotFoundError(), ("fatal", None)),
        (NotImplementedError(), ("fatal", None)),
        (Fatal("no"), ("fatal", None)),
        (SystemExit(429), ("fatal", None)),
        (ExceptionGroup("", [RateLimited(1), ExceptionGroup("", [TypeError()])]), ("fatal", None)),
        (ValueError(), ("parse_error", None)),
        (json.JSONDecodeError("no", "", 0), ("parse_error", None)),
        (KeyError("answer"), ("parse_error", None)),
        (IndexError(), ("parse_error", None)),
        (AssertionError(), ("fatal", None)),
        (SyntaxError(), ("error", None)),
        (FileNotFoundError(2, "no such file"), ("error", None)),
        (asyncio.CancelledError(), ("error", None)),
        (error_named("ContentTypeError", status=200), ("error", None)),
        (error_named("ConnectionClosed", code=1006), ("error", None)),
        (error_named("Odd", status=True, code=["429"]), ("error", None)),
        (caused(RuntimeError(), TypeError()), ("error", None)),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_categories(exc: BaseException, meaning: tuple[str, float | None]) -> None:
    """Exceptions of every library have one of five categories, and perhaps a wait."""
    failure = classify(exc, now=NOW)

    assert meaning == (failure.category, failure.retry_after)


@pytest.mark.parametrize(
    ("exc", "stops"),
    [
        (status_error("AuthenticationError", 401), True),
        (status_error("PermissionDeniedError", 403), True),
        (status_error("RateLimitError", 429, code="insufficient_quota"), True),
        (ExceptionGroup("", [ValueError(), status_error("AuthenticationError", 401)]), True),
        (status_error("BadRequestError", 400), False),
        (status_error("RateLimitError", 429), False),
        (TypeError(), False),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_what_stops_a_run(exc: Exception, *, stops: bool) -> None:
    """An unauthorized key and an account without credit stop the run."""
    assert stops == (classify(exc, now=NOW).stop_reason is not None)


def test_a_cycle_of_causes_ends() -> None:
    """Two exceptions that cause each other are classified."""
    first, second = RuntimeError(), ValueError()
    first.__cause__, second.__cause__ = second, first

    assert "error" == classify(first, now=NOW).category


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({}, None),
        ({"retry-after": "3"}, 3),
        ({"retry-after": "0"}, None),
        ({"retry-after-ms": "0", "retry-after": "1"}, 1),
        ({"retry-after": " 1.5 "}, 1.5),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "Fri, 15 Jan 2027 08:00:30 GMT"}, 30),
        ({"retry-after": "Fri, 15 Jan 2027 07:59:30 GMT"}, 0),
        ({"retry-after": "Fri, 15 Jan 2027 08:05:30 GMT"}, 60),
        ({"retry-after": "Fri, 15 Jan 2027 08:05:30 GMT", "date": "Fri, 15 Jan 2027 08:00:10 GMT"}, 320),
        ({"retry-after": "Fri, 15 Jan 2027 08:00:30 GMT", "date": "Fri, 15 Jan 2027 08:00:10 GMT"}, 20),
        ({"retry-after": "Fri, 99 Jan 2027 08:00:30 GMT"}, None),
        ({"retry-after-ms": "250", "retry-after": "3"}, 0.25),
        ({"x-ratelimit-reset": "60"}, None),
    ],
    ids=str,
)
def test_requested_wait(headers: dict[str, str], wait: float | None) -> None:
    """Retry-After is in seconds, milliseconds or a date, which counts from the server's own clock."""
    seconds = requested_wait(headers, NOW)

    assert wait == (seconds if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({}, None),
        ({"x-ratelimit-reset": "60"}, 60),
        ({"x-ratelimit-reset": "1800000060"}, 60),
        ({"x-ratelimit-reset": "1800000060000"}, 60),
        ({"ratelimit-reset": "60"}, 60),
        ({"x-ratelimit-reset-requests": "1s", "x-ratelimit-reset-tokens": "6m0s"}, 1),
        (
            {
                "x-ratelimit-reset-requests": "1s",
                "x-ratelimit-reset-tokens": "1m2.5s",
                "x-ratelimit-remaining-tokens": "0",
            },
            62.5,
        ),
        ({"x-ratelimit-reset-requests": "20ms"}, 0.02),
        ({"anthropic-ratelimit-tokens-reset": "2027-01-15T08:00:30Z"}, 30),
        (
            {
                "anthropic-ratelimit-tokens-reset": "2027-01-15T08:00:30Z",
                "anthropic-ratelimit-requests-reset": "2027-01-15T08:00:10Z",
                "anthropic-ratelimit-tokens-remaining": "0",
            },
            30,
        ),
        ({"x-ratelimit-limit": "60"}, None),
        ({"x-ratelimitbysize-remaining-minute": "0", "ratelimitbysize-reset": "21"}, 21),
        ({"llm_provider-x-ratelimit-remaining-tokens": "0", "llm_provider-x-ratelimit-reset-tokens": "6s"}, 6),
        ({"x-ratelimit-api_key-reset-requests": "12s"}, 12),
        ({"ratelimit": '"burst";r=50;t=30, "daily";r=0;t=45'}, 45),
        ({"other-ratelimit-images-reset": "5", "other-ratelimit-images-remaining": "0"}, 5),
    ],
    ids=str,
)
def test_wait_until_reset(headers: dict[str, str], wait: float | None) -> None:
    """The longest reset of an exhausted limit counts, otherwise the shortest reset."""
    seconds = wait_until_reset(headers, NOW)

    assert wait == (seconds if seconds is None else pytest.approx(seconds))


def test_description_is_masked() -> None:
    """Secrets in the message and the traceback are masked; type, place and cause are kept."""
    secret = "sk-Ab12Cd34Ef56"  # noqa: S105 - made up
    with pytest.raises(RateLimited) as raised:
        raise RateLimited(3, f"rejected {secret}") from ValueError("api_key=0123")
    description = describe(raised.value)

    assert "evaljournal.RateLimited" == description.type
    assert "rejected ***; retry after 3 s" == description.message
    assert "ValueError: api_key=***" in description.traceback
    assert "test_classify.py" in description.traceback
    assert secret not in description.traceback


def test_description_is_bounded() -> None:
    """A long message keeps both ends."""
    description = describe(ValueError(f"first {'x' * 5_000_000} last"))

    assert len(description.message) < 2_100
    assert description.message.startswith("first")
    assert description.message.endswith("last")
    assert "characters omitted" in description.message
    assert len(description.traceback) < 16_100


def test_description_can_be_written() -> None:
    """A lone surrogate, which UTF-8 cannot encode, is escaped."""
    assert r"\ud800" == describe(ValueError("\ud800")).message


def compiled(source: str, file: str) -> Any:
    """Return the function `call` that a file of this name would define."""
    names: dict[str, Any] = {}
    exec(compile(source, file, "exec"), names)  # noqa: S102  # the file name is what is tested
    return names["call"]


PROGRAMMING = (TypeError, AttributeError, NameError, ImportError, NotImplementedError, AssertionError)
RAISES = "def call(error):\n    raise error"


@pytest.mark.parametrize("error", PROGRAMMING)
@pytest.mark.parametrize(
    ("file", "category"),
    [
        ("evals/qa.py", "fatal"),
        ("<ipython-input-1>", "fatal"),
        ("/usr/lib/python3/dist-packages/sdk/client.py", "error"),
        (r"C:\python\Lib\site-packages\sdk\client.py", "error"),
        (json.__file__, "error"),
        (classify.__code__.co_filename, "error"),
    ],
)
def test_a_programming_error_is_fatal_in_the_users_own_code(error: type[Exception], file: str, category: str) -> None:
    """Where a library or evaljournal raises it, it may depend on the reply, and is retried."""
    with pytest.raises(error) as raised:
        compiled(RAISES, file)(error("no"))

    assert category == classify(raised.value, now=0).category


def test_the_innermost_line_of_the_users_code_is_described() -> None:
    """Frames of libraries below it are skipped; without one of the user, there is none."""
    outer = "def call(error):\n    # A comment.\n    inner(error)"
    call = compiled(outer, "evals/qa.py")
    call.__globals__["inner"] = compiled(RAISES, "/site-packages/sdk.py")
    with pytest.raises(OSError, match="no") as raised:
        call(OSError("no"))

    assert "evals/qa.py:3" == describe(raised.value).location
    assert "evals/qa.py:3" == describe(ExceptionGroup("", [raised.value])).location
    assert "" == describe(OSError("no")).location


def user_task(_: str) -> str:
    """Fail in the user's own code."""
    raise ValueError("no")


async def user_trio_task(value: str) -> str:
    """Fail in the user's own code, for trio."""
    await trio.lowlevel.checkpoint()
    return user_task(value)


async def user_asyncio_task(value: str) -> str:
    """Fail in the user's own code, for asyncio."""
    await asyncio.sleep(0)
    return user_task(value)


@pytest.mark.parametrize("task", [user_task, user_trio_task, user_asyncio_task])
def test_a_traceback_begins_in_the_users_code(tmp_path: Path, task: Any) -> None:
    """Frames before the task are omitted, in threads and in either loop; those of its own calls are kept."""
    run(evaluation(cases=["a"], retry=Retry(errors=0))(task), tmp_path / "run")

    failed = next(event for event in events(tmp_path / "run", AttemptFailed))
    files = [line.split('"')[1] for line in failed.traceback.splitlines() if line.startswith("  File ")]
    assert {__file__} == set(files)
    assert failed.traceback.endswith('    raise ValueError("no")\nValueError: no\n')


def test_a_traceback_that_is_ours_alone_is_kept(tmp_path: Path) -> None:
    """If there is no frame of the user, our own are kept."""
    task = Scripted(lambda *_: Fail(Fatal("no")))
    run(evaluation(cases=["a"], loop="trio")(task), tmp_path / "run")

    failed = next(event for event in events(tmp_path / "run", AttemptFailed))
    assert "testing.py" in failed.traceback
