"""The command `evaljournal log`."""

import signal
from functools import partial
from pathlib import Path

import click
import trio

from evaljournal.journal import follow as follow_journal
from evaljournal.journal.events import Record, TrialEnqueued
from evaljournal.journal.fact import non_default_fields
from evaljournal.journal.format.codec import EVENT_TYPES, event_type
from evaljournal.journal.readers.reader import RecordReader, read
from evaljournal.replay.text import printable
from evaljournal.runner.cli.arguments import TrialType, run_and_trial
from evaljournal.runner.cli.terminal.display import warn_unconfirmed
from evaljournal.runner.cli.terminal.output import echo, write_data
from evaljournal.runner.errors import UsageError, suggest
from evaljournal.runner.signals import until_signal


@click.command()
@click.argument("run", type=TrialType(), required=False, metavar="[RUN]")
@click.argument("trial", type=TrialType(), required=False)
@click.option(
    "--type",
    "types",
    metavar="TYPE",
    multiple=True,
    shell_complete=lambda _, __, incomplete: [name for name in EVENT_TYPES if name.startswith(incomplete)],
    help="Only records of this type; repeatable.",
)
@click.option("-f", "--follow", is_flag=True, help="Print new records as they are written, until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print the lines of the journal unchanged.")
def log(run: str | None, trial: str | None, types: tuple[str, ...], follow: bool, as_json: bool) -> None:
    """Print the records of a run, or of one TRIAL; the name of a case prints the records of all its variants.

    RUN/review, as a RUN, has the samples and labels of a review.

    \b
    evaljournal log runs/capitals/0001
    evaljournal log runs/capitals/0001 peru --type attempt_failed --type attempt_timed_out
    evaljournal log -f --json | jq .type
    """
    for name in types:
        if name not in EVENT_TYPES and not name.startswith("x-"):
            raise click.UsageError(f"unknown event type {name!r}{suggest(name, EVENT_TYPES)}")

    path, trial = run_and_trial(run, trial, or_review=True)
    with RecordReader(path) as lines:
        printer = _RecordPrinter(trial, frozenset(types), lines if as_json else None)
        if follow:
            trio.run(until_signal, partial(_follow, path, printer), signal.SIGINT)
            return
        records = read(path, load_blobs=False)
        for record in records:
            printer.print(record)

    warn_unconfirmed(records.stop)
    if trial is not None and trial not in printer.trials and not printer.trials_of_case:
        raise UsageError(f"{path} has no trial {trial!r}{suggest(trial, printer.trials)}")


class _RecordPrinter:
    def __init__(self, trial: str | None, types: frozenset[str], lines: RecordReader | None) -> None:
        self._trial = trial
        self._types = types
        self._lines = lines
        self.trials: set[str] = set()
        """The trials that were read, to suggest a name."""
        self.trials_of_case: set[str] = set()
        """Trials of the case with this name, in all variants."""

    def print(self, record: Record) -> None:
        trial = getattr(record.event, "trial", "")
        if self._trial is not None:
            self.trials.add(trial)
            if isinstance(record.event, TrialEnqueued) and record.event.variant and record.event.case == self._trial:
                self.trials_of_case.add(trial)
            if trial != self._trial and trial not in self.trials_of_case:
                return
        if self._types and event_type(record.event) not in self._types:
            return
        if self._lines is not None:
            write_data([self._lines.line_of(record)])
        else:
            echo(_record_line(record))


async def _follow(path: Path, printer: _RecordPrinter) -> None:
    async for record in follow_journal(path, load_blobs=False):
        printer.print(record)


def _record_line(record: Record) -> str:
    event = record.event
    fields = " ".join(f"{name}={printable(value)}" for name, value in non_default_fields(event).items())
    time, name = printable(record.at[11:23]), printable(event_type(event))
    return f"{record.seq:>7}  {time}  {record.t:>10.3f}  {name:<20}  {fields}"
