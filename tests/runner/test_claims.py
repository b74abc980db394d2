"""Claims about runs: attested, disclosed and checked; altered statements, bundles and journals are rejected."""

import base64
import copy
import itertools
import json
import random
import shutil
import subprocess
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import orjson
import pytest
import trio

import evaljournal
from evaljournal import Case, Score, rescore
from evaljournal.journal import read, salvage
from evaljournal.journal.errors import InvalidRecord, JournalDamaged
from evaljournal.journal.events import AttemptSucceeded, RunFinished
from evaljournal.journal.fact import evolve_fact
from evaljournal.replay import load
from evaljournal.replay.claims.merkle import leaf_hash, levels
from evaljournal.replay.claims.merkle import path as path_of
from evaljournal.replay.claims.statement import (
    InvalidClaim,
    Statement,
    canonical,
    envelope,
    parse_envelope,
    pre_authentication_encoding,
)
from evaljournal.runner.calls.acp import Acp
from evaljournal.runner.calls.command import Command
from evaljournal.runner.errors import UsageError
from evaljournal.runner.runs.fork import fork
from evaljournal.runner.sessions.claims.claim import check_journal
from evaljournal.runner.sessions.claims.files import claim_summaries, keep_statement, make_secret, newest_statement, read_secret
from evaljournal.runner.sessions.claims.recompute import Recomputation
from evaljournal.runner.sessions.claims.signing import check_signatures, read_public_keys, sign
from evaljournal.scorers import close_to, command, contains, exact, f1, one_of, regex, similarity
from tests.cases.test_golden_merge import GOLDEN
from tests.claims import bundle, checked, claim, claimed_run, failures, forged, label, make_key
from tests.journal.samples import complete_run, fake_clock, flip, segment, session, trial, write_sync
from tests.processes import TIMEOUT
from tests.programs import import_optional
from tests.replay.batch_run import batch_run
from tests.runner.test_acp import AGENT
from tests.runner.test_replies import CASES, Agent
from tests.runs import define_real, run_real

TRIES = 10_000
"""Changed bytes that must be rejected; by default, a part of them."""


@pytest.fixture(scope="module")
def shared_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run that no test changes, with a secret."""
    path = claimed_run(tmp_path_factory.mktemp("claims") / "run")
    make_secret(path)
    return path


@pytest.fixture(scope="module")
def statement(shared_run: Path) -> Statement:
    """Return a statement about it."""
    return claim(shared_run, "exact>=0.7", "f1>0.5")


def altered(payload: bytes, change: Callable[[Any], None]) -> Statement:
    """Return a statement with another content and no signature."""
    content = orjson.loads(payload)
    change(content)
    return parse_envelope(envelope(canonical(content), []))


def test_a_claim_is_what_the_scores_give(shared_run: Path, statement: Statement) -> None:
    """Five of seven outputs are right: at least 0.7, less than 0.72; the statement has the members of the draft."""
    predicate = claim(shared_run, "exact>=0.7", "exact<0.72", "exact>=72%").predicate

    assert [True, True, False] == [item["passed"] for item in predicate["claims"]]
    assert (7, "self_attested", "receipt") == (
        predicate["sampleSize"],
        predicate["assuranceLevel"],
        predicate["subjectProfile"],
    )
    assert {"model", "dataset"} == predicate["commitments"].keys()
    assert 7 == statement.own["tree"]["size"]
    assert claim(shared_run, "exact>=0.7", "f1>0.5").payload == statement.payload


def test_the_statement_contains_nothing_of_a_trial(shared_run: Path, statement: Statement) -> None:
    """No name, input, output, digest or salt of a trial is in the statement."""
    text = statement.payload.decode()
    leaves = [orjson.loads(line) for line in bundle(shared_run, statement)[1:]]
    values = {
        value
        for leaf in leaves
        for value in (leaf["salt"], *orjson.loads(leaf["leaf"]).values())
        if isinstance(value, str) and value
    }

    assert not [value for value in values if value in text]


def test_a_bundle_of_all_trials_proves_the_claim(tmp_path: Path, shared_run: Path, statement: Statement) -> None:
    """With all trials, root, values, scores and claims are recomputed."""
    lines = checked(tmp_path, bundle(shared_run, statement, reveal=("dataset",)))

    assert ["root", *["values"] * 3, *["scores"] * 5, "claim", "claim", "commitment"] == [line.subject for line in lines]
    assert {"ok"} == {line.status for line in lines}
    assert "exact >= 0.7 holds: 7 values, 0 missing; recomputed from all 7 leaves" in [line.text for line in lines]


def test_selected_trials_are_proven(tmp_path: Path, shared_run: Path, statement: Statement) -> None:
    """Selected trials are proven to be in the tree, and the claim is stated, not recomputed."""
    lines = checked(tmp_path, bundle(shared_run, statement, trials=["case-2", "case-5"]))

    assert [] == failures(lines)
    assert "2 leaves of 7 proven to be in the tree" in [line.text for line in lines]
    assert {"unchecked"} == {line.status for line in lines if line.subject == "claim"}


def test_a_sample_is_drawn_again(tmp_path: Path, shared_run: Path, statement: Statement) -> None:
    """A sample is that of its seed; with another seed, or without one of its trials, it is rejected."""
    lines = bundle(shared_run, statement, sample={"size": 3, "seed": 5})
    header = orjson.loads(lines[0])
    others = [canonical({**header, "sample": {"size": 3, "seed": seed}}) + b"\n" for seed in range(10)]
    shorter = canonical({**header, "leaves": 2}) + b"\n"

    assert [] == failures(checked(tmp_path, lines))
    rejected = [bool(failures(checked(tmp_path, [other, *lines[1:]]))) for other in others]
    assert (False, True) == (rejected[5], any(rejected))  # Another seed may draw the same three of seven.
    assert failures(checked(tmp_path, [shorter, *lines[1:3]]))
    assert failures(checked(tmp_path, [canonical({**header, "sample": {"size": 10**9, "seed": 5}}) + b"\n", *lines[1:]]))


def change_head(content: Any, head: str) -> None:
    content["subject"][0]["digest"]["evaljournalHead"] = head


def change_byte(data: bytes, rng: random.Random) -> bytes:
    """Return bytes of which one is another."""
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ rng.randrange(1, 256)]) + data[at + 1 :]


def _changed_leaves(directory: Path, run: Path, statement: Statement, tries: int) -> int:
    rng, rejected = random.Random(7), 0
    all_lines = {len(lines): lines for lines in (bundle(run, statement), bundle(run, statement, trials=["case-1", "case-4"]))}
    for _ in range(tries):
        lines = list(rng.choice(list(all_lines.values())))
        number = rng.randrange(1, len(lines))
        fields = orjson.loads(lines[number])
        name = rng.choice(["leaf", "salt", "input", "expected", "output"])
        data = bytes.fromhex(fields[name]) if name == "salt" else fields[name].encode()
        changed = change_byte(data, rng)
        fields[name] = changed.hex() if name == "salt" else changed.decode("latin-1")
        if name != "salt" and fields[name].encode() == data:
            continue
        lines[number] = canonical(fields) + b"\n"
        rejected += bool(failures(checked(directory, lines)))
    return rejected


def test_a_changed_leaf_is_rejected(tmp_path: Path, shared_run: Path, statement: Statement) -> None:
    """Whichever byte of a leaf, a salt or a value is changed: the bundle is rejected."""
    assert 300 == _changed_leaves(tmp_path, shared_run, statement, 300)


@pytest.mark.exhaustive
def test_any_changed_leaf_is_rejected(tmp_path: Path, shared_run: Path, statement: Statement) -> None:
    """The same for 10,000 changes."""
    assert TRIES == _changed_leaves(tmp_path, shared_run, statement, TRIES)


def _changed_signatures(directory: Path, run: Path, tries: int, kind: str) -> int:
    rng, key = random.Random(7), make_key(directory, kind=kind)
    keys = read_public_keys(key.with_suffix(".pub"))
    signed = claim(run, "exact>=0.7", key=key)
    assert ["ok"] == [line.status for line in check_signatures(signed, keys)]
    items = list[Statement]()
    for _ in range(tries):
        if rng.random() < 0.5:
            items.append(attrs.evolve(signed, payload=change_byte(signed.payload, rng)))
        else:
            items.append(attrs.evolve(signed, signatures=[change_byte(signed.signatures[0], rng)]))

    def is_rejected(number: int) -> bool:
        lines = check_signatures(items[number], keys if number % 2 else None)  # Each call starts `ssh-keygen`.
        return "failed" in [line.status for line in lines]

    with ThreadPoolExecutor(4) as pool:
        return sum(pool.map(is_rejected, range(tries)))


@pytest.mark.parametrize("kind", ["ed25519", "rsa", "ecdsa"])
def test_a_changed_statement_is_rejected(tmp_path: Path, shared_run: Path, kind: str) -> None:
    """Whichever byte of payload or signature is changed: `ssh-keygen` rejects it, with the key or without."""
    assert 20 == _changed_signatures(tmp_path, shared_run, 20, kind)


@pytest.mark.exhaustive
@pytest.mark.timeout(1_800)
def test_any_changed_statement_is_rejected(tmp_path: Path, shared_run: Path) -> None:
    """The same for 10,000 changes."""
    assert TRIES == _changed_signatures(tmp_path, shared_run, TRIES, "ed25519")


def test_a_signature_for_anything_else_is_none(
    tmp_path: Path, shared_run: Path, statement: Statement, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signature by the same key in another namespace, or by another key, does not count."""
    key, other_key = make_key(tmp_path), make_key(tmp_path)
    keys = read_public_keys(other_key.with_suffix(".pub"))
    with monkeypatch.context() as patch:
        patch.setattr("evaljournal.runner.sessions.claims.signing.NAMESPACE", "git")
        foreign = attrs.evolve(statement, signatures=[sign(statement.payload, key)])

    assert ["failed", "unchecked"] == [line.status for line in check_signatures(foreign, None)]
    assert ["failed"] == [line.status for line in check_signatures(claim(shared_run, "exact>=0.7", key=key), keys)]
    assert ["failed"] == [line.status for line in check_signatures(statement, keys)]


def test_keys_that_cannot_sign(tmp_path: Path, shared_run: Path) -> None:
    """A missing key, an encrypted one without a terminal, one of another type, and a public key without its private key."""
    encrypted = make_key(tmp_path, passphrase="correct horse")  # noqa: S106  # of a key of this test
    other = tmp_path / "other.pem"
    other.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    other.chmod(0o600)
    lonely = make_key(tmp_path)
    lonely.unlink()
    for file, reason in ((tmp_path / "none", "there is no key"), (encrypted, "it is encrypted"), (other, "pass an SSH key")):
        with pytest.raises(UsageError, match=reason):
            claim(shared_run, "exact>=0.7", key=file)
    with pytest.raises(UsageError, match="cannot sign with"):
        claim(shared_run, "exact>=0.7", key=lonely.with_suffix(".pub"))
    with pytest.raises(UsageError, match="pass the public key"):
        read_public_keys(encrypted)


def test_in_toto_reads_statement_and_envelope(tmp_path: Path, shared_run: Path) -> None:
    """The packages of in-toto and DSSE read what we write, and encode what is signed in the same way."""
    pb_json = import_optional("google.protobuf.json_format")
    statement_pb2 = import_optional("in_toto_attestation.v1.statement_pb2")
    in_toto, dsse = import_optional("in_toto_attestation.v1.statement"), import_optional("securesystemslib.dsse")
    statement = claim(shared_run, "exact>=0.7", key=make_key(tmp_path))
    fields = envelope(statement.payload, statement.signatures)
    read = dsse.Envelope.from_dict(json.loads(canonical(fields)))
    in_toto.Statement.copy_from_pb(pb_json.Parse(read.payload, statement_pb2.Statement())).validate()

    assert fields == read.to_dict()
    assert pre_authentication_encoding(statement.payload) == read.pae()


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.update(predicateType="https://example.org/other"),
        lambda content: content.update(subject=[]),
        lambda content: content["predicate"].update(claims=[]),
        lambda content: content["predicate"].update(assuranceLevel="third_party"),
        lambda content: content["predicate"].update(sampleSize=-1),
        lambda content: content["predicate"].update(sampleSize=6),
        lambda content: content["predicate"]["evaljournal"]["figures"][0].update(missing=1),
        lambda content: (
            content["predicate"].update(sampleSize=0),
            content["predicate"]["evaljournal"]["figures"][0].update(values=0),
        ),
        lambda content: content["predicate"].pop("commitments"),
        lambda content: content["predicate"]["claims"][0].update(passed="yes"),
        lambda content: content["predicate"]["claims"][0].update(metric="exact f1"),
        lambda content: content["predicate"]["claims"][0].update(threshold="1e9"),
        lambda content: content["predicate"]["evaljournal"].update(version=2),
        lambda content: content["predicate"]["evaljournal"]["tree"].update(size=10**9),
        lambda content: content["predicate"]["evaljournal"]["tree"].update(root="00"),
        lambda content: content["predicate"].pop("evaljournal"),
        lambda content: content["predicate"].update(certifiedBy="me"),
        lambda content: content["predicate"]["claims"][0].update(threshold="0.৪"),
        lambda content: content["predicate"]["evaljournal"]["figures"][0].update(name="exact"),
        lambda content: content["predicate"]["evaljournal"]["figures"].pop(),
        lambda content: content["predicate"]["evaljournal"]["history"].pop("replayed"),
        lambda content: content["predicate"]["claims"][0].update(metric="label : exact"),
        lambda content: content["predicate"]["claims"][0].update(metric="exact@"),
        lambda content: content["predicate"]["claims"][0].update(threshold="0.7 %"),
        lambda content: content["predicate"].update(evaluatedAt="yesterday"),
        lambda content: content["predicate"].update(preRegistration="abc"),
        lambda content: content["predicate"].update(preRegistration=None),
        lambda content: content.update(subject=[5]),
        lambda content: content.update(subject={"a": {"digest": 1}}),
        lambda content: content["subject"][0].update(digest="ab"),
        lambda content: content["subject"].append(content["subject"][0]),
    ],
)
def test_a_statement_of_another_shape_is_rejected(statement: Statement, change: Callable[[Any], None]) -> None:
    """A statement that a check cannot rely on is rejected as a whole."""
    with pytest.raises(InvalidClaim, match="not a"):
        altered(statement.payload, change)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda lines: lines[:-1], "the bundle is truncated"),
        (lambda lines: [*lines[:-1], lines[-1][:-40]], "truncated bundle"),
        (lambda lines: lines[:1], "the bundle is truncated"),
        (lambda lines: [*lines, lines[-1]], "occurs twice"),
        (lambda lines: [*lines[:2], lines[1], *lines[3:]], "occurs twice"),
        (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], "is missing"),
        (lambda lines: [*lines[:2], b"[]\n"], "not as specified"),
        (lambda lines: [*lines[:2], b"\xff\n"], "not as specified"),
        (lambda lines: [*lines[:2], b"[" * 100_000 + b"\n"], "not as specified"),
        (lambda lines: [lines[0], lines[1][:-2] + b',"verified":true}\n', *lines[2:]], "unknown member 'verified'"),
        (lambda lines: [lines[0], lines[1].replace(b'"proof":[]', b'"proof":["%b"]' % (b"0" * 64)), *lines[2:]], "has a proof"),
        (lambda lines: [lines[0], lines[1].replace(b'"index":0', b'"index":0.0'), *lines[2:]], "index is 0.0"),
        (lambda lines: [lines[0], lines[1].replace(b'{"expected"', b'{"expected":"1","expected"'), *lines[2:]], "occurs twice"),
    ],
)
def test_a_malformed_bundle_is_rejected(
    tmp_path: Path, shared_run: Path, statement: Statement, change: Callable[[list[bytes]], list[bytes]], reason: str
) -> None:
    """A bundle that is truncated, has a leaf twice, or contains anything else has a verdict that names the line."""
    [text] = failures(checked(tmp_path, change(bundle(shared_run, statement))))

    assert text.startswith("line ")
    assert reason in text


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda leaf: leaf.update(output=None), "has scores or labels, but no output"),
        (lambda leaf: leaf.update(output=None, scores={}, labels=[{"name": "a", "value": 1}]), "has scores or labels"),
        (lambda leaf: leaf.update(case="case-1"), "occurs twice, or is out of order"),
        (lambda leaf: leaf.update(input=None), "input is None"),
        (lambda leaf: leaf.update(repeat=True), "repeat is True"),
        (lambda leaf: leaf.update(variant="a\x1b[2J"), "variant is"),
        (lambda leaf: leaf.update(note=""), "unknown member 'note'"),
        (lambda leaf: leaf["scores"]["exact"].update(value=[]), "value is []"),
        (lambda leaf: leaf["scores"]["exact"].update(value="1"), "has no part in a mean"),
        (
            lambda leaf: leaf["scores"].update({f"s{number}": leaf["scores"]["exact"] for number in range(1001)}),
            "1,000 members",
        ),
    ],
)
def test_a_leaf_that_no_run_gives_is_rejected(
    tmp_path: Path, shared_run: Path, statement: Statement, change: Callable[[Any], None], reason: str
) -> None:
    """A leaf whose shape is not that of a trial is rejected, although the root is that of the statement."""
    [text] = failures(checked(tmp_path, forged(bundle(shared_run, statement), lambda leaves: change(leaves[2]))))

    assert reason in text


@pytest.mark.parametrize("seed", [4711.0, True, -1, "4711\ufe00", [1], None])
def test_a_seed_is_an_integer(tmp_path: Path, shared_run: Path, statement: Statement, seed: Any) -> None:
    """A seed that only looks like the one that the checker chose is rejected."""
    lines = bundle(shared_run, statement, sample={"size": 3, "seed": 5})
    header = {**orjson.loads(lines[0]), "sample": {"size": 3, "seed": seed}}

    assert any("sample.seed is" in text for text in failures(checked(tmp_path, [canonical(header) + b"\n", *lines[1:]])))


def test_a_salt_has_16_bytes(tmp_path: Path, shared_run: Path, statement: Statement) -> None:
    """The beginning of a committed value cannot be presented as a part of its salt."""
    lines = bundle(shared_run, statement, reveal=("model",))
    header = orjson.loads(lines[0])
    secret = header["commitments"]["model"]
    secret |= {"salt": secret["salt"] + secret["text"][:20].encode().hex(), "text": secret["text"][20:]}

    [text] = failures(checked(tmp_path, [canonical(header) + b"\n", *lines[1:]]))
    assert text.startswith("line 1: not as specified (ValueError: it.commitments.model.salt is ")


def test_signatures_are_few(statement: Statement) -> None:
    """Each signature starts a program, so a statement has at most 16."""
    fields = envelope(statement.payload, [])
    with pytest.raises(InvalidClaim, match="list of 0 to 16 items"):
        parse_envelope({**fields, "signatures": [{"sig": ""}] * 17})


@pytest.mark.parametrize(
    "header",
    [b"", b"{}\n", b"null\n", b'{"bundle":1}\n', b'{"bundle":1,"statement":{"payload":"!"}}\n', b'{"bundle":1,"x":1}\n'],
)
def test_a_bundle_without_a_statement_is_rejected(tmp_path: Path, header: bytes) -> None:
    """What does not begin with a header is no bundle."""
    with pytest.raises(InvalidClaim, match=r"not a statement|neither a statement nor a bundle"):
        checked(tmp_path, [header])


def test_disclosed_leaves_contradict_the_counts(tmp_path: Path, shared_run: Path, statement: Statement) -> None:
    """One disclosed error is enough to show that a statement without errors is false."""

    def fail(leaves: list[Any]) -> None:
        leaves[2].update(output=None, scores={}, unscored=[], labels=[])

    header, *items = map(orjson.loads, forged(bundle(shared_run, statement), fail))
    del items[2]["output"]
    hashes = b"".join(leaf_hash(bytes.fromhex(item["salt"]) + item["leaf"].encode()) for item in items)
    items[2]["proof"] = [item.hex() for item in path_of(levels(hashes), 2)]
    lines = [canonical(item) + b"\n" for item in ({**header, "leaves": 1}, items[2])]

    assert ["the disclosed leaves have more values, outputs or errors than are stated for all"] == failures(
        checked(tmp_path, lines)
    )


def test_a_score_that_looks_like_another_is_named(tmp_path: Path) -> None:
    """A score with a Cyrillic letter is shown with its code point."""

    def own(output: str) -> bool:
        return bool(output)

    own.__name__ = "ex\u0430ct"
    path = claimed_run(tmp_path / "run", cases=1, scorers=(own,))

    lines = checked(tmp_path, bundle(path, claim(path, "ex\u0430ct>=1")))

    assert "'ex\\u0430ct'" in next(line.text for line in lines if line.subject == "scores")
    assert ["ex\u0430ct >= 1 holds: 1 values, 0 missing (the score is 'ex\\u0430ct')"] == claim(
        path, "ex\u0430ct>=1"
    ).claim_texts


def recomputed(scorer: Any, output: Any, expected: Any, *, times: int = 1, **options: Any) -> list[tuple[Any, str]]:
    """Recompute scores of one scorer under several names; return value, or the reason why there is none, of each."""
    definition = {"name": scorer.__name__, "address": None, **scorer.definition}
    names = [f"{scorer.__name__}-{number}" for number in range(times)]
    recomputation = Recomputation(dict.fromkeys(names, definition), **options)
    scores = {name: {"version": scorer.fingerprint, "value": None} for name in names}
    texts = [canonical(value).decode() for value in (output, expected)]
    return [(value, reason) for _, value, reason in recomputation(scores, *texts)]


@pytest.mark.parametrize("scorer", [contains, f1, one_of, similarity()])
def test_long_texts_are_not_compared(scorer: Any) -> None:
    """Some scorers take time by the product of two lengths, so long texts are not compared with many others."""
    answers = [str(number) for number in range(1_000)]

    assert [""] == [reason for _, reason in recomputed(scorer, "a" * 1_000, answers)]
    assert [(None, "its texts are too long")] == recomputed(scorer, "a" * 10_000, answers)


def test_scores_take_no_longer_than_their_values() -> None:
    """After half a minute, and a second for each megabyte, no more scores are recomputed: a bundle names a thousand scorers."""
    times = itertools.count(0, 5)  # Each score takes 5 seconds.
    results = recomputed(exact, "a", "a", times=20, clock=lambda: float(next(times)))
    more = recomputed(exact, "a" * 3_000_000, "b", times=20, clock=lambda: float(next(times)))

    assert [(True, "")] * 7 + [(None, "the scores before it took too long")] * 13 == results
    assert [""] * 7 == [reason for _, reason in more[:7]]


def test_a_pattern_is_compiled_when_there_is_time() -> None:
    """A pattern of a bundle can take a third of a second to compile, so none is compiled beforehand."""
    times = itertools.count(0, 60)
    recomputation = Recomputation({"a": {"name": "exact"}, "b": {"name": "regex", "pattern": "("}}, lambda: float(next(times)))
    scores = {name: {"version": exact.fingerprint, "value": True} for name in ("a", "b")}

    assert [("a", True, ""), ("b", None, "the scores before it took too long")] == list(recomputation(scores, '"x"', '"x"'))


def test_deep_values_are_compared_in_little_memory() -> None:
    """A difference inside a thousand objects with long keys is found without a path of each level."""
    text = "".join(f'{{"{"k" * 4_000}":' for _ in range(900)) + "1" + "}" * 900
    values = orjson.loads(text), orjson.loads(text)
    tracemalloc.start()
    result = exact(*values).value
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert result is True
    assert peak < 5_000_000


@pytest.mark.parametrize(
    "definition",
    [
        {"name": "command", "line": "touch executed"},
        {"name": "judge", "model": "gpt-5.4-mini"},
        {"name": "exact", "source": "def exact(output, expected):\n    return True\n"},
        {"name": "exact", "scorer": "exact"},
        {"name": "regex", "pattern": "("},
        {"name": "close_to", "relative": -1},
        {"name": "tools_used", "names": "book"},
        {"name": "__import__"},
    ],
)
def test_nothing_else_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, definition: dict[str, Any]) -> None:
    """A definition in a bundle selects one of a few built-in scorers, and no command, judge or source."""
    monkeypatch.chdir(tmp_path)
    recomputation = Recomputation({"exact": definition})
    [(_, value, reason)] = recomputation({"exact": {"version": exact.fingerprint}}, '"a"', '"a"')

    assert (None, "not recorded as a built-in scorer that makes no calls") == (value, reason)
    assert [] == list(tmp_path.iterdir())


def test_a_wrong_score_is_found(tmp_path: Path) -> None:
    """A run whose scorer pretends to be `exact` verifies and can be attested, but the scores are recomputed."""
    liar = copy.copy(exact)
    liar._function = lambda _, __: Score(value=True)
    path = claimed_run(tmp_path / "run", scorers=(liar,))
    lines = checked(tmp_path, bundle(path, claim(path, "exact>=1")))

    assert ["exact of 'case-2' is False, not True", "exact of 'case-5' is False, not True"] == failures(lines)


def test_scores_that_cannot_be_recomputed_are_listed(tmp_path: Path) -> None:
    """A function of the user, another version of a built-in scorer, and a slow pattern are not executed."""

    def own(output: str) -> bool:
        return bool(output)

    other = copy.copy(exact)
    other.fingerprint = "0" * 16
    path = claimed_run(tmp_path / "run", scorers=(own, other, regex("(i+)+t")))
    lines = checked(tmp_path, bundle(path, claim(path, "own>=1")))

    assert [] == failures(lines)
    assert [
        "exact: 7 scores not recomputed: another version of it",
        "own: 7 scores not recomputed: not recorded as a built-in scorer that makes no calls",
        "regex (regex pattern='(i+)+t'): 7 scores not recomputed: its pattern might take long",
    ] == [line.text for line in lines if line.subject == "scores"]


def test_scores_of_a_re_scoring_are_recomputed(tmp_path: Path) -> None:
    """A scorer that `rescore` added, or put in place of another one, is recognized by its version if it has no parameters."""
    path = claimed_run(tmp_path / "run", scorers=(exact, regex("^it")))
    rescored = define_real(str, [Case(name="case-0", input=0, expected="it is 0")])
    rescored.score(contains)
    rescored.score(name="words")(f1)
    rescored.score(regex())
    rescored.score(close_to(0.1))
    rescore(rescored, path)
    lines = checked(tmp_path, bundle(path, claim(path, "contains>=0.5")))

    assert [] == failures(lines)
    assert [
        "close_to: 7 scores not recomputed: not recorded as a built-in scorer that makes no calls",
        "contains: 7 scores recomputed: equal",
        "exact: 7 scores recomputed: equal",
        "regex (regex pattern=None): 7 scores recomputed: equal",
        "words (f1): 7 scores recomputed: equal",
    ] == sorted(line.text for line in lines if line.subject == "scores")


def test_a_scorer_under_another_name_is_named(tmp_path: Path, shared_run: Path, statement: Statement) -> None:
    """A score `exact` that a pattern gave is recomputed as such, and said to be; a long pattern is not compiled."""
    always = regex("")

    def use(leaves: list[Any]) -> None:
        for leaf in leaves:
            leaf["scores"]["exact"] = {"value": True, "version": always.fingerprint}

    lines, texts = bundle(shared_run, statement), list[list[str]]()
    for pattern in ("", "a?" * 100_000):
        scorers = {"exact": {"name": "regex", "pattern": pattern, "address": None}}
        texts.append([line.text for line in checked(tmp_path, forged(lines, use, scorers=scorers))])

    assert "exact (regex pattern=''): 7 scores recomputed: equal" in texts[0]
    assert "7 scores not recomputed: its pattern is too long" in "\n".join(texts[1])


def test_a_name_is_no_verdict(tmp_path: Path, shared_run: Path, statement: Statement) -> None:
    """The name of a score that reads like the line of a check is quoted."""
    name = "exact: 7 scores recomputed: equal"

    def add(leaves: list[Any]) -> None:
        leaves[0]["scores"][name] = {"value": True, "version": "1"}

    texts = [line.text for line in checked(tmp_path, forged(bundle(shared_run, statement), add))]

    assert f"'{name}': 1 score not recomputed: not recorded as a built-in scorer that makes no calls" in texts


def test_ssh_keygen_that_hangs_is_stopped(tmp_path: Path, statement: Statement, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signature that `ssh-keygen` does not verify in time is none."""
    program = tmp_path / "ssh-keygen"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr("evaljournal.runner.sessions.claims.signing._TIMEOUT", 0.2)
    signed = attrs.evolve(statement, signatures=[b"SSHSIG"])

    assert ["failed", "unchecked"] == [line.status for line in check_signatures(signed, None)]


def test_an_unfinished_run_is_rejected(tmp_path: Path) -> None:
    """Nothing can be claimed while trials are open."""
    write_sync(tmp_path / "run", [*complete_run(2)[:-1], *trial("case-9", "Quito")[:1]], confirm=False, clock=fake_clock(1.0))
    with pytest.raises(UsageError, match="is not finished"):
        claim(tmp_path / "run", "exact>=0.5")
    assert not (tmp_path / "run" / "claims").exists()


def test_a_run_that_verify_rejects_is_rejected(tmp_path: Path) -> None:
    """Neither a damaged journal nor one that breaks a rule can be attested, and nothing is written."""
    path = claimed_run(tmp_path / "run")
    flip(segment(path), 3_000)
    with pytest.raises(JournalDamaged):
        claim(path, "exact>=0.5")
    broken = [evolve_fact(event, elapsed=99.0) if isinstance(event, AttemptSucceeded) else event for event in complete_run(2)]
    write_sync(tmp_path / "broken", broken, confirm=False, clock=fake_clock(1.0))
    with pytest.raises(InvalidRecord, match="nothing can be claimed"):
        claim(tmp_path / "broken", "exact>=0.5")
    assert not (path / "claims").exists()


def test_a_claim_on_nothing_is_rejected(shared_run: Path) -> None:
    """A claim on a score or label that does not exist, or on a variant that the run does not have."""
    with pytest.raises(UsageError, match=r"no trial has a value of exakt.*; did you mean 'exact'\?"):
        claim(shared_run, "exakt>=0.5")
    with pytest.raises(UsageError, match=r"no trial has a value of label:exact.*; label outputs first"):
        claim(shared_run, "label:exact>=0.5")
    with pytest.raises(UsageError, match="has no variant 'mini'"):
        claim(shared_run, "exact@mini>=0.5")
    with pytest.raises(UsageError, match="0 claims"):
        claim(shared_run)


def test_labels_are_part_of_the_claim_and_later_ones_are_not(tmp_path: Path) -> None:
    """Labels are in the leaves; both heads are subjects; a later label does not change what is disclosed and checked."""
    path = claimed_run(tmp_path / "run")
    label(path, "case-1", value=True)
    label(path, "case-2", value=False)
    statement = claim(path, "label:exact>=0.5", "exact>=0.5")
    before = bundle(path, statement)
    label(path, "case-3", value=False)
    label(path, "case-1", value=False)
    later = claim(path, "label:exact>=0.5")

    assert ["run", "review"] == [subject["name"].partition("/")[0] for subject in statement.content["subject"]]
    assert before == bundle(path, statement)
    assert [] == failures([*checked(tmp_path, before), *check_journal(path, statement, None)])
    assert [True, False] == [item.predicate["claims"][0]["passed"] for item in (statement, later)]
    assert not {orjson.loads(line)["salt"] for line in before[1:]} & {
        orjson.loads(line)["salt"] for line in bundle(path, later)[1:]
    }
    assert b"ada.lovelace" not in b"".join(before)


def test_later_records_do_not_change_a_claim(tmp_path: Path) -> None:
    """A run that was continued still has the record that the statement is about, and gives the same bundle."""
    path = claimed_run(tmp_path / "run")
    statement = claim(path, "exact>=0.5")
    before = bundle(path, statement)
    write_sync(path, [session(2), *trial("case-x", "Quito")[:1]], new=False, clock=fake_clock(1.0))

    lines = list(check_journal(path, statement, None))

    assert before == bundle(path, statement)
    assert [] == failures(lines)
    assert "later records of the run or its review, which the statement is not about" in [line.text for line in lines]


@pytest.mark.parametrize(
    ("adopted", "is_change"), [({"task": "moved.py:answer"}, False), ({"task_fingerprint": "0" * 16}, True), ({}, False)]
)
def test_a_moved_task_is_no_change(tmp_path: Path, adopted: dict[str, str], is_change: bool) -> None:  # noqa: FBT001  # a parameter
    """What a plan rejects, and a statement counts, are sessions that adopted another definition, not another location."""
    path = claimed_run(tmp_path / "run", cases=1)
    write_sync(path, [evolve_fact(session(2), adopted=adopted)], new=False, clock=fake_clock(1.0))

    assert [False, is_change] == [bool(item.adopted) for item in load(path).state.sessions]


def test_a_statement_is_about_a_finished_run(shared_run: Path, statement: Statement) -> None:
    """A statement about a record before the end, when only good trials were done, is rejected with the journal."""
    records = list(read(shared_run))
    end = next(index for index, record in enumerate(records) if record.event.__class__ is RunFinished)
    heads = [record.h for record in records[end - 8 : end]]
    early = [altered(statement.payload, partial(change_head, head=head)) for head in heads]
    results = [failures(list(check_journal(shared_run, item, None))) for item in early]

    assert [["the run was not finished at the record that the statement is about"]] * 8 == results


def test_a_check_against_another_journal_fails(tmp_path: Path, shared_run: Path, statement: Statement) -> None:
    """A statement about another run, or with another verdict, size or digest, does not follow from the journal."""
    with pytest.raises(InvalidClaim, match="has no record with the hash"):
        list(check_journal(claimed_run(tmp_path / "run"), statement, None))
    for change in (
        lambda content: content["predicate"]["claims"][0].update(passed=False),
        lambda content: content["subject"][0]["digest"].update(sha256="0" * 64),
        lambda content: content["predicate"]["evaljournal"]["tree"].update(root="0" * 64),
        lambda content: content["predicate"]["evaljournal"]["history"].update(replayed=99),
        lambda content: content["predicate"]["suite"].update(name="gpqa-diamond"),
        lambda content: content["predicate"].update(evaluatedAt="2020-01-01T00:00:00Z"),
        lambda content: content["predicate"]["commitments"]["model"].update(value="0" * 64),
    ):
        assert 1 == len(failures(list(check_journal(shared_run, altered(statement.payload, change), None))))


def test_the_secret_stays_in_its_run(tmp_path: Path) -> None:
    """Only the owner can read the secret; it is made once; a fork and a bundle do not have it."""
    path = claimed_run(tmp_path / "run")
    statement = claim(path, "exact>=0.5")
    secret = read_secret(path)
    file = path / "claims" / "secret"
    trio.run(fork, path, tmp_path / "fork", None)

    assert secret is not None
    assert (0o600, [file]) == (file.stat().st_mode & 0o777, list((path / "claims").iterdir()))
    assert secret == make_secret(path)
    assert read_secret(tmp_path / "fork") is None
    assert not [
        data
        for data in bundle(path, statement)
        if secret in data or secret.hex().encode() in data or base64.b64encode(secret) in data
    ]


def test_a_damaged_secret_is_reported(tmp_path: Path) -> None:
    """A secret that is too short is never replaced, and a directory that points elsewhere is not used."""
    path = claimed_run(tmp_path / "run", cases=1)
    claim(path, "exact>=0.5")
    (path / "claims" / "secret").write_bytes(b"short")
    with pytest.raises(Exception, match="has 5 bytes, expected 32"):
        claim(path, "exact>=0.5")
    (path / "claims").rename(tmp_path / "elsewhere")
    (path / "claims").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Exception, match="is not a directory"):
        claim(path, "exact>=0.5")


def test_statements_are_kept(tmp_path: Path) -> None:
    """The same statement is kept once; the newest one is disclosed by default."""
    path = claimed_run(tmp_path / "run", cases=2)
    with pytest.raises(UsageError, match="has no claim"):
        newest_statement(path)
    files = [keep_statement(path, claim(path, text)) for text in ("exact>=0.5", "exact>=0.6", "exact>=0.5")]

    assert files[0] == files[2] != files[1]
    assert files[0] == newest_statement(path)


def test_the_statement_says_how_the_results_came_about(tmp_path: Path) -> None:
    """Replies that another run has recorded, forks and merged shards are counted in each text about a claim."""
    source, replayed, merged = (tmp_path / name for name in ("source", "replayed", "merged"))
    for path, options in ((source, {}), (replayed, {"replies": str(source), "on_miss": "fail"})):
        definition = define_real(Agent().task(), CASES, loop="asyncio")
        definition.score(exact)
        run_real(definition, path, **options)
    trio.run(fork, replayed, tmp_path / "fork", None)
    shutil.copytree(GOLDEN, merged)
    statements = [claim(path, "exact>=0") for path in (source, replayed, tmp_path / "fork")]
    write_sync(tmp_path / "batches", batch_run())
    statements += [claim(merged, "judge.right>=0"), claim(tmp_path / "batches", "judge>=0")]

    assert [
        "exact >= 0 holds: 3 values, 0 missing",
        "exact >= 0 holds: 3 values, 0 missing, 27 replayed replies",
        "exact >= 0 holds: 3 values, 0 missing, 27 replayed replies, 1 fork",
        "judge.right >= 0 holds: 9 values, 3 missing, 2 merged shards",
        "judge >= 0 holds: 3 values, 0 missing",
    ] == [text for statement in statements for text in statement.claim_texts]
    for path, statement in zip((source, replayed, tmp_path / "fork", merged, tmp_path / "batches"), statements, strict=True):
        assert [] == failures([*checked(tmp_path, bundle(path, statement)), *check_journal(path, statement, None)])
    silent = altered(statements[1].payload, lambda content: content["predicate"]["evaljournal"]["history"].update(replayed=0))
    assert ["not as in the journal: history"] == failures(list(check_journal(replayed, silent, None)))


def test_a_salvaged_run_says_so(tmp_path: Path) -> None:
    """To damage the record of an unwanted output, salvage the run and repeat the call cannot be hidden."""
    run_, salvaged = claimed_run(tmp_path / "run"), tmp_path / "salvaged"
    outputs = [record for record in read(run_) if isinstance(record.event, AttemptSucceeded)]
    old = claim(run_, "exact>=0.1")
    flip(segment(run_), outputs[2].offset + 20)
    trio.run(salvage, run_, salvaged)
    claimed_run(salvaged, resume=True)
    statement = claim(salvaged, "exact>=0.1")
    lines = list(check_journal(salvaged, statement, None))
    silent = altered(statement.payload, lambda content: content["predicate"]["evaljournal"]["history"].pop("salvages"))

    assert ["exact >= 0.1 holds: 7 values, 0 missing, 1 salvage of a damaged journal"] == statement.claim_texts
    assert "salvages" not in old.own["history"]
    assert ["unchecked"] == [line.status for line in lines if line.subject == "audit"]
    assert [] == failures([*checked(tmp_path, bundle(salvaged, statement)), *lines])
    assert ["not as in the journal: history"] == failures(list(check_journal(salvaged, silent, None)))


def test_a_command_that_scored_a_workspace_is_not_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither `attest` nor a check starts the command of a scorer again, or needs the workspace."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "repo").mkdir()
    executions = tmp_path / "executions"
    definition = define_real(Command("echo changed > a.txt", shell=True), workspace=tmp_path / "repo")  # noqa: S604  # of the test
    definition.score(name="check")(command(f"sh -c 'echo once >> {executions}'"))
    run_real(definition, tmp_path / "run")
    shutil.rmtree(tmp_path / "cache")
    statement = claim(tmp_path / "run", "check>=1")
    lines = [*checked(tmp_path, bundle(tmp_path / "run", statement)), *check_journal(tmp_path / "run", statement, None)]

    assert "once\n" == executions.read_text()
    assert [] == failures(lines)
    assert "check: 1 score not recomputed: not recorded as a built-in scorer that makes no calls" in [
        line.text for line in lines
    ]


def test_a_run_of_an_agent_can_be_attested(tmp_path: Path) -> None:
    """A run of an agent that speaks ACP has claims like any other."""
    definition = define_real(Acp(AGENT), [{"id": "it", "input": "say done", "expected": "done"}])
    definition.score(exact)
    run_real(definition, tmp_path / "run")
    statement = claim(tmp_path / "run", "exact>=1")
    lines = [*checked(tmp_path, bundle(tmp_path / "run", statement)), *check_journal(tmp_path / "run", statement, None)]

    assert ["exact >= 1 holds: 1 values, 0 missing"] == statement.claim_texts
    assert [] == failures(lines)


def test_a_run_of_what_if_names_the_model_that_it_called(tmp_path: Path) -> None:
    """Such a run can be attested: its statement counts the replayed replies, and commits to what was called instead."""
    source, path, options = tmp_path / "source", tmp_path / "what-if", {"live_from": 99, "live_model": "small"}
    for directory, changes in ((source, {}), (path, {"replies": str(source), **options})):
        definition = define_real(Agent().task(), CASES, loop="asyncio", durable="http")
        definition.score(exact)
        run_real(definition, directory, **changes)
    statement = claim(path, "exact>=0")
    lines = bundle(path, statement, reveal=("model",))

    assert ["exact >= 0 holds: 3 values, 0 missing, 27 replayed replies, 1 run of what-if"] == statement.claim_texts
    assert options.items() <= orjson.loads(orjson.loads(lines[0])["commitments"]["model"]["text"]).items()
    assert [] == failures([*checked(tmp_path, lines), *check_journal(path, statement, None)])


def test_the_digest_of_the_harness_is_that_of_the_package(statement: Statement) -> None:
    """The command in docs/claims.md gives it, in the directory of the package."""
    files = r"find . -type f ! -path '*/__pycache__/*' | sed 's|^\./||' | LC_ALL=C sort"
    command = ["sh", "-c", f"{files} | tr '\\n' '\\0' | xargs -0 sha256sum | sha256sum"]
    output = subprocess.run(
        command, cwd=Path(evaljournal.__file__).parent, capture_output=True, check=True, timeout=TIMEOUT
    ).stdout

    assert output.decode().split()[0] == statement.predicate["harness"]["digest"]["dirHash1"]


def test_a_signature_of_another_kind_is_shown(tmp_path: Path, statement: Statement) -> None:
    """A file in the directory of claims may have a signature that is none of SSH; the report names it as such."""
    path = claimed_run(tmp_path / "run", cases=1)
    make_secret(path)
    keep_statement(path, attrs.evolve(statement, signatures=[b"from elsewhere"]))
    [summary] = claim_summaries(path, "0" * 32)

    assert "signature by unknown key" in summary
