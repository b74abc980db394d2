"""Cases from a dataset of the Hugging Face Hub: which files are read, how much of them, and who gets the token."""

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # it has no types
import pytest
from pyarrow.parquet import write_table  # type: ignore[import-untyped]  # the same

from evaljournal.journal import read
from evaljournal.journal.events import RunStarted, TrialCompleted
from evaljournal.runner.data.dataset import Dataset
from evaljournal.runner.errors import UsageError
from tests.runner_cli.commands import evaljournal

SHA = "0123456789abcdef0123456789abcdef01234567"
NEW_SHA = "f" * 40
TOKEN = "hf_a_token_of_a_test"  # noqa: S105  # it opens nothing


class Hub:
    """A hub with one dataset, and a store of files at another address to which downloads are redirected."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.card: dict[str, Any] = {}
        self.sha = SHA
        self.status = 200
        self.has_ranges = True
        self.url = self.store = ""
        self.requests: list[tuple[str, str, str | None]] = []
        """Server, path and authorization of each request."""
        self.sent = 0
        """Bytes of files."""
        self.lost = 0
        """Bytes at the end of each answer with a file that are not sent."""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:  # noqa: C901  # a server with a few paths
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # the library calls it so
            host = "store" if self.server is store else "hub"
            hub.requests.append((host, self.path, self.headers["Authorization"]))
            prefix = f"/datasets/acme/qa/resolve/{SHA}/"
            if hub.status != 200:
                self._send(hub.status, b"no")
            elif "/acme/old/" in self.path:  # It was renamed.
                self._redirect(hub.url + self.path.replace("/old/", "/qa/"))
            elif self.path.startswith("/api/datasets/acme/qa/revision/"):
                siblings = [{"rfilename": name} for name in hub.files]
                sha = SHA if self.path.endswith(SHA) else hub.sha
                self._send(200, json.dumps({"sha": sha, "siblings": siblings, "cardData": hub.card}).encode())
            elif host == "hub" and self.path.startswith("/datasets/acme/"):
                self._redirect(hub.store + self.path)
            elif (content := hub.files.get(self.path.removeprefix(prefix))) is not None:
                self._send_file(content)
            else:
                self._send(404, b"no")

        def _send_file(self, content: bytes) -> None:
            first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
            part = content[first : last + 1] if hub.has_ranges else content
            hub.sent += len(part)
            headers = {"Content-Range": f"bytes {first}-{first + len(part) - 1}/{len(content)}"} if hub.has_ranges else {}
            self._send(206 if hub.has_ranges else 200, part, headers, lost=hub.lost)

        def _redirect(self, address: str) -> None:
            self._send(307, b"", {"Location": address})

        def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None, *, lost: int = 0) -> None:
            self.send_response(status)
            for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body[: max(0, len(body) - lost)])

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server, ThreadingHTTPServer(("127.0.0.1", 0), Handler) as store:
        for one in (server, store):
            threading.Thread(target=one.serve_forever, args=(0.05,), daemon=True).start()
        hub.url, hub.store = (f"http://127.0.0.1:{one.server_port}" for one in (server, store))
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield hub
        server.shutdown()
        store.shutdown()


def jsonl(*names: str) -> bytes:
    return b"".join(b'{"id": "%b", "question": "q", "answer": "a"}\n' % name.encode() for name in names)


def names(source: str) -> list[str]:
    return [case.name for _, case in Dataset(source).read()]


def parquet(path: Path, rows: int) -> bytes:
    table = pa.table({"id": [str(n) for n in range(rows)], "input": ["x" * 500 + str(n) for n in range(rows)]})
    write_table(table, path, row_group_size=1_000, use_dictionary=False, compression="none")
    return path.read_bytes()


def test_the_card_describes_the_files(hub: Hub) -> None:
    """Configurations and splits are those of the card; without one, splits are recognized in the names of files."""
    hub.files = {
        "a/test-0.jsonl": jsonl("1"),
        "a/test-1.jsonl": jsonl("2"),
        "a/train.csv": b"id,input\n3,x\n",
        "b.py": b"raise SystemExit",
    }
    with pytest.raises(UsageError, match=r"hf://acme/qa has several splits; add one of :default/test, :default/train"):
        names("hf://acme/qa")
    assert ["1", "2"] == names("hf://acme/qa:test")
    assert ["3"] == names("hf://acme/qa:a/train.csv")

    hub.card = {
        "configs": [{"config_name": "main", "data_files": [{"split": "dev", "path": "a/*.jsonl"}]}, {"data_files": 3}, None]
    }
    assert ["1", "2"] == names("hf:/acme/qa:main/dev")
    with pytest.raises(UsageError, match="has no single split 'test'; add one of :main/dev"):
        names("hf://acme/qa:test")
    hub.files = {"qa.py": b"raise SystemExit"}
    with pytest.raises(
        UsageError, match=r"has no Parquet, JSONL or CSV files at main; the hub may have converted it: hf://acme/qa@refs"
    ):
        names("hf://acme/qa")


def test_only_the_hub_gets_the_token(hub: Hub) -> None:
    """A redirect to another address has no token; one on the hub, as of a renamed dataset, keeps it."""
    hub.files = {"train.jsonl": jsonl("1")}

    assert ["1"] == names("hf://acme/old:train")
    assert {("hub", f"Bearer {TOKEN}"), ("store", None)} == {(host, token) for host, _, token in hub.requests}
    assert 2 == sum(path.endswith("/revision/main") for _, path, _ in hub.requests)


@pytest.mark.parametrize("has_ranges", [True, False])
def test_rows_are_streamed(has_ranges: bool, hub: Hub, tmp_path: Path) -> None:  # noqa: FBT001  # a parameter
    """Rows of a large file are read as they are needed; a server without ranges sends it once."""
    hub.has_ranges = has_ranges
    lines = (b'{"id": "%d", "input": "%b"}\n' % (number, b"x" * 500) for number in range(10_000))
    hub.files = {"train.parquet": parquet(tmp_path / "t.parquet", 10_000), "test.jsonl": b"".join(lines)}
    for split, kind in (("train", "parquet"), ("test", "jsonl")):
        size, hub.sent = len(hub.files[f"{split}.{kind}"]), 0
        rows = Dataset(f"hf://acme/qa:{split}").read()
        assert ["0", "1"] == [next(rows)[1].name for _ in range(2)]
        assert hub.sent < (0.6 if has_ranges else 4.1) * size, (kind, hub.sent, size)
        assert 9_998 == sum(1 for _ in rows)


def test_a_resumed_run_reads_the_same_commit(hub: Hub) -> None:
    """The commit is recorded, also in the definition: the run can be resumed when the branch has moved."""
    hub.files = {"train.jsonl": jsonl("1", "2")}
    command = ("--shell", "--command", "ls | grep -q ^go && cat", "-s", "retry.errors=0")
    evaljournal("run", "--data", "hf://acme/qa", *command, "-o", "run")
    start = next(record.event for record in read("run") if isinstance(record.event, RunStarted))
    hub.sha = NEW_SHA  # Files of this commit do not exist.
    hub.requests.clear()
    Path("go").touch()

    result = evaljournal("resume", "run", "--retry-failed")

    assert f"hf://acme/qa@{SHA}:default/train" == start.dataset
    assert "qa" == start.evaluation
    assert (0, 2) == (result.exit_code, sum(isinstance(record.event, TrialCompleted) for record in read("run"))), result.output
    assert f"/api/datasets/acme/qa/revision/{SHA}" in {path for _, path, _ in hub.requests}


@pytest.mark.parametrize(
    ("source", "status", "error"),
    [
        ("hf://acme/qa/x/y", 200, "is no dataset; write hf://owner/name"),
        ("s3://bucket/x", 200, "cases cannot be read from s3://"),
        ("hf://acme/qa", 401, "401 .*accept its terms on the hub and set HF_TOKEN"),
        ("hf://acme/qa", 404, "404 .*check owner, name and revision"),
    ],
)
def test_errors(source: str, status: int, error: str, hub: Hub) -> None:
    """An error names the address, the status and what to do; it never has the token."""
    hub.status = status

    with pytest.raises(UsageError, match=error) as caught:
        names(source)
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize("has_ranges", [True, False])
def test_a_connection_that_is_closed_early(has_ranges: bool, hub: Hub) -> None:  # noqa: FBT001  # a parameter
    """A file of which a part is missing is an error, not a shorter dataset."""
    hub.has_ranges = has_ranges
    hub.files = {"train.jsonl": jsonl("1", "2")}
    hub.lost = len(jsonl("2"))

    with pytest.raises(UsageError, match=r"train\.jsonl: the connection was closed before the end"):
        names("hf://acme/qa")


def test_an_unreachable_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of the last connection names the address and the reason."""
    monkeypatch.setattr("time.sleep", lambda _: None)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")

    with pytest.raises(UsageError, match=f"http://127.0.0.1:{port}/api/datasets/acme/qa/.*refused"):
        names("hf://acme/qa")
