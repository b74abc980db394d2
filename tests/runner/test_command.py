"""Commands as real processes: their input, their output, and that no process is left running."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evaljournal import Case, UsageError
from evaljournal.journal.events import AttemptFailed, AttemptInterrupted, AttemptReturnedLate, AttemptTimedOut
from evaljournal.runner.calls.command import Command
from tests.processes import Process, is_alive, wait_until
from tests.runs import define_real, events, outputs, run_real

PYTHON = sys.executable


def failure(path: Path) -> AttemptFailed:
    """Return the only failure."""
    (failed,) = events(path, AttemptFailed)
    return failed


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    """Write a shell script; return its path."""

    def write(text: str) -> str:
        file = tmp_path / "script.sh"
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o700)
        return str(file)

    return write


def test_the_input_is_on_standard_input(path: Path) -> None:
    """Without fields, the input is JSON on standard input; the output is standard output."""
    cases = [Case(name="a", input={"q": ["é", 1]}), Case(name="b", input="x")]
    run_real(define_real(Command("cat"), cases), path)

    assert {'{"q":["é",1]}', '"x"'} == set(outputs(path))


def test_fields_are_arguments_and_never_code(path: Path, tmp_path: Path) -> None:
    """A field is one argument, whatever it contains; no shell is used."""
    evil = f"; touch {tmp_path / 'pwned'} $(touch {tmp_path / 'pwned'}) `id` ' \" * {{input}}"
    run_real(define_real(Command(["printf", "%s|%s", "{question}", "{tags}"]), [{"question": evil, "tags": [1, "a b"]}]), path)

    assert [f'{evil}|[1,"a b"]'] == outputs(path)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    ("command", "options", "output"),
    [
        ("printf '%s-%s' \"a b\" {input}", {}, "a b-lima"),
        ("tr a-z A-Z | tr -d '\"'", {"shell": True}, "LIMA"),
        (["echo", '{{"a": [{{"b": 7}}]}}'], {"output": "json"}, {"a": [{"b": 7}]}),
        (["echo", '{{"a": [{{"b": 7}}]}}'], {"output_path": "a.0.b"}, 7),
        ("echo 007", {}, "007"),
        ("true", {}, ""),
        ("true", {"output": "json"}, ""),
    ],
)
def test_the_output(path: Path, command: Any, options: Any, output: Any) -> None:
    """Quotes group words, and a shell has pipes; output is text, or JSON if requested, and may be empty."""
    run_real(define_real(Command(command, **options)), path)

    assert [output] == outputs(path)


def test_a_command_gets_its_trial(path: Path, script: Callable[[str], str]) -> None:
    """The environment has the trial and an idempotency key, which differs for each trial."""
    line = script('echo "$EVALJOURNAL_TRIAL $EVALJOURNAL_IDEMPOTENCY_KEY"')
    run_real(define_real(Command(line), repeats=2), path)

    (first, key), (second, other) = sorted(output.split() for output in outputs(path))
    assert ("lima", "lima#2") == (first, second)
    assert 32 == len(key) == len(other)
    assert key != other


def test_large_input_and_output_do_not_deadlock(path: Path) -> None:
    """A command may print before it has read its input, or not read it at all."""
    cases = [Case(name="a", input="x" * 3_000_000)]
    run_real(define_real(Command("cat"), cases), path)
    run_real(define_real(Command("echo yes"), cases), path.with_name("2"))

    assert [3_000_002] == [len(output) for output in outputs(path)]
    assert ["yes"] == outputs(path.with_name("2"))


FIX = "print one JSON value, and logs to stderr, or omit -s output-format=json to use the text"


@pytest.mark.parametrize(
    ("text", "options", "category", "message"),
    [
        ("echo first >&2; echo the reason >&2; exit 3", {}, "error", "'script.sh' exited with code 3: first\nthe reason"),
        ("exit 1", {}, "error", "exited with code 1: nothing on stderr"),
        ("kill -9 $$", {}, "error", "was killed by SIGKILL"),
        ("no-such-command-at-all", {}, "fatal", "not found"),
        ("head -c 100000 /dev/zero | tr '\\0' x >&2; echo the end >&2; exit 1", {}, "error", "the end"),
        ("printf '\\377'", {}, "error", "stdout is not UTF-8"),
        ("echo hello", {"output": "json"}, "error", "stdout is not JSON"),
        ("echo hello", {"output": "json"}, "error", rf"'hello\n'; {FIX}"),
        ("echo '[1]'", {"output_path": "a"}, "fatal", "has no 'a': no 'a' in the value, which is a list of length 1"),
        ("echo 123456789012345678901234", {"output": "json"}, "fatal", "123456789012345678901234"),
    ],
)
def test_a_failure_has_its_reason(
    path: Path, script: Callable[[str], str], *, text: str, options: Any, category: str, message: str
) -> None:
    """An exit code other than 0 is a failure, with the end of standard error; so is output that is not as expected."""
    run_real(define_real(Command(script(text), **options)), path)

    assert (category, True) == (failure(path).category, message in failure(path).message)
    assert len(failure(path).message) < 3000


@pytest.mark.parametrize(
    ("command", "options", "message"),
    [
        ("", {}, "empty"),
        ("no-such-command {input}", {}, "command 'no-such-command' not found"),
        ("no-such-command | cat", {}, "need a shell"),
        ("echo 'a", {}, "check its quotes"),
        ("{input} x", {}, "must not contain fields"),
        ("echo {", {}, "is not a template"),
        ("echo -n {Question text}", {}, "put quotes around the argument: '{Question text}'"),
        (["echo"], {"shell": True}, "must be a string"),
    ],
)
def test_an_invalid_command_is_rejected(command: Any, options: Any, message: str) -> None:
    """An invalid command is a usage error."""
    with pytest.raises(UsageError) as caught:
        Command(command, **options)

    assert message in str(caught.value)


@pytest.mark.parametrize(("line", "message"), [("echo {qestion}", "no field {qestion}"), ("echo {question}", "NUL byte")])
def test_an_invalid_case_is_rejected_before_the_start(path: Path, line: str, message: str) -> None:
    """A missing field, or a value that cannot be an argument, is an error before anything runs."""
    with pytest.raises(UsageError) as caught:
        run_real(define_real(Command(line), [{"question": "a\0b"}]), path)

    assert message in str(caught.value)
    assert not path.exists()


def test_the_fingerprint_depends_on_the_script(script: Callable[[str], str]) -> None:
    """The command line and the content of the script change the fingerprint."""
    first = Command(script("echo 1")).fingerprint
    equal = Command(script("echo 1")).fingerprint
    changed = Command(script("echo 2")).fingerprint

    assert first == equal
    assert 3 == len({first, changed, Command(f"{script('echo 2')} -v").fingerprint})


PROCESSES = """
(trap '' TERM HUP INT; echo $$ >> {pids}; exec sleep 60) &
echo $! >> {pids}
echo $$ >> {pids}
"""


def process_ids(directory: Path) -> list[int]:
    file = directory / "pids"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


@pytest.mark.parametrize("stubborn", ["", "trap '' TERM"])
def test_a_timeout_ends_the_whole_group(path: Path, tmp_path: Path, script: Callable[[str], str], stubborn: str) -> None:
    """After a timeout the command and its children are ended, even if they ignore signals."""
    line = script(f"{stubborn}\n{PROCESSES.format(pids=tmp_path / 'pids')}\nsleep 60; sleep 60")
    start = time.monotonic()
    run_real(define_real(Command(line), timeout=0.3), path)

    assert 1 == len(events(path, AttemptTimedOut))
    assert [] == events(path, AttemptReturnedLate)
    assert time.monotonic() - start < 50
    assert 3 == len(process_ids(tmp_path))
    assert wait_until(lambda: not any(is_alive(pid) for pid in process_ids(tmp_path)))


def test_remaining_children_are_ended(path: Path, tmp_path: Path, script: Callable[[str], str]) -> None:
    """If a command ends before its children, its output counts, and the children are ended."""
    line = script(f"{PROCESSES.format(pids=tmp_path / 'pids')}\necho done")
    start = time.monotonic()
    run_real(define_real(Command(line)), path)

    assert ["done"] == outputs(path)
    assert time.monotonic() - start < 50
    assert wait_until(lambda: not any(is_alive(pid) for pid in process_ids(tmp_path)))


def test_too_much_output_fails(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that prints endlessly is ended, and its trial fails."""
    monkeypatch.setattr("evaljournal.runner.calls.http.reply.MAX_BYTES", 100_000)
    run_real(define_real(Command("yes")), path)

    assert ("fatal", "evaljournal.ReplyTooLarge") == (failure(path).category, failure(path).error)


INTERRUPTED = """
import sys
from evaljournal import Case, evaluation, run
from evaljournal.runner.calls.command import Command

it = evaluation(cases=[Case(name=str(n), input=n) for n in range(20)], slots=3)(Command(sys.argv[1]))
outcome = run(it, sys.argv[2], policy="fixed", grace=0.1, signals=True, quiet=True)
print(outcome.stop_reason)
"""


def test_nothing_is_left_running_after_an_interrupt(path: Path, tmp_path: Path, script: Callable[[str], str]) -> None:
    """Ctrl-C ends the run and all of its processes; attempts in flight are recorded as interrupted."""
    line = script(f"{PROCESSES.format(pids=tmp_path / 'pids')}\nsleep 60")
    process = Process([PYTHON, "-c", INTERRUPTED, line, str(path)], stdout=subprocess.PIPE)
    with process:
        assert wait_until(lambda: len(process_ids(tmp_path)) == 9)
        os.kill(process.pid, signal.SIGINT)
        output, _ = process.communicate()

    assert "interrupted\n" == output
    assert 3 == len(events(path, AttemptInterrupted))
    assert wait_until(lambda: not any(is_alive(pid) for pid in process_ids(tmp_path)))
