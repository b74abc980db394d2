"""The command `evaljournal verify`."""

import sys
from pathlib import Path
from typing import Any, Final

import attrs
import click

from journal import Verification
from journal import verify as verify_journal
from journal.errors import InvalidRecord, command
from replay.auditing import Audit, Auditor
from replay.text import plural, printable
from runner.cli import DAMAGED
from runner.cli._common import run_argument
from runner.cli._display import (
    print_json,
)
from runner.recompute.rules import session_rules

_LONGEST: Final = 400
"""Characters of a finding that are printed; a name in it may be anything."""


@click.command()
@run_argument
@click.option("--expect-head", metavar="HASH", help="Also demand that a record with this hash is in the journal.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def verify(path: Path, expect_head: str | None, as_json: bool) -> None:
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
    auditor = Auditor(session_rules)
    result = verify_journal(path, expect_head=expect_head, on_record=auditor.take)
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
