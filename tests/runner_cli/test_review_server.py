"""The server of `evaljournal review` accepts labels from its own page only, and acknowledges them when they are on disk."""

import itertools
import threading
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import orjson
import pytest
import trio
import trio.testing

from evaljournal.journal import verify
from evaljournal.replay.review.labels import read_review
from evaljournal.replay.runs.loaded_run import LoadedRun, load
from evaljournal.runner.cli.commands.review import current_sample
from evaljournal.runner.cli.servers.review import ReviewServer
from tests.processes import wait_until
from tests.runner_cli.commands import process

PORT = 4711
TOKEN = "a-token-for-tests"  # noqa: S105  # it opens nothing
HEADERS = {"Host": f"127.0.0.1:{PORT}", "Origin": f"http://127.0.0.1:{PORT}", "Content-Type": "application/json"}
LABEL = {"trial": "case-1", "label": "no", "note": "", "reviewer": "ada"}


def respond(
    path: Path, target: str, body: Any = None, *, is_blind: bool = False, method: str = "", **headers: str | None
) -> tuple[int, str]:
    """Send a request; return the status and the body of the reply. A header of None is left out."""
    content = b"" if body is None else body if isinstance(body, bytes) else orjson.dumps(body)
    names = {**HEADERS, **{name.replace("_", "-"): value for name, value in headers.items()}}
    lines = [f"{method or ('GET' if body is None else 'POST')} {target} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in names.items() if value is not None]
    request = "\r\n".join([*lines, f"Content-Length: {len(content)}", "", ""]).encode() + content
    run = LoadedRun(path)
    run.state.steps.keeps_records = True
    load(path, run=run)
    sample = current_sample(run, None, 2, 1, None)

    async def main() -> bytes:
        server = ReviewServer(run, sample, PORT, reviewer="ada", is_blind=is_blind, token=TOKEN)
        client, server_end = trio.testing.memory_stream_pair()
        answer = b""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.answer, server_end)
            await client.send_all(request)
            while piece := await client.receive_some(1 << 16):
                answer += piece
            nursery.cancel_scope.cancel()
        return answer

    head, _, reply = trio.run(main).decode().partition("\r\n\r\n")
    return int(head.split()[1]), reply


def test_a_label_is_recorded(run: Path) -> None:
    """A label from the page is in the journal when the reply arrives; an empty one withdraws it."""
    saved = respond(run, f"/{TOKEN}/label", LABEL)
    labels = [(label.trial, label.value) for label in read_review(run).labels]
    withdrawn = respond(run, f"/{TOKEN}/label", {**LABEL, "label": ""})

    assert (200, "no") == (saved[0], orjson.loads(saved[1])["label"])
    assert [("case-1", False)] == labels
    assert (200, None, []) == (withdrawn[0], orjson.loads(withdrawn[1])["label"], read_review(run).labels)


@pytest.mark.parametrize(
    ("status", "target", "body", "headers"),
    [
        (404, "/another/label", LABEL, {}),
        (403, f"/{TOKEN}/label", LABEL, {"Host": "evil.example"}),
        (403, f"/{TOKEN}/label", LABEL, {"Origin": "https://evil.example"}),
        (403, f"/{TOKEN}/label", LABEL, {"Origin": "null"}),
        (403, f"/{TOKEN}/label", LABEL, {"Origin": None}),
        (415, f"/{TOKEN}/label", LABEL, {"Content_Type": "text/plain"}),
        (413, f"/{TOKEN}/label", {**LABEL, "note": "x" * 70_000}, {}),
        (400, f"/{TOKEN}/label", b"{", {}),
        (400, f"/{TOKEN}/label", [], {}),
        (400, f"/{TOKEN}/label", {**LABEL, "label": True}, {}),
        (400, f"/{TOKEN}/label", {**LABEL, "trial": "another"}, {}),
        (400, f"/{TOKEN}/label", {**LABEL, "label": "perhaps"}, {}),
        (400, f"/{TOKEN}/label", {**LABEL, "reviewer": " "}, {}),
        (404, f"/{TOKEN}/", LABEL, {}),
        (404, f"/{TOKEN}/label", None, {}),
        (405, f"/{TOKEN}/label", None, {"method": "PUT"}),
        (400, f"/{TOKEN}/trial?index=2", None, {}),
        (400, f"/{TOKEN}/trial?index=-1", None, {}),
        (400, f"/{TOKEN}/trial?index={'1' * 5000}", None, {}),
        (400, f"/{TOKEN}/state?reviewer=", None, {}),
        (404, f"/{TOKEN}/../journal-000001.jsonl", None, {}),
    ],
)
def test_rejected_requests(run: Path, status: int, target: str, body: Any, headers: dict[str, Any]) -> None:
    """A request without the token, from another page, too large or with an invalid label is rejected; nothing is recorded."""
    actual_status, problem = respond(run, target, body, **headers)

    assert (status, status == 413) == (actual_status, problem == "the request is larger than 64 KiB\n")
    assert [] == read_review(run).history


def test_the_state_of_the_page(run: Path) -> None:
    """The page gets the sample with the labels of one reviewer, and the labels that it can give."""
    respond(run, f"/{TOKEN}/label", {**LABEL, "note": "why"})
    own, other = (orjson.loads(respond(run, f"/{TOKEN}/state?reviewer={name}")[1]) for name in ("ada", "grace"))

    assert {"case-1": "no", "case-2": None} == {item["trial"]: item["label"] for item in own["trials"]}
    assert {None} == {item["label"] for item in other["trials"]}
    assert (["yes", "no"], False, "exact") == (own["choices"], own["takes_text"], own["question"])


def test_blind_details_have_no_scores(run: Path) -> None:
    """A blind page is not sent the scores."""
    details = [orjson.loads(respond(run, f"/{TOKEN}/trial?index=0", is_blind=is_blind)[1]) for is_blind in (False, True)]

    assert [True, False] == [bool(item["scores"]) for item in details]
    assert {"trial", "input", "expected", "output", "trajectory", "scores"} == details[0].keys()


def test_killed_between_labels(run: Path) -> None:
    """Of a server that is killed with kill -9 while reviewers send labels, every label that it acknowledged is recorded."""
    acknowledged: list[tuple[str, str]] = []

    def send_labels(address: str, reviewer: str) -> None:
        headers = {"Origin": address[: address.index("/", 7)], "Content-Type": "application/json"}
        for number in itertools.count():
            label = {**LABEL, "note": str(number), "reviewer": reviewer}
            try:
                urlopen(Request(f"{address}label", orjson.dumps(label), headers), timeout=60).read()  # noqa: S310  # our own server
            except (OSError, HTTPException):
                return
            acknowledged.append((reviewer, label["note"]))

    with process("review", run, "--sample", 2) as server:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        reviewers = [threading.Thread(target=send_labels, args=(address, name)) for name in ("ada", "grace")]
        for reviewer in reviewers:
            reviewer.start()
        wait_until(lambda: len(acknowledged) >= 20)
        server.kill()
        server.wait()
        for reviewer in reviewers:
            reviewer.join()
    recorded = {(label.reviewer, label.note) for label in read_review(run).history}

    assert set(acknowledged) <= recorded
    assert len(recorded) - len(acknowledged) <= len(reviewers)
    assert verify(run / "review").ok


def test_an_unexpected_error_is_reported(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unexpected error ends its request, not the server: the reply has status 500, and a line is printed."""

    def details(*_: object) -> None:
        raise LookupError("unexpected")

    monkeypatch.setattr(ReviewServer, "_details", details)

    assert (500, "the request failed with LookupError\n") == respond(run, f"/{TOKEN}/trial?index=0")
    assert "a request failed: LookupError('unexpected')\n" == capsys.readouterr().err


def test_a_path_that_is_not_utf8(run: Path) -> None:
    """The page of a run whose path is not UTF-8 shows a question mark in its place."""
    path = run.rename(run.with_name("run-\udcff"))

    assert "run-?" in orjson.loads(respond(path, f"/{TOKEN}/state")[1])["path"]
    assert 200 == respond(path, f"/{TOKEN}/")[0]
