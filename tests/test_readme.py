"""The README's programs run, and it names every command."""

import re
import subprocess
import sys
from pathlib import Path

from journal import read
from replay.auditing import audit
from runner.cli import COMMANDS

ROOT = Path(__file__).parents[1]


def test_the_program_in_the_readme_runs(tmp_path: Path) -> None:
    """The program that writes a journal prints its eight records, and the journal passes the audit."""
    program = re.search(r"```python\n(import trio\n.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert program is not None

    printed = subprocess.run([sys.executable, "-c", program[1]], capture_output=True, text=True, check=True, timeout=60).stdout

    lines = printed.splitlines()
    assert 8 == len(lines)
    assert lines[0].startswith("1 SegmentOpened(")
    assert lines[6].startswith("7 TrialCompleted(")
    assert lines[7].startswith("8 SegmentSealed(")
    assert audit(read(tmp_path / "runs" / "capitals" / "0001")).ok


def test_the_readme_names_every_command() -> None:
    """The README names every command."""
    readme = (ROOT / "README.md").read_text()

    assert [] == [name for name in COMMANDS if f"evaljournal {name}" not in readme]


def test_the_evaluation_in_the_readme_runs(tmp_path: Path) -> None:
    """The README's evaluation runs and is scored."""
    program = re.search(r"```python\n(# evals/capitals.py\n.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert program is not None
    (tmp_path / "capitals.py").write_text(program[1])

    command = [sys.executable, "-c", "from runner.cli import main; main()", "run", "capitals.py"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)

    assert "1 ok of 1 done" in ended.stderr
    assert "exact  100.0 %" in ended.stderr
