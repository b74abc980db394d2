"""What other packages add: the example in docs/extending.md, and entry points that fail."""

import json
import shlex
import sys
import tomllib
from pathlib import Path

import pytest

from tests.packages import install
from tests.processes import ROOT, run_command, run_forked
from tests.runner_cli import commands
from tests.test_docs import blocks

RUN = ("run", "--data", "qa.jsonl", "--command", "cat", "-o", "run")
ROW = '{"id": "peru", "question": "Capital of Peru?", "expected": "Lima"}\n'
BROKEN = {
    "commands": {"run": "broken:Run", "mine": "broken:Mine", "number": "math:pi"},
    "formats": {"csv": "broken:Csv", "mine": "broken:Mine", "number": "math:pi"},
    "outputs": {"mine": "broken:Mine", "number": "math:isqrt"},
    "scorers": {"exact": "broken:Exact", "mine": "broken:Mine", "number": "my:number"},
    "workers": {"mine": "broken:Mine", "number": "my:number"},
}
"""Entry points that cannot be imported, that are not what their group needs, and that have built-in names."""


def evaljournal(line: str, environment: dict[str, str]) -> tuple[int, str, str]:
    return run_forked(["evaljournal", *shlex.split(line)], environment=environment)


def test_the_documented_package(tmp_path: Path) -> None:
    """The scorer, output, pool, format and command in docs/extending.md are used by their names."""
    parts = [(file or language, text) for language, file, text in blocks(ROOT / "docs" / "extending.md")]
    files = dict(parts)
    groups = tomllib.loads(files["pyproject.toml"])["project"]["entry-points"]
    environment = install(tmp_path, files, {group.removeprefix("evaljournal."): names for group, names in groups.items()})
    (tmp_path / "qa.jsonl").write_text(ROW)
    run, export, outputs = files["no-run"].splitlines()

    code, _, err = evaljournal(run.removeprefix("evaljournal "), environment)
    assert 0 == code, err
    assert "1\n" == (tmp_path / "n.txt").read_text()
    assert '"Capital of Peru?"\n' == evaljournal(outputs.removeprefix("evaljournal "), environment)[1]
    assert "" == evaljournal(export.removeprefix("evaljournal "), environment)[1]
    status = json.loads(evaljournal("status run --json", environment)[1])
    assert {"max_words": 1.0} == {name: score["mean"] for name, score in status["scores"].items()}
    rejected = evaljournal("run --data qa.jsonl --command cat --export count:missing/n.txt", environment)
    assert (2, "", "Error: missing is not a directory\n") == rejected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("mine", "'mine' of example 1.0 (evaljournal.commands: broken:Mine) cannot be used: RuntimeError: no library"),
        ("number", "'number' of example 1.0 (evaljournal.commands: math:pi) cannot be used: TypeError: it is a float, not a"),
        ("export run -f mine", "(evaljournal.formats: broken:Mine) cannot be used: RuntimeError: no library"),
        ("export run -f number", "(evaljournal.formats: math:pi) cannot be used: TypeError: it is a float, not a TableFile"),
        ("run --data qa.jsonl --command cat --export mine", "(evaljournal.outputs: broken:Mine) cannot be used: RuntimeError"),
        ("run --data qa.jsonl --command cat --export number", "(evaljournal.outputs: math:isqrt) cannot be used: TypeError"),
        ("run --data qa.jsonl --command cat --export other", "unknown output 'other'; use ipython, nat, otlp, mine, number"),
        ("run --data qa.jsonl --command cat --score mine", "(evaljournal.scorers: broken:Mine) cannot be used: RuntimeError"),
        ("run --data qa.jsonl --command cat --score number:1", "cannot be used: TypeError: it returned a str, not a scorer"),
        ("run --data qa.jsonl --command cat --score numbr", "did you mean 'number'?"),
        ("run --data qa.jsonl --command cat --workers mine", "(evaljournal.workers: broken:Mine) cannot be used: RuntimeError"),
        ("run --data qa.jsonl --command cat --workers number:1", "TypeError: it returned a str, not a WorkerPool"),
        ("numbr", "No such command 'numbr'; did you mean 'number'?"),
    ],
)
def test_an_entry_point_that_fails(tmp_path: Path, line: str, expected: str) -> None:
    """It is a usage error that names the package and the entry point."""
    modules = {"broken.py": "raise RuntimeError('no library')", "my.py": "def number(text):\n    return str(text)\n"}
    environment = install(tmp_path, modules, BROKEN)
    (tmp_path / "qa.jsonl").write_text(ROW)
    if line.startswith("export"):
        commands.evaljournal(*RUN)

    code, out, err = evaljournal(line, environment)

    assert (2, "") == (code, out), err
    assert expected in " ".join(err.split())


def test_a_broken_package_breaks_nothing_else(tmp_path: Path) -> None:
    """Commands, formats, scorers and workers that are built in are used although a package has their names and fails."""
    environment = install(tmp_path, {"broken.py": "raise RuntimeError('no library')", "my.py": ""}, BROKEN)
    (tmp_path / "qa.jsonl").write_text(ROW)

    code, _, err = evaljournal("run --data qa.jsonl --command cat --score exact --workers processes:1 -o run", environment)
    assert 0 == code, err
    assert evaljournal("export run -f csv", environment)[1].startswith("trial,")
    assert evaljournal("export run -f nat -o nat", environment)[0] == 0
    help_text = evaljournal("export --help", environment)[1]
    assert "  inspect       an `.eval` log" in help_text
    assert (
        "  mine          the entry point 'mine' of example 1.0 (evaljournal.formats: broken:Mine) cannot be used" in help_text
    )
    assert "import" in evaljournal("--help", environment)[1]


@pytest.mark.parametrize("line", ["--help", "run --help-all", "status run", "export run", "show run"])
def test_most_commands_read_no_entry_points(tmp_path: Path, line: str) -> None:
    """Metadata of installed packages are read only for a name that is not built in, so that start-up stays fast."""
    (tmp_path / "qa.jsonl").write_text(ROW)
    commands.evaljournal(*RUN)
    code = (
        "import sys; from evaljournal import entry_points; from evaljournal.__main__ import main\n"
        f"sys.argv[1:] = {shlex.split(line)}\n"
        "try: main()\n"
        "finally: print(entry_points._own.cache_info().misses, entry_points.others.cache_info().misses, file=sys.stderr)"
    )

    result = run_command(sys.executable, "-c", code)

    assert (0, "0 0\n") == (result.returncode, result.stderr)
