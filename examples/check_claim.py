"""Check a statement of `evaljournal attest` or a bundle of `evaljournal disclose` with Python's standard library alone.

python check_claim.py bundle.jsonl [signer.pub]: exit code 1 if anything is not as stated. It lists what it does not check.
"""

import base64
import json
import re
import subprocess
import sys
import tempfile
from decimal import Context, Decimal, Inexact
from hashlib import sha256
from pathlib import Path
from typing import Any

PAYLOAD_TYPE, ENVELOPE = "application/vnd.in-toto+json", ["payload", "payloadType", "signatures"]
TYPES = ("https://in-toto.io/attestation/eval-result/v0.1", "self_attested", "rfc6962-sha256", PAYLOAD_TYPE, int)
EXACT = Context(prec=1000, traps=[Inexact])
VERSION_OF_EXACT = "bf38025fb9f6d0f4"  # Of the scorer `exact`, which is recomputed here.
LEAF = {"case", "expected", "fingerprint", "input", "labels", "output", "repeat", "scores", "trial", "unscored", "variant"}
HEADER, LINE = {"bundle", "commitments", "leaves", "scorers", "statement"}, {"index", "leaf", "proof", "salt"}
VALUES, SCORE = {"expected", "input", "output"}, {"name", "value", "version"}
HASH, CLAIM, MAX_TRIALS = "[0-9a-f]{64}", r"(label:)?(\w[\w.-]*)(?:@([\w.-]{1,200}))? -?[0-9.]{1,80}", 10_000_000


def require(condition: object, problem: str) -> None:
    if not condition:
        raise ValueError(problem)


def say(text: str) -> None:
    print(text if text.isascii() and text.isprintable() else ascii(text))  # A letter may look like another.


def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    require([name for name, _ in pairs] == sorted(dict(pairs)), "a key occurs twice, or is out of order")
    return dict(pairs)


def parse(text: str) -> Any:
    return json.loads(text, object_pairs_hook=members, parse_float=Decimal, parse_constant=lambda name: require(not name, name))


def verify_signatures(envelope: Any, payload: bytes, key: Path | None) -> None:
    signatures, codes = envelope["signatures"], list[int]()
    require(len(signatures) in range(key is not None, 17), "the statement is unsigned, or has too many signatures")
    data = b"DSSEv1 %d %s %d %s" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(payload), payload)
    for signature in signatures:
        with tempfile.TemporaryDirectory() as directory:
            file, signers, text = Path(directory, "signature"), Path(directory, "signers"), signature["sig"]
            file.write_text(f"-----BEGIN SSH SIGNATURE-----\n{text}\n-----END SSH SIGNATURE-----\n")
            signers.write_text(f"signer {key.read_text()}" if key else "")
            action = ["verify", "-f", str(signers), "-I", "signer"] if key else ["check-novalidate"]
            command = ["ssh-keygen", "-n", "claim@evaljournal", "-s", str(file), "-Y", *action]
            codes.append(subprocess.run(command, input=data, capture_output=True, check=False).returncode)  # noqa: S603
    require(0 in codes if key else not any(codes), "the signature is not of this statement, or not by this key")
    say(("signature valid" if signatures else "unsigned") + ("" if key else " (by whom was not checked)"))


def node(left: bytes, right: bytes) -> bytes:
    return sha256(b"\1" + left + right).digest()


def root_of_path(item: bytes, index: int, size: int, path: list[bytes]) -> bytes:  # RFC 6962, section 2.1.1
    require((size == 1) is not bool(path), "a proof is too long or too short")
    split = 1 << (size - 1).bit_length() - 1 if path else 0
    if index < split:
        return node(root_of_path(item, index, split, path[:-1]), path[-1])
    return node(path[-1], root_of_path(item, index - split, size - split, path[:-1])) if path else item


def root_of(hashes: list[bytes]) -> bytes:  # RFC 6962, section 2.1
    split = 1 << (len(hashes) - 1).bit_length() - 1 if hashes[1:] else 0
    return node(root_of(hashes[:split]), root_of(hashes[split:])) if split else hashes[0]


def is_leaf(leaf: Any) -> bool:
    items = [{"name": name, **score} for name, score in leaf["scores"].items()] + [{"version": "", **x} for x in leaf["labels"]]
    texts = [leaf["case"], leaf["fingerprint"], leaf["trial"], *leaf["unscored"]]
    is_typed = all(type(text) is str for text in texts + [item[name] for item in items for name in ("name", "version")])
    has_values = all(item.keys() == SCORE and type(item["value"]) in {bool, int, Decimal, str} for item in items)
    hashes = [leaf["input"], leaf["expected"], *([] if leaf["output"] is None else [leaf["output"]])]
    has_hashes = all(re.fullmatch(HASH, item) for item in hashes) and re.fullmatch(r"[\w.-]{0,200}", leaf["variant"])
    is_known = leaf.keys() == LEAF and [type(leaf[name]) for name in ("labels", "repeat", "unscored")] == [list, int, list]
    is_ended = 0 < leaf["repeat"] <= MAX_TRIALS and (leaf["output"] or not (items or leaf["unscored"]))
    return bool(is_typed and has_values and has_hashes and is_known and is_ended)


def check_leaves(header: Any, lines: list[Any], tree: Any) -> list[Any]:
    leaves, hashes, index, recomputed = list[Any](), list[bytes](), -1, 0
    is_complete, types = header["leaves"] == tree["size"], (repr(header["bundle"]), type(header["leaves"]))
    require(header.keys() - {"sample"} == HEADER and types == ("1", int), "line 1 is not the header of a bundle")
    for line in lines:
        leaf, path = parse(line["leaf"]), [bytes.fromhex(item) for item in line["proof"] if re.fullmatch(HASH, item)]
        is_known = is_leaf(leaf) and LINE <= line.keys() <= LINE | VALUES and line["proof"] == list(map(bytes.hex, path))
        require(is_known and re.fullmatch("[0-9a-f]{32}", line["salt"]), f"line {len(leaves) + 2} is not that of a trial")
        require(type(line["index"]) is int and index < (index := line["index"]) < tree["size"], "a leaf occurs twice")
        hashes.append(sha256(b"\0" + bytes.fromhex(line["salt"]) + line["leaf"].encode()).digest())
        root = tree["root"] if is_complete else root_of_path(hashes[-1], index, tree["size"], path).hex()
        require(root == tree["root"] and not (is_complete and path), f"leaf {index} is not in the tree")
        for name in VALUES & line.keys():
            require(sha256(line[name].encode()).hexdigest() == leaf[name], f"{name} of leaf {index} is not what it commits to")
        score, texts = leaf["scores"].get("exact", {}), [line.get(name, "") for name in ("output", "expected")]
        if score.get("version") == VERSION_OF_EXACT and texts[0][:1] == texts[1][:1] == '"':  # Canonical JSON.
            require(score["value"] is (texts[0] == texts[1]), f"the score of leaf {index} is wrong")
            recomputed += 1
        leaves.append(leaf)
    keys = [(leaf["case"], leaf["variant"], leaf["repeat"]) for leaf in leaves]
    is_ordered = keys == sorted(set(keys)) and len(leaves) == header["leaves"]
    require(is_ordered, "leaves are missing, not in order, or have a case twice")
    require(not is_complete or root_of(hashes).hex() == tree["root"], "the root is not that of the statement")
    say(f"{len(leaves)} of {tree['size']} leaves are in the tree; exact recomputed for {recomputed}")
    return leaves


def main(path: Path, key: Path | None = None) -> None:
    is_bundle = (text := path.read_text("utf-8")).startswith('{"bundle":')  # Otherwise an envelope, as any program writes it.
    header, *lines = map(parse, text.removesuffix("\n").split("\n")) if is_bundle else [json.loads(text)]
    payload = base64.b64decode((envelope := header["statement"] if is_bundle else header)["payload"], validate=True)
    verify_signatures(envelope, payload, key)
    predicate = (statement := parse(payload.decode()))["predicate"]
    tree, figures = predicate["evaljournal"]["tree"], predicate["evaljournal"]["figures"]
    say(f"statement {sha256(payload).hexdigest()}, root {tree['root']}")
    types = statement["predicateType"], predicate["assuranceLevel"], tree["hash"], envelope["payloadType"], type(tree["size"])
    require(types == TYPES and sorted(envelope) == ENVELOPE, "not an eval-result")
    leaves = check_leaves(header, lines, tree) if is_bundle else []
    is_complete = len(leaves) == tree["size"] > 0
    for claim, figure in zip(predicate["claims"], figures, strict=True):
        if not (match := re.fullmatch(CLAIM, f"{(metric := claim['metric'])} {claim['threshold']}")):
            raise ValueError(f"{metric} is not a claim")
        name, own, total = match[2], [leaf for leaf in leaves if match[3] in {None, leaf["variant"]}], Decimal(0)
        scores = [leaf["scores"][name]["value"] for leaf in own if name in leaf["scores"]]
        labels = [label["value"] for leaf in own for label in leaf["labels"] if label["name"] == name]
        for value in (values := labels if match[1] else scores):
            require(not isinstance(value, str) and abs(value) <= Decimal("1e100"), "a value is no finite number")
            total = EXACT.add(total, EXACT.subtract(Decimal(value), Decimal(claim["threshold"])))
        passed = bool(values) and {">=": total >= 0, ">": total > 0, "<=": total <= 0, "<": total < 0}[claim["comparator"]]
        is_equal = claim["passed"] is passed and len(values) == figure["values"]
        require(is_equal or (not is_complete and len(values) <= figure["values"]), f"{metric}: not what follows")
        result = f"{passed}, recomputed from {len(values)} values" if is_complete else "not checked, which needs all leaves"
        say(f"{metric} {claim['comparator']} {claim['threshold']}: {result}")
    say("not checked: journal, plan, sample, commitments, other members and scores; that the calls were made as recorded")


if __name__ == "__main__":
    try:
        main(*map(Path, sys.argv[1:]))
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError, OSError) as exc:
        sys.exit(ascii(f"wrong: {type(exc).__name__}: {exc}"))
