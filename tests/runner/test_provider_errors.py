"""Errors of providers: what each means for the trial and the run. One file in `provider_errors` per error, with its source."""

import json
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import orjson
import pytest

from evaljournal.runner.calls.endpoint import raise_error_in
from evaljournal.runner.calls.http.reply import BadStatus, ErrorReply, Reply
from evaljournal.runner.retries.classify import Failure, classify, is_declined

NOW: Final = 1_800_000_000.0  # Fri, 15 Jan 2027 08:00:00 GMT
CASES: Final = {
    file.stem: json.loads(file.read_text("utf-8")) for file in sorted((Path(__file__).parent / "provider_errors").iterdir())
}
DOCS: Final = Path(__file__).parents[2] / "docs" / "retries.md"


class SdkError(Exception):
    """An exception with the attributes of the SDKs of OpenAI and Anthropic."""

    def __init__(self, case: dict[str, Any], body: Any) -> None:
        super().__init__(f"Error code: {case['status']} - {case['body']}")
        self.status_code, self.body = case["status"], body
        self.response = type("Response", (), {"status_code": case["status"], "headers": case["headers"]})()


def bad_status(status: int, headers: dict[str, str], body: Any) -> BadStatus:
    reply = Reply(status, headers)
    reply.feed(orjson.dumps(body))
    return BadStatus(reply, "http://localhost")


def reply_error(case: dict[str, Any]) -> Exception:
    """Return the exception that our own client raises for the reply of a case."""
    if case["status"] != HTTPStatus.OK:
        return bad_status(case["status"], case["headers"], case["body"])
    with pytest.raises(ErrorReply) as caught:
        raise_error_in(case["body"], "error")
    return caught.value


def expected_failure(case: dict[str, Any]) -> Failure:
    return Failure(**case["expected"])


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_reply(case: dict[str, Any]) -> None:
    """The error of a reply decides whether the attempt is retried, the trial has an error or the run stops."""
    assert expected_failure(case) == classify(reply_error(case), now=NOW)


@pytest.mark.parametrize(
    "case", [case for case in CASES.values() if case["status"] != HTTPStatus.OK], ids=lambda case: str(case["status"])
)
@pytest.mark.parametrize("is_unwrapped", [False, True], ids=["Anthropic", "OpenAI"])
def test_an_exception_of_an_sdk(case: dict[str, Any], *, is_unwrapped: bool) -> None:
    """The exception of an SDK, which keeps the whole body or its `error`, means the same as the reply."""
    body = case["body"]["error"] if is_unwrapped and isinstance(case["body"], dict) else case["body"]

    assert expected_failure(case) == classify(SdkError(case, body), now=NOW)


def test_the_documented_table() -> None:
    """The documentation has a row for each error, with its meaning."""
    meanings = {
        ("fatal", None): "the trial ends with an error",
        ("rate_limited", None): "rate limited",
        ("unavailable", None): "unavailable",
        ("fatal", "unauthorized"): "the run stops (unauthorized)",
        ("fatal", "quota"): "the run stops (quota)",
    }
    rows: list[str] = []
    for case in CASES.values():
        failure = expected_failure(case)
        wait = "" if failure.retry_after is None else f", {failure.retry_after:g} s"
        meaning = meanings[failure.category, failure.stop_reason]
        if is_declined(reply_error(case)):
            meaning = "declined: a chat model has an empty output, other tasks an error"
        rows.append(f"| {case['provider']} | {case['reply']} | {meaning}{wait} |")

    assert [] == [row for row in rows if row not in DOCS.read_text("utf-8")]


@pytest.mark.parametrize(
    "error", [None, 3, [], {}, "text", [[[[]]]], {"error": {"code": {"code": {}}}}, {"message": ["x"] * 9_999}]
)
def test_any_body(error: Any) -> None:
    """A body of any shape leaves the meaning of its status."""
    exc = bad_status(HTTPStatus.SERVICE_UNAVAILABLE, {}, error)

    assert Failure(category="unavailable") == classify(exc, now=NOW)
