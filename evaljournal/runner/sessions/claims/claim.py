"""Attest a claim about a run, disclose leaves, and compare a statement with a journal.

The order of `attest` is that in which each part relies on the one before: the run is verified, and its values are digested in
the same pass; a run that does not verify, or is not finished, is rejected. Then each leaf is computed, salted, hashed and
counted for the claims, one at a time. The statement follows from the records, the secret and the arguments alone, without the
time of day, so the same command gives the same statement.

Nothing is claimed that a checker of the whole journal would not find: the means are those of the leaves, not of the state.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from evaljournal.journal.disk.files import DISK
from evaljournal.journal.disk.segments import is_run
from evaljournal.journal.errors import InvalidRecord, JournalError
from evaljournal.journal.events import RunStarted
from evaljournal.journal.format.blobs import Blob, content, with_loaded_blobs
from evaljournal.journal.readers.verification import Verifier
from evaljournal.replay.claims import merkle
from evaljournal.replay.claims.checking import Line, Recorded, commitment, sample_indexes
from evaljournal.replay.claims.leaves import VALUES, Salter, Values, make_salter
from evaljournal.replay.claims.shapes import PLAN_TYPE, RESULT_TYPE, STATEMENT_TYPE, VERSION
from evaljournal.replay.claims.statement import (
    HEAD,
    MEMBER,
    Claim,
    InvalidClaim,
    Means,
    Statement,
    canonical,
    envelope,
    parse_envelope,
)
from evaljournal.replay.results.summary import replayed_of
from evaljournal.replay.review.labels import Review, review_path
from evaljournal.replay.runs.loaded_run import read_values
from evaljournal.replay.state.definition import load_definition, substitution
from evaljournal.replay.state.run import RunState
from evaljournal.replay.text import plural
from evaljournal.runner.errors import UsageError, command, suggest
from evaljournal.runner.runs.verification import verify_observed
from evaljournal.runner.sessions.claims.files import make_secret, read_secret
from evaljournal.runner.sessions.claims.recompute import MAX_VALUE, definitions
from evaljournal.runner.sessions.claims.signing import sign
from evaljournal.version import installed_version

if TYPE_CHECKING:
    from evaljournal.runner.definition.settings import Settings
    from evaljournal.runner.sessions.plan import SelectedTrials

UNNAMED: Final = "urn:evaljournal:unnamed"  # The evaluator of a statement that names none.
_CASES: Final = "evaljournalCases"
_MAX_CLAIMS: Final = 100


@attrs.frozen
class Snapshot:
    """A run and its review up to the last records that a claim is about."""

    state: RunState
    started: RunStarted
    values: Values
    review: Review
    subjects: Sequence[Mapping[str, Any]]

    def leaves(self) -> Iterator[dict[str, Any]]:
        return self.values.leaves(self.state.trials, self.review.labels)

    def salter(self, secret: bytes) -> Salter:
        heads = [subject["digest"][HEAD] for subject in self.subjects]
        return make_salter(secret, heads[0], "".join(heads[1:]))

    @property
    def definition(self) -> dict[str, Any]:
        """What was evaluated, as far as it is recorded."""
        definition = load_definition(self.started.definition)
        return definition if isinstance(definition, dict) else {}

    def identities(self) -> dict[str, str]:
        """Return what the commitments to the model and the dataset are about."""
        started, definition = self.started, self.definition
        model = {
            "fingerprint": started.task_fingerprint,
            "task": definition.get("task"),
            "variants": definition.get("variants"),
            # A run of `what-if` calls another model than its task names.
            **substitution(self.state.settings),
        }
        dataset = {"fingerprint": started.dataset_fingerprint, "source": started.dataset}
        return {"model": canonical(model).decode(), "dataset": canonical(dataset).decode()}

    def history(self) -> dict[str, int]:
        """Return what a reader should know of how the results came about."""
        state, replayed = self.state, replayed_of(self.state)
        origins = [self.started.forked_from, *(origin for _, origin in state.sessions.merged.origins())]
        return {
            "withdrawn": state.totals.stages["withdrawn"],
            "adopted": sum(bool(session.adopted) for session in state.sessions),
            "replayed": 0 if replayed is None else replayed.replies,
            "forks": sum(origin is not None for origin in origins),
            "shards": len(state.sessions.merged.shards),
            # Statements of other runs do not have these.
            **({"salvages": salvages} if (salvages := state.sessions.repairs["salvaged"]) else {}),
            **({"what_if": 1} if substitution(state.settings) else {}),
        }


def _hash(leaf: Mapping[str, Any], salt: Salter) -> bytes:
    return merkle.leaf_hash(salt("trial", leaf["trial"]) + canonical(leaf))


def _subject(name: str, verifier: Verifier, head: str) -> dict[str, Any]:
    segment, digest = verifier.segment
    return {"name": f"{name}/{segment}", "digest": {"sha256": digest, HEAD: head}}


def _snapshot(path: Path, state: RunState, values: Values, verifier: Verifier, review_head: str | None) -> Snapshot:
    """Return a run up to the last record that was read, and its review up to a record (None: the last one; empty: nothing)."""
    review, subjects = Review(), [_subject("run", verifier, state.head)]
    if review_head != "" and is_run(review_path(path)):
        reviewing, head = Verifier(review_path(path)), ""
        for record in reviewing:
            review.apply(with_loaded_blobs(record, DISK))
            if (head := record.h) == review_head:
                break
        subjects += [_subject("review", reviewing, head)] if head else []
    assert state.started is not None
    return Snapshot(state, state.started, values, review, subjects)


def _read_snapshot(path: Path, statement: Statement) -> Snapshot:
    """Read a run up to the record that a statement is about: later records change its state."""
    state, values, verifier, head = RunState(), Values(), Verifier(path), statement.digest("run", HEAD)
    for record in verifier:
        values.apply(record)
        state.apply(record)
        if record.h == head:
            return _snapshot(path, state, values, verifier, statement.digest("review", HEAD))
    raise InvalidClaim(f"{path} has no record with the hash {head!r:.80} that is in the statement")


def _verified_snapshot(path: Path) -> Snapshot:
    """Verify a run, and return it; raise what is wrong with it."""
    values = Values()
    verification, verifier, state = verify_observed(path, values.apply)
    review, findings = verification.review, list(verification.audit.findings)
    problem = verification.journal.problem or (None if review is None else review.journal.problem)
    if problem is not None:
        raise problem
    findings += () if review is None else review.findings
    if findings:
        reason = f"{findings[0].message}; nothing can be claimed about a run that {command('verify', path)} rejects"
        raise InvalidRecord(path, findings[0].seq, reason)
    return _snapshot(path, state, values, verifier, None)


def attest(path: Path, texts: Sequence[str], plan: Statement | None, *, evaluator: str, key: Path | None) -> Statement:
    """Return a statement that claims something about a finished run, or what a plan has announced.

    A claim that does not hold is stated, too, as one that has not passed.
    """
    snapshot = _verified_snapshot(path)
    if snapshot.state.outcome != "finished":
        raise UsageError(f"{path} is not finished, so nothing can be claimed about it", hint=command("resume", path))
    claims = _claims(texts, snapshot.state.variants.names) if plan is None else plan.claims
    if plan is not None and (changes := _plan_differences(plan, snapshot)):
        raise UsageError(f"{path} is not the run that was planned: {', '.join(changes)} differ")

    result = _statement(snapshot, claims, snapshot.salter(make_secret(path)), evaluator)
    for claim, figure in zip(claims, result["predicate"][MEMBER]["figures"], strict=True):
        if not figure["values"]:
            names = {label.name for label in snapshot.review.labels} if claim.is_label else {*snapshot.state.scores}
            problem = f"no trial has a value of {claim.metric}, so nothing can be claimed about it"
            hint = "label outputs first: evaljournal review" if claim.is_label else ""
            raise UsageError(problem + suggest(claim.name, names - {claim.name}), hint=hint)

    if plan is not None:
        result["predicate"]["preRegistration"] = {"alg": "sha256", "value": sha256(plan.payload).hexdigest()}
    return _signed(result, key)


def _claims(texts: Sequence[str], variants: Sequence[str]) -> list[Claim]:
    """Parse claims; one that names no variant is made for each: the mean of several models is that of none."""
    parsed = list(map(Claim.parse, texts))
    for claim in parsed:
        if claim.variant and claim.variant not in variants:
            raise UsageError(f"the run has no variant {claim.variant!r}{suggest(claim.variant, variants)}")
    names = variants or [""]
    claims = [attrs.evolve(claim, variant=name) for claim in parsed for name in ([claim.variant] if claim.variant else names)]
    if not 0 < len(claims) <= _MAX_CLAIMS:
        raise UsageError(f"{plural(len(claims), 'claim')}; make 1 to {_MAX_CLAIMS}, such as --claim 'exact>=0.9'")
    return claims


def _signed(statement: Mapping[str, Any], key: Path | None) -> Statement:
    payload = canonical(statement)
    return parse_envelope(envelope(payload, [] if key is None else [sign(payload, key)]))


def _statement(snapshot: Snapshot, claims: Sequence[Claim], salt: Salter, evaluator: str) -> dict[str, Any]:
    root, means, started = merkle.Root(), Means(claims), snapshot.started
    for leaf in snapshot.leaves():
        root.add(_hash(leaf, salt))
        means.add(leaf)

    members = means.members()
    values = {name: commitment(salt("commitment", name), value) for name, value in snapshot.identities().items()}
    tree = {"hash": "rfc6962-sha256", "size": root.size, "root": root.digest().hex()}
    predicate = {
        **members,
        "evaluator": {"id": evaluator},
        "evaluatedAt": snapshot.state.at,
        "suite": {"name": started.evaluation, "version": sha256(canonical(dict(started.scorers))).hexdigest()[:16]},
        "commitments": {name: {"alg": "sha256-salted-v1", "value": value, "salted": True} for name, value in values.items()},
        "assuranceLevel": "self_attested",
        "subjectProfile": "receipt",
        "harness": {"name": "evaljournal", "version": installed_version(), "digest": {"dirHash1": _package_digest()}},
        MEMBER: {**members[MEMBER], "version": VERSION, "tree": tree, "history": snapshot.history()},
    }

    subjects = list(snapshot.subjects)
    return {"_type": STATEMENT_TYPE, "subject": subjects, "predicateType": RESULT_TYPE, "predicate": predicate}


def _package_digest() -> str:
    """Return the SHA-256 of the list that `sha256sum` prints for the files of this package, sorted by path."""
    directory = Path(str(resources.files("evaljournal")))
    files = (file.relative_to(directory) for file in directory.rglob("*") if file.is_file())
    names = sorted(file.as_posix() for file in files if "__pycache__" not in file.parts)
    return sha256(
        "".join(f"{sha256((directory / name).read_bytes()).hexdigest()}  {name}\n" for name in names).encode()
    ).hexdigest()


def plan_statement(
    selection: "SelectedTrials", settings: "Settings", texts: Sequence[str], *, evaluator: str, key: Path | None
) -> Statement:
    """Return a statement of what will be claimed about the next run of an evaluation."""
    evaluation = selection.evaluation
    claims = _claims(texts, [name for name in evaluation.tasks if name])
    if not selection.trials.fingerprint:
        raise UsageError("the cases can be read only once, so they cannot be committed to", hint="pass a file or a list")
    for claim in claims:
        if not claim.is_label and claim.name.partition(".")[0] not in evaluation.scorers:
            raise UsageError(f"no scorer {claim.name!r}{suggest(claim.name, evaluation.scorers)}")

    predicate = {
        "claims": [{"metric": claim.metric, "comparator": claim.comparator, "threshold": claim.threshold} for claim in claims],
        "evaluator": {"id": evaluator},
        "plannedAt": datetime.now(UTC).isoformat(),
        "suite": {"name": evaluation.name},
        "seed": settings.seed,
        "task": evaluation.fingerprint,
        "scorers": {scorer.name: scorer.version for scorer in evaluation.scorers.values()},
        "trials": (selection.trials.cases or 0) * settings.repeats * len(evaluation.tasks),
        MEMBER: {"version": VERSION},
    }
    subject = [{"name": "cases", "digest": {_CASES: selection.trials.fingerprint}}]
    return _signed({"_type": STATEMENT_TYPE, "subject": subject, "predicateType": PLAN_TYPE, "predicate": predicate}, key)


def _plan_differences(plan: Statement, snapshot: Snapshot) -> list[str]:
    started, state, planned = snapshot.started, snapshot.state, plan.predicate
    start = datetime.fromisoformat(state.sessions[0].at)
    is_equal = {
        "task": started.task_fingerprint == planned["task"],
        "scorers": dict(started.scorers) == planned["scorers"],
        "seed": state.settings.get("seed") == planned["seed"],
        "trials": state.totals.completed + state.totals.failed == planned["trials"],
        "cases": started.dataset_fingerprint == plan.digest("cases", _CASES),
        "definition (changed after the start)": not (snapshot.history()["adopted"] or started.is_replacement),
        "calls (what-if has replaced some)": not substitution(state.settings),
        "times (the run started before the plan)": datetime.fromisoformat(planned["plannedAt"]) <= start,
    }

    for claim in plan.claims:
        if not claim.is_label and (tally := state.scores.get(claim.name)) is not None:
            version = planned["scorers"].get(claim.name, planned["scorers"].get(claim.name.partition(".")[0]))
            is_equal[f"version of {claim.name}"] = tally.versions == 1 and tally.version == version
    return [name for name, value in is_equal.items() if not value]


def check_plan(statement: Statement, plan: Statement) -> Iterator[Line]:
    reference = statement.predicate.get("preRegistration", {}).get("value")
    is_equal = reference == sha256(plan.payload).hexdigest() and statement.claims == plan.claims
    yield Line.comparing("plan", is_equal, "the plan that the statement refers to")
    yield Line("plan", "unchecked", "that it existed before the run: only who published or timestamped it can show that")


def disclose(
    path: Path, statement: Statement, trials: Sequence[str] | None, sample: Mapping[str, int] | None, reveal: Sequence[str]
) -> tuple[int, Iterator[bytes]]:
    """Return the number of disclosed leaves, and the lines of a bundle with these trials (None: all) or a sample of them.

    The tree is computed again, and must be that of the statement.
    """
    if (secret := read_secret(path)) is None:
        raise UsageError(f"{path} has no secret, so nothing can be disclosed", hint="use the directory that was attested")
    snapshot = _read_snapshot(path, statement)
    salt, hashes, names = snapshot.salter(secret), bytearray(), list[str]()
    for leaf in snapshot.leaves():
        hashes += _hash(leaf, salt)
        names.append(leaf["trial"])
    tree = merkle.levels(bytes(hashes))
    root = tree[-1]
    if root.hex() != statement.own["tree"]["root"]:
        raise UsageError(f"the trials of {path} are not those of the statement", hint="pass the statement of this run")

    if sample is not None:
        trials = [names[index] for index in sample_indexes(root, len(names), **sample)]
    chosen = set(names if trials is None else trials)
    for name in sorted(chosen.difference(names)):
        raise UsageError(f"the statement has no trial {name!r}{suggest(name, names)}")

    versions = {name: tally.version for name, tally in snapshot.state.scores.items()}
    header = {
        "bundle": VERSION,
        "statement": envelope(statement.payload, statement.signatures),
        "leaves": len(chosen),
        "scorers": definitions(snapshot.definition.get("scorers"), versions),
        "commitments": {name: {"salt": salt("commitment", name).hex(), "text": snapshot.identities()[name]} for name in reveal},
        **({} if sample is None else {"sample": sample}),
    }

    def lines() -> Iterator[bytes]:
        yield canonical(header) + b"\n"
        leaves = ((index, leaf) for index, leaf in enumerate(snapshot.leaves()) if leaf["trial"] in chosen)
        values = read_values(path, snapshot.state.trials, (name for name in names if name in chosen))
        for (index, leaf), own in zip(leaves, values, strict=True):
            proof = [] if len(chosen) == len(names) else merkle.path(tree, index)
            items = ((name, value) for name, value in zip(VALUES, own[1:], strict=True) if leaf[name] is not None)
            texts = {name: content(value, DISK) if isinstance(value, Blob) else canonical(value) for name, value in items}
            fields = {
                "index": index,
                "salt": salt("trial", leaf["trial"]).hex(),
                "leaf": canonical(leaf).decode(),
                "proof": [item.hex() for item in proof],
                **{name: text.decode() for name, text in texts.items() if len(text) <= MAX_VALUE},
            }
            yield canonical(fields) + b"\n"

    return len(chosen), lines()


def check_journal(path: Path, statement: Statement, plan: Statement | None) -> Generator[Line, None, Recorded | None]:
    """Compare a statement with the journal of its run: verify it, and compute everything again.

    Returns what a bundle must have in common with the journal, also if this copy of it has no secret; None if it is damaged.
    """
    try:
        last = _verified_snapshot(path)
    except JournalError as exc:
        yield Line("audit" if isinstance(exc, InvalidRecord) else "chain", "failed", str(exc))
        return None
    yield Line("chain", "ok", "the journal is as it was written")
    if last.state.sessions.repairs["salvaged"]:
        gaps = "salvaged from a damaged journal, with gaps: of these records only the order was checked"
        yield Line("audit", "unchecked", gaps)
    else:
        yield Line("audit", "ok", "the run followed its rules")

    snapshot = _read_snapshot(path, statement)
    if snapshot.state.outcome != "finished":
        yield Line("head", "failed", "the run was not finished at the record that the statement is about")
        return None

    if snapshot.subjects != last.subjects:
        yield Line("head", "unchecked", "later records of the run or its review, which the statement is not about")
    yield from _member_lines(snapshot, read_secret(path), statement)
    if plan is not None:
        changes = _plan_differences(plan, snapshot)
        yield Line.comparing("plan", not changes, ": ".join(["the run that was planned", *changes]))
    return Recorded(enumerate(snapshot.leaves()), snapshot.identities())


def _member_lines(snapshot: Snapshot, secret: bytes | None, statement: Statement) -> Iterator[Line]:
    """Compare each member that follows from the journal, and list those that do not."""
    evaluator = statement.predicate["evaluator"]["id"]
    result = _statement(snapshot, statement.claims, snapshot.salter(secret or bytes(1)), evaluator)
    stated, expected = ({**x, **x["predicate"], **x["predicate"][MEMBER]} for x in (statement.content, result))
    if secret is None:
        yield Line("root", "unchecked", "root and commitments: the salts are not in this copy of the run")

    for subject, text, names in (
        ("head", "the heads that the statement is about", ["subject"]),
        *([] if secret is None else [("root", "root and commitments", ["tree", "commitments"])]),
        ("claim", "; ".join(statement.claim_texts), ["claims", "sampleSize", "figures", "outputs", "errors", "history"]),
        ("members", "evaluatedAt and suite", ["evaluatedAt", "suite"]),
    ):
        wrong = [name for name in names if stated[name] != expected[name]]
        yield Line.comparing(subject, not wrong, f"as in the journal: {', '.join(wrong) or text}")

    is_same_code = stated["harness"] == expected["harness"]
    yield Line("members", "ok" if is_same_code else "unchecked", f"harness: {'' if is_same_code else 'not '}this evaljournal")
    yield Line("members", "unchecked", f"evaluator: {evaluator}, in the words of the issuer")
