"""Verification of a run: the journal's integrity, and the audit of its records with recomputed retries."""

from pathlib import Path
from typing import Final, Literal

import attrs

from evaljournal.journal import Verification
from evaljournal.journal.errors import InvalidRecord
from evaljournal.journal.format.lifecycle import Lifecycle
from evaljournal.journal.readers.verification import Verifier
from evaljournal.replay.auditing.auditor import Auditor
from evaljournal.replay.auditing.findings import Audit, Finding
from evaljournal.replay.runs.loaded_run import LoadedRun
from evaljournal.replay.text import printable
from evaljournal.runner.definition.gates import gate_results
from evaljournal.runner.errors import InvalidSetting
from evaljournal.runner.retries.rules import retry_rules

_MAX_GATE_LENGTH: Final = 200
"""Characters of an invalid gate that are shown."""


@attrs.frozen
class RunVerification:
    """The result of `verify`."""

    journal: Verification
    """Whether the files are as they were written: hash chain, checksums and blobs."""
    audit: Audit
    """Whether the records follow the rules, and the recomputed retries and budgets equal the recorded ones."""

    @property
    def verdict(self) -> Literal["ok", "damaged", "invalid"]:
        """`damaged`: the files changed after they were written; `invalid`: the files are intact, but the run broke a rule."""
        if self.journal.problem is not None and not isinstance(self.journal.problem, InvalidRecord):
            return "damaged"
        return "ok" if self.journal.ok and self.audit.ok else "invalid"

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return self.verdict == "ok"


def verify(run: Path | str | LoadedRun, *, expect_head: str | None = None) -> RunVerification:
    """Verify the journal of a run, and audit its records: check every start, and recompute retries and budgets.

    `expect_head` is the hash of a record that must be in the journal, such as `Outcome.head`: it detects that records
    have been removed from the end since then, or that the journal was rewritten.
    """
    path = run.path if isinstance(run, LoadedRun) else Path(run)
    lifecycle = Lifecycle()
    auditor = Auditor(retry_rules, lifecycle=lifecycle)
    verifier = Verifier(path, expect_head=expect_head, lifecycle=lifecycle)
    for record in verifier:
        auditor.apply(record)
    journal, audit, state = verifier.result(), auditor.result(), auditor.state
    if audit.ok and journal.ok:
        try:
            gate_results(state)
        except InvalidSetting as exc:
            seq = state.sessions[-1].seq if state.sessions else state.seq
            finding = Finding(seq, "settings", f"no run can have this gate: {printable(str(exc), _MAX_GATE_LENGTH)}")
            audit = attrs.evolve(audit, findings=(finding,))
    return RunVerification(journal, audit)
