"""Another user of the machine: files are private, and no command line shows the token of `view`."""

import sys
import webbrowser
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.journal.test_written_files import mode
from tests.replay.eventful_run import eventful_run
from tests.runner_cli.commands import evaljournal

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX file modes")


@pytest.mark.parametrize("command", ["report", "export --format csv", "export --format nat"])
def test_reports_and_exports_are_private(tmp_path: Path, command: str) -> None:
    """Reports and exports contain the data of the journal; only their owner can read them."""
    run = eventful_run(tmp_path / "run")
    name, *options = command.split()
    out = tmp_path / "out"
    result = evaljournal(name, run, *options, "-o", out)

    assert 0 == result.exit_code, result.output
    assert {0o600} == {mode(file) for file in (out.iterdir() if out.is_dir() else [out])}


def test_the_files_of_nat_output_are_private(tmp_path: Path) -> None:
    """What a run writes with `--export nat:DIR` is as private as its journal."""
    (tmp_path / "qa.jsonl").write_text('{"id": "peru", "input": "Peru?"}\n')
    result = evaljournal("run", "--data", "qa.jsonl", "--command", "cat", "-o", "run", "--export", f"nat:{tmp_path / 'out'}")

    assert 0 == result.exit_code, result.output
    files = [*(tmp_path / "out").iterdir()]
    assert {"workflow_output.json", "workflow_output.jsonl"} <= {file.name for file in files}
    assert {0o600} == {mode(file) for file in files}


def test_the_browser_is_not_started_with_the_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The browser gets a private file that forwards to the address; the file is deleted at the end."""
    run = eventful_run(tmp_path / "run")
    opened: list[tuple[str, int, str]] = []

    def record(url: str) -> None:
        page = Path(urlsplit(url).path)
        opened.append((url, mode(page), page.read_text()))

    async def serve(*_: object, on_ready: object, host: str) -> None:
        assert callable(on_ready)
        assert "127.0.0.1" == host
        on_ready("http://127.0.0.1:1/the-token/")

    monkeypatch.setattr(webbrowser, "open", record)
    monkeypatch.setattr("evaljournal.runner.cli.servers.server.serve", serve)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    result = evaljournal("view", run, "--open")

    assert 0 == result.exit_code, result.output
    ((url, permissions, page),) = opened
    assert "the-token" not in url
    assert (0o600, True) == (permissions, "url=http://127.0.0.1:1/the-token/" in page)
    assert [] == list(tmp_path.glob("evaljournal-*"))
