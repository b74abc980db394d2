"""SECURITY.md names every command, and what it promises about the head holds."""

import os
import re
from pathlib import Path

import click
import pytest

from evaljournal.replay import load
from evaljournal.runner.cli import cli
from evaljournal.runner.cli.session import write_head
from tests.journal.samples import cut_tail, segment
from tests.processes import ROOT
from tests.replay.eventful_run import eventful_run
from tests.runner_cli.commands import evaljournal

SAFE = re.search(r"^(`status`(?:.+\n)+)", (ROOT / "SECURITY.md").read_text(), re.MULTILINE)
EXECUTING = {"run", "resume", "rescore", "cancel", "clean", "what-if"}


def test_every_command_is_listed() -> None:
    """A command is safe on a run from anyone, or SECURITY.md describes what it executes."""
    assert SAFE is not None
    listed = set(re.findall(r"`(\w+)`", SAFE[1])) | {"fork", "import"}

    assert set(cli.list_commands(click.Context(cli))) - EXECUTING - {"init"} == listed


DATA = '{"id": "peru", "question": "Peru?", "expected": "Lima"}\n'


RUN = ("run", "--command", "echo Lima", "--score", "exact", "--plain", "--data", "qa.jsonl")


@pytest.fixture
def data() -> str:
    """A dataset in the current directory."""
    Path("qa.jsonl").write_text(DATA)
    return "qa.jsonl"


@pytest.mark.usefixtures("data")
def test_the_head_of_a_run_is_written() -> None:
    """`--head-file` writes the head that is printed; `verify` accepts it, and rejects a run from which records were removed."""
    result = evaljournal(*RUN, "--head-file", "head.txt", "--verbose")
    head = Path("head.txt").read_text()

    assert 0 == result.exit_code, result.output
    assert re.fullmatch(r"[0-9a-f]{32}\n", head)
    assert f"head {head}" in result.stdout
    verify = ("verify", "runs/qa/0001", "--expect-head", head.strip())
    assert 0 == evaljournal(*verify).exit_code
    cut_tail(segment(Path("runs/qa/0001")), 3)
    assert 4 == evaljournal(*verify).exit_code


@pytest.mark.parametrize("target", ["qa.jsonl", "no/such/head.txt", "pipe", "link", "folder"])
def test_no_other_file_is_replaced_by_a_head(data: str, target: str) -> None:
    """A head file is new or has a head; anything else is rejected before the run starts."""
    os.mkfifo("pipe")
    Path("link").symlink_to(data)
    Path("folder").mkdir()
    result = evaljournal(*RUN, "--head-file", target)

    assert 2 == result.exit_code
    assert "--head-file" in result.stderr
    assert DATA == Path(data).read_text()
    assert not Path("runs").exists()


@pytest.mark.usefixtures("data")
def test_the_head_of_an_earlier_run_is_replaced() -> None:
    """A head file can be used again."""
    heads: list[str] = []
    for _ in range(2):
        assert 0 == evaljournal(*RUN, "--head-file", "head.txt").exit_code
        heads.append(Path("head.txt").read_text())

    assert heads[0] != heads[1]


@pytest.mark.usefixtures("data")
def test_a_file_that_appears_during_the_run_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    """If the head file is another file at the end, such as the journal, the head is printed instead."""
    assert 0 == evaljournal(*RUN, "-o", "mine").exit_code
    write_head(Path("mine/journal-000001.jsonl"), "0" * 32)

    assert f"the head is {'0' * 32}" in capsys.readouterr().err
    assert 0 == evaljournal("verify", "mine").exit_code


def test_the_junit_export_has_the_head(tmp_path: Path) -> None:
    """A CI system that keeps the JUnit file keeps the head."""
    run = eventful_run(tmp_path / "run")
    exported = evaljournal("export", run, "--format", "junit")

    assert f'name="head" value="{load(run).state.head}"' in exported.stdout
