"""The live server answers only requests with its token and host, and is read-only."""

import socket
from itertools import chain, pairwise
from pathlib import Path

import orjson
import pytest
import trio
import trio.testing
from click.testing import CliRunner

from evaljournal.journal import read
from evaljournal.journal.disk.files import DISK
from evaljournal.journal.disk.lock import Lock
from evaljournal.replay import LoadedRun
from evaljournal.replay.page.page import variants_data
from evaljournal.runner.cli import cli
from evaljournal.runner.cli.servers.server import FollowedRun, Server
from evaljournal.runner.runs.page import PageReader
from tests.journal.samples import content, flip, lines_of, segment, session, started, write_sync
from tests.replay.eventful_run import eventful_run
from tests.replay.trial_events import answered

PORT = 4711
TOKEN = "a-token-for-tests"  # noqa: S105  # it opens nothing
HOST = f"Host: 127.0.0.1:{PORT}\r\n"


def respond(path: Path, request: str, limit: int = 1 << 20) -> tuple[int, str, str]:
    """Send a raw request; return the status, the headers and the body, of an event stream up to the first event."""

    async def main() -> bytes:
        live = FollowedRun(path, 0)
        client, server_end = trio.testing.memory_stream_pair()
        answer = b""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(live.follow)
            nursery.start_soon(Server(live, PORT, TOKEN).answer, server_end)
            await client.send_all(request.encode("latin-1"))
            while (piece := await client.receive_some(1 << 16)) and len(answer) < limit:
                answer += piece
                if b"\ndata: " in answer and answer.endswith(b"\n\n\r\n"):
                    break
            nursery.cancel_scope.cancel()
        return answer

    head, _, body = trio.run(main).decode().partition("\r\n\r\n")
    return int(head.split()[1]) if head else 0, head.lower(), body


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return eventful_run(tmp_path / "run")


def test_page(run: Path) -> None:
    """The page is complete, may connect to this server only, and may not be framed or cached."""
    status, head, body = respond(run, f"GET /{TOKEN}/ HTTP/1.1\r\n{HOST}\r\n")

    assert 200 == status
    assert body.startswith("<!doctype html>")
    assert body.endswith("</html>\n")
    assert "connect-src 'self'" in head
    for line in ("frame-ancestors 'none'", "x-content-type-options: nosniff", "cache-control: no-store", "no-referrer"):
        assert line in head


@pytest.mark.parametrize(
    ("status", "request_"),
    [
        (404, f"GET /another/ HTTP/1.1\r\n{HOST}\r\n"),
        (404, f"GET / HTTP/1.1\r\n{HOST}\r\n"),
        (404, f"GET /{TOKEN}x HTTP/1.1\r\n{HOST}\r\n"),
        (404, f"GET {TOKEN}/ HTTP/1.1\r\n{HOST}\r\n"),
        (404, f"GET {TOKEN} HTTP/1.1\r\n{HOST}\r\n"),
        (404, f"OPTIONS * HTTP/1.1\r\n{HOST}\r\n"),
        (404, f"GET http://127.0.0.1:{PORT}/{TOKEN}/ HTTP/1.1\r\n{HOST}\r\n"),
        (404, f"HEAD / HTTP/1.1\r\n{HOST}\r\n"),
        (404, f"GET /{TOKEN}/../run/LOCK HTTP/1.1\r\n{HOST}\r\n"),
        (404, f"GET /another/events HTTP/1.1\r\n{HOST}\r\n"),
        (404, f"GET //{TOKEN}/ HTTP/1.1\r\n{HOST}\r\n"),
        (403, f"GET /{TOKEN}/ HTTP/1.1\r\nHost: evil.example\r\n\r\n"),
        (403, f"GET /{TOKEN}/events HTTP/1.1\r\nHost: evil.example:{PORT}\r\n\r\n"),
        (403, f"GET /{TOKEN}/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"),
        (403, f"GET /{TOKEN}/ HTTP/1.0\r\n\r\n"),
        (405, f"POST /{TOKEN}/ HTTP/1.1\r\n{HOST}Content-Length: 0\r\n\r\n"),
        (405, f"DELETE /{TOKEN}/events HTTP/1.1\r\n{HOST}\r\n"),
        (400, f"GET /{TOKEN}/ HTTP/1.1\r\n\r\n"),
        (400, f"GET /{TOKEN}/ HTTP/1.1\r\n{HOST}{HOST}\r\n"),
        (400, "\x16\x03\x01 not HTTP at all\r\n\r\n"),
        (431, f"GET /{TOKEN}/ HTTP/1.1\r\n{HOST}X: {'x' * 100_000}\r\n\r\n"),
    ],
)
def test_other_requests_are_rejected(status: int, request_: str, run: Path) -> None:
    """A wrong token, a foreign host, another method or an invalid request gets nothing of the run and changes nothing."""
    before = content(run)

    actual, _, body = respond(run, request_)

    assert status == actual
    assert "capitals" not in body
    assert before == content(run)


@pytest.mark.parametrize("place", ["/", "", "/events", "/elsewhere"])
def test_head_request(place: str, run: Path) -> None:
    """A HEAD request gets the headers of the GET request and no body."""
    full, head = (respond(run, f"{method} /{TOKEN}{place} HTTP/1.1\r\n{HOST}\r\n") for method in ("GET", "HEAD"))

    assert "" == head[2]
    assert full[0] == head[0]
    assert sorted(_headers(full[1])) == sorted(_headers(head[1]))


def _headers(head: str) -> list[str]:
    """Return the header lines without the one about the encoding of the body."""
    return [line for line in head.splitlines() if not line.startswith("transfer-encoding")]


def test_redirect_to_the_slash(run: Path) -> None:
    """An address without its last slash is redirected, because the page finds its events relative to it."""
    status, head, _ = respond(run, f"GET /{TOKEN} HTTP/1.1\r\n{HOST}\r\n")

    assert 307 == status
    assert f"location: /{TOKEN}/" in head.splitlines()


def test_allow_header(run: Path) -> None:
    """The response to another method lists the allowed ones."""
    assert "allow: get, head" in respond(run, f"PUT /{TOKEN}/ HTTP/1.1\r\n{HOST}\r\n")[1].splitlines()


def test_ended_run_is_not_running(run: Path) -> None:
    """A run with a final record is not running, even if a process still holds its lock."""
    lock = Lock(run, DISK)
    _, _, body = respond(run, f"GET /{TOKEN}/events HTTP/1.1\r\n{HOST}\r\n")
    lock.release()

    assert "stopped" == orjson.loads(body.partition("data: ")[2].partition("\n")[0])["status"]


@pytest.mark.parametrize("cursor", ["", "Last-Event-ID: nonsense\r\n", "Last-Event-ID: 99999-1-1-1-1-1\r\n"])
def test_events_start_with_the_full_run(cursor: str, run: Path) -> None:
    """Without a valid Last-Event-ID the first event has the full run and its cursor."""
    status, head, body = respond(run, f"GET /{TOKEN}/events HTTP/1.1\r\n{HOST}{cursor}\r\n")

    data = orjson.loads(body.partition("data: ")[2].partition("\n")[0])
    assert 200 == status
    assert "content-type: text/event-stream" in head
    assert (0, 50) == (data["columns"]["from"], data["columns"]["seq"])
    assert "id: 50-" in body
    assert "stopped" == data["status"]


def test_events_continue_after_a_cursor(run: Path) -> None:
    """With a Last-Event-ID the first event has what is new, here nothing but the status."""
    _, _, body = respond(run, f"GET /{TOKEN}/events HTTP/1.1\r\n{HOST}Last-Event-ID: 50-29\r\n\r\n")

    data = orjson.loads(body.partition("data: ")[2].partition("\n")[0])
    assert (50, 50) == (data["columns"]["from"], data["columns"]["seq"])
    assert ([], []) == (data["columns"]["events"]["t"], data["columns"]["trials"]["name"])
    assert "stopped" == data["status"]


def test_events_of_a_damaged_run(run: Path) -> None:
    """The event of a damaged run has what precedes the damage, and the problem."""
    flip(segment(run), len(b"".join(lines_of(run)[:20])) + 30)

    _, _, body = respond(run, f"GET /{TOKEN}/events HTTP/1.1\r\n{HOST}\r\n")

    data = orjson.loads(body.partition("data: ")[2].partition("\n")[0])
    assert ("damaged", 20) == (data["status"], data["columns"]["seq"])
    assert "journal-000001.jsonl" in data["problem"]


def test_variants_of_a_run_in_progress(tmp_path: Path) -> None:
    """The variants of a run in progress are compared after 2 % of new records; those of one that has ended, immediately."""
    cases = [answered(f"case-{at}", {"exact": True}, variant=variant) for at in range(30) for variant in ("a", "b")]
    write_sync(tmp_path / "run", [started(), session(), *chain.from_iterable(cases)])
    reader, run = PageReader(0), LoadedRun(tmp_path / "run")
    tables = []
    for record in read(tmp_path / "run"):
        reader.apply(run, record)
        run.is_live = True
        tables.append(reader.run(run).variants)
    changes = sum(before is not after for before, after in pairwise(tables))
    run.is_live = False

    assert 300 < run.seq
    assert 50 < changes < 200
    assert variants_data(run.state) == reader.run(run).variants
    assert variants_data(run.state) != tables[-1]


def test_port_in_use(run: Path) -> None:
    """The error for a port in use names the port and the fix."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        result = CliRunner().invoke(cli, ["view", str(run), "--port", str(port)])

    message = f"Error: cannot listen on port {port}: Address already in use; pass another --port, or none to use a free one\n"
    assert (2, message) == (result.exit_code, result.stderr)
