"""Check a statement of `evaljournal attest` or a bundle of `evaljournal disclose` with Python's standard library alone.

python check_claim.py bundle.jsonl [signer.pub]

It follows docs/claims.md, and shares no code with evaljournal; `ssh-keygen` verifies the signature. Exit code 1 if anything is
not as stated. What was not checked is listed.
"""

import base64
import hashlib
import json
import subprocess
import sys
import tempfile
import textwrap
from decimal import Context, Decimal, Inexact
from pathlib import Path
from typing import Any

EXACT = Context(prec=1000, traps=[Inexact])
RESULT = "https://in-toto.io/attestation/eval-result/v0.1"
NAMESPACE = "claim@evaljournal"


def require(condition: object, problem: str) -> None:
    if not condition:
        raise ValueError(problem)


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def parse(text: bytes | str) -> Any:
    """Parse JSON in which no key occurs twice; numbers with a fraction stay decimal."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        require(len(dict(pairs)) == len(pairs), "a key occurs twice")
        return dict(pairs)

    return json.loads(text, object_pairs_hook=unique, parse_float=Decimal)


def verify_signature(envelope: Any, payload: bytes, key: Path | None) -> None:
    kind = envelope["payloadType"].encode()
    data = b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)
    for signature in envelope["signatures"]:
        body = textwrap.wrap(base64.b64encode(base64.b64decode(signature["sig"])).decode(), 70)
        with tempfile.TemporaryDirectory() as directory:
            file, signers = Path(directory, "signature"), Path(directory, "signers")
            file.write_text("\n".join(["-----BEGIN SSH SIGNATURE-----", *body, "-----END SSH SIGNATURE-----", ""]))
            command = ["ssh-keygen", "-n", NAMESPACE, "-s", str(file), "-Y"]
            if key is None:
                command.append("check-novalidate")
            else:
                signers.write_text(f"signer {key.read_text()}")
                command += ["verify", "-f", str(signers), "-I", "signer"]
            result = subprocess.run(command, input=data, capture_output=True, check=False)  # noqa: S603  # no shell
            require(result.returncode == 0, "the signature is not of this statement, or not by this key")
    require(envelope["signatures"] or key is None, "the statement is unsigned")
    print("signature valid" if envelope["signatures"] else "unsigned", "" if key else "(by whom was not checked)")


def root_of_path(item: bytes, index: int, size: int, path: list[bytes]) -> bytes:
    """RFC 9162, section 2.1.3.2."""
    last = size - 1
    for sibling in path:
        require(last, "a proof is too long")
        if index & 1 or index == last:
            item = sha256(b"\1" + sibling + item)
            while index and not index & 1:
                index, last = index >> 1, last >> 1
        else:
            item = sha256(b"\1" + item + sibling)
        index, last = index >> 1, last >> 1
    require(not last, "a proof is too short")
    return item


def root_of(hashes: list[bytes]) -> bytes:
    """RFC 6962, section 2.1: hash pairs, level by level; a last node without sibling moves up."""
    while len(hashes) > 1:
        pairs = [sha256(b"\1" + hashes[at] + hashes[at + 1]) for at in range(0, len(hashes) - 1, 2)]
        hashes = pairs + hashes[len(hashes) - len(hashes) % 2 :]
    return hashes[0]


def check_leaves(header: Any, lines: list[bytes], tree: Any) -> list[Any]:
    leaves, hashes, index, trial = list[Any](), list[bytes](), -1, ""
    for line in map(parse, lines):
        leaf = parse(line["leaf"])
        require(index < line["index"] < tree["size"] and (not leaves or trial < leaf["trial"]), "a leaf occurs twice")
        index, trial = line["index"], leaf["trial"]
        hashes.append(sha256(b"\0" + bytes.fromhex(line["salt"]) + line["leaf"].encode()))
        if header["leaves"] < tree["size"]:
            root = root_of_path(hashes[-1], index, tree["size"], [bytes.fromhex(item) for item in line["proof"]])
            require(root.hex() == tree["root"], f"leaf {index} is not in the tree")
        for name in {"input", "expected", "output"} & line.keys():
            require(sha256(line[name].encode()).hex() == leaf[name], f"{name} of leaf {index} is not what it commits to")
        if header["scorers"].get("exact", {}).get("name") == "exact" and line.get("output", "")[:1] == '"':
            is_equal = line["output"] == line["expected"]  # Texts as canonical JSON.
            require(leaf["scores"]["exact"]["value"] == is_equal, f"the score of leaf {index} is wrong")
        leaves.append(leaf)
    require(len(leaves) == header["leaves"], "the bundle is truncated")
    is_complete = header["leaves"] == tree["size"]
    require(not is_complete or root_of(hashes).hex() == tree["root"], "the root is not that of the statement")
    print(f"{len(leaves)} of {tree['size']} leaves are in the tree")
    return leaves


def check_claim(claim: Any, figure: Any, leaves: list[Any]) -> None:
    values: list[Any] = []
    for leaf in leaves:
        if figure["variant"] in {"", leaf["variant"]} and figure["kind"] == "label":
            values += [label["value"] for label in leaf["labels"] if label["name"] == figure["name"]]
        elif figure["variant"] in {"", leaf["variant"]} and figure["name"] in leaf["scores"]:
            values.append(leaf["scores"][figure["name"]]["value"])
    total = Decimal(0)
    for value in values:
        total = EXACT.add(total, Decimal(value))
    bound = EXACT.multiply(Decimal(claim["threshold"]), Decimal(len(values)))
    results = {">=": total >= bound, ">": total > bound, "<=": total <= bound, "<": total < bound}
    passed = len(values) > 0 and results[claim["comparator"]]
    require((passed, len(values)) == (claim["passed"], figure["values"]), f"{claim['metric']}: not what follows")
    print(f"{claim['metric']} {claim['comparator']} {claim['threshold']}: {passed}, recomputed from {len(values)} values")


def main(path: Path, key: Path | None = None) -> None:
    first, *lines = path.read_bytes().splitlines()
    header = parse(first)
    envelope = header.get("statement", header)
    payload = base64.b64decode(envelope["payload"], validate=True)
    verify_signature(envelope, payload, key)
    statement = parse(payload)
    predicate, tree = statement["predicate"], statement["predicate"]["evaljournal"]["tree"]
    require((statement["predicateType"], predicate["assuranceLevel"]) == (RESULT, "self_attested"), "not an eval-result")
    leaves = check_leaves(header, lines, tree) if "bundle" in header else []
    for claim, figure in zip(predicate["claims"], predicate["evaljournal"]["figures"], strict=True):
        if len(leaves) == tree["size"]:
            check_claim(claim, figure, leaves)
        else:
            print(f"not checked: {claim['metric']} {claim['comparator']} {claim['threshold']}, which needs all leaves")
    print("not checked: the journal, other scores than exact ones of texts, and that the calls were made as recorded")


if __name__ == "__main__":
    try:
        main(*map(Path, sys.argv[1:]))
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as exc:
        sys.exit(f"wrong: {type(exc).__name__}: {exc}")
