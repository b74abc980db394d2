"""Arguments and options that several commands share: RUN, TRIAL, -o."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import click
from click.shell_completion import CompletionItem

from evaljournal.journal.disk import segments
from evaljournal.replay.runs.loaded_run import load, split_variant
from evaljournal.runner.errors import UsageError, suggest
from evaljournal.runner.runs.paths import RUNS, runs_newest_first, runs_under
from evaljournal.runner.sessions.suite_file import find_suite, newest_suite, read_suite

F = TypeVar("F", bound=Callable[..., Any])

_MAX_COMPLETED_JOURNAL: Final = 4_000_000
"""Maximum bytes of a journal whose trial names are completed; reading a larger one would delay the shell."""


class SuiteGiven(UsageError):
    """A suite was given, or is the newest, where a command takes a run."""

    def __init__(self, path: Path) -> None:
        runs = [str(run) for run in read_suite(path).runs.values() if segments.is_run(run)]
        super().__init__(
            f"{path} is a suite; " + (f"pass one of its runs: {', '.join(runs)}" if runs else "none of its runs has started")
        )


def _newest_in(directory: Path) -> Path | None:
    """Return the run in a directory that was written last; raise an error if it is in a suite, which has several."""
    suite = newest_suite(directory)
    if suite is not None:
        raise SuiteGiven(suite)
    return next(iter(runs_newest_first(directory)), None)


def find_run(argument: str | Path | None = None, *, or_review: bool = False) -> Path:
    """Return the run that an argument names: a run directory, a directory of runs, or the name of an evaluation under runs/.

    Of several runs, and without an argument, the one that was written last is returned. A suite is not a run, nor is the review
    of a run, unless `or_review` is set.
    """
    if argument is None:
        if (run := _newest_in(RUNS)) is None:
            raise UsageError(f"no RUN given and no runs under {RUNS}/; start one with `evaljournal run FILE.py`")
        return run

    path = Path(argument)
    if segments.is_review(path) and not or_review:
        raise UsageError(
            f"{path} is the review of a run", hint=f"pass {path.parent}, or print it with `evaljournal log {path}`"
        )
    if segments.is_run(path):
        return path
    for directory in (path, RUNS / path):
        if directory.is_dir() and (run := _newest_in(directory)) is not None:
            return run

    if path.exists():
        return path  # Reading it reports what is wrong.

    name, variant = split_variant(str(path))
    if variant is not None and segments.is_run(Path(name)):
        raise UsageError(f"{path} does not exist; this command takes a whole run, not its variant {variant!r}")
    raise UsageError(f"{path} does not exist{suggest(str(path), _run_names()) or '; `evaljournal ls` lists the runs'}")


def _run_names() -> list[str]:
    runs = runs_under(RUNS)
    return [*dict.fromkeys(path.parent.name for path in runs), *map(str, runs)]


class RunReference(NamedTuple):
    """A run, or one variant of it."""

    path: Path
    variant: str | None = None

    def __str__(self) -> str:
        return str(self.path) if self.variant is None else f"{self.path}@{self.variant}"


def find_reference(argument: str | Path | None = None) -> RunReference:
    """Return the run or the variant that an argument names: anything that `find_run` takes, or RUN@VARIANT.

    An existing path that contains an @ takes precedence. @VARIANT names a variant of the newest run, which is the default.
    """
    run, variant = split_variant(str(argument or ""), RUNS)
    return RunReference(find_run(run or None), variant)


def _find_suite_or_run(argument: str | None = None) -> Path:
    return find_suite(argument) or find_run(argument)


def _find_suite_or_reference(argument: str | None = None) -> RunReference:
    suite = find_suite(argument)
    return find_reference(argument) if suite is None else RunReference(suite)


class RunType(click.ParamType):  # type: ignore[type-arg]  # generic in the newest click only
    name = "run"

    def __init__(self, find: Callable[[str], Any] = find_run) -> None:
        self._find = find

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return self._find(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Complete evaluations and runs under `runs/`, otherwise directories."""
        items = [CompletionItem(name) for name in _run_names() if name.startswith(incomplete) and name.isprintable()]
        return items or [CompletionItem(incomplete, type="dir")]


def _run_argument(name: str, find: Callable[..., Any]) -> Callable[[F], F]:
    """Return an optional argument, by default the newest.

    It is found in a callback, whose errors do not end the completion of a shell.
    """

    def find_default(_: click.Context, __: click.Parameter, value: Any) -> Any:
        return find() if value is None else value

    return click.argument(name, type=RunType(find), required=False, metavar="[RUN]", callback=find_default)


run_argument = _run_argument("path", find_run)
suite_argument = _run_argument("path", _find_suite_or_run)
suite_or_reference_argument = _run_argument("run", _find_suite_or_reference)
reference_argument = _run_argument("run", find_reference)


def output_option(metavar: str, text: str, **arguments: Any) -> Callable[[F], F]:
    """Add the option -o, whose path is passed as `target`."""
    return click.option("-o", "--output", "target", metavar=metavar, type=click.Path(path_type=Path), help=text, **arguments)


def run_and_trial(run: str | None, trial: str | None, *, or_review: bool = False) -> tuple[Path, str | None]:
    """Return the run and the trial that one or two arguments name.

    One argument is a run if it has a path separator, exists, or is an evaluation under `runs/`; otherwise it is a trial of the
    newest run.
    """
    if run is None:
        return find_run(), None
    is_run = trial is not None or "/" in run or os.sep in run or Path(run).exists() or bool(runs_under(RUNS / run))
    if is_run:
        return find_run(run, or_review=or_review), trial
    if not runs_under(RUNS):
        raise UsageError(f"{run!r} is neither a run nor an evaluation, and {RUNS}/ has no runs to find a trial in")
    return find_run(), run


class TrialType(click.ParamType):  # type: ignore[type-arg]  # generic in the newest click only
    name = "trial"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Complete trials, and runs where the argument may be one."""
        items = RunType().shell_complete(ctx, param, incomplete) if param.name == "run" else []
        return [item for item in items if item.type != "dir"] + [
            CompletionItem(name)
            for name in _trial_names(ctx.params.get("run"))
            if name.startswith(incomplete) and name.isprintable()
        ]


def _trial_names(run: str | None) -> list[str]:
    try:
        path = find_run(run)
        if sum(file.lstat().st_size for file in path.glob("journal-*.jsonl")) > _MAX_COMPLETED_JOURNAL:
            return []
        return list(load(path).state.trials)
    except Exception:  # noqa: BLE001  # a shell shows nothing rather than a traceback
        return []
