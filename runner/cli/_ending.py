"""The result of a run: its gates and its exit code."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NoReturn

from replay import RunState
from replay.summary import summarize
from replay.view_json import view_json
from runner.cli import UNFINISHED
from runner.cli._display import print_json
from runner.definition.gates import problems

FAILED: Final = 1


def finish(
    state: RunState, path: Path, *, as_json: bool, stopped: str = "", scorers: Iterable[str] = (), **facts: Any
) -> NoReturn:
    """Exit with the code of a run; with `as_json`, print a summary with `facts` first."""
    code = exit_code(state, stopped=bool(stopped), scorers=scorers)
    if as_json:
        summary = {"stopped": stopped or None, **facts, "exit_code": code, **view_json(summarize(state))}
        print_json({"path": str(path), **summary})
    sys.exit(code)


def exit_code(state: RunState, *, stopped: bool, scorers: Iterable[str] = ()) -> int:
    """Return the exit code of a run: 1 if trials failed, outputs are unscored or a gate did not pass."""
    if stopped:
        return UNFINISHED
    return FAILED if problems(state, scorers) else 0
