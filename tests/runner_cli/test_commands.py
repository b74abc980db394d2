"""Output, streams and exit codes that all commands have in common."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from evaljournal.journal.events import Extension, Noted
from evaljournal.replay import load
from evaljournal.runner.cli import COMMANDS, cli, main
from tests.journal.samples import complete_run, enqueued, forge, lines_of, opened, segment, session, started, trial, write_sync
from tests.processes import run_command
from tests.runner_cli.commands import COMMAND, evaljournal, printed, rejected, run_in_terminal, run_process

UNUSED_BY_A_RUN: Final = {
    *("anyio", "cattrs", "h11", "http.client", "httpcore2", "rich", "sqlite3", "tomllib", "urllib.request", "xml"),
    *(f"evaljournal.replay.{name}" for name in ("export.formats", "index", "results.comparison", "review", "views")),
    *(f"evaljournal.runner.{name}" for name in ("batches", "gateway", "notebook", "promptfoo", "workers.driver")),
    *(f"evaljournal.runner.cli.{name}" for name in ("dry_run", "suites.command")),
    *(f"evaljournal.runner.engine.{name}" for name in ("batcher", "rescore")),
    *(f"evaljournal.runner.calls.http.{name}" for name in ("address", "client", "reply")),
    *(f"evaljournal.runner.scorers.{name}" for name in ("builtin", "llm_judge")),
    *(f"evaljournal.runner.steps.{name}" for name in ("durable", "http_clients", "waiting")),
    *("evaljournal.runner.data.attachments", "evaljournal.runner.calls.chat", "evaljournal.runner.calls.endpoint"),
}
"""Modules that a run of a plain function has no use for."""
MAX_MODULES: Final = 227
"""Modules of evaljournal that such a run imports at most: 2 % more than when they were last counted."""


@pytest.mark.parametrize(
    ("commands", "message"),
    [
        ("export log replay resume show status verify", "COMMAND no/thing: no/thing does not exist"),
        ("salvage", "COMMAND no/thing -o new: no/thing does not exist"),
        ("ls", "COMMAND no/thing: no/thing"),
        ("verify log resume status", "COMMAND: no RUN given and no runs under runs/"),
        ("log show", "COMMAND peru: 'peru' is neither a run nor an evaluation, and runs/ has no runs to find a trial in"),
        (
            "status log rescore report watch replay export resume",
            "COMMAND ./file: file is a file; a run is a directory that contains journal-000001.jsonl",
        ),
        ("log", "COMMAND run case-12: run has no trial 'case-12'; did you mean 'case-"),
        ("log show", "COMMAND run zzz: run has no trial 'zzz'"),
        ("status", "COMMAND run --by nope: no case of run has 'nope' in its metadata"),
    ],
)
def test_usage_errors(run: Path, commands: str, message: str) -> None:
    """An error about a run or a trial is one line, with similar names if there are any; the usage is not printed."""
    Path("file").touch()
    for command in commands.split():
        arguments, _, start = message.replace("COMMAND", command).partition(": ")
        error = rejected(*arguments.split())

        assert (f"Error: {start}", 1) == (error[: len(start) + 7], error.count("\n"))
    assert not Path("new").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("status --nosuch", "--nosuch"),
        ("log run --type attempt_strated", "unknown event type 'attempt_strated'; did you mean 'attempt_started'"),
        ("verfy run", "did you mean 'verify'"),
    ],
)
def test_wrong_arguments(run: Path, arguments: str, message: str) -> None:
    """The usage and the error, with a similar name, are printed for wrong arguments."""
    error = rejected(*arguments.split())

    assert (True, True) == (error.startswith("Usage: "), message in error)


@pytest.mark.parametrize("command", ["verify", "log"])
def test_commands_end_with_2_at_another_format(tmp_path: Path, command: str) -> None:
    """A journal of a later format exits with 2 and the version that is needed."""
    forge(tmp_path, [opened(version="7.0")])
    result = evaljournal(command, tmp_path)

    assert (2, True) == (result.exit_code, "reads only version 2" in result.stderr)


def test_the_default_is_the_newest_run() -> None:
    """Without RUN, the run written last is used, at any depth under runs/."""
    for age, name in enumerate(["capitals/0002", "capitals/0003", "rivers", "capitals/0001"]):
        write_sync(Path("runs") / name, complete_run(age + 1), run=f"{age:032}")
        os.utime(segment(Path("runs") / name), (1000 - age, 1000 - age))

    assert f"{0:032}" == printed("verify")["run"]
    os.utime(segment(Path("runs/rivers")), (2000, 2000))
    assert f"{2:032}" == printed("verify")["run"]
    assert 5 == len(evaljournal("log", "case-3").stdout.splitlines())


def test_an_interrupted_copy_is_not_a_run() -> None:
    """The remains of a killed fork or salvage are neither listed nor used."""
    write_sync(Path("runs/capitals/.0001-again.new"), complete_run()[:4])

    assert [] == printed("ls")
    assert "no runs under runs/" in evaljournal("status").stderr


def test_output_cannot_control_the_terminal(tmp_path: Path) -> None:
    """Control characters in an output are escaped."""
    evil = "\x1b[2J\x1b]0;owned\x07\r\n\x9b31m\u202e\u2028evil"
    name = "na\x1b[31mme"
    events = [
        started(),
        session(),
        enqueued(name, {"question": evil, evil: [evil]}),
        *trial("b", output=evil)[:3],
        Noted(name=evil, value=evil),
        Extension(type=f"x-{evil}", data={evil: evil}),
    ]
    write_sync(tmp_path / "run", events)
    results = [
        evaljournal("log", tmp_path / "run"),
        evaljournal("log", tmp_path / "run", evil),
        evaljournal("log", "--type", evil),
    ]

    assert len(lines_of(tmp_path / "run")) == results[0].stdout.count("\n")
    for result in results:
        shown = (result.stdout + result.stderr).replace("\n", "")

        assert [] == sorted({char for char in shown if not char.isprintable()})


def test_long_values_are_shortened(tmp_path: Path) -> None:
    """A long value is shown by its start, a blob by its size."""
    events = trial("a", output="long " * 100)
    write_sync(tmp_path / "run", [started(), session(), *events, Noted(name="b", value="v" * (300 << 10))])
    out = evaljournal("log", tmp_path / "run").stdout

    assert "output=long long" in out
    assert "…" in out
    assert "value=(307,202 bytes in a blob)" in out
    assert max(map(len, out.splitlines())) < 1000


def test_a_bug_exits_with_70(timed_run: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """A bug exits with 70, a traceback and a request to report it."""

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("evaljournal.runner.cli.commands.verify.verify_run", broken)
    monkeypatch.setattr("sys.argv", ["evaljournal", "verify", str(timed_run)])
    monkeypatch.setattr("sys.stderr", sys.stderr)  # `main` replaces it.

    with pytest.raises(SystemExit) as end:
        main()
    out, err = capfd.readouterr()
    assert (70, "") == (end.value.code, out)
    assert "ZeroDivisionError: a bug" in err
    assert "This is a bug in evaljournal" in err


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_an_example(name: str) -> None:
    """The help of every command has an example."""
    result = evaljournal(name, "--help")

    assert 0 == result.exit_code
    assert f"evaljournal {name} " in result.stdout.partition("Usage:")[2].partition("\n")[2]
    assert result.stdout == evaljournal(name, "-h").stdout


def test_help_lists_every_command() -> None:
    """`--help` lists every command with a description that begins with the same word as its help."""
    result = evaljournal("--help")

    assert 0 == result.exit_code
    for name, line in COMMANDS.items():
        assert f"{name} " in result.stdout
        assert line in result.stdout
        command = cli.get_command(None, name)  # type: ignore[arg-type]  # it needs no context
        assert command is not None
        assert line.split()[0] == (command.help or "").split()[0]


def test_help_imports_nothing_heavy() -> None:
    """`--help` does not import what only a run needs."""
    code = (
        "import sys\n"
        "from evaljournal.runner.cli import cli\n"
        "cli(['--help'], standalone_mode=False)\n"
        "heavy = {'trio', 'orjson', 'attrs', 'rich', 'evaljournal.journal', 'evaljournal.replay'} & set(sys.modules)\n"
        "print(*sorted(heavy), file=sys.stderr, end='')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)

    assert "" == done.stderr
    assert "First day:" in done.stdout


def test_a_run_imports_what_it_uses(tmp_path: Path) -> None:
    """`run` of a plain function imports no HTTP client, screen, export, worker or batch, and few modules.

    The modules were imported before the collector started, which never looks at them.
    """
    (tmp_path / "e.py").write_text(
        "from evaljournal import Case, evaluation\n"
        "@evaluation(cases=[Case(name='a', input=1)])\n"
        "def one(number):\n"
        "    return number\n"
    )
    code = (
        "import gc, json, sys\n"
        "from evaljournal.__main__ import main\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as exc:\n"
        "    print(json.dumps([exc.code, gc.isenabled(), gc.get_freeze_count() > 0, list(sys.modules)]))\n"
    )
    done = run_command(sys.executable, "-c", code, "run", "e.py", "--plain", cwd=tmp_path, check=True)
    *ending, names = json.loads(done.stdout.splitlines()[-1])

    assert [0, True, True] == ending
    assert set() == UNUSED_BY_A_RUN & {*names}
    assert len([name for name in names if name.partition(".")[0] == "evaljournal"]) <= MAX_MODULES


def test_version() -> None:
    """`--version` prints the name and the version."""
    assert evaljournal("--version").stdout.startswith("evaljournal 0.")


def test_a_closed_pipe_of_standard_error_does_not_change_the_exit_code(tmp_path: Path) -> None:
    """The messages are lost, and nothing else: a missing run exits with 2."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([*COMMAND, "status", str(tmp_path / "none")], check=False, stderr=writing, timeout=60)
    os.close(writing)

    assert 2 == done.returncode


CLOSING = """
import io, sys
import trio
from evaljournal import Case, evaluation

class Raising:
    def __getattr__(self, name: str) -> object:
        raise RuntimeError(name)

@evaluation(cases=[Case(name=f"t{{number}}", input=number) for number in range(2)], slots=1)
async def closing(number: int) -> int:
    if not number:
        {statement}
    await trio.sleep(0.3)
    return number
"""


CLOSING_STATEMENTS = (
    "sys.stdout.close()",
    "sys.stderr.close()",
    "sys.stderr.buffer.close()",
    "sys.stderr = io.StringIO(); sys.stderr.close()",
    "sys.__stdout__.close(); sys.__stderr__.close()",
    "sys.__stdout__.detach()",
    "sys.stdout = sys.stderr = Raising()",
    "sys.__stdout__ = sys.__stderr__ = Raising()",
)


@pytest.mark.parametrize(
    ("statement", "in_terminal"),
    [
        *((statement, False) for statement in CLOSING_STATEMENTS),
        *(
            pytest.param(statement, True, marks=pytest.mark.exhaustive if number % 3 else ())
            for number, statement in enumerate(CLOSING_STATEMENTS)
        ),
    ],
)
def test_a_task_that_closes_a_standard_stream_does_not_end_the_run(statement: str, *, in_terminal: bool) -> None:
    """The progress may be lost; all trials are completed, and the summary is printed."""
    Path("closing.py").write_text(CLOSING.format(statement=statement))
    if in_terminal:
        code, out = run_in_terminal("run", "closing.py", until=b"not printed")
    else:
        code, out, _ = run_process("run", "closing.py")

    assert 0 == code, out
    assert "2 outputs · 0 errors" in out


@pytest.mark.parametrize("command", [["log"], ["log", "-f"], ["status"], ["export"], ["ls"], ["show", "case-1"]])
def test_a_closed_pipe_exits_with_141(tmp_path: Path, command: list[str]) -> None:
    """A closed pipe exits with 141 and no message."""
    write_sync(tmp_path / "run", complete_run())
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as pipe:
        arguments = [*COMMAND, command[0], str(tmp_path / "run"), *command[1:]]
        done = subprocess.run(arguments, stdout=pipe, stderr=subprocess.PIPE, text=True, timeout=60, check=False)

    assert (141, "") == (done.returncode, done.stderr)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("command", ["run --json --data {data} --command cat -o {new}", "log {run}", "status {run}", "--help"])
def test_a_full_standard_output_exits_with_141(tmp_path: Path, command: str) -> None:
    """If only printing fails, the exit code is 141, and a run that has finished is reported as finished."""
    write_sync(tmp_path / "run", complete_run())
    (tmp_path / "data.jsonl").write_text('{"id": "peru", "input": "Peru"}\n')
    words = command.format(data=tmp_path / "data.jsonl", new=tmp_path / "new", run=tmp_path / "run").split()
    with open("/dev/full", "wb") as full:
        done = subprocess.run([*COMMAND, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)

    assert 141 == done.returncode
    error = done.stderr.splitlines()[-1]
    assert "cannot write standard output: No space left on device" in error
    assert ("run" == words[0]) == ("the run is finished" in error)
    assert "free some space" not in error
    if words[0] == "run":
        assert "finished" == load(tmp_path / "new").state.outcome


def test_standard_output_may_be_closed(tmp_path: Path) -> None:
    """A closed standard output is not reported as a bug."""
    write_sync(tmp_path / "run", complete_run())
    for words in (["log"], ["status", "--json"]):
        closed = shlex.join([*COMMAND, *words, str(tmp_path / "run")]) + " >&-"
        done = subprocess.run(["/bin/sh", "-c", closed], stderr=subprocess.PIPE, text=True, timeout=60, check=False)

        assert (0, "") == (done.returncode, done.stderr)
