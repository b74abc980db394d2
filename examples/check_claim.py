"""Check a statement of `evaljournal attest` or a bundle of `evaljournal disclose` with Python's standard library alone.

python check_claim.py bundle.jsonl [signer.pub]

It shares no code with evaljournal. Exit code 1 if anything is not as stated. It lists what it does not check.
"""

import base64
import json
import re
import subprocess
import sys
import tempfile
import textwrap
from decimal import Context, Decimal, Inexact
from hashlib import sha256
from pathlib import Path
from typing import Any

TYPES = ("https://in-toto.io/attestation/eval-result/v0.1", "self_attested")
EXACT = Context(prec=1000, traps=[Inexact])
VERSION_OF_EXACT = "bf38025fb9f6d0f4"  # Of the scorer `exact`, which is recomputed here.


def require(condition: object, problem: str) -> None:
    if not condition:
        raise ValueError(problem)


def say(text: str) -> None:
    print(text if text.isprintable() else ascii(text))  # What a terminal could take for a command is escaped.


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    require(len(dict(pairs)) == len(pairs), "a key occurs twice")
    return dict(pairs)


def parse(text: bytes | str) -> Any:
    return json.loads(text, object_pairs_hook=unique, parse_float=Decimal, parse_constant=lambda name: require(not name, name))


def verify_signature(envelope: Any, payload: bytes, key: Path | None) -> None:
    kind = envelope["payloadType"].encode()
    data = b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)
    for signature in envelope["signatures"]:
        body = textwrap.wrap(base64.b64encode(base64.b64decode(signature["sig"])).decode(), 70)
        with tempfile.TemporaryDirectory() as directory:
            file, signers = Path(directory, "signature"), Path(directory, "signers")
            file.write_text("\n".join(["-----BEGIN SSH SIGNATURE-----", *body, "-----END SSH SIGNATURE-----", ""]))
            signers.write_text(f"signer {key.read_text()}" if key else "")
            action = ["verify", "-f", str(signers), "-I", "signer"] if key else ["check-novalidate"]
            command = ["ssh-keygen", "-n", "claim@evaljournal", "-s", str(file), "-Y", *action]
            result = subprocess.run(command, input=data, capture_output=True, check=False)  # noqa: S603  # no shell
            require(result.returncode == 0, "the signature is not of this statement, or not by this key")
    require(envelope["signatures"] or key is None, "the statement is unsigned")
    say(("signature valid" if envelope["signatures"] else "unsigned") + ("" if key else " (by whom was not checked)"))


def root_of_path(item: bytes, index: int, size: int, path: list[bytes]) -> bytes:  # RFC 9162, section 2.1.3.2
    last = size - 1
    for sibling in path:
        require(last, "a proof is too long")
        if index & 1 or index == last:
            item = sha256(b"\1" + sibling + item).digest()
            while index and not index & 1:
                index, last = index >> 1, last >> 1
        else:
            item = sha256(b"\1" + item + sibling).digest()
        index, last = index >> 1, last >> 1
    require(not last, "a proof is too short")
    return item


def root_of(hashes: list[bytes]) -> bytes:  # RFC 6962, section 2.1; a last node without sibling moves up
    while len(hashes) > 1:
        pairs = [sha256(b"\1" + hashes[at] + hashes[at + 1]).digest() for at in range(0, len(hashes) - 1, 2)]
        hashes = pairs + hashes[len(hashes) - len(hashes) % 2 :]
    return hashes[0]


def check_leaves(header: Any, lines: list[Any], tree: Any) -> list[Any]:
    leaves, hashes, index, recomputed = list[Any](), list[bytes](), -1, 0
    for line in lines:
        leaf = parse(line["leaf"])
        require(index < line["index"] < tree["size"], "a leaf occurs twice")
        index = line["index"]
        require(leaf["output"] or not (leaf["scores"] or leaf["labels"]), f"leaf {index} has scores, but no output")
        require(re.fullmatch("[0-9a-f]{32}", line["salt"]), "a salt has not 16 bytes")
        hashes.append(sha256(b"\0" + bytes.fromhex(line["salt"]) + line["leaf"].encode()).digest())
        if header["leaves"] < tree["size"]:
            root = root_of_path(hashes[-1], index, tree["size"], [bytes.fromhex(item) for item in line["proof"]])
            require(root.hex() == tree["root"], f"leaf {index} is not in the tree")
        for name in {"input", "expected", "output"} & line.keys():
            require(sha256(line[name].encode()).hexdigest() == leaf[name], f"{name} of leaf {index} is not what it commits to")
        score = leaf["scores"].get("exact", {})
        if score.get("version") == VERSION_OF_EXACT and line.get("output", "")[:1] == line.get("expected", "")[:1] == '"':
            require(score["value"] is (line["output"] == line["expected"]), f"the score of leaf {index} is wrong")
            recomputed += 1  # Texts as canonical JSON.
        leaves.append(leaf)
    keys = {(leaf["case"], leaf["variant"], leaf["repeat"]) for leaf in leaves}
    require(len(leaves) == header["leaves"] == len(keys), "the bundle is truncated, or has a case twice")
    require([leaf["trial"] for leaf in leaves] == sorted({leaf["trial"] for leaf in leaves}), "the trials are not in order")
    require(len(leaves) < tree["size"] or root_of(hashes).hex() == tree["root"], "the root is not that of the statement")
    say(f"{len(leaves)} of {tree['size']} leaves are in the tree; exact recomputed for {recomputed}")
    return leaves


def check_claim(claim: Any, figure: Any, leaves: list[Any]) -> None:
    values: list[Any] = []
    for leaf in (leaf for leaf in leaves if figure["variant"] in {"", leaf["variant"]}):
        items = leaf["labels"] if figure["kind"] else [{**score, "name": name} for name, score in leaf["scores"].items()]
        values += [item["value"] for item in items if item["name"] == figure["name"]]
    total = Decimal(0)
    for value in values:
        require(not isinstance(value, str) and abs(value) <= Decimal("1e100"), "a value is no finite number")
        total = EXACT.add(total, Decimal(value))
    goal = EXACT.multiply(Decimal(claim["threshold"]), Decimal(len(values)))
    results = {">=": total >= goal, ">": total > goal, "<=": total <= goal, "<": total < goal}
    passed = bool(values) and results[claim["comparator"]]
    require((passed, len(values)) == (claim["passed"], figure["values"]), f"{claim['metric']}: not what follows")
    say(f"{claim['metric']} {claim['comparator']} {claim['threshold']}: {passed}, recomputed from {len(values)} values")


def main(path: Path, key: Path | None = None) -> None:
    header, *lines = map(parse, path.read_bytes().splitlines())
    envelope = header.get("statement", header)
    payload = base64.b64decode(envelope["payload"], validate=True)
    verify_signature(envelope, payload, key)
    statement = parse(payload)
    own = (predicate := statement["predicate"])["evaljournal"]
    say(f"statement {sha256(payload).hexdigest()}, root {own['tree']['root']}")
    require((statement["predicateType"], predicate["assuranceLevel"]) == TYPES, "not an eval-result")
    leaves = check_leaves(header, lines, own["tree"]) if "bundle" in header else []
    for claim, figure in zip(predicate["claims"], own["figures"], strict=True):
        metric = (figure["kind"] and "label:") + figure["name"] + (figure["variant"] and f"@{figure['variant']}")
        is_own = metric == claim["metric"] and ":" not in figure["name"]
        require(is_own and re.fullmatch("-?[0-9.]{1,80}", claim["threshold"]), "a claim is not that of its figure")
        if len(leaves) == own["tree"]["size"] > 0:
            check_claim(claim, figure, leaves)
        else:
            say(f"not checked: {claim['metric']} {claim['comparator']} {claim['threshold']}, which needs all leaves")
    say("not checked: journal, plan, sample, commitments, other members and scores; that the calls were made as recorded")


if __name__ == "__main__":
    try:
        main(*map(Path, sys.argv[1:]))
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError, OSError) as exc:
        sys.exit(ascii(f"wrong: {type(exc).__name__}: {exc}"))
