"""Commands that look at a run and change nothing."""

import contextlib
import shlex
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import click
import orjson
import trio

from journal import JournalError, Record, read, segments
from journal import follow as follow_journal
from journal.codec import EVENT_TYPES, event_type
from journal.events import RunFinished, RunStarted, SessionStarted, fields_of
from journal.files import DISK
from journal.lock import is_held
from journal.reader import LineReader, fetch
from journal.scan import ScanStop
from replay import LoadedRun, RunState, idle, load
from replay.ending import ending_in_words, final_report, next_command, total_trials
from replay.loaded_run import reject_invalid_record
from replay.screen import panel
from replay.summary import Grouping, in_json, summarise
from replay.summary_text import group_lines
from replay.text import plural, printable
from runner.cli import DAMAGED, Refused
from runner.cli._common import chosen_run, newest_run
from runner.run_paths import RUNS, last_record, runs_under
from runner.signals import until_signal
from runner.suggest import nearest

if TYPE_CHECKING:
    from rich.console import Console, Group

_GROUPS: Final = 20
"""Groups that are told one by one; `--json` has all."""
_LITTLE: Final = 1 << 20
"""Bytes below which a disk is as good as full."""
_SESSION: Final = b'"type":"session_started"'


@click.command()
@click.argument("run", required=False)
@click.argument("trial", required=False)
@click.option("--type", "types", metavar="TYPE", multiple=True, help="Only records of this type; can be given again.")
@click.option("-f", "--follow", is_flag=True, help="Go on as records are written, until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print the lines as they stand on disk.")
def log(run: str | None, trial: str | None, types: tuple[str, ...], follow: bool, as_json: bool) -> None:
    """Print the records of a run, or those of one TRIAL.

    \b
    evaljournal log runs/capitals/0001
    evaljournal log runs/capitals/0001 peru --type attempt_failed --type attempt_timed_out
    evaljournal log -f --json | jq .type
    """
    for name in types:
        if name not in EVENT_TYPES and not name.startswith("x-"):
            raise click.UsageError(f"there is no type of event {name!r}{nearest(name, EVENT_TYPES)}")
    path, trial = run_and_trial(run, trial)
    with LineReader(path) as lines:
        view = _View(trial, frozenset(types), lines if as_json else None)
        if follow:
            trio.run(_follow, path, view)
            return
        reading = read(path, load_blobs=False)
        for record in reading:
            view.show(record)
    say_unfinished(reading.unfinished)
    if trial is not None and trial not in view.trials:
        raise Refused(f"{path} has no trial {trial!r}{nearest(trial, view.trials)}")


class _View:
    """Which records are shown, and how."""

    def __init__(self, trial: str | None, types: frozenset[str], lines: LineReader | None) -> None:
        self._trial = trial
        self._types = types
        self._lines = lines
        self.trials: set[str] = set()
        """The trials that were met, for a name that was not."""

    def show(self, record: Record) -> None:
        """Print a record, if it is one of those that were asked for."""
        about = getattr(record.event, "trial", "")
        if self._trial is not None:
            self.trials.add(about)
            if about != self._trial:
                return
        if self._types and event_type(record.event) not in self._types:
            return
        if self._lines is not None:
            click.echo(self._lines.line_of(record), nl=False)
        else:
            click.echo(_in_words(record))


def run_and_trial(run: str | None, trial: str | None) -> tuple[Path, str | None]:
    """Tell a run from a trial: one word that is no directory is a trial of the newest run."""
    if run is not None and trial is None and not Path(run).exists():
        try:
            return newest_run(), run
        except Refused as exc:
            raise Refused(f"{run} does not exist, and there is no run under {RUNS}/ here of which it could be a trial") from exc
    return chosen_run(Path(run) if run is not None else None), trial


async def _follow(path: Path, view: _View) -> None:
    async def show_all() -> None:
        async for record in follow_journal(path, load_blobs=False):
            view.show(record)

    await until_signal(show_all, signal.SIGINT)


def _in_words(record: Record) -> str:
    fields = " ".join(f"{name}={printable(value)}" for name, value in _fields(record))
    at, name = printable(record.at[11:23]), printable(event_type(record.event))
    return f"{record.seq:>7}  {at}  {record.t:>10.3f}  {name:<20}  {fields}"


def _fields(record: Record) -> Iterator[tuple[str, Any]]:
    for field in fields_of(type(record.event)):
        value = getattr(record.event, field.name)
        if value != field.default:
            yield field.name, value


@attrs.frozen
class Seen:
    """A run as its journal shows it, as far as the journal can be trusted."""

    history: LoadedRun
    is_live: bool
    """Whether a writer is alive; of an earlier point, whether one was."""

    @property
    def path(self) -> Path:
        """Where it is."""
        return self.history.path

    @property
    def state(self) -> RunState:
        """How far it has come."""
        return self.history.state

    @property
    def problem(self) -> JournalError | None:
        """What is wrong with the journal behind the last record that was taken in."""
        return self.history.problem

    @property
    def status(self) -> str:
        """Say how the run stands, in one word."""
        if self.problem is not None:
            return "damaged"
        if self.is_live:
            return "running"
        return {"": "interrupted", "finished": "finished"}.get(self.state.ending, "stopped")


def groups_of(seen: Seen, by: str) -> dict[str, str]:
    """Find the group of every trial by a key of its metadata; refuse a key that none has."""
    found = Grouping(by)
    for record in seen.history.records():
        found.take(record)
    if by not in found.keys:
        raise Refused(f"no case of {seen.path} has {by!r} in its metadata{nearest(by, found.keys)}")
    return found.groups


def see(path: Path, at: int | None = None) -> Seen:
    """Take in a run, whether it is live, stopped, finished or damaged, up to record `at`; nothing is changed."""
    is_live = is_held(path)  # Before it is read: a writer that ends meanwhile has then written its last word.
    history = load(path, at)
    return Seen(history, is_live if history.is_last else not history.state.ending)


@click.command()
@click.argument("run", type=click.Path(path_type=Path), required=False)
@click.option("--by", metavar="KEY", help="Also tell the trials apart by this key of their metadata.")
@click.option("--json", "as_json", is_flag=True, help="Print a summary as JSON.")
def status(run: Path | None, by: str | None, as_json: bool) -> None:
    """Tell where a run stands: one that is going on, was stopped, is finished, or is damaged.

    A damaged run is told up to the damage, and the code is 4. Nothing is changed, and a run that is going on is not disturbed.

    \b
    evaljournal status
    evaljournal status runs/capitals/0001 --by difficulty
    evaljournal status runs/capitals/0001 --json | jq .trials
    """
    seen = see(chosen_run(run))
    if by is not None and not as_json:
        groups = summarise(seen.state, groups=groups_of(seen, by)).groups
        click.echo("\n".join(group_lines(groups or {}, by, most=_GROUPS)))
    if as_json:
        print_json(summary_of(seen, by))
    elif seen.is_live or seen.problem is not None:
        draw(seen.history, seen.state.t + age(seen.state, time.time()) if seen.problem is None else None)
        if seen.problem is None:
            click.echo(_by_whom(seen.state))
    else:
        click.echo(final_report(seen.state, path=seen.path))
        _say_room(seen)
    say_damage(seen.problem, quiet=as_json)


def _say_room(seen: Seen) -> None:
    """Say that a disk is full, where a run was cut off on it: its last word may not have had room."""
    free = shutil.disk_usage(seen.path).free
    if seen.status == "interrupted" and free < _LITTLE:
        click.echo(f"its disk has {plural(free, 'byte')} left, which may be why; make room before it is resumed")


def say_damage(problem: JournalError | None, *, quiet: bool = False) -> None:
    """End with code 4, and say why, where what was shown goes only as far as the damage."""
    if problem is not None:
        if not quiet:
            click.echo(f"that is how far it can be trusted: {problem}", err=True)
        sys.exit(DAMAGED)


def say_unfinished(stop: ScanStop | None) -> None:
    """Say what stands behind the last record, where something does that nobody was promised."""
    if stop is not None:
        click.echo(f"behind record {stop.seq - 1:,}: {stop.check}", err=True)


def summary_of(seen: Seen, by: str | None = None) -> dict[str, Any]:
    """Say in JSON where a run stands."""
    path, state = seen.path, seen.state
    return {
        "path": str(path),
        "status": seen.status,
        "is_live": seen.is_live,
        "problem": None if seen.problem is None else str(seen.problem),
        "durable": seen.history.durable,
        "next": _next(seen),
        "waiting": waiting_of(seen),
        **in_json(summarise(state, groups=None if by is None else groups_of(seen, by))),
    }


def waiting_of(seen: Seen) -> list[dict[str, Any]]:
    """Return in JSON why slots of a running run are idle, now or at the last record that was asked for."""
    if not seen.is_live or seen.problem is not None:
        return []
    now = seen.state.t + (age(seen.state, time.time()) if seen.history.is_last else 0.0)
    return idle.in_json(idle.reasons(seen.state, now=now, total=seen.history.total))


def _next(seen: Seen) -> str:
    """Name the command that comes next: for a run as it is, as it stood, or as far as it is whole."""
    if seen.problem is not None:
        return f"evaljournal salvage {shlex.quote(str(seen.path))} -o NEW"
    return next_command(seen.state, seen.path) if seen.history.is_last else fork_command(seen.path, seen.history.seq)


def fork_command(path: Path, seq: int) -> str:
    """Name the command that goes on from an earlier point."""
    return f"evaljournal fork {shlex.quote(str(path))} --at {seq} -o NEW"


def print_json(value: Any) -> None:
    """Print what was asked for as JSON."""
    click.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS))  # A forged name may be a number.


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns; the first says what they are."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        click.echo("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


def terminal(*, stderr: bool = False) -> "Console":
    """Open the terminal to draw on; what is drawn is shown as it is, whatever it looks like."""
    from rich.console import Console  # noqa: PLC0415  # slow to import

    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def draw(history: LoadedRun, now: float | None = None) -> None:
    """Draw the screen as it stood at a moment (in the seconds of `t`), or when the last record was written."""
    console = terminal()
    console.print(picture(history, history.state.t if now is None else now, console.width))


def age(state: RunState, now: float) -> float:
    """Tell how long ago the last record was written, where its clock on the wall is ours; else it is new to us."""
    if not state.sessions or state.sessions[-1].host != socket.gethostname():
        return 0.0
    try:
        return max(0.0, now - datetime.fromisoformat(state.at).timestamp())
    except ValueError:
        return 0.0


def picture(history: LoadedRun, now: float, width: int) -> "Group":
    """Draw the same screen that the run itself draws."""
    with reject_invalid_record(history.path, lambda: history.seq):
        return panel(
            history.state,
            now=now,
            durable=history.durable,
            total=history.total,
            width=width,
            before=history.before,
            title=str(history.path),
            goes_on=history.problem is None,
        )


def _by_whom(state: RunState) -> str:
    session = state.sessions[-1] if state.sessions else None
    by = f" by process {session.pid} on {printable(session.host)}" if session else ""
    return f"going on{by}; the last record is of {printable(state.at)}"


@click.command("ls")
@click.argument("directory", type=click.Path(path_type=Path), required=False, default=RUNS)
@click.option("--json", "as_json", is_flag=True, help="Print a list as JSON.")
def ls(directory: Path, as_json: bool) -> None:
    """List the runs under runs/, or under DIRECTORY.

    A run that says itself that it is finished is not read; `evaljournal verify` tells whether it is whole.

    \b
    evaljournal ls
    evaljournal ls /mnt/archive/runs --json | jq '.[].path'
    """
    if not directory.is_dir() and directory != RUNS:
        raise Refused(f"{directory} is not a directory")
    runs = [_entry(path) for path in runs_under(directory)]
    if as_json:
        print_json(runs)
        return
    if not runs:
        click.echo(f"there are no runs under {directory}/; `evaljournal run evals/capitals.py` makes one", err=True)
        return
    print_table([("RUN", "EVALUATION", "STARTED", "OK", "FAILED", "TRIALS", "ENDED"), *map(_columns, runs)])


def _entry(path: Path) -> dict[str, Any]:
    """Tell a run in a few words. One that is finished says its own counts; any other has to be read."""
    entry: dict[str, Any] = {"path": str(path)}
    last = last_record(path)
    if last is not None and isinstance(last.event, RunFinished):
        with contextlib.suppress(JournalError):
            first = first_records(path)
            done = last.event
            return entry | {
                "evaluation": first[0].evaluation if first else None,
                "started_at": first[1] if first else None,
                "completed": done.completed,
                "failed": done.failed,
                "trials": done.completed + done.failed,
                "status": "finished",
                "ended": "finished",
            }
    try:
        seen = see(path)
    except (JournalError, OSError) as exc:  # One that cannot be read must not hide the others.
        none = dict.fromkeys(("evaluation", "started_at", "completed", "failed", "trials"))
        return entry | none | {"status": "unreadable", "ended": str(exc)}
    state = seen.state
    return entry | {
        "evaluation": state.started.evaluation if state.started else None,
        "started_at": state.sessions[0].at if state.sessions else None,
        "completed": state.completed,
        "failed": state.failed,
        "trials": total_trials(state),
        "status": seen.status,
        "ended": seen.status if seen.problem or seen.is_live else ending_in_words(state),
    }


def _columns(entry: dict[str, Any]) -> tuple[str, ...]:
    def cell(name: str) -> str:
        value = entry[name]
        return "-" if value is None else f"{value:,}" if isinstance(value, int) else printable(value)

    started = cell("started_at")[:19].replace("T", " ")
    counts = cell("completed"), cell("failed"), cell("trials")
    return printable(entry["path"], 200), cell("evaluation"), started, *counts, cell("ended")


def first_records(path: Path) -> tuple[RunStarted, str] | None:
    """Find what a run is a run of, and when it began, without reading on; None if it had not come so far."""
    for record in read(path, load_blobs=False):
        if isinstance(record.event, RunStarted):
            return record.event, record.at
    return None


def task_since(path: Path) -> str:
    """Find where a later session has found the evaluation, if it was not where it was at first.

    Sessions are few among many records: only their lines are read, from the end.
    """
    for number in reversed(segments.numbers(path, DISK)):
        with DISK.read(str(path / segments.name(number))) as stream:
            lines = stream.read()
        place = len(lines)
        while (place := lines.rfind(_SESSION, 0, place)) >= 0:
            with contextlib.suppress(JournalError):  # It may be torn, or damaged: whoever reads the whole of it will say so.
                event = fetch(path, number, lines.rfind(b"\n", 0, place) + 1, load_blobs=False).event
                adopted = event.adopted if isinstance(event, SessionStarted) else None
                if isinstance(adopted, dict) and isinstance(task := adopted.get("task"), str):
                    return task
    return ""
