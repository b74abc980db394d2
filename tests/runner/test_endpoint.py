"""Endpoints over real sockets: requests, replies, failures, TLS, proxies and secrets, on a real or an accelerated clock."""

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import trio
import trio.testing
import trustme

from evaljournal import Case, Chat, Command, Dataset, Outcome, Retry, UsageError, arun
from evaljournal.journal import read
from evaljournal.journal.events import AttemptFailed, AttemptTimedOut
from evaljournal.replay.auditing.auditor import audit
from evaljournal.runner.calls.endpoint import Endpoint
from evaljournal.runner.calls.http.address import Address
from evaljournal.runner.calls.http.client import _tls_context
from evaljournal.runner.retries.rules import retry_rules
from evaljournal.runner.secrets.masking import mask
from tests.runs import AnyEvaluation, define_real, events, outputs, run_real
from tests.server import Server, serving

CHOICES = "".join(
    f'data: {{"choices": [{", ".join(choices)}]}}\n\n'
    for choices in (
        ['{"index": 0, "delta": {"content": "LI"}}'],
        ['{"index": 1, "delta": {"content": "QUI"}}', '{"index": 0, "delta": {"content": "MA"}}'],
        ['{"index": 1, "delta": {"content": "TO"}}'],
    )
)
"""A stream of OpenAI's API with two choices."""


def run_fast(defined: AnyEvaluation, path: Path, *, rate: float, **options: Any) -> Outcome:
    """Run an evaluation under the adaptive policy, on a clock that is `rate` times as fast as the real one."""

    async def main() -> Outcome:
        return await arun(defined, path, durability="os", grace=0.5, policy="adaptive", **options)

    return trio.run(main, clock=trio.testing.MockClock(rate=rate))


def failure(path: Path) -> AttemptFailed:
    """Return the only failure."""
    (failed,) = events(path, AttemptFailed)
    return failed


ROW = {"id": "a", "question": 'the "capital"}, {input}', "context": {"n": [1, 2]}, "answer": "no"}
FILLED = '{"question":"the \\"capital\\"}, {input}","n":2,"text":"Q: the \\"capital\\"}, {input} {} {\\"n\\":[1,2]}","k":5}'


@pytest.mark.parametrize(
    ("cases", "body", "sent"),
    [
        ([Case(name="a", input="x")], None, '{"input":"x"}'),
        ([Case(name="b", input={"q": 1})], None, '{"q":1}'),
        ([ROW], {"question": "{question}", "n": "{context.n.1}", "text": "Q: {question} {{}} {context}", "k": 5}, FILLED),
        (
            Dataset([{"Question text": "1?", "No. of words": 2, "user.name": "Eva"}], input_key="Question text"),
            {"q": "{Question text}", "n": "{No. of words}", "u": "{user.name}"},
            '{"q":"1?","n":2,"u":"Eva"}',
        ),
    ],
    ids=["text", "object", "template", "names with spaces and dots"],
)
def test_the_body(server: Server, path: Path, name: str, *, cases: Any, body: Any, sent: str) -> None:
    """Without a template, an object is sent as it is. In one, a field alone keeps its type, and values are escaped."""
    run_real(define_real(Endpoint(server.url(name, "ok"), body=body), cases), path)

    (request,) = server.requests(name)
    assert ("POST", "application/json", sent) == (request["method"], request["headers"]["content-type"], request["body"])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"q": "{quetsion}"}, "'a' has no field {quetsion}; fields: 'context', 'id', 'question'; did you mean {question}?"),
        ({"q": "{answer}"}, "has no field {answer}"),
        ({"q": "{expected}"}, "has no field {expected}"),
        ({"q": "{context.x}"}, "has no field {context.x}: no 'x' in the value, which is a list of length 1"),
        ({"q": "{context.__class__}"}, "no '__class__' in the value"),
        ({"q": '{"n": 1}'}, "has no field {\"n\": 1}; fields: 'context', 'id', 'question'; write {{ and }} for literal braces"),
    ],
)
def test_an_unknown_field_is_an_error_before_the_start(server: Server, path: Path, name: str, body: Any, message: str) -> None:
    """A template with a field that a case lacks is rejected with the case and the reason; nothing is written."""
    rows = [{"id": "a", "question": "x", "context": [1], "answer": "no"}]

    with pytest.raises(UsageError) as caught:
        run_real(define_real(Endpoint(server.url(name, "ok"), body=body), rows), path)

    assert message in str(caught.value)
    assert str(caught.value).startswith("case 1: ")
    assert not path.exists()
    assert [] == server.requests(name)


@pytest.mark.parametrize(
    "body", ["{not json", {"q": "{"}, {"q": "{ a}"}, {"q": "{a\nb}"}, {"q": "{}"}, {"q": "{a.}"}, {"q": "}"}]
)
def test_an_invalid_template_is_rejected(body: Any) -> None:
    """An invalid template is a usage error."""
    with pytest.raises(UsageError, match="is not"):
        Endpoint("http://localhost/", body=body)


@pytest.mark.parametrize(
    ("method", "end", "body", "sent"),
    [
        ("GET", "items/{id}", None, ("items/a%2F..%3Fb%20%C3%A9%26", "")),
        ("GET", "items/{topic.0}?q={question}", None, ("items/1?q=x%26y%3D%23", "")),
        ("GET", "items/{{id}}", {"q": "{question}"}, ("items/%7Bid%7D?q=x%26y%3D%23", "")),
        ("GET", "items?v=1", {"q": "{question}", "n": 2}, ("items?v=1&q=x%26y%3D%23&n=2", "")),
        ("GET", "items?v=1&t={topic}", {"q": 1}, ("items?v=1&t=%5B1%5D&q=1", "")),
        ("POST", "items/{id}", None, ("items/a%2F..%3Fb%20%C3%A9%26", '{"input":"x&y=#"}')),
    ],
)
def test_a_url_is_filled_in(
    server: Server, path: Path, name: str, *, method: Any, end: str, body: Any, sent: tuple[str, str]
) -> None:
    """Fields in a path or query are escaped; with GET, the keys of the body are parameters, too."""
    rows = [{"id": "a/..?b é&", "question": "x&y=#", "topic": [1]}]
    run_real(define_real(Endpoint(server.url(name, "ok", end), method=method, body=body), rows), path)

    (request,) = server.requests(name)
    assert sent == (request["target"].removeprefix(f"/{name}/ok/"), request["body"])


def test_a_trial_has_one_idempotency_key(server: Server, path: Path, name: str) -> None:
    """All attempts of a trial have the same key; other trials and other runs have others."""
    run_real(define_real(Endpoint(server.url(name, "ok")), [Case(name="a", input=1), Case(name="b", input=2)]), path)
    quick = Retry(base_delay=0.01, max_delay=0.01)
    run_real(define_real(Endpoint(server.url(name + "2", "500,ok")), "a", retry=quick), path.with_name("2"))

    keys = [request["headers"]["idempotency-key"] for request in server.requests(name)]
    others = [request["headers"]["idempotency-key"] for request in server.requests(name + "2")]
    assert 2 == len(set(keys))
    assert 2 == len(others)
    assert 1 == len(set(others))
    assert not set(keys) & set(others)


@pytest.mark.parametrize(
    ("steps", "options", "expected"),
    [
        ("ok", {"output_path": "output"}, "LIMA"),
        ("ok", {"output_path": "detail.steps.2.name"}, "last"),
        ("ok", {"output_path": "detail.steps.-1.name"}, "last"),
        ("ok", {}, {"output": "LIMA", "detail": {"steps": [1, 2, {"name": "last"}]}}),
        ("text", {}, "Lima, naturally"),
        *((quote(f"charset:{name}"), {}, "Bogotá") for name in ("iso-8859-1", "ISO-8859-15", '"windows-1252"')),
        ("sse", {"output_path": "output"}, "LIMA\u2028é"),
        ("ndjson", {"output_path": "output"}, "LIMA\u2028é"),
        ("ndjson", {}, [{"start": True}, *({"output": letter} for letter in "LIMA"), {"output": "\u2028é", "done": True}]),
        ("sse:close", {"output_path": "output"}, "LIMA\u2028é"),
        ("ndjson:close", {"output_path": "output", "done_path": "done"}, "LIMA\u2028é"),
        ("ndjson:unended", {"output_path": "output"}, "LIMA\u2028é"),
        ("sse", {"output_path": "output", "done_path": "nowhere"}, "LIMA\u2028é"),  # Ends with [DONE].
        (quote('raw:\ufeffdata: {"output": "LIMA"}\n\n'), {"output_path": "output"}, "LIMA"),
        (quote(f"raw:{quote(CHOICES)}"), {"output_path": "choices.0.delta.content"}, "LIMA"),
        (quote(f"raw:{quote(CHOICES)}"), {"output_path": "choices.1.delta.content"}, "QUITO"),
        ("gzip", {"output_path": "output"}, "LIMA"),
        ("deflate", {"output_path": "output"}, "LIMA"),
        ("deflate:bare", {"output_path": "output"}, "LIMA"),
        ("ok", {"output_path": "output", "error_path": "error"}, "LIMA"),
        ("number:9007199254740993", {"output_path": "output"}, 9007199254740993),
        ("number:18446744073709551615", {"output_path": "output"}, 18446744073709551615),
    ],
)
def test_the_output_is_extracted(server: Server, path: Path, name: str, *, steps: str, options: Any, expected: Any) -> None:
    """The output is the value at the path; a stream is joined, text decoded with its charset; without a path it is all."""
    run_real(define_real(Endpoint(server.url(name, steps), **options)), path)

    assert [expected] == outputs(path)


@pytest.mark.parametrize("steps", ["empty", "empty:204", "empty:text", "empty:sse"])
@pytest.mark.parametrize("output_path", ["output", None])
def test_an_empty_reply_is_a_parse_error(server: Server, path: Path, name: str, steps: str, output_path: str | None) -> None:
    """A reply without a body is no output, whatever its status and media type; it is retried once."""
    retry = Retry(base_delay=0.001, max_delay=0.001)
    outcome = run_real(define_real(Endpoint(server.url(name, steps), output_path=output_path), retry=retry), path)

    assert (["parse_error"] * 2, []) == ([event.category for event in events(path, AttemptFailed)], outputs(path))
    assert (0, 1, 2) == (outcome.state.completed, outcome.state.failed, len(server.requests(name)))


@pytest.mark.parametrize(
    ("steps", "options", "category", "message"),
    [
        ("404", {}, "fatal", "404 Not Found from http://127.0.0.1"),
        ("422", {}, "fatal", "no: 422"),
        ("500", {}, "unavailable", "500 Internal Server Error"),
        ("503", {}, "unavailable", "503"),
        ("reset", {}, "unavailable", "no response from http://127.0.0.1"),
        ("close", {}, "unavailable", "Server disconnected"),
        ("cut", {}, "unavailable", "peer closed connection"),
        ("sse:cut", {"output_path": "output"}, "unavailable", "peer closed connection"),
        ("ndjson:cut", {"output_path": "output"}, "unavailable", "peer closed connection"),
        ("sse:error", {"output_path": "output"}, "error", "overloaded"),
        ("notjson", {}, "error", "; check the URL"),
        ("latin", {}, "error", "not JSON ('utf-8' codec can't decode byte 0xe1 in position 17"),
        (quote('raw:{"output": "\\ud800"}'), {}, "error", "not JSON (no low surrogate in string: line 1 column"),
        ("text", {"output_path": "output"}, "error", "; check the URL, or omit --output-path to use the text"),
        ("charset:utf-8", {}, "error", "is not text in utf-8: 'utf-8' codec can't decode byte 0xe1 in position 5"),
        ("charset:base64", {}, "error", "is not text in base64: 'base64' is not a text encoding"),
        ("charset:punycode", {}, "error", "the reply (text/plain) is not text in punycode: unknown encoding: punycode"),
        ("charset:klingon", {}, "error", "the reply (text/plain) is not text in klingon: unknown encoding: klingon"),
        (
            "nooutput",
            {"output_path": "output"},
            "fatal",
            "no 'output': no 'output' in the value, which is an object with 'answer'",
        ),
        ("sse", {"output_path": "outptu"}, "fatal", "no chunk of the stream has 'outptu'"),
        ("error", {"output_path": "output", "error_path": "error"}, "error", "the model is asleep"),
        ("error:503", {"error_path": "error"}, "unavailable", "the model is asleep"),
        ("ndjson:chunk", {"output_path": "output"}, "unavailable", "overloaded"),
        ("sse:chunk", {}, "unavailable", "overloaded"),
        ("sse:torn", {"output_path": "output"}, "unavailable", "the stream ended within"),
        ("ndjson:torn", {}, "unavailable", "the stream ended within"),
        ("sse:unended", {}, "unavailable", "the stream ended within"),
        ("sse:nothing", {}, "unavailable", "the stream ended within"),
        ("ndjson:nothing", {}, "unavailable", "the stream ended within"),
        (
            "ndjson:short",
            {"output_path": "output", "done_path": "done"},
            "unavailable",
            "ended before 'done' was true",
        ),
        ("gzip:cut", {}, "unavailable", "compressed with 'gzip', is incomplete"),
        ("gzip:wrong", {}, "error", "not valid 'gzip' data"),
        ("br", {}, "error", "compressed with 'br'; supported: gzip, x-gzip, deflate"),
        ("number:123456789012345678901234", {"output_path": "output"}, "fatal", "output"),
        ("redirect", {}, "fatal", "redirects to http://elsewhere.test/?key=***"),
        ("hang", {"read_timeout": 0.05}, "unavailable", "ReadTimeout"),
    ],
)
def test_failures_are_classified(
    server: Server, path: Path, name: str, *, steps: str, options: Any, category: str, message: str
) -> None:
    """Every kind of failure is classified and described, and never an output."""
    run_real(define_real(Endpoint(server.url(name, steps), **options)), path)

    assert (category, True) == (failure(path).category, message in failure(path).message)
    assert [] == outputs(path)


def test_a_decompression_bomb_is_fatal(server: Server, path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reply that would expand enormously is rejected before it fills the memory, and not retried."""
    monkeypatch.setattr("evaljournal.runner.calls.http.reply.MAX_BYTES", 1_000_000)
    run_real(define_real(Endpoint(server.url(name, "gzip:bomb")), retry=Retry()), path)

    assert "fatal" == failure(path).category
    assert "the decompressed reply is larger than" in failure(path).message


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/", "http://nowhere.invalid/"])
def test_an_unreachable_host_is_unavailable(path: Path, url: str) -> None:
    """A host that cannot be reached or resolved is unavailable."""
    run_real(define_real(Endpoint(url)), path)

    assert "unavailable" == failure(path).category


def test_a_connection_has_its_own_timeout(path: Path) -> None:
    """A connection attempt ends after its own timeout, within that of the attempt."""
    with socket.create_server(("127.0.0.1", 0)) as listener:  # It never accepts.
        url = f"https://127.0.0.1:{listener.getsockname()[1]}/"
        run_real(define_real(Endpoint(url, connect_timeout=0.05)), path)

    assert ("unavailable", True) == (failure(path).category, "ConnectTimeout" in failure(path).message)
    assert [] == events(path, AttemptTimedOut)


def test_tls_that_fails_is_unavailable(server: Server, path: Path, name: str) -> None:
    """A failed TLS handshake is unavailable."""
    run_real(define_real(Endpoint(server.url(name, "ok").replace("http:", "https:"))), path)

    assert "unavailable" == failure(path).category


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[tuple[Server, Path]]:
    """A server with TLS, and the certificate to trust."""
    authority = trustme.CA()
    trusted, own = tmp_path / "authority.pem", tmp_path / "server.pem"
    authority.cert_pem.write_to_path(trusted)
    authority.issue_cert("127.0.0.1", "nowhere.invalid").private_key_and_cert_chain_pem.write_to_path(own)
    _tls_context.cache_clear()  # It is cached, and depends on the environment.
    with serving(str(own)) as server:
        yield server, trusted
    _tls_context.cache_clear()


def test_tls(secure: tuple[Server, Path], path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server with a trusted certificate is called over TLS, and its connection is reused."""
    server, trusted = secure
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    cases = [Case(name=str(n), input="lima") for n in range(3)]
    run_real(define_real(Endpoint(server.url("tls", "echo"), output_path="output.host"), cases, slots=1), path)

    assert [server.root.removeprefix("https://")] * 3 == outputs(path)


def test_an_untrusted_certificate_is_reported(secure: tuple[Server, Path], path: Path) -> None:
    """A server without a trusted certificate gets no request; the journal has the reason."""
    server, _ = secure
    run_real(define_real(Endpoint(server.url("tls", "ok"))), path)

    assert "unavailable" == failure(path).category
    assert "CERTIFICATE_VERIFY_FAILED" in failure(path).message


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The environment, without a proxy."""
    for variable in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "REQUEST_METHOD"):
        monkeypatch.delenv(variable, raising=False)
        monkeypatch.delenv(variable.upper(), raising=False)
    return monkeypatch


def test_a_proxy_from_the_environment_is_used(server: Server, path: Path, name: str, environment: pytest.MonkeyPatch) -> None:
    """The proxy gets the full URL and its password, which is not in the journal."""
    environment.setenv("HTTP_PROXY", server.root.replace("http://", "http://me:pass-phrase-2@"))
    cases = [Case(name=str(n), input="lima") for n in range(3)]
    run_real(define_real(Endpoint(f"http://nowhere.invalid/{name}/echo,ok/x", output_path="output"), cases, slots=1), path)

    first, *others = server.requests(name)
    assert (f"http://nowhere.invalid:80/{name}/echo,ok/x", "nowhere.invalid") == (first["target"], first["headers"]["host"])
    assert "Basic bWU6cGFzcy1waHJhc2UtMg==" == first["headers"]["proxy-authorization"]
    assert 1 == len({request["connection"] for request in (first, *others)})
    assert 3 == len(outputs(path))
    written = b"".join(file.read_bytes() for file in path.rglob("*") if file.is_file())
    assert b"pass-phrase-2" not in written
    assert b"bWU6cGFzcy" not in written


def test_a_rejected_tunnel_is_a_failure(server: Server, path: Path, environment: pytest.MonkeyPatch) -> None:
    """For https a tunnel is requested; if the proxy rejects it, that is the recorded failure."""
    environment.setenv("HTTPS_PROXY", server.root)
    run_real(define_real(Endpoint("https://nowhere.invalid:9/x")), path)

    assert "unavailable" == failure(path).category
    assert "no response from https://nowhere.invalid:9/x: 502" in failure(path).message


def test_tls_goes_through_a_tunnel(
    server: Server, secure: tuple[Server, Path], path: Path, name: str, environment: pytest.MonkeyPatch
) -> None:
    """Through a tunnel, TLS is checked against the host behind it, and the connection is reused."""
    tls_server, trusted = secure
    environment.setenv("HTTPS_PROXY", server.root)
    environment.setenv("SSL_CERT_FILE", str(trusted))
    url = tls_server.url(name, "ok").replace("127.0.0.1", "nowhere.invalid")
    cases = [Case(name=str(n), input="lima") for n in range(3)]
    run_real(define_real(Endpoint(url, output_path="output"), cases, slots=1), path)

    assert ["LIMA"] * 3 == outputs(path)
    assert [] == server.requests(name)


@pytest.mark.parametrize(
    ("url", "proxy", "no_proxy", "expected"),
    [
        ("http://h/", "http://p:3128", "", "p:3128"),
        ("http://h/", "p", "", "p:80"),
        ("http://h/", "http://p", "h", None),
        ("http://a.h/", "http://p", ".h", None),
        ("http://h:81/", "https://p", "h:80", "p:443"),
        ("http://h/", "http://p", "*", None),
        ("http://localhost/", "http://p", "", None),
        ("http://127.0.0.9:1/", "http://p", "", None),
        ("http://[::1]/", "http://p", "", None),
        ("https://h/", "http://p", "", None),
    ],
)
def test_the_environment_names_the_proxy(
    environment: pytest.MonkeyPatch, url: str, proxy: str, no_proxy: str, expected: str | None
) -> None:
    """HTTP_PROXY is for http, NO_PROXY lists exceptions, and localhost never uses a proxy."""
    environment.setenv("HTTP_PROXY", proxy)
    environment.setenv("NO_PROXY", no_proxy)
    selected = Address.parse(url, {}).proxy

    assert expected == (selected and f"{selected.host}:{selected.port}")


@pytest.mark.parametrize("proxy", ["socks5://me:pass-phrase-3@p:1080", "http://", "http://p:99999", "p:no"])
def test_an_unsupported_proxy_is_rejected(environment: pytest.MonkeyPatch, proxy: str) -> None:
    """SOCKS and invalid URLs are rejected before the start, with what to do."""
    environment.setenv("ALL_PROXY", proxy)

    with pytest.raises(UsageError, match="valid http:// or https:// URL; change it, or bypass it: NO_PROXY=h") as caught:
        Endpoint("http://h/")

    assert "pass-phrase-3" not in str(caught.value)


@pytest.mark.parametrize("policy", ["fixed", "adaptive"])
def test_trials_are_repeated_with_another_key(server: Server, path: Path, name: str, policy: str) -> None:
    """When the run is resumed, trials that met a 401 are repeated, and still have all of their retries."""
    cases = [Case(name=str(n), input=n) for n in range(8)]
    endpoint = Endpoint(server.url(name, "401,401,401,401,500,ok"))
    defined = define_real(endpoint, cases, slots=4, retry=Retry(errors=1, base_delay=0.01))
    stops = 0
    outcome = run_real(defined, path, policy=policy)
    while outcome.stop_reason == "unauthorized":
        stops += 1
        assert (0, 0) == (outcome.state.completed, outcome.state.failed)
        outcome = run_real(defined, path, policy=policy, resume=True)

    assert 1 <= stops <= 4
    assert ("", 8, 0) == (outcome.stop_reason, outcome.state.completed, outcome.state.failed)
    assert {"stopped", "unavailable"} == outcome.state.trials.attempts.retries.keys()
    assert (True, 1) == (
        1 <= outcome.state.trials.attempts.retries["stopped"] <= 4,
        outcome.state.trials.attempts.retries["unavailable"],
    )
    assert () == audit(read(path), rules=retry_rules).findings


def test_a_quota_of_a_day_stops_the_run(server: Server, path: Path, name: str) -> None:
    """A quota of a day stops the run with the time of its reset; no trial fails, and a resumed run calls the rest."""
    cases = [Case(name=name, input=name) for name in ("lima", "oslo")]
    defined = define_real(Endpoint(server.url(name, "ok,day,ok"), output_path="output"), cases, retry=Retry(), slots=1)
    outcome = run_real(defined, path)
    resumed = run_real(defined, path, resume=True)

    assert ("quota", 1, 0) == (outcome.stop_reason, outcome.state.completed, outcome.state.failed)
    assert "stopped (a quota is used up): 1 of 2 trials done" in outcome.summary_text
    assert re.match(r"resume after 08:00 UTC \(.+\); every other call would fail in the same way", outcome.detail)
    assert ("", 2, 3) == (resumed.stop_reason, resumed.state.completed, len(server.requests(name)))
    assert () == audit(read(path), rules=retry_rules).findings


def test_a_hang_is_a_timeout(server: Server, path: Path, name: str) -> None:
    """An attempt without a reply ends at its timeout; the next one uses a new connection."""
    defined = define_real(
        Endpoint(server.url(name, "hang,ok"), output_path="output"), timeout=2.0, retry=Retry(timeouts=1, base_delay=0.01)
    )
    run_real(defined, path)

    assert 1 == len(events(path, AttemptTimedOut))
    assert ["LIMA"] == outputs(path)
    assert 2 == len({request["connection"] for request in server.requests(name)})


@pytest.mark.parametrize(("steps", "wait"), [("429:3,ok", 3.0), ("429:date,ok", 2.0), ("429:quota,ok", 1.5)])
def test_retry_after_is_honored(server: Server, path: Path, name: str, steps: str, wait: float) -> None:
    """`Retry-After` in seconds or as a date, and a reset header, are honored, and use up no retry."""
    outcome = run_fast(define_real(Endpoint(server.url(name, steps)), retry=Retry(errors=0)), path, rate=100)

    assert ("rate_limited", wait) == (failure(path).category, failure(path).retry_after)
    assert 1 == outcome.state.completed


def test_a_key_is_nowhere_in_the_journal(server: Server, path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key from the environment, a header, the URL, an echoed reply or an error is not in the journal."""
    monkeypatch.setenv("MY_KEY", "plainword-of-no-shape")
    root = server.root.replace("http://", "http://me:pass-phrase-1@")
    headers = {"X-Api-Key": "$MY_KEY", "X-Auth": "literal-of-no-shape", "X-Plain": "visible"}
    cases = [Case(name=str(n), input=n) for n in range(4)]
    endpoint = Endpoint(f"{root}/{name}/echo,500,notjson,404/x?key=in-the-address&v=1", headers=headers, output_path="output")
    defined = define_real(endpoint, cases, slots=1, retry=Retry(errors=1, base_delay=0.01, max_delay=0.01))
    run_real(defined, path)

    sent = server.requests(name)[0]["headers"]
    assert ("plainword-of-no-shape", "literal-of-no-shape") == (sent["x-api-key"], sent["x-auth"])
    assert "Basic bWU6cGFzcy1waHJhc2UtMQ==" == sent["authorization"]
    written = b"".join(file.read_bytes() for file in path.rglob("*") if file.is_file())
    for secret in (b"plainword", b"literal-of", b"pass-phrase", b"bWU6cGFzcy1", b"in-the-address"):
        assert secret not in written
    assert b"visible" in written
    assert "***" == mask("plainword-of-no-shape")
    assert "plainword" not in repr(endpoint)
    assert "literal-of" not in repr(endpoint)


@pytest.mark.parametrize(
    ("url", "host", "target"),
    [
        ("http://h/", b"h", "/"),
        ("https://h:443", b"h", "/"),
        ("http://h:8000/a b/é?x=ü y", b"h:8000", "/a%20b/%C3%A9?x=%C3%BC%20y"),
        ("http://[::1]:8000/", b"[::1]:8000", "/"),
        ("http://bücher.test/%20", b"xn--bcher-kva.test", "/%20"),
    ],
)
def test_urls_are_normalized(url: str, host: bytes, target: str) -> None:
    """Host names, ports and non-ASCII letters are sent in the form of HTTP."""
    address = Address.parse(url, {})

    assert (host, target) == (dict(address.headers)[b"Host"], address.target)


@pytest.mark.parametrize(
    ("url", "headers", "message"),
    [
        ("localhost:80/x", {}, "is not a valid http:// or https:// URL"),
        ("ftp://localhost/", {}, "is not a valid http:// or https:// URL"),
        ("http://", {}, "is not a valid http:// or https:// URL"),
        ("http://h:99999/", {}, "is not a valid http:// or https:// URL"),
        ("http://{host}/", {}, "the host of 'http://{host}/' must not contain fields"),
        ("http://h/{", {}, "is not a template"),
        ("http://h/", {"A b": "x"}, "is not a valid header name"),
        ("http://h/", {"A": "x\r\nB: y"}, "not allowed in headers"),
        ("http://h/", {"A": "$NO_SUCH_VARIABLE"}, "needs the environment variable NO_SUCH_VARIABLE"),
        ("http://h/", {"A": "5 $"}, "has a '$' without a name"),
    ],
)
def test_invalid_arguments_are_rejected(url: str, headers: dict[str, str], message: str) -> None:
    """An invalid URL or header, or an unset variable, is a usage error."""
    with pytest.raises(UsageError) as caught:
        Endpoint(url, headers=headers)

    assert message in str(caught.value)


def test_an_evaluation_without_code_can_be_called(server: Server, name: str) -> None:
    """An evaluation of an endpoint, a chat model or a command can be called directly."""
    assert "LIMA" == trio.run(define_real(Endpoint(server.url(name, "ok"), output_path="output")), "lima")
    assert "LIMA" == trio.run(define_real(Chat("small", base_url=server.url(name, "ok", "v1"))), "lima")
    assert '"x"' == trio.run(define_real(Command("cat")), "x")
