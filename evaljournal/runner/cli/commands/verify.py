"""The command `evaljournal verify`."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import click

from evaljournal.journal import Verification
from evaljournal.journal.disk.lock import is_held
from evaljournal.journal.disk.segments import is_run
from evaljournal.replay.auditing.findings import Finding
from evaljournal.replay.results.budget_text import use_lines
from evaljournal.replay.results.view_json import view_json
from evaljournal.replay.text import plural, printable
from evaljournal.runner.cli import DAMAGED
from evaljournal.runner.cli.arguments import suite_argument
from evaljournal.runner.cli.terminal.display import print_json
from evaljournal.runner.cli.terminal.errors import render
from evaljournal.runner.cli.terminal.output import echo
from evaljournal.runner.errors import UsageError, command
from evaljournal.runner.runs.verification import ReviewVerification, RunVerification
from evaljournal.runner.runs.verification import verify as verify_run
from evaljournal.runner.sessions.suite_file import is_suite, read_suite

_MAX_FINDING: Final = 400
"""Maximum characters of a finding that are printed."""


@click.command()
@suite_argument
@click.option("--expect-head", metavar="HASH", help="Also require a record with this hash.")
@click.option("--sources", is_flag=True, help="Also compare each replayed reply with the run or file that it came from.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def verify(path: Path, expect_head: str | None, sources: bool, as_json: bool) -> None:
    """Check that a journal, or each journal of a suite, is intact and that its run followed the rules.

    Integrity: every hash, file checksum and blob, and that the order of the records is valid. Audit: slots, times, totals, and
    every start against the recorded limits, pauses and paces; retries and budgets are recomputed. Of a review, samples are
    drawn again, and labels are compared with the outputs. With --expect-head, it also checks that a record with this hash
    exists, so that removed last records are detected. Exit code 4 if a journal is damaged or the audit has findings.

    \b
    evaljournal verify runs/capitals/0001
    evaljournal verify runs/capitals/0001 --expect-head 1570f2fd25a77ff678d5b740ccad64ee
    evaljournal verify --json | jq .findings
    """
    is_whole_suite = is_suite(path)
    runs = list(read_suite(path).runs.values()) if is_whole_suite else [path]
    if is_whole_suite and expect_head is not None:
        raise UsageError(f"{path} is a suite; pass one of its runs with --expect-head")

    unstarted_runs = [run for run in runs if is_whole_suite and not is_run(run)]
    verifications = [verify_run(run, expect_head=expect_head) for run in runs if run not in unstarted_runs]
    if sources:
        from evaljournal.runner.runs.sources import verify_sources  # noqa: PLC0415  # few runs have any

        verifications = [
            attrs.evolve(verification, sources=verify_sources(verification.journal.path)) if verification.ok else verification
            for verification in verifications
        ]

    is_ok = all(verification.ok for verification in verifications)
    if as_json:
        results = [_result_json(verification) for verification in verifications]
        suite_fields = {"path": str(path), "ok": is_ok, "runs": results, "unstarted_runs": list(map(str, unstarted_runs))}
        print_json(suite_fields if is_whole_suite else results[0])
    else:
        for verification in verifications:
            _print_result(verification, expect_head)
        for run in unstarted_runs:
            echo(f"{run}: no journal: the evaluation has not started, or its run was removed", err=True)
    if not is_ok:
        sys.exit(DAMAGED)


def _result_json(verification: RunVerification) -> dict[str, Any]:
    result, audit = verification.journal, verification.audit
    return {
        "path": str(result.path),
        "run": result.run,
        "ok": verification.ok,
        "verdict": verification.verdict,
        "records": result.records,
        "segments": result.segments,
        "blobs": result.blobs,
        "head": result.head,
        "unfinished_bytes": result.unfinished_bytes,
        "zero_bytes": result.zero_bytes,
        "unconfirmed_records": result.unconfirmed_records,
        "warnings": _warnings(verification),
        "expected_head_seq": result.expected_at,
        "problem": None if result.problem is None else str(result.problem),
        "problem_type": None if result.problem is None else type(result.problem).__name__,
        "review": None if verification.review is None else _review_json(verification.review),
        **({} if verification.sources is None else {"sources": view_json(verification.sources)}),
        "trials": view_json(audit.totals),
        **view_json(audit, omit="totals"),
    }


def _review_json(review: ReviewVerification) -> dict[str, Any]:
    fields = view_json(review, omit="journal")
    problem = review.journal.problem
    return {
        **fields,
        "ok": review.ok,
        "records": review.journal.records,
        "head": review.journal.head,
        "problem": None if problem is None else str(problem),
    }


def _print_result(verification: RunVerification, expect_head: str | None) -> None:
    """Print a success to standard output, problems to standard error."""
    journal, audit, review = verification.journal, verification.audit, verification.review
    notes = [printable(note, _MAX_FINDING) for note in audit.notes]
    if verification.ok:
        echo("\n".join([*_result_lines(verification, expect_head), *notes]))
        for warning in _warnings(verification):
            echo(f"Warning: {warning}", err=True)

    if review is not None and not review.ok:
        _print_problems(review.journal, review.findings, place=f" of {review.journal.path}")
    if (sources := verification.sources) is not None and not sources.ok:
        _print_problems(journal, sources.findings)

    if not journal.ok or not audit.ok:
        _print_problems(journal, audit.findings, audit.findings_omitted, notes)
        if journal.problem is None:
            echo(f"{command('log', journal.path)} prints the records", err=True)


def _print_problems(
    journal: Verification, findings: Sequence[Finding], omitted: int = 0, notes: Iterable[str] = (), place: str = ""
) -> None:
    for finding in findings:
        echo(f"record {finding.seq:,}{place} ({finding.check}): {printable(finding.message, _MAX_FINDING)}", err=True)
    if omitted:
        echo(f"and {plural(omitted, 'further finding')}", err=True)
    for note in notes:
        echo(note, err=True)
    if journal.problem is not None:
        echo(f"{journal.path}: {plural(journal.records, 'record')} verified, then: {render(journal.problem)}", err=True)
    else:
        count = plural(len(findings) + omitted, "finding")
        echo(f"{journal.path}: hash chain intact, but the audit has {count}, see above", err=True)


def _result_lines(verification: RunVerification, expect_head: str | None) -> list[str]:
    result, audit = verification.journal, verification.audit
    trials = audit.totals
    ends = f"{plural(trials.completed, 'output')} + {plural(trials.failed, 'error')}"
    ends = f"{ends} + {trials.withdrawn:,} withdrawn + {trials.open:,} open"
    counts = ((result.records, "record"), (result.segments, "file"), (result.blobs, "blob"))
    decisions = plural(audit.decisions_reproduced, "retry and budget decision")

    lines = [
        f"{result.path} OK: {', '.join(plural(*count) for count in counts)}; hash chain intact",
        f"head {result.head}",
        f"audit OK: {plural(trials.enqueued, 'trial')} = {ends}; {decisions} reproduced",
    ]

    lines += [f"budget: {line}" for line in use_lines(audit.budget)]
    if (sources := verification.sources) is not None:
        lines.append(f"sources OK: {plural(sources.checked, 'replayed reply', 'replayed replies')}")
    if (review := verification.review) is not None:
        labels = f"{plural(review.labels, 'label')} by {plural(review.reviewers, 'reviewer')}"
        samples = f"{plural(review.samples, 'sample')} drawn again"
        lines.append(f"review OK: {plural(review.journal.records, 'record')}, {labels}; {samples}; head {review.journal.head}")

    if expect_head and result.expected_at is not None:
        new_records = plural(result.records - result.expected_at, "record")
        lines.append(f"the expected head is record {result.expected_at:,}; {new_records} added since")
    return lines


def _warnings(verification: RunVerification) -> list[str]:
    """Return warnings about an unconfirmed end, which a crash or a change of the file can leave."""
    result, tail = verification.journal, []
    if result.unfinished_bytes:
        zeros = f", {result.zero_bytes:,} of them zero" if result.zero_bytes else ""
        tail.append(f"{plural(result.unfinished_bytes, 'byte')} after the last record, not confirmed{zeros}")
    if result.unconfirmed_records:
        tail.append(f"{plural(result.unconfirmed_records, 'record')} at the end not confirmed as synced")

    if not tail or result.problem is not None:
        return []
    if is_held(result.path):
        return [f"{'; '.join(tail)}: a process is writing the journal"]
    warning = f"{'; '.join(tail)}: the run was interrupted, or the end of the journal was changed"
    if result.expected_at is None:
        warning += f"; compare with a saved head: {command('verify', result.path, ' --expect-head HASH')}"
    return [warning]
