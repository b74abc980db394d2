"""Commands that judge a journal: is it what was written, did it keep to the rules, what can be saved, how does it compare."""

import sys
from pathlib import Path
from typing import Any, Final

import attrs
import click
import trio

from journal import Verification
from journal import salvage as salvage_journal
from journal import verify as verify_journal
from journal.errors import InvalidRecord, command
from replay import load
from replay.auditing import Audit, Auditor
from replay.comparison import Side, compare, in_json, outputs
from replay.comparison_text import lines
from replay.ending import ending_in_words, total_trials, unscored_lines
from replay.summary import unscored
from replay.text import plural, printable
from runner.cli import DAMAGED
from runner.cli._common import chosen_run
from runner.cli.look import Seen, groups_of, print_json, say_damage, see
from runner.recompute.rules import remake

_LISTED: Final = 10
"""Trials of a kind that are named one by one, unless all are asked for."""
_LONGEST: Final = 400
"""Characters of a finding that are printed; a name in it may be anything."""


@click.command()
@click.argument("run", type=click.Path(path_type=Path), required=False)
@click.option("--expect-head", metavar="HASH", help="Also demand that a record with this hash is in the journal.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def verify(run: Path | None, expect_head: str | None, as_json: bool) -> None:
    """Prove that a journal is what was written, and that the run kept to its rules.

    First every hash, every file's sums, every blob, and that each record may follow the ones before. Then who held which slot,
    what started when nothing might, every time and total, and every decision, made again. A hash that you kept from an earlier
    time (`--expect-head`) also proves that nothing was taken off the end since. Exit code 4 if the log is damaged, and also if
    the log and the rules disagree; it is said which.

    \b
    evaljournal verify runs/capitals/0001
    evaljournal verify runs/capitals/0001 --expect-head 1570f2fd25a77ff678d5b740ccad64ee
    evaljournal verify --json | jq .findings
    """
    auditor = Auditor(remake)
    result = verify_journal(chosen_run(run), expect_head=expect_head, on_record=auditor.take)
    audit = auditor.result()
    if as_json:
        print_json(_as_json(result, audit))
    else:
        _say(result, audit, expect_head)
    if _verdict(result, audit) != "holds":
        sys.exit(DAMAGED)


def _verdict(result: Verification, audit: Audit) -> str:
    """Tell damage from disagreement: who damaged a log is not who wrote it; who wrote what cannot be is."""
    if result.problem is not None and not isinstance(result.problem, InvalidRecord):
        return "damaged"
    return "holds" if result.holds and audit.agrees else "disagrees"


def _as_json(result: Verification, audit: Audit) -> dict[str, Any]:
    return {
        "path": str(result.path),
        "run": result.run,
        "holds": _verdict(result, audit) == "holds",
        "verdict": _verdict(result, audit),
        "records": result.records,
        "segments": result.segments,
        "blobs": result.blobs,
        "head": result.head,
        "unfinished_bytes": result.unfinished,
        "expected_head_seq": result.expected_at,
        "problem": None if result.problem is None else str(result.problem),
        "problem_type": None if result.problem is None else type(result.problem).__name__,
        "findings": [attrs.asdict(finding) for finding in audit.findings],
        "further_findings": audit.more,
        "notes": audit.notes,
        "trials": attrs.asdict(audit.totals),
        "decisions_recomputed": audit.decisions,
        "decisions_not_reproduced": audit.unreproduced,
    }


def _say(result: Verification, audit: Audit, expect_head: str | None) -> None:
    """Say on standard output what holds, or on standard error what does not."""
    notes = [printable(note, _LONGEST) for note in audit.notes]
    if _verdict(result, audit) == "holds":
        click.echo("\n".join([*_in_words(result, audit, expect_head), *notes]))
        return
    for finding in audit.findings:
        click.echo(f"record {finding.seq:,} ({finding.check}): {printable(finding.what, _LONGEST)}", err=True)
    if audit.more:
        click.echo(f"and {plural(audit.more, 'further finding')}", err=True)
    for note in notes:
        click.echo(note, err=True)
    if result.problem is not None:
        click.echo(f"{result.path}: {plural(result.records, 'record')} verified, then: {result.problem}", err=True)
    else:
        number = len(audit.findings) + audit.more
        places = "one place" if number == 1 else f"{number:,} places"
        words = f"{result.path} is whole, nothing in it was changed; but the log and the rules disagree in {places}, see above"
        click.echo(f"{words}\n{command('log', result.path)} shows the records", err=True)


def _in_words(result: Verification, audit: Audit, expect_head: str | None) -> list[str]:
    trials = audit.totals
    ends = f"{trials.completed:,} completed + {trials.failed:,} failed + {trials.withdrawn:,} withdrawn + {trials.open:,} open"
    counts = ((result.records, "record"), (result.segments, "file"), (result.blobs, "blob"))
    recomputed = plural(audit.decisions, "decision")
    parts = [
        f"{result.path} holds: {', '.join(plural(*each) for each in counts)}, nothing changed",
        f"head {result.head}",
        f"the log and the rules agree: {plural(trials.enqueued, 'trial')} = {ends}; {recomputed} recomputed: equal",
    ]
    if audit.unreproduced:
        decisions = plural(audit.unreproduced, "decision")
        parts.append(f"{decisions} checked but not reproduced: made by a policy that was shared with another run")
    if expect_head and result.expected_at is not None:
        since = plural(result.records - result.expected_at, "record")
        parts.append(f"the expected head is record {result.expected_at:,}; {since} added since")
    if result.unfinished:
        parts.append(
            f"{plural(result.unfinished, 'byte')} behind the last record, never confirmed: a writer is at work, or was cut off"
        )
    return parts


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("-o", "--output", "target", metavar="NEW", required=True, type=click.Path(path_type=Path), help="Where to.")
def salvage(run: Path, target: Path) -> None:
    """Copy what is intact out of a damaged journal into a new run, NEW.

    The damaged one is only read. Records that are whole but no longer fit, because those before them are lost, are kept in
    NEW/excluded.jsonl; their trials run again on resume. Outputs whose scores are lost are told: `rescore NEW` scores them.

    \b
    evaljournal salvage runs/capitals/0001 -o runs/capitals/0001-salvaged
    """
    saved = trio.run(salvage_journal, run, target)
    click.echo(f"{target}: {plural(saved.kept, 'record')} kept, {saved.lost:,} lost, {saved.excluded:,} left out", err=True)
    for line in unscored_lines(unscored(load(target).state), target):
        click.echo(line, err=True)
    click.echo(f"next: evaljournal verify {target}", err=True)


@click.command()
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option("--by", metavar="KEY", help="Also compare the scores for each value of this key of the metadata.")
@click.option("--all", "show_all", is_flag=True, help="Name every trial, however many there are.")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON; it names every trial.")
def diff(a: Path, b: Path, by: str | None, show_all: bool, as_json: bool) -> None:
    """Compare run B with run A, trial by trial: fixed, broke, changed, slower, only in one.

    Trials are matched by name and content; what has the same name and other content is a different case, and is not compared.
    Whether the scores differ is said with its 95 % range, over the cases that both runs have scored. The code is 0 whatever the
    difference: a comparison is not a gate.

    \b
    evaljournal diff runs/capitals/0001 runs/capitals/0002
    evaljournal diff runs/capitals/0001 runs/capitals/0002 --by difficulty
    evaljournal diff runs/capitals/0001 runs/capitals/0002 --json | jq '.broke[].trial'
    """
    runs = see(a), see(b)
    sides = [Side(seen.state, outputs(seen.history.records())) for seen in runs]
    found = compare(*sides, groups=None if by is None else groups_of(runs[0], by))
    if as_json:
        paths = {"a": str(a), "b": str(b)}
        problems = {f"problem_{name}": str(seen.problem or "") or None for name, seen in zip("ab", runs, strict=True)}
        print_json({**paths, **problems, **in_json(found)})
    else:
        for name, seen in zip("AB", runs, strict=True):
            click.echo(f"{name}  {_which(seen)}")
        for line in lines(found, most=None if show_all else _LISTED):
            click.echo(line)
    for seen in runs:
        say_damage(seen.problem, quiet=as_json)


def _which(seen: Seen) -> str:
    """Name a run, and say how far it is: one that is not finished may still differ."""
    state = seen.state
    name = printable(state.started.evaluation) if state.started else "a run that has not begun"
    how = seen.status if seen.problem or seen.is_live else ending_in_words(state)
    failed = f", {state.failed:,} failed" if state.failed else ""
    older = f"; {plural(state.from_older_task, 'answer')} by an older version of its task" if state.from_older_task else ""
    whole = total_trials(state)
    of = "" if whole is None else f" of {whole:,}"
    return f"{printable(str(seen.path), 200)}: {name}, {how}, {state.completed:,} ok{failed}{of}{older}"
