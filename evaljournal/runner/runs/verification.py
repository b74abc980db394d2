"""Verification of a run: the journal's integrity, and the audit of its records with recomputed retries."""

from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

import attrs

from evaljournal.journal import Record, Verification
from evaljournal.journal.disk.files import DISK
from evaljournal.journal.disk.segments import is_run
from evaljournal.journal.errors import InvalidRecord
from evaljournal.journal.format.blobs import with_loaded_blobs
from evaljournal.journal.format.lifecycle import Lifecycle
from evaljournal.journal.readers.verification import Verifier
from evaljournal.replay.auditing.auditor import Auditor
from evaljournal.replay.auditing.findings import Audit, Finding
from evaljournal.replay.review.auditing import ReviewAuditor
from evaljournal.replay.review.labels import review_path
from evaljournal.replay.runs.loaded_run import LoadedRun
from evaljournal.replay.state.run import RunState
from evaljournal.replay.text import printable
from evaljournal.runner.definition.gates import gate_results
from evaljournal.runner.errors import InvalidSetting
from evaljournal.runner.retries.rules import retry_rules

_MAX_GATE_LENGTH: Final = 200
"""Characters of an invalid gate that are shown."""


@attrs.frozen
class ReviewVerification:
    """The part of `verify` about the labels of a run, in its directory `review`."""

    journal: Verification
    findings: tuple[Finding, ...]
    """Records that break a rule, or do not match the run."""
    samples: int
    """Samples that were drawn again from their seed, with the same result."""
    labels: int
    """Labels that count."""
    reviewers: int

    @property
    def ok(self) -> bool:
        return self.journal.ok and not self.findings


@attrs.frozen
class SourceVerification:
    checked: int
    """Replies that are as in their source."""
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return not self.findings


@attrs.frozen
class RunVerification:
    """The result of `verify`."""

    journal: Verification
    """Whether the files are as they were written: hash chain, checksums and blobs."""
    audit: Audit
    """Whether the records follow the rules, and the recomputed retries and budgets equal the recorded ones."""
    review: ReviewVerification | None = None
    """The same for its labels; None without labels."""
    sources: SourceVerification | None = None
    """Whether replayed replies are as in their sources; None: it was not checked."""

    @property
    def verdict(self) -> Literal["ok", "damaged", "invalid"]:
        """`damaged`: the files changed after they were written; `invalid`: the files are intact, but the run broke a rule."""
        journals = [self.journal] if self.review is None else [self.journal, self.review.journal]
        if any(journal.problem is not None and not isinstance(journal.problem, InvalidRecord) for journal in journals):
            return "damaged"
        parts = (self.journal, self.audit, self.review, self.sources)
        return "ok" if all(part is None or part.ok for part in parts) else "invalid"

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return self.verdict == "ok"


def verify(run: Path | str | LoadedRun, *, expect_head: str | None = None) -> RunVerification:
    """Verify the journal of a run, and audit its records: check every start, and recompute retries and budgets.

    If the run has a review, its journal is verified, its samples are drawn again, and its labels are compared with the outputs.

    `expect_head` is the hash of a record that must be in the journal, such as `Outcome.head`: it detects that records
    have been removed from the end since then, or that the journal was rewritten.
    """
    return verify_observed(run.path if isinstance(run, LoadedRun) else Path(run), expect_head=expect_head)[0]


def verify_observed(
    path: Path, observe: Callable[[Record], None] | None = None, *, expect_head: str | None = None
) -> tuple[RunVerification, Verifier, RunState]:
    """Verify a run, and let `observe` read its records in the same pass; return also its last state."""
    lifecycle = Lifecycle()
    auditor = Auditor(retry_rules, lifecycle=lifecycle)
    verifier = Verifier(path, expect_head=expect_head, lifecycle=lifecycle)

    for record in verifier:
        auditor.apply(record)
        if observe is not None:
            observe(record)

    journal, audit, state = verifier.result(), auditor.result(), auditor.state
    if audit.ok and journal.ok:
        try:
            gate_results(state)
        except InvalidSetting as exc:
            seq = state.sessions[-1].seq if state.sessions else state.seq
            finding = Finding(seq, "settings", f"no run can have this gate: {printable(str(exc), _MAX_GATE_LENGTH)}")
            audit = attrs.evolve(audit, findings=(finding,))
    return RunVerification(journal, audit, _verify_review(path) if journal.ok else None), verifier, state


def _verify_review(run: Path) -> ReviewVerification | None:
    """Verify the review of an intact run; None if there is none."""
    path = review_path(run)
    if not is_run(path):
        return None
    verifier, auditor, problem = Verifier(path), ReviewAuditor(path), None
    try:
        for record in verifier:
            auditor.apply(with_loaded_blobs(record, DISK))
        if auditor.review.run or verifier.result().problem is None:  # Otherwise nothing of it could be read.
            auditor.compare(run)
    except InvalidRecord as exc:
        problem = exc

    journal, labels = verifier.result(), auditor.review.labels
    if problem is not None and journal.problem is None:
        journal = attrs.evolve(journal, problem=problem)
    findings, reviewers = tuple(auditor.findings.findings), len({label.reviewer for label in labels})
    return ReviewVerification(journal, findings, auditor.samples_reproduced, len(labels), reviewers)
