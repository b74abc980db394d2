"""Attest a claim about a run, disclose leaves, and compare a statement with a journal.

The order of `attest` is that in which each step relies on the one before: the run is verified, and its values are digested in
the same pass; a run that does not verify, or is not finished, is rejected. Then each leaf is computed, salted, hashed and
counted for the claims, one at a time. The statement follows from the records, the secret and the arguments alone, without the
time of day, so the same command gives the same statement.

Nothing is claimed that a checker of the whole journal would not find: the means are those of the leaves, not of the state.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import attrs

from evaljournal.journal import Blob, JournalError
from evaljournal.journal.disk.files import DISK
from evaljournal.journal.disk.segments import is_run
from evaljournal.journal.errors import InvalidRecord
from evaljournal.journal.events import RunStarted
from evaljournal.journal.format.blobs import content, with_loaded_blobs
from evaljournal.journal.readers.verification import Verifier
from evaljournal.replay.claims import merkle
from evaljournal.replay.claims.checking import Line, claim_lines, commitment, sample_indexes
from evaljournal.replay.claims.leaves import VALUES, Salts, Values
from evaljournal.replay.claims.statement import (
    HEAD,
    MEMBER,
    PLAN_TYPE,
    RESULT_TYPE,
    STATEMENT_TYPE,
    VERSION,
    Claim,
    InvalidClaim,
    Means,
    Statement,
    canonical,
    envelope,
    parse_envelope,
)
from evaljournal.replay.review.labels import Review, review_path
from evaljournal.replay.runs.values import read_values
from evaljournal.replay.state.definition import load_definition
from evaljournal.replay.state.run import RunState
from evaljournal.replay.text import plural
from evaljournal.runner.errors import UsageError, command, suggest
from evaljournal.runner.runs.verification import verify_observed
from evaljournal.runner.sessions.claims.files import make_secret, read_secret
from evaljournal.runner.sessions.claims.recompute import is_recomputable
from evaljournal.runner.sessions.claims.signing import sign
from evaljournal.version import installed_version

if TYPE_CHECKING:
    from evaljournal.runner.definition.settings import Settings
    from evaljournal.runner.sessions.plan import SelectedTrials

UNNAMED: Final = "urn:evaljournal:unnamed"  # The evaluator of a statement that names none.
_CASES: Final = "evaljournalCases"
_MAX_CLAIMS: Final = 100
_MAX_VALUE: Final = 16 << 20  # A larger one is not disclosed.


@attrs.frozen
class Snapshot:
    """A run and its review up to the last records that a claim is about."""

    state: RunState
    values: Values
    review: Review
    subjects: Sequence[Mapping[str, Any]]

    @property
    def started(self) -> RunStarted:
        """The definition of the run."""
        assert self.state.started is not None
        return self.state.started

    def leaves(self) -> Iterator[dict[str, Any]]:
        """Yield the leaves."""
        return self.values.leaves(self.state.trials, self.review.labels)

    def versions(self, names: Collection[str]) -> dict[str, set[str]]:
        """Return the versions of the scores with these names that are in the leaves."""
        versions: dict[str, set[str]] = {name: set() for name in names}
        for leaf in self.leaves():
            for name in versions.keys() & leaf["scores"].keys():
                versions[name].add(leaf["scores"][name]["version"])
        return versions

    def salts(self, secret: bytes) -> Salts:
        """Return the salts of the leaves and commitments."""
        heads = [subject["digest"][HEAD] for subject in self.subjects]
        return Salts(secret, heads[0], "".join(heads[1:]))

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
        }
        dataset = {"fingerprint": started.dataset_fingerprint, "source": started.dataset}
        return {"model": canonical(model).decode(), "dataset": canonical(dataset).decode()}


def _hash(leaf: Mapping[str, Any], salts: Salts) -> bytes:
    return merkle.leaf_hash(salts.of("trial", leaf["trial"]) + canonical(leaf))


def _subject(name: str, verifier: Verifier, head: str) -> dict[str, Any]:
    segment, digest = verifier.segment
    return {"name": f"{name}/{segment}", "digest": {"sha256": digest, HEAD: head}}


def _read_review(run: Path, head: str | None) -> tuple[Review, list[dict[str, Any]]]:
    """Read the review of a run up to a record (None: the last), and its subject; nothing if the head is empty."""
    path, review, subject = review_path(run), Review(), list[dict[str, Any]]()
    if head == "" or not is_run(path):
        return review, subject
    verifier = Verifier(path)
    for record in verifier:
        review.apply(with_loaded_blobs(record, DISK))
        subject = [_subject("review", verifier, record.h)]
        if record.h == head:
            break
    return review, subject


def _read_snapshot(path: Path, statement: Statement) -> Snapshot:
    """Read a run up to the record that a statement is about: later records change its state."""
    state, values, verifier, head = RunState(), Values(), Verifier(path), statement.digest("run", HEAD)
    for record in verifier:
        values.apply(record)
        state.apply(record)
        if record.h == head:
            review, subject = _read_review(path, statement.digest("review", HEAD))
            return Snapshot(state, values, review, [_subject("run", verifier, head), *subject])
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
    own_review, subject = _read_review(path, None)
    return Snapshot(state, values, own_review, [_subject("run", verifier, state.head), *subject])


def attest(
    path: Path, texts: Sequence[str], variant: str | None, plan: Statement | None, *, evaluator: str, key: Path | None
) -> Statement:
    """Return a statement that claims something about a finished run, or what a plan has announced.

    A claim that does not hold is stated, too, as one that has not passed.
    """
    if plan is not None and variant is not None:
        raise UsageError(f"the plan names the variants; pass the run without @{variant}")
    snapshot = _verified_snapshot(path)
    if snapshot.state.outcome != "finished":
        raise UsageError(f"{path} is not finished, so nothing can be claimed about it", hint=command("resume", path))
    claims = _claims(snapshot, texts, variant) if plan is None else plan.claims
    if plan is not None and (changes := _plan_differences(plan, snapshot)):
        raise UsageError(f"{path} is not the run that was planned: {', '.join(changes)} differ")
    for claim in claims:
        _check_claim(claim, snapshot)
    content_ = _statement(snapshot, claims, snapshot.salts(make_secret(path)), evaluator)
    for claim, figure in zip(claims, content_["predicate"][MEMBER]["figures"], strict=True):
        if not figure["values"]:
            raise UsageError(f"no trial has a value of {claim.metric}, so nothing can be claimed about it")
    if plan is not None:
        content_["predicate"]["preRegistration"] = {"alg": "sha256", "value": sha256(plan.payload).hexdigest()}
    return _signed(content_, key)


def _claims(snapshot: Snapshot, texts: Sequence[str], variant: str | None) -> list[Claim]:
    """Return a claim for each text and variant: the mean of several models is that of none."""
    names = snapshot.state.variants.names
    if variant is not None and variant not in names:
        raise UsageError(f"the run has no variant {variant!r}{suggest(variant, names)}")
    return _for_variants([Claim.parse(text) for text in texts], names if variant is None else [variant])


def _for_variants(claims: Sequence[Claim], names: Sequence[str]) -> list[Claim]:
    claims = [attrs.evolve(claim, variant=name) for claim in claims for name in names or [""]]
    if not 0 < len(claims) <= _MAX_CLAIMS:
        raise UsageError(f"{plural(len(claims), 'claim')}; make 1 to {_MAX_CLAIMS}, such as --claim 'exact>=0.9'")
    return claims


def _signed(statement: Mapping[str, Any], key: Path | None) -> Statement:
    payload = canonical(statement)
    return parse_envelope(envelope(payload, [] if key is None else [sign(payload, key)]))


def _check_claim(claim: Claim, snapshot: Snapshot) -> None:
    """Raise an error if there is nothing to claim."""
    scores, labels = snapshot.state.scores, {label.name for label in snapshot.review.labels}
    if claim.kind and claim.name not in labels:
        hint = "label outputs first: evaljournal review"
        raise UsageError(f"the run has no labels of {claim.name!r}{suggest(claim.name, labels)}", hint=hint)
    if not claim.kind and claim.name not in scores:
        raise UsageError(f"the run has no score {claim.name!r}{suggest(claim.name, scores)}")


def _statement(snapshot: Snapshot, claims: Sequence[Claim], salts: Salts, evaluator: str) -> dict[str, Any]:
    root, means, started = merkle.Root(), Means(claims), snapshot.started
    for leaf in snapshot.leaves():
        root.add(_hash(leaf, salts))
        means.add(leaf)
    members = means.members()
    values = {name: commitment(salts.of("commitment", name), value) for name, value in snapshot.identities().items()}
    tree = {"hash": "rfc6962-sha256", "size": root.size, "root": root.digest().hex()}
    withdrawn = snapshot.state.totals.stages["withdrawn"]
    predicate = {
        **members,
        "evaluator": {"id": evaluator},
        "evaluatedAt": snapshot.state.at,
        "suite": {"name": started.evaluation, "version": sha256(canonical(dict(started.scorers))).hexdigest()[:16]},
        "commitments": {name: {"alg": "sha256-salted-v1", "value": value, "salted": True} for name, value in values.items()},
        "assuranceLevel": "self_attested",
        "subjectProfile": "receipt",
        "harness": {"name": "evaljournal", "version": installed_version(), "digest": {"dirHash1": _package_digest()}},
        MEMBER: {**members[MEMBER], "version": VERSION, "tree": tree, "withdrawn": withdrawn},
    }
    subjects = list(snapshot.subjects)
    return {"_type": STATEMENT_TYPE, "subject": subjects, "predicateType": RESULT_TYPE, "predicate": predicate}


def _package_digest() -> str:
    """Return the SHA-256 of the list that `sha256sum` prints for the files of this package, sorted by path."""
    directory = Path(__file__).parents[2]
    files = [file for file in directory.rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    paths = sorted((file.relative_to(directory).as_posix(), file) for file in files)
    return sha256("".join(f"{sha256(file.read_bytes()).hexdigest()}  {name}\n" for name, file in paths).encode()).hexdigest()


def plan_statement(
    selection: "SelectedTrials", settings: "Settings", texts: Sequence[str], *, evaluator: str, key: Path | None
) -> Statement:
    """Return a statement of what will be claimed about the next run of an evaluation."""
    evaluation = selection.evaluation
    claims = _for_variants([Claim.parse(text) for text in texts], [name for name in evaluation.tasks if name])
    if not selection.trials.fingerprint:
        raise UsageError("the cases can be read only once, so they cannot be committed to", hint="pass a file or a list")
    for claim in claims:
        if not claim.kind and claim.name.partition(".")[0] not in evaluation.scorers:
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
        MEMBER: {
            "version": VERSION,
            "figures": [{"kind": claim.kind, "name": claim.name, "variant": claim.variant} for claim in claims],
        },
    }
    subject = [{"name": "cases", "digest": {_CASES: selection.trials.fingerprint}}]
    return _signed({"_type": STATEMENT_TYPE, "subject": subject, "predicateType": PLAN_TYPE, "predicate": predicate}, key)


def _plan_differences(plan: Statement, snapshot: Snapshot) -> list[str]:
    """Return what of a run is not as it was planned."""
    started, totals = snapshot.started, snapshot.state.totals
    actual = {
        "task": started.task_fingerprint,
        "scorers": dict(started.scorers),
        "seed": snapshot.state.settings.get("seed"),
        "trials": totals.completed + totals.failed,
    }
    differences = [name for name, value in actual.items() if plan.predicate.get(name) != value]
    differences += ["definition (changed after the start)"] if snapshot.values.is_redefined or started.is_replacement else []
    versions, planned = snapshot.versions({claim.name for claim in plan.claims if not claim.kind}), plan.predicate["scorers"]
    differences += [
        f"version of {name}" for name, own in versions.items() if own - {planned.get(name, planned.get(name.partition(".")[0]))}
    ]
    differences += ["cases"] if plan.digest("cases", _CASES) != started.dataset_fingerprint else []
    start = datetime.fromisoformat(snapshot.state.sessions[0].at)
    is_later = datetime.fromisoformat(plan.predicate["plannedAt"]) > start
    return [*differences, "times (the run started before the plan)"] if is_later else differences


def disclose(
    path: Path, statement: Statement, trials: Sequence[str] | None, sample: Mapping[str, int] | None, reveal: Sequence[str]
) -> tuple[int, Iterator[bytes]]:
    """Return the number of disclosed leaves, and the lines of a bundle with these trials (None: all) or a sample of them.

    The tree is computed again, and must be that of the statement.
    """
    if (secret := read_secret(path)) is None:
        raise UsageError(f"{path} has no secret, so nothing can be disclosed", hint="use the directory that was attested")
    snapshot = _read_snapshot(path, statement)
    salts, root, hashes, names = snapshot.salts(secret), merkle.Root(), bytearray(), list[str]()
    for leaf in snapshot.leaves():
        hashes += _hash(leaf, salts)
        root.add(bytes(hashes[-merkle.SIZE :]))
        names.append(leaf["trial"])
    if root.digest().hex() != statement.own["tree"]["root"]:
        raise UsageError(f"the trials of {path} are not those of the statement", hint="pass the statement of this run")
    if sample is not None:
        trials = [names[index] for index in sample_indexes(root.digest(), len(names), sample["size"], sample["seed"])]
    chosen, tree = set(names if trials is None else trials), merkle.levels(bytes(hashes))
    for name in sorted(chosen.difference(names)):
        raise UsageError(f"the statement has no trial {name!r}{suggest(name, names)}")
    scorers = snapshot.definition.get("scorers")
    header = {
        "bundle": VERSION,
        "statement": envelope(statement.payload, statement.signatures),
        "leaves": len(chosen),
        "scorers": {name: item for name, item in dict(scorers or {}).items() if is_recomputable(item)},
        "commitments": {name: [salts.of("commitment", name).hex(), snapshot.identities()[name]] for name in reveal},
        **({} if sample is None else {"sample": sample}),
    }

    def lines() -> Iterator[bytes]:
        yield canonical(header) + b"\n"
        leaves = ((index, leaf) for index, leaf in enumerate(snapshot.leaves()) if leaf["trial"] in chosen)
        values = read_values(path, snapshot.state.trials, (name for name in names if name in chosen))
        for (index, leaf), own in zip(leaves, values, strict=True):
            proof = [] if len(chosen) == len(names) else merkle.path(tree, index)
            salt = salts.of("trial", leaf["trial"])
            fields = {
                "index": index,
                "salt": salt.hex(),
                "leaf": canonical(leaf).decode(),
                "proof": [item.hex() for item in proof],
            }
            texts = {name: _text(getattr(own, name)) for name in VALUES if leaf[name] is not None}
            yield canonical(fields | {name: text.decode() for name, text in texts.items() if len(text) <= _MAX_VALUE}) + b"\n"

    return len(chosen), lines()


def _text(value: Any) -> bytes:
    """Return the JSON whose digest is in a leaf; that of a large value is as it was written."""
    return content(value, DISK) if isinstance(value, Blob) else canonical(value)


def check_journal(
    path: Path,
    statement: Statement,
    plan: Statement | None,
    commitments: Mapping[str, Any] = MappingProxyType({}),
    leaves: Iterable[tuple[int, str]] = (),
) -> Iterator[Line]:
    """Compare a statement with the journal of its run: verify it, and compute everything again.

    What a bundle discloses, commitments and leaves with their indexes, must be that of the journal, also without the secret.
    """
    try:
        _verified_snapshot(path)
    except InvalidRecord as exc:
        yield Line("audit", "failed", str(exc))
        return
    except JournalError as exc:
        yield Line("chain", "failed", str(exc))
        return
    yield Line("chain", "ok", "the journal is as it was written")
    yield Line("audit", "ok", "the run followed its rules")
    snapshot = _read_snapshot(path, statement)
    if snapshot.state.outcome != "finished":
        yield Line("head", "failed", "the run was not finished at the record that the statement is about")
        return
    yield Line.comparing(
        "head", list(snapshot.subjects) == statement.content["subject"], "the journals that the statement is about"
    )
    yield from _leaf_lines(snapshot, leaves)
    for name, (_, text) in commitments.items():
        yield Line.comparing("commitment", snapshot.identities()[name] == text, "that of the journal", f"{name}: ")
    yield from _predicate_lines(snapshot, read_secret(path), statement)
    if plan is not None:
        changes = _plan_differences(plan, snapshot)
        yield Line("plan", "failed" if changes else "ok", f"{', '.join(changes) or 'nothing'} in the journal is not as planned")


def _leaf_lines(snapshot: Snapshot, disclosed: Iterable[tuple[int, str]]) -> Iterator[Line]:
    leaves, count = enumerate(snapshot.leaves()), 0
    for index, text in disclosed:
        leaf = next((leaf for number, leaf in leaves if number == index), None)  # Both are in ascending order.
        if leaf is None or canonical(leaf).decode() != text:
            yield Line("leaves", "failed", f"leaf {index:,} is not the trial in the journal")
            return
        count += 1
    if count:
        yield Line("leaves", "ok", f"{count:,} disclosed: as in the journal")


def _predicate_lines(snapshot: Snapshot, secret: bytes | None, statement: Statement) -> Iterator[Line]:
    """Compare each member that follows from the journal, and list those that do not."""
    stated, salts = statement.predicate, snapshot.salts(secret or bytes(1))
    expected = _statement(snapshot, statement.claims, salts, stated["evaluator"]["id"])["predicate"]
    own = expected[MEMBER]
    if secret is None:
        yield Line("root", "unchecked", "root and commitments: the salts are not in this copy of the run")
    else:
        yield Line.comparing("root", own["tree"] == statement.own["tree"], "the root of the trials in the journal")
    follows = {name: expected[name] for name in ("claims", "sampleSize")}
    follows[MEMBER] = {name: own[name] for name in ("figures", "outputs", "errors")}
    yield from claim_lines(statement, follows, "the journal")

    names = ["evaluatedAt", "suite", *([] if secret is None else ["commitments"])]
    wrong = [name for name in names if stated[name] != expected[name]]
    wrong += [] if statement.own["withdrawn"] == own["withdrawn"] else ["withdrawn"]
    text = f"{', '.join(wrong)}: not as in the journal" if wrong else f"{', '.join([*names, 'withdrawn'])}: as in the journal"
    yield Line("members", "failed" if wrong else "ok", text)
    is_same_code = stated["harness"] == expected["harness"]
    yield Line("members", "ok" if is_same_code else "unchecked", f"harness: {'' if is_same_code else 'not '}this evaljournal")
    yield Line("members", "unchecked", f"evaluator: {stated['evaluator']['id']}, in the words of the issuer")


def check_plan(statement: Statement, plan: Statement) -> Iterator[Line]:
    """Compare a statement with the plan that it refers to."""
    reference = statement.predicate.get("preRegistration", {}).get("value")
    is_equal = plan.is_plan and reference == sha256(plan.payload).hexdigest() and statement.claims == plan.claims
    yield Line.comparing("plan", is_equal, "the plan that the statement refers to")
    yield Line("plan", "unchecked", "that it existed before the run: only who published or timestamped it can show that")
