"""The live page of a directory: its rows, which runs have an address, and who may read it."""

import shutil
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest
import trio
import trio.testing

from evaljournal.journal.disk.files import DISK
from evaljournal.journal.disk.lock import Lock
from evaljournal.runner.cli.servers.directory import DirectoryServer, FollowedDirectory
from evaljournal.runner.cli.servers.server import HOST, Server
from tests.journal.samples import flip, segment, session, started, write_sync, write_trials
from tests.replay.trial_events import answered
from tests.runner_cli.commands import rejected

PORT = 4711
TOKEN = "a-token-for-tests"  # noqa: S105  # it opens nothing
LOCAL = f"Host: 127.0.0.1:{PORT}\r\n"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start with an empty cache."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def run(name: str, passed: int = 1, **fields: Any) -> Path:
    """Write a run under runs/ of four trials, of which the first `passed` pass."""
    trials = (answered(f"case-{at}", {"exact": at < passed}, usage={"cost": 0.5}) for at in range(4))
    return write_trials(Path("runs") / name, *trials, evaluation=Path(name).parent.name, **fields)


class Events:
    """The events of a followed directory, in the order in which they were sent."""

    def __init__(self, directory: FollowedDirectory) -> None:
        self._messages = directory.messages()
        self.aclose = self._messages.aclose
        self.rows: dict[str, Any] = {}

    async def wait(self, condition: Any) -> Any:
        """Return the first event after which a condition of the rows is true."""
        with trio.fail_after(20):
            while True:
                message = await anext(self._messages)
                if message.startswith(b":"):
                    continue
                event = orjson.loads(message.partition(b"data: ")[2])
                self.rows |= {row["path"]: row for row in event["rows"]}
                for path in event["removed"]:
                    del self.rows[path]
                if condition(self.rows):
                    return event


def answer(requests: list[str], host: str = HOST) -> list[tuple[int, str]]:
    """Send requests to the server of runs/ when it has read all runs; return status and body of each reply."""

    async def main() -> list[bytes]:
        directory, replies = FollowedDirectory(Path("runs")), list[bytes]()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(directory.follow)
            async with aclosing(Events(directory)) as events:
                while not (await events.wait(lambda _: True))["is_complete"]:
                    pass
            server = DirectoryServer(directory, nursery, PORT, TOKEN, host)
            for request in requests:
                client, server_end = trio.testing.memory_stream_pair()
                nursery.start_soon(server.answer, server_end)
                await client.send_all(f"{request}\r\n".encode())
                reply = b""
                while piece := await client.receive_some(1 << 16):
                    reply += piece
                    if b"\ndata: " in reply and reply.endswith(b"\n\n\r\n"):
                        break
                await client.aclose()
                replies.append(reply)
            nursery.cancel_scope.cancel()
        return replies

    parts = [reply.decode().partition("\r\n\r\n") for reply in trio.run(main)]
    return [(int(head.split()[1]), body) for head, _, body in parts]


def get(path: str, host: str = LOCAL) -> str:
    return f"GET /{TOKEN}/{path} HTTP/1.1\r\n{host}"


def test_rows() -> None:
    """A row has score, interval, cost, state and models; one of a damaged run has what is known."""
    run("capitals/0001", 3, definition={"task": {"model": "gpt-x"}})
    flip(segment(run("capitals/0002")), 2_000)

    _, body = answer([get("events")])[0]
    event = orjson.loads(body.partition("data: ")[2].partition("\n")[0])
    rows = {row["path"]: row for row in event["rows"]}

    assert (True, True, [], 2) == (event["is_first"], event["is_complete"], event["removed"], len(rows))
    row = rows["runs/capitals/0001"]
    figures = [row[name] for name in ("evaluation", "status", "completed", "failed", "trials", "cost", "scorer", "score")]
    assert ["capitals", "finished", 4, 0, 4, 2.0, "exact", "75.0 % (30.1–95.4)"] == figures
    assert (["gpt-x"], "run/capitals/0001/") == (row["models"], row["address"])
    assert "damaged" == rows["runs/capitals/0002"]["status"]


def test_rows_follow_the_directory() -> None:
    """A new run, one that goes on, one that ends and one that is removed are sent as they change, and nothing else."""
    old, live = run("capitals/0001"), Path("runs/capitals/0002")

    async def main() -> None:
        directory = FollowedDirectory(Path("runs"))
        async with aclosing(Events(directory)) as events, trio.open_nursery() as nursery:
            nursery.start_soon(directory.follow)
            await events.wait(lambda rows: rows.keys() == {str(old)})
            first = [started(), session(), *answered("case-0", {"exact": True})]
            new = Path("new")
            await trio.to_thread.run_sync(write_sync, new, first)
            lock = Lock(new, DISK)
            shutil.move(new, live)  # It is running when it is first seen: a lock alone would be no change.
            event = await events.wait(lambda rows: str(live) in rows and rows[str(live)]["status"] == "running")
            assert [str(live)] == [row["path"] for row in event["rows"]]
            lock.release()
            second = [session(2), *answered("case-1", {"exact": True})]
            await trio.to_thread.run_sync(partial(write_sync, live, second, new=False))
            await events.wait(lambda rows: (rows[str(live)]["status"], rows[str(live)]["completed"]) == ("interrupted", 2))
            shutil.rmtree(old)
            event = await events.wait(lambda rows: str(old) not in rows)
            assert ([], None) == (event["rows"], directory.find("capitals/0001"))
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_pages_of_runs() -> None:
    """The page of a run, its events, and the comparison of two runs have addresses below that of the directory."""
    run("capitals/0001", 1), run("a b%/0002 é", 2)
    pages = [
        "",
        "run/capitals/0001/",
        "run/a%20b%25/0002%20%C3%A9/events",
        "compare?a=run/capitals/0001/&b=run/a%2520b%2525/0002%2520%25C3%25A9/",
    ]

    directory, page, events, comparison = answer([get(path) for path in pages])

    assert [200] * 4 == [reply[0] for reply in (directory, page, events, comparison)]
    assert all(reply[1].startswith("<!doctype html>") for reply in (directory, page, comparison))
    assert '"name":"0002 é"' in events[1]


@pytest.mark.parametrize(
    "path",
    [
        "run/capitals/",
        "run/",
        "run/../secret/",
        "run/capitals/0001/../../x",
        "run//etc/",
        "run/capitals/0001/LOCK",
        "compare?a=run/capitals/0001/",
        "compare?a=run/capitals/0001/&b=run/../runs/capitals/0001/",
        "runs",
    ],
)
def test_only_runs_that_were_found_have_an_address(path: str) -> None:
    """Any other path is not found."""
    run("capitals/0001")

    assert [404] == [status for status, _ in answer([get(path)])]


def test_host_and_token() -> None:
    """On 127.0.0.1 the Host header is checked; with another --host a proxy may pass its own. The token is always needed."""
    run("capitals/0001")
    proxied, no_token = get("", "Host: evals.example\r\n"), f"GET /x/ HTTP/1.1\r\n{LOCAL}"

    assert [403, 404, 200] == [status for status, _ in answer([proxied, no_token, get("")])]
    assert [200, 404] == [status for status, _ in answer([proxied, no_token], "0.0.0.0")]  # noqa: S104  # nothing listens
    assert "http://[::1]:4711/a-token-for-tests/" == Server(None, PORT, TOKEN, "::1").address  # type: ignore[arg-type]  # not used


def test_invalid_arguments(tmp_path: Path) -> None:
    """An address that is none, and a directory without runs, are errors that name the fix."""
    Path("evals").mkdir()

    assert "--host example: it is not an IP address; use 0.0.0.0" in rejected("view", "--host", "example")
    assert "evals is not a run" in rejected("view", "evals")
