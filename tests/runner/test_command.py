"""Commands, as real processes: what they are given, what is read from them, and that none of them is left behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from journal.events import AttemptFailed, AttemptInterrupted, AttemptReturnedLate, AttemptTimedOut
from runner import Case, UsageError
from runner.tasks.command import Command
from tests.processes import Process
from tests.runs import define_real, events, outputs, run_real

PYTHON = sys.executable


def failure(path: Path) -> AttemptFailed:
    """Give the one failure."""
    (failed,) = events(path, AttemptFailed)
    return failed


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not buried does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition: Callable[[], bool]) -> bool:
    """Wait for something that other processes do; no longer than half a minute."""
    until = time.monotonic() + 30
    while not condition() and time.monotonic() < until:
        time.sleep(0.005)
    return condition()


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    """Write a script of the shell, and say what it is called."""

    def write(text: str) -> str:
        file = tmp_path / "script.sh"
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o700)
        return str(file)

    return write


# What it is given, and what is read.


def test_the_input_is_on_standard_input(path: Path) -> None:
    """Without fields, the input is given on standard input as JSON; the output is what is printed, less the last line break."""
    cases = [Case(name="a", input={"q": ["é", 1]}), Case(name="b", input="x")]
    run_real(define_real(Command("cat"), cases), path)

    assert {'{"q":["é",1]}', '"x"'} == set(outputs(path))


def test_fields_are_arguments_and_never_code(path: Path, tmp_path: Path) -> None:
    """A field is one argument, whatever stands in it: no shell sees it."""
    evil = f"; touch {tmp_path / 'pwned'} $(touch {tmp_path / 'pwned'}) `id` ' \" * {{input}}"
    run_real(define_real(Command(["printf", "%s|%s", "{question}", "{tags}"]), [{"question": evil, "tags": [1, "a b"]}]), path)

    assert [f'{evil}|[1,"a b"]'] == outputs(path)
    assert not (tmp_path / "pwned").exists()


def test_a_command_line_is_split_as_a_shell_would(path: Path) -> None:
    """Quotes hold words together."""
    run_real(define_real(Command("printf '%s-%s' \"a b\" {input}"), "c d"), path)

    assert ["a b-c d"] == outputs(path)


def test_a_shell_is_used_if_asked_for(path: Path) -> None:
    """With `shell`, pipes work, and the input is on standard input."""
    run_real(define_real(Command("tr a-z A-Z | tr -d '\"'", shell=True), "lima"), path)  # noqa: S604  # it is what is tested

    assert ["LIMA"] == outputs(path)


def test_json_is_read_where_it_is_asked_for(path: Path) -> None:
    """Printed JSON is the output, or what a path leads to in it; printed numbers stay text otherwise."""
    line = ["echo", '{{"a": [{{"b": 7}}]}}']
    run_real(define_real(Command(line, output="json")), path)
    run_real(define_real(Command(line, output_path="a.0.b")), path.with_name("2"))
    run_real(define_real(Command("echo 007")), path.with_name("3"))

    assert [{"a": [{"b": 7}]}] == outputs(path)
    assert [7] == outputs(path.with_name("2"))
    assert ["007"] == outputs(path.with_name("3"))


def test_silence_is_an_answer(path: Path) -> None:
    """A command that prints nothing has given an empty output."""
    run_real(define_real(Command("true")), path)
    run_real(define_real(Command("true", output="json")), path.with_name("2"))

    assert [""] == outputs(path) == outputs(path.with_name("2"))


def test_a_command_knows_its_trial(path: Path, script: Callable[[str], str]) -> None:
    """The environment names the trial, and a key that is the same for all attempts at it."""
    line = script('echo "$EVALJOURNAL_TRIAL $EVALJOURNAL_IDEMPOTENCY_KEY"')
    run_real(define_real(Command(line), repeats=2), path)

    (first, key), (second, other) = sorted(output.split() for output in outputs(path))
    assert ("lima", "lima#2") == (first, second)
    assert 32 == len(key) == len(other)
    assert key != other


def test_much_is_read_while_much_is_given(path: Path) -> None:
    """A command that prints before it has read all is not a deadlock; nor is one that does not read."""
    cases = [Case(name="a", input="x" * 3_000_000)]
    run_real(define_real(Command("cat"), cases), path)
    run_real(define_real(Command("echo yes"), cases), path.with_name("2"))

    assert [3_000_002] == [len(output) for output in outputs(path)]
    assert ["yes"] == outputs(path.with_name("2"))


# What goes wrong.


@pytest.mark.parametrize(
    ("text", "category", "said"),
    [
        ("echo first >&2; echo the reason >&2; exit 3", "error", "'script.sh' ended with exit code 3: first\nthe reason"),
        ("exit 1", "error", "ended with exit code 1: nothing on stderr"),
        ("kill -9 $$", "error", "was killed by SIGKILL"),
        ("no-such-command-at-all", "fatal", "not found"),
        ("head -c 100000 /dev/zero | tr '\\0' x >&2; echo the end >&2; exit 1", "error", "the end"),
        ("printf '\\377'", "error", "stdout is not UTF-8"),
    ],
)
def test_a_failure_says_why(path: Path, script: Callable[[str], str], text: str, category: str, said: str) -> None:
    """A code that is not 0 is a failure, with the end of what was said on standard error."""
    run_real(define_real(Command(script(text))), path)

    assert (category, True) == (failure(path).category, said in failure(path).message)
    assert len(failure(path).message) < 3000


def test_output_that_is_not_what_was_asked_for_fails(path: Path) -> None:
    """Text in place of JSON, or JSON without the path, is a failure and not an answer."""
    run_real(define_real(Command("echo hello", output="json")), path)
    run_real(define_real(Command(["echo", "[1]"], output_path="a")), path.with_name("2"))

    assert "is not JSON" in failure(path).message
    assert "has no 'a': no 'a' in the value, which is a list of length 1" in failure(path.with_name("2")).message


@pytest.mark.parametrize(
    ("command", "options", "said"),
    [
        ("", {}, "empty"),
        ("no-such-command {input}", {}, "command 'no-such-command' not found"),
        ("no-such-command | cat", {}, "need a shell"),
        ("echo 'a", {}, "check its quotes"),
        ("{input} x", {}, "must not contain fields"),
        ("echo {", {}, "is not a template"),
        (["echo"], {"shell": True}, "must be a string"),
    ],
)
def test_a_wrong_command_is_refused_where_it_is_written(command: Any, options: Any, said: str) -> None:
    """What cannot be run is an error of the definition."""
    with pytest.raises(UsageError) as caught:
        Command(command, **options)

    assert said in str(caught.value)


@pytest.mark.parametrize(("line", "said"), [("echo {qestion}", "no field {qestion}"), ("echo {question}", "zero byte")])
def test_a_case_that_cannot_be_given_is_refused_before_the_start(path: Path, line: str, said: str) -> None:
    """A field that a case lacks, or that no argument can hold, is found before anything runs."""
    with pytest.raises(UsageError) as caught:
        run_real(define_real(Command(line), [{"question": "a\0b"}]), path)

    assert said in str(caught.value)
    assert not path.exists()


def test_a_fingerprint_sees_the_script(script: Callable[[str], str]) -> None:
    """Another command line is another task, and so is another script under the same name."""
    first = Command(script("echo 1")).fingerprint
    again = Command(script("echo 1")).fingerprint
    changed = Command(script("echo 2")).fingerprint

    assert first == again
    assert 3 == len({first, changed, Command(f"{script('echo 2')} -v").fingerprint})


# What is left behind.

FAMILY = """
(trap '' TERM HUP INT; echo $$ >> {pids}; exec sleep 60) &
echo $! >> {pids}
echo $$ >> {pids}
"""


def family(folder: Path) -> list[int]:
    file = folder / "pids"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


@pytest.mark.parametrize("stubborn", ["", "trap '' TERM"])
def test_a_timeout_ends_the_whole_group(path: Path, tmp_path: Path, script: Callable[[str], str], stubborn: str) -> None:
    """When its time is over, a command goes, and its children too, whether they heed signals or not."""
    line = script(f"{stubborn}\n{FAMILY.format(pids=tmp_path / 'pids')}\nsleep 60; sleep 60")
    began = time.monotonic()
    run_real(define_real(Command(line), timeout=0.3), path)

    assert 1 == len(events(path, AttemptTimedOut))
    assert [] == events(path, AttemptReturnedLate)
    assert time.monotonic() - began < 5
    assert 3 == len(family(tmp_path))
    assert wait_until(lambda: not any(is_alive(pid) for pid in family(tmp_path)))


def test_what_a_command_leaves_behind_is_ended(path: Path, tmp_path: Path, script: Callable[[str], str]) -> None:
    """A command that ends while its children go on has answered; they are ended, and do not hold the answer up."""
    line = script(f"{FAMILY.format(pids=tmp_path / 'pids')}\necho done")
    began = time.monotonic()
    run_real(define_real(Command(line)), path)

    assert ["done"] == outputs(path)
    assert time.monotonic() - began < 5
    assert wait_until(lambda: not any(is_alive(pid) for pid in family(tmp_path)))


def test_a_number_that_is_too_long_is_refused_not_rounded(path: Path) -> None:
    """An integer that the journal cannot keep to its last digit is named, and fails its trial."""
    run_real(define_real(Command("echo 123456789012345678901234", output="json")), path)

    assert ("Unserialisable", True) == (failure(path).error, "123456789012345678901234" in failure(path).message)


def test_too_much_output_is_cut_off(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that prints for ever is ended, and its trial fails."""
    monkeypatch.setattr("runner.tasks.command.MAX_BYTES", 100_000)
    run_real(define_real(Command("yes")), path)

    assert ("fatal", True) == (failure(path).category, "printed more than" in failure(path).message)


INTERRUPTED = """
import sys
from runner import Case, evaluation, run
from runner.tasks.command import Command

it = evaluation(cases=[Case(name=str(n), input=n) for n in range(20)], slots=3)(Command(sys.argv[1]))
outcome = run(it, sys.argv[2], policy="fixed", grace=0.1, signals=True)
print(outcome.stopped)
"""


def test_nothing_is_left_running_after_an_interrupt(path: Path, tmp_path: Path, script: Callable[[str], str]) -> None:
    """Ctrl-C ends the run, and every process that it had started; what was in the air is recorded as cut off."""
    line = script(f"{FAMILY.format(pids=tmp_path / 'pids')}\nsleep 60")
    process = Process([PYTHON, "-c", INTERRUPTED, line, str(path)], stdout=subprocess.PIPE)
    with process:
        assert wait_until(lambda: len(family(tmp_path)) == 9)
        os.kill(process.pid, signal.SIGINT)
        said, _ = process.communicate(timeout=10)

    assert "interrupted\n" == said
    assert 3 == len(events(path, AttemptInterrupted))
    assert wait_until(lambda: not any(is_alive(pid) for pid in family(tmp_path)))


def test_it_can_be_asked_by_hand() -> None:
    """An evaluation of a command is still the command."""
    assert '"x"' == trio.run(define_real(Command("cat")), "x")
