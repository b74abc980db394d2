"""No text that a user or contributor reads has a phrase of the early dialect.

`python -m tests.test_language PATH…` checks files or folders, and `pytest tests/test_language.py -k PATH` does the same.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import pytest

from runner.cli import COMMANDS, cli

ROOT: Final = Path(__file__).parent.parent
PACKAGES: Final = ("journal", "replay", "runner", "evaljournal")
PHRASES: Final = (
    "anew",
    "asked to be left alone",
    "back end",
    "back-end",
    "can be given again",
    "cut off",
    "cut short",
    "for ever",
    "given up",
    "go on with",
    "goes on with",
    "illness",
    "in the air",
    "is ill",
    "left behind",
    "made again",
    "nobody",
    "refusal",
    "refused",
    "somebody",
    "the like",
    "the other side",
    "way on",
    "whoever",
)
ALLOWED: Final = ("connection refused",)
NOT_YET: Final[tuple[str, ...]] = (
    "README.md",
    "docs/audit.md",
    "docs/export.md",
    "docs/format.md",
    "docs/phoenix.md",
    "docs/report.md",
    "journal/__init__.py",
    "journal/codec.py",
    "journal/errors.py",
    "journal/events.py",
    "journal/files.py",
    "journal/lock.py",
    "journal/open.py",
    "journal/reader.py",
    "journal/recovery.py",
    "journal/salvaging.py",
    "journal/scan.py",
    "journal/segment_file.py",
    "journal/staging.py",
    "journal/threads.py",
    "journal/verification.py",
    "journal/writer.py",
    "replay/auditing.py",
    "replay/comparison.py",
    "replay/ending.py",
    "replay/export/__init__.py",
    "replay/export/inspect_log.py",
    "replay/export/junit.py",
    "replay/export/otlp.py",
    "replay/export/source.py",
    "replay/export/spool.py",
    "replay/export/story.py",
    "replay/export/tables.py",
    "replay/loaded_run.py",
    "replay/page/chart.js",
    "replay/page/drawer.js",
    "replay/page/page.js",
    "replay/page/policy.js",
    "replay/page/words.js",
    "replay/screen.py",
    "replay/state.py",
    "replay/statistics.py",
    "replay/summary.py",
    "replay/summary_text.py",
    "replay/timeline.py",
    "replay/trial.py",
    "runner/atomic_write.py",
    "runner/cli/__init__.py",
    "runner/cli/_display.py",
    "runner/cli/_dry_run.py",
    "runner/cli/_live.py",
    "runner/cli/_locate.py",
    "runner/cli/_no_code_options.py",
    "runner/cli/_session.py",
    "runner/cli/export.py",
    "runner/cli/fork.py",
    "runner/cli/log.py",
    "runner/cli/replay.py",
    "runner/cli/rescore.py",
    "runner/cli/resume.py",
    "runner/cli/run.py",
    "runner/cli/simulate.py",
    "runner/cli/status.py",
    "runner/cli/verify.py",
    "runner/cli/watch.py",
    "runner/concurrency/constants.py",
    "runner/concurrency/policy.py",
    "runner/data/columns.py",
    "runner/data/exact_json.py",
    "runner/data/fingerprint.py",
    "runner/data/readers.py",
    "runner/definition/evaluation.py",
    "runner/definition/loading.py",
    "runner/definition/settings.py",
    "runner/engine/attempt.py",
    "runner/engine/changes.py",
    "runner/engine/nat_output.py",
    "runner/engine/null_files.py",
    "runner/engine/recorder.py",
    "runner/engine/rescore.py",
    "runner/engine/session.py",
    "runner/engine/timer.py",
    "runner/executors/controller.py",
    "runner/executors/details.py",
    "runner/executors/execution.py",
    "runner/executors/executor.py",
    "runner/executors/inputs.py",
    "runner/executors/main_thread.py",
    "runner/executors/stop_handle.py",
    "runner/fork.py",
    "runner/recompute/rules.py",
    "runner/recompute/simulation.py",
    "runner/retries/classify.py",
    "runner/retries/retry.py",
    "runner/retries/retry_after.py",
    "runner/run_paths.py",
    "runner/secrets.py",
    "runner/signals.py",
    "runner/tasks/__init__.py",
    "runner/tasks/address.py",
    "runner/tasks/chat.py",
    "runner/tasks/client.py",
    "runner/tasks/command.py",
    "runner/tasks/endpoint.py",
    "runner/tasks/function.py",
    "runner/tasks/recorded_output.py",
    "runner/testing.py",
    "help",
)
"""Files and folders that are still to be rewritten."""

_FOUND: Final = re.compile(
    "|".join(["; else ", *(r"\b" + phrase.replace(" ", r"\s+") + r"\b" for phrase in (*ALLOWED, *PHRASES))]), re.IGNORECASE
)


def phrases_in(text: str) -> Iterator[tuple[int, str]]:
    """Yield each phrase in a text, with its line."""
    for match in _FOUND.finditer(text):
        phrase = " ".join(match[0].lower().split())
        if phrase not in ALLOWED:
            yield text.count("\n", 0, match.start()) + 1, phrase


def _texts_of_python(source: str) -> Iterator[tuple[int, str]]:
    """Yield the string literals, docstrings and comments of a module, each with its first line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def findings(path: Path) -> list[str]:
    """Return `file, line N: phrase` for each phrase in a file."""
    source = path.read_text(encoding="utf-8")
    texts = _texts_of_python(source) if path.suffix == ".py" else [(1, source)]
    found = {(first + line - 1, phrase) for first, text in texts for line, phrase in phrases_in(text)}
    return [f"{path.relative_to(ROOT)}, line {line}: {phrase}" for line, phrase in sorted(found)]


def _files() -> Iterator[Path]:
    yield ROOT / "README.md"
    yield from sorted((ROOT / "docs").rglob("*.md"))
    for package in PACKAGES:
        yield from sorted(
            path for path in (ROOT / package).rglob("*") if path.suffix in {".py", ".js", ".html", ".css"} and path.is_file()
        )


def _is_not_yet(path: Path) -> bool:
    name = path.relative_to(ROOT).as_posix()
    return any(name == each or name.startswith(f"{each}/") for each in NOT_YET)


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(
            path, id=path.relative_to(ROOT).as_posix(), marks=[pytest.mark.skip("to be rewritten")] * _is_not_yet(path)
        )
        for path in _files()
    ],
)
def test_files(path: Path) -> None:
    """No file has a phrase of the list."""
    assert [] == findings(path)


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help(name: str) -> None:
    """No help text has a phrase of the list."""
    if "help" in NOT_YET:
        pytest.skip("to be rewritten")
    command = cli.get_command(click.Context(cli), name) if name else cli
    assert command is not None
    text = command.get_help(click.Context(command, info_name=f"evaljournal {name}".strip()))

    assert [] == [f"evaljournal {name} --help, line {line}: {phrase}" for line, phrase in phrases_in(text)]


def test_the_test() -> None:
    """A phrase is found in a docstring, an f-string and a comment, across a line break; an allowed phrase is not."""
    source = '"""First.\n\nIn the\nair."""\nx = f"{1} is ill"  # Nobody.\ny = "Connection refused"; z = "N; else 4"\n'
    found = sorted((first + line - 1, phrase) for first, text in _texts_of_python(source) for line, phrase in phrases_in(text))

    assert [(3, "in the air"), (5, "is ill"), (5, "nobody"), (6, "; else")] == found


if __name__ == "__main__":
    wanted = [Path(argument).resolve() for argument in sys.argv[1:]] or [ROOT]
    lines = [line for path in _files() if any(path.is_relative_to(each) for each in wanted) for line in findings(path)]
    sys.stdout.write("\n".join(lines or ["no phrases found"]) + "\n")
    sys.exit(bool(lines))
