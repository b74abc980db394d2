"""`salvage` of a run that has lost its definition, and what the other commands do with the new run."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.journal.samples import lines_of, overwrite, segment
from tests.journal.test_salvage import DAMAGES
from tests.runner_cli.commands import evaljournal

EVALUATION = """
from pathlib import Path
from evaljournal import Case, evaluation

@evaluation(cases=[Case(name=name, input=name) for name in "abcde"], slots=1, fail_fast=True)
def letters(letter):
    with Path("calls").open("a") as file:
        file.write(letter)
    if letter == "c":
        raise TypeError
    return letter * 300_000

@letters.score
def exact(output):
    return True
"""


def rows(path: str) -> list[dict[str, Any]]:
    """Return the exported trials of a run."""
    result = evaljournal("export", path, "-f", "jsonl")
    assert 0 == result.exit_code, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def salvage(damage: str, text: str = EVALUATION) -> tuple[list[dict[str, Any]], str]:
    """Run the evaluation until its error, damage the journal, and salvage it; return the trials before, and the output."""
    Path("letters.py").write_text(text)
    assert 3 == evaljournal("run", "letters.py", "-o", "run", "--plain").exit_code
    rows_before = rows("run")
    overwrite(segment(Path("run")), b"".join(DAMAGES[damage](lines_of(Path("run")))))
    assert 4 == evaljournal("verify", "run").exit_code
    salvaged = evaljournal("salvage", "run", "-o", "new")
    assert 0 == salvaged.exit_code, salvaged.output
    return rows_before, salvaged.output


@pytest.mark.parametrize("damage", ["line 2 at 50 %", "no line 1", "no line 2", "no lines 1 and 2"])
@pytest.mark.parametrize("variants", ["", ', variants={"size": [300_000, 3]}'])
def test_a_run_without_its_definition_is_usable(damage: str, variants: str) -> None:
    """Its trials are exported and shown, and `resume --task` continues it without calling a recorded trial again."""
    text = EVALUATION.replace("fail_fast=True", f"fail_fast=True{variants}")
    rows_before, _ = salvage(damage, text.replace("letters(letter)", "letters(letter, size)") if variants else text)
    calls_before = Path("calls").read_text()
    for command in ("verify", "show", "report", "ls", "log"):
        result = evaljournal(command, "new")
        assert 0 == result.exit_code, (command, result.output)
    assert [(row["trial"], row["output"]) for row in rows_before] == [(row["trial"], row["output"]) for row in rows("new")]

    result = evaljournal("resume", "new", "--plain")
    assert (2, True) == (result.exit_code, "--task REFERENCE" in result.output), result.output
    result = evaljournal("resume", "new", "--task", "letters.py", "--plain", "--no-fail-fast")
    assert 1 == result.exit_code, result.output
    calls = Path("calls").read_text()
    assert (calls_before, "abc"[: len(set(calls_before))]) == (calls[: len(calls_before)], "".join(sorted(set(calls_before))))
    assert (10 if variants else 5) == len(calls) == len(rows("new"))
    assert 0 == evaljournal("verify", "new").exit_code
    assert "nothing to resume" in evaljournal("resume", "new", "--plain").output


def test_a_run_with_its_definition_stays_the_own() -> None:
    """If only the first line is damaged, `resume` continues the salvaged run; nothing that it names was changed."""
    salvage("line 1 at 50 %")

    assert 1 == evaljournal("resume", "new", "--plain", "--no-fail-fast").exit_code
    assert (5, "abcde") == (len(rows("new")), Path("calls").read_text())
    assert 0 == evaljournal("verify", "new").exit_code


def test_another_evaluation_is_rejected() -> None:
    """Without a recorded definition, `resume --task` still requires the recorded cases."""
    assert "`evaljournal resume new --task REFERENCE`" in salvage("no line 2")[1]
    Path("letters.py").write_text(EVALUATION.replace("abcde", "xyz"))

    result = evaljournal("resume", "new", "--task", "letters.py")
    assert (2, True) == (result.exit_code, "5 cases removed: 'a', 'b', 'c', 'd', 'e'" in result.output), result.output
