"""Only who knows the address is shown a run, only from this machine, and nobody can change anything."""

import socket
from pathlib import Path

import orjson
import pytest
import trio
import trio.testing
from click.testing import CliRunner

from journal.files import DISK
from journal.lock import Lock
from runner.cli import cli
from runner.cli._server import LiveRun, Server
from tests.journal.samples import content, flip, lines_of, segment
from tests.replay.stories import eventful

PORT = 4711
TOKEN = "a-token-for-tests"  # noqa: S105  # it opens nothing
HOST = f"Host: 127.0.0.1:{PORT}\r\n"


def asked(path: Path, request: str, most: int = 1 << 20) -> tuple[int, str, str]:
    """Send a request as it stands; give the status, the headers and the body, or what has come of it when it is long enough."""

    async def main() -> bytes:
        live = LiveRun(path, 0)
        ours, theirs = trio.testing.memory_stream_pair()
        answer = b""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(live.follow)
            nursery.start_soon(Server(live, PORT, TOKEN).answer, theirs)
            await ours.send_all(request.encode("latin-1"))
            while (piece := await ours.receive_some(1 << 16)) and len(answer) < most:
                answer += piece
                if b"\ndata: " in answer and answer.endswith(b"\n\n\r\n"):
                    break
            nursery.cancel_scope.cancel()
        return answer

    head, _, body = trio.run(main).decode().partition("\r\n\r\n")
    return int(head.split()[1]) if head else 0, head.lower(), body


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Give a run to look at."""
    return eventful(tmp_path / "run")


def test_who_knows_the_address_gets_the_page(run: Path) -> None:
    """The page comes whole, with a policy that lets it talk to nobody but this server, and may not be framed or kept."""
    status, head, body = asked(run, f"GET /{TOKEN}/ HTTP/1.1\r\n{HOST}\r\n")

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
        (0, f"GET /{TOKEN}/ HTTP/1.1\r\n\r\n"),
        (0, f"GET /{TOKEN}/ HTTP/1.1\r\n{HOST}{HOST}\r\n"),
        (0, "\x16\x03\x01 not HTTP at all\r\n\r\n"),
        (0, f"GET /{TOKEN}/ HTTP/1.1\r\n{HOST}X: {'x' * 100_000}\r\n\r\n"),
    ],
)
def test_everything_else_is_refused(status: int, request_: str, run: Path) -> None:
    """A wrong token, a foreign host, another method and what is no request get nothing of the run, and change nothing."""
    before = content(run)

    found, _, body = asked(run, request_)

    assert status == found
    assert "capitals" not in body
    assert before == content(run)


@pytest.mark.parametrize("place", ["/", "", "/events", "/elsewhere"])
def test_a_head_is_that_of_the_whole_answer(place: str, run: Path) -> None:
    """Who asks for the head alone gets the one that comes with the page, the events or a refusal, and nothing behind it."""
    whole, head = (asked(run, f"{method} /{TOKEN}{place} HTTP/1.1\r\n{HOST}\r\n") for method in ("GET", "HEAD"))

    assert "" == head[2]
    assert whole[0] == head[0]
    assert sorted(_lasting(whole[1])) == sorted(_lasting(head[1]))


def _lasting(head: str) -> list[str]:
    """List the headers that say something about the answer, not about how its bytes are told apart."""
    return [line for line in head.splitlines() if not line.startswith("transfer-encoding")]


def test_an_address_without_its_last_slash_leads_on(run: Path) -> None:
    """The page would look for the events in the wrong place, so who forgets the slash is sent to where it is."""
    status, head, _ = asked(run, f"GET /{TOKEN} HTTP/1.1\r\n{HOST}\r\n")

    assert 307 == status
    assert f"location: /{TOKEN}/" in head.splitlines()


def test_what_may_be_done_is_told_with_a_refusal(run: Path) -> None:
    """Another method is refused with the ones that are not."""
    assert "allow: get, head" in asked(run, f"PUT /{TOKEN}/ HTTP/1.1\r\n{HOST}\r\n")[1].splitlines()


def test_a_run_is_over_with_its_last_word(run: Path) -> None:
    """A run that has said how it ended is not going on, though somebody holds it still."""
    lock = Lock(run, DISK)
    _, _, body = asked(run, f"GET /{TOKEN}/events HTTP/1.1\r\n{HOST}\r\n")
    lock.release()

    assert "stopped" == orjson.loads(body.partition("data: ")[2].partition("\n")[0])["status"]


@pytest.mark.parametrize("cursor", ["", "Last-Event-ID: nonsense\r\n", "Last-Event-ID: 99999-1-1-1-1-1\r\n"])
def test_events_begin_with_the_whole_run(cursor: str, run: Path) -> None:
    """Who knows nothing, or says nonsense about it, is told everything, with a mark of how far that goes."""
    status, head, body = asked(run, f"GET /{TOKEN}/events HTTP/1.1\r\n{HOST}{cursor}\r\n")

    told = orjson.loads(body.partition("data: ")[2].partition("\n")[0])
    assert 200 == status
    assert "content-type: text/event-stream" in head
    assert (0, 50) == (told["columns"]["from"], told["columns"]["seq"])
    assert "id: 50-" in body
    assert "stopped" == told["status"]


def test_who_comes_back_is_told_what_is_new(run: Path) -> None:
    """Who says how much it knows is told the rest: here nothing, and how the run stands."""
    _, _, body = asked(run, f"GET /{TOKEN}/events HTTP/1.1\r\n{HOST}Last-Event-ID: 50-17-22-8-6-4-0\r\n\r\n")

    told = orjson.loads(body.partition("data: ")[2].partition("\n")[0])
    assert (50, 50) == (told["columns"]["from"], told["columns"]["seq"])
    assert ([], []) == (told["columns"]["events"]["t"], told["columns"]["trials"]["name"])
    assert "stopped" == told["status"]


def test_damage_is_told_and_the_page_stays(run: Path) -> None:
    """Of a damaged run the page is told what is before the damage, and what is wrong."""
    flip(segment(run), len(b"".join(lines_of(run)[:20])) + 30)

    _, _, body = asked(run, f"GET /{TOKEN}/events HTTP/1.1\r\n{HOST}\r\n")

    told = orjson.loads(body.partition("data: ")[2].partition("\n")[0])
    assert ("damaged", 20) == (told["status"], told["columns"]["seq"])
    assert "journal-000001.jsonl" in told["problem"]


def test_a_port_that_is_taken_is_named(run: Path) -> None:
    """A port that somebody else listens on is named, and so is what to do."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(cli, ["view", str(run), "--port", str(port)])

    said = f"Error: cannot listen on port {port}: Address already in use; pass another --port, or none to use a free one\n"
    assert (2, said) == (result.exit_code, result.stderr)
