"""Runs as several commands open and show them, as text, as a screen, in a table or as JSON, and how a run ended: its exit code.

Most runs have no labels; finding that out takes no time, and imports nothing.

The progress of a run is a live screen, or plain lines.
"""

import json
import math
import os
import shlex
import socket
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TextIO

import attrs
import orjson

from evaljournal.journal import JournalError, Record
from evaljournal.journal.disk.lock import is_held
from evaljournal.journal.disk.segments import REVIEW, is_run
from evaljournal.journal.readers.scan import ScanStop
from evaljournal.replay import LoadedRun, RunState
from evaljournal.replay.render.ending import next_command
from evaljournal.replay.render.screen import LONG_PAUSE, panel, stall_reason
from evaljournal.replay.render.screen import line as status_line
from evaljournal.replay.results.summary import summarize
from evaljournal.replay.results.view_json import view_json
from evaljournal.replay.runs import idle
from evaljournal.replay.runs.loaded_run import Apply, load, reject_invalid_record, variant_problem
from evaljournal.replay.text import columns, printable
from evaljournal.runner.cli import DAMAGED, FAILED, OUTPUT_FAILED, UNDECIDED, UNFINISHED, CommandError
from evaljournal.runner.cli.arguments import RunReference
from evaljournal.runner.cli.terminal.errors import render
from evaljournal.runner.cli.terminal.output import OutputFailed, command_stream, echo, flush_output, write_data, writing_output
from evaljournal.runner.definition.gates import gate_results, trial_problems
from evaljournal.runner.errors import UsageError, command, suggest

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.live import Live

    from evaljournal.replay.results.comparison import Side
    from evaljournal.replay.review.reviewed import Reviewed

_LIMIT_FIELDS: Final = ("key", "unit", "size", "window", "source", "header")

FRAME_INTERVAL: Final = 0.2
"""Seconds between two frames of the live screen."""
MAX_LINE_INTERVAL: Final = 60.0
"""Maximum seconds between two progress lines, so that a slow run does not look stuck."""


def has_labels(path: Path) -> bool:
    """Return whether a run has a review with the labels of people."""
    return is_run(path / REVIEW)


def corrected_json(view: LoadedRun, variant: str | None = None) -> dict[str, Any] | None:
    """Return the corrected scores of a run or a variant as JSON; None without a review, which takes no time."""
    reviewed = _review_of(view)
    if reviewed is None:
        return None
    from evaljournal.replay.results.comparison import Side  # noqa: PLC0415  # most runs have no review

    return {name: view_json(score) for name, score in reviewed.corrected(Side(view.state, variant=variant)).items()}


def _review_of(view: LoadedRun) -> "Reviewed | None":
    """Return a run with the labels of its review; None if it has none."""
    if not has_labels(view.path):
        return None
    from evaljournal.replay.review.reviewed import open_review  # noqa: PLC0415  # most runs have no review

    return open_review(view)


def corrected_lines(view: LoadedRun, variant: str | None = None) -> Iterator[str]:
    """Yield a line for each corrected score of a variant, or of a run: of each of its variants, if it has any."""
    try:
        reviewed = _review_of(view)
    except JournalError as exc:  # The run itself can be shown.
        yield f"no corrected scores: {render(exc)}"
        return
    if reviewed is None:
        return
    from evaljournal.replay.results.comparison import Side  # noqa: PLC0415  # most runs have no review
    from evaljournal.replay.review import text  # noqa: PLC0415  # most runs have no review

    names: Sequence[str | None] = view.state.variants.names if variant is None else [variant]
    for name in names or [None]:
        prefix = f"{printable(name, 40)}: " if name is not None and variant is None else ""
        lines = text.corrected_lines(reviewed.corrected(Side(view.state, variant=name)))
        yield from (f"{prefix}{line}" for line in lines)


_Compared = tuple[LoadedRun, "Side"]


def difference_lines(a: _Compared, b: _Compared) -> Iterator[str]:
    for name, (run, side) in (("A", a), ("B", b)):
        yield from (f"{name}  {line}" for line in corrected_lines(run, side.variant))
    reviews = _review_of(a[0]), _review_of(b[0])
    if reviews[0] is not None and reviews[1] is not None:
        from evaljournal.replay.review import reviewed, text  # noqa: PLC0415  # most runs have no review

        kinds = {name: score.kind for name, score in reviews[0].corrected(a[1]).items()}
        yield from text.difference_lines(reviewed.corrected_differences((reviews[0], a[1]), (reviews[1], b[1])), kinds)


def difference_json(a: _Compared, b: _Compared) -> dict[str, Any] | None:
    """Return the corrected scores of both runs and their corrected differences; None if no run has a review."""
    reviews = _review_of(a[0]), _review_of(b[0])
    if reviews == (None, None):
        return None
    from evaljournal.replay.review.reviewed import corrected_differences  # noqa: PLC0415  # most runs have no review

    differences = corrected_differences((reviews[0], a[1]), (reviews[1], b[1]))
    sides = {name: corrected_json(run, side.variant) for name, (run, side) in (("a", a), ("b", b))}
    return {**sides, "differences": {name: view_json(difference, omit="p") for name, difference in differences.items()}}


def open_run(path: Path, seq: int | None = None, *, apply: Apply = LoadedRun.apply, run: LoadedRun | None = None) -> LoadedRun:
    """Read a run, in any status, up to record `seq`; into `run`, if that is passed."""
    is_live = is_held(path)  # Checked first: if the process ends meanwhile, its last record is read.
    run = load(path, seq, apply=apply, run=run)
    run.is_live = is_live if run.is_last else not run.state.outcome
    return run


def open_intact_run(path: Path, *, apply: Apply = LoadedRun.apply, run: LoadedRun | None = None) -> LoadedRun:
    """Read a run for a result that needs all of its records; raise if it is damaged."""
    run = open_run(path, apply=apply, run=run)
    if run.problem is not None:
        raise run.problem
    return run


def open_side(reference: RunReference, *, apply: Apply = LoadedRun.apply) -> "tuple[LoadedRun, Side]":
    """Read the run that a reference names; return it, and its side of a comparison with digests of its outputs."""
    from evaljournal.replay.results.comparison import Side, add_digest  # noqa: PLC0415  # for comparisons only

    digests: dict[str, bytes] = {}

    def apply_and_digest(run: LoadedRun, record: Record) -> None:
        apply(run, record)
        add_digest(digests, record)

    view = open_run(reference.path, apply=apply_and_digest)
    check_variant(view, reference.variant)
    return view, Side(view.state, digests, reference.variant)


def check_variant(view: LoadedRun, variant: str | None) -> None:
    """Raise an error if a run has no such variant; None is the whole run."""
    if problem := variant_problem(view, variant):
        raise UsageError(problem)


def groups_by(view: LoadedRun, key: str) -> dict[str, str]:
    grouping = view.grouping(key)
    if key not in grouping.keys:
        raise UsageError(f"no case of {view.path} has {key!r} in its metadata{suggest(key, grouping.keys)}")
    return grouping.groups


def exit_if_damaged(problem: JournalError | None, *, quiet: bool = False) -> None:
    """Report damage and exit with code 4, if there is any."""
    if problem is not None:
        if not quiet:
            echo(f"shown up to the damage: {render(problem)}", err=True)
        sys.exit(DAMAGED)


def warn_unconfirmed(stop: ScanStop | None) -> None:
    """Report bytes after the last record that were never confirmed."""
    if stop is not None:
        echo(f"after record {stop.seq - 1:,}: {stop.check}", err=True)


def status_json(view: LoadedRun, key: str | None = None) -> dict[str, Any]:
    """Return the status of a run as JSON; with a key of the metadata, also by group."""
    path, state, now = view.path, view.state, current_time(view)
    return {
        "path": str(path),
        "status": view.status,
        "is_live": view.is_live,
        "problem": None if view.problem is None else str(view.problem),
        "durable_seq": view.durable,
        "next_command": _next_command(view),
        "resume_after": _resume_after(state),
        "waiting": _idle_reasons(view, now),
        "limits": [
            {name: getattr(use.limit, name) for name in _LIMIT_FIELDS} | {"used": use.used}
            for use in state.policy.known_limits.uses(now)
        ],
        **view_json(summarize(state, groups=None if key is None else groups_by(view, key))),
        "corrected": corrected_json(view),
    }


def _resume_after(state: RunState) -> str | None:
    """Return the time from which a run that was stopped by a declared limit per day can continue."""
    end = state.policy.resume_after
    with suppress(ValueError, OverflowError):  # The times of a foreign journal may be any.
        return datetime.fromtimestamp(end, UTC).isoformat(timespec="seconds") if end else None
    return None


def current_time(view: LoadedRun) -> float:
    """Return the time of a running run in seconds of `t`: now, or as of its last record."""
    return view.state.t + (age(view.state, time.time()) if view.is_live and view.is_last else 0.0)


def _idle_reasons(view: LoadedRun, now: float) -> list[dict[str, Any]]:
    if not view.is_live or view.problem is not None:
        return []
    return [view_json(reason) for reason in idle.reasons(view.state, now=now, total=view.total)]


def _next_command(view: LoadedRun) -> str:
    """Return the command to continue: salvage, resume or fork."""
    if view.problem is not None:
        return f"evaljournal salvage {shlex.quote(str(view.path))} -o NEW"
    return next_command(view.state, view.path) if view.is_last else fork_command(view.path, view.seq)


def fork_command(path: Path, seq: int) -> str:
    return f"evaljournal fork {shlex.quote(str(path))} --at {seq} -o NEW"


def print_json(value: Any) -> None:
    options = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS  # Keys of a forged journal may be numbers.
    try:
        data = orjson.dumps(value, option=options)
    except TypeError:  # A path that is not valid UTF-8; its bytes are escaped as lone surrogates.
        data = json.dumps(value, indent=2).encode()
    write_data([data, b"\n"])


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns; the first row is the header."""
    for line in columns(rows):
        echo(line)


def terminal(*, stderr: bool = False) -> "Console":
    """Return a console that prints text unchanged, without markup."""
    from rich.console import Console  # noqa: PLC0415  # slow to import

    return Console(file=command_stream("stderr") if stderr else None, highlight=False, markup=False, emoji=False)


def print_screen(run: LoadedRun, now: float | None = None) -> None:
    """Print the screen as of a time (in the seconds of `t`; default: that of the last record)."""
    console = terminal()
    screen = render_screen(run, run.state.t if now is None else now, console.width)
    with writing_output():
        console.print(screen)


def age(state: RunState, now: float) -> float:
    """Return the seconds since the last record; 0 if it was written on another host, whose clock may differ."""
    if not state.sessions or state.sessions[-1].host != socket.gethostname():
        return 0.0
    return max(0.0, now - datetime.fromisoformat(state.at).timestamp())


def render_screen(run: LoadedRun, now: float, width: int) -> "Group":
    """Render the screen that the run itself draws."""
    with reject_invalid_record(run.path, lambda: run.seq):
        return panel(
            run.state,
            now=now,
            durable=run.durable,
            total=run.total,
            width=width,
            title=str(run.path),
            show_rate=run.problem is None,
        )


def finish(
    state: RunState,
    path: Path,
    *,
    as_json: bool,
    report: str = "",
    stop_reason: str = "",
    scorers: Iterable[str] = (),
    output_problem: str = "",
    **fields: Any,
) -> NoReturn:
    """Print the report of a run and exit with the code of the run.

    With `as_json`, its summary and `fields` are printed as JSON, and the report goes to standard error. `output_problem` is
    why other files of the run are incomplete: it is printed last, and the exit code of a finished run is then 1.
    """
    code = exit_code(state, path, stopped=bool(stop_reason), scorers=scorers) or (FAILED if output_problem else 0)
    try:
        if report:
            echo(report, err=as_json)
        if as_json:
            summary = {"stopped": stop_reason or None, **fields, "exit_code": code, **view_json(summarize(state))}
            print_json({"path": str(path), **summary})
        flush_output()
        if output_problem:
            echo(f"Error: {output_problem}", err=True)
    except OutputFailed as exc:
        ending = f"not finished: {stop_reason}" if stop_reason else "finished"
        message = f"{exc}; only the summary is missing, the run is {ending}; {command('status', path)} shows it"
        raise CommandError(message, OUTPUT_FAILED) from exc
    sys.exit(code)


def exit_code(state: RunState, path: Path, *, stopped: bool, scorers: Iterable[str] = ()) -> int:
    """Return the exit code of a run: 3 if it was stopped, 1 if it has errors, unscored outputs or a missed gate.

    5 if only gates on its review are missed, for which there are too few labels.
    """
    if stopped:
        return UNFINISHED
    missed = [result for result in gate_results(state, path) if not result.passed]
    if trial_problems(state, scorers):
        return FAILED
    return 0 if not missed else UNDECIDED if all(result.is_undecided for result in missed) else FAILED


def supports_screen(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("CI") and os.environ.get("TERM") != "dumb"


def progress_tenths(state: RunState, total: int | None) -> int:
    """Return how many tenths are done; without a total, a number that grows at 1, 5, 10, 50, 100, … trials."""
    done = state.totals.done
    if total:
        return 10 * done // total
    return 0 if not done else 2 * len(str(done)) + (str(done)[0] >= "5")


@attrs.define
class ProgressPrinter:
    """Prints a line for every tenth, after a minute without one, and when the run stalls and continues.

    A run that stalls every few seconds is reported once a minute.
    """

    printed_tenth: int | None = None
    printed_at: float = 0.0
    """Time of the last line, in the seconds of `t`."""
    err: bool = False
    prefix: str = ""
    is_stalled: bool = False
    stalled_at: float = -math.inf

    def update(self, state: RunState, *, now: float, total: int | None) -> None:
        tenths = progress_tenths(state, total)
        is_stalled = bool(stall_reason(state, now=now, min_pause=0.0 if self.is_stalled else LONG_PAUSE))
        continues = self.is_stalled and not is_stalled and not state.outcome
        has_changed = continues or (is_stalled and not self.is_stalled and not _is_recent(self.stalled_at, now))
        if tenths != self.printed_tenth or has_changed or not _is_recent(self.printed_at, now):
            if is_stalled and not self.is_stalled:
                self.stalled_at = now
            self.printed_tenth, self.printed_at, self.is_stalled = tenths, now, is_stalled
            text = status_line(state, now=now, total=total)
            echo(f"{self.prefix}{'resumed: ' if continues else ''}{text}", err=self.err)


def _is_recent(time: float, now: float) -> bool:
    return 0 <= now - time < MAX_LINE_INTERVAL  # Negative after the start of a session, which resets the seconds.


def live_screen(*, stderr: bool = False) -> "Live":
    """Return a screen that `redraw` draws; its last frame is removed at the end."""
    from rich.live import Live  # noqa: PLC0415  # slow to import

    return Live(console=terminal(stderr=stderr), auto_refresh=False, transient=True)


Show = Callable[[LoadedRun, float], None]
"""Shows a run as of a time, in the seconds of `t`."""


def redraw(screen: "Live", frame: "Group") -> None:
    """Replace the last frame.

    In a terminal that became narrower, the lines of the last frame have wrapped into more rows, which are erased first.
    """
    from rich import console, control, segment, text  # noqa: PLC0415  # slow to import

    last_frame = screen.get_renderable()
    lines = last_frame.renderables if isinstance(last_frame, console.Group) else []
    wrapped_rows = sum(max(0, line.cell_len - 1) // screen.console.width for line in lines if isinstance(line, text.Text))
    if wrapped_rows:
        erase_row = [(segment.ControlType.ERASE_IN_LINE, 2), (segment.ControlType.CURSOR_UP, 1)]
        screen.console.control(control.Control(*erase_row * wrapped_rows))
    screen.update(frame, refresh=True)


@contextmanager
def run_display() -> Generator[Show]:
    """Yield a function that shows a run on standard output, on a screen, whose last frame is removed, or in lines."""
    if not supports_screen(sys.stdout):
        printer = ProgressPrinter()
        yield lambda run, now: printer.update(run.state, now=now, total=run.total)
        return
    with live_screen() as screen:
        yield lambda run, now: redraw(screen, render_screen(run, now, screen.console.width))
