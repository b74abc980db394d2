"""Check a bundle: a statement with some of its leaves, their salts and values, and proofs that they are in its tree.

The first line of a bundle is the header, and each other line is a leaf, in the order of the tree. So a million leaves are read
one at a time, a repeated leaf is noticed at once, and the number of leaves in the header shows that the end is missing. A leaf
and its values are strings: the digests are about exactly these bytes. A bundle of all leaves needs no proofs.

The result is a list of lines, in the order in which each relies on the one before: the root, the values, the scores, the claim.
A line is `ok`, `failed` or `unchecked`; a check passes if none has failed. Nothing of a bundle is executed: scores are
recomputed by built-in scorers. Fields that this version does not know are rejected: they are not signed, and a reader could
take them for checked. Whatever else has an unexpected shape ends the check at its line.
"""

import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from itertools import count
from typing import Any, BinaryIO, Final, Literal, NamedTuple, Self

from evaljournal.replay.claims.leaves import VALUES
from evaljournal.replay.claims.merkle import Root, leaf_hash, root_of_path
from evaljournal.replay.claims.shapes import HEADER, LEAF, LINE, MAX_NAMES, check_shape
from evaljournal.replay.claims.statement import MEMBER, InvalidClaim, Means, Statement, canonical, parse_canonical
from evaljournal.replay.text import plural

BUNDLE: Final = b'{"bundle":'  # The start of a bundle.
MAX_LINE: Final = 32 << 20
_MAX_MISMATCHES: Final = 10
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,200}")

Recompute = Callable[[Mapping[str, Any], str, str], Iterator[tuple[str, Any, str]]]
"""Takes the scores of a trial, and the JSON of output and expected output; yields name and value, or why there is none."""


class Line(NamedTuple):
    subject: str
    status: Literal["ok", "failed", "unchecked"]
    text: str

    @classmethod
    def comparing(cls, subject: str, is_equal: bool, text: str, label: str = "") -> Self:  # noqa: FBT001  # the result
        """Return a line that says `text`, or that it is not so."""
        return cls(subject, "ok" if is_equal else "failed", f"{label}{'' if is_equal else 'not '}{text}")


class Recorded(NamedTuple):
    leaves: Iterator[tuple[int, Mapping[str, Any]]]
    identities: Mapping[str, str]
    """What the commitments are about."""


def check_bundle(
    stream: BinaryIO,
    statement: Statement,
    recomputing: Callable[[Mapping[str, Any]], Recompute],
    recorded: Recorded | None = None,
) -> Iterator[Line]:
    """Check a bundle, except for the signature of its statement, which was read from it.

    `recomputing` takes the recorded definitions of the scorers.
    """
    check, number = None, 0
    try:
        for number, line in enumerate(iter(lambda: stream.readline(MAX_LINE), b""), 1):  # noqa: B007  # the error names it
            if not line.endswith(b"\n"):
                raise InvalidClaim(f"longer than {MAX_LINE >> 20} MiB, or the end of a truncated bundle")
            fields = parse_canonical(line[:-1])
            check_shape(fields, HEADER if check is None else LINE)
            if check is None:
                check = _Check(statement, fields, recomputing(fields["scorers"]), recorded)
            else:
                check.add(**fields)
        yield from () if check is None else check.lines()
    except (InvalidClaim, LookupError, TypeError, ValueError, AttributeError) as exc:
        reason = str(exc) if isinstance(exc, InvalidClaim) else f"not as specified ({type(exc).__name__}: {exc!s:.200})"
        yield Line("leaves", "failed", f"line {number:,}: {reason}")
        yield Line("claim", "unchecked", "a leaf is wrong")


class _Check:
    """Leaves one after the other, and what follows from all of them."""

    def __init__(
        self, statement: Statement, header: Mapping[str, Any], recompute: Recompute, recorded: Recorded | None
    ) -> None:
        self._statement, self._header, self._recompute, self._recorded = statement, header, recompute, recorded
        self._size, self._root = statement.own["tree"]["size"], bytes.fromhex(statement.own["tree"]["root"])
        self._is_complete = header["leaves"] == self._size
        self._tree, self._means = Root(), Means(statement.claims)
        self._indexes, self._order = array("q"), ("", "", 0)
        self._undisclosed, self._scores = Counter[str](), defaultdict[str, Counter[str]](Counter)
        self._mismatches = list[str]()

    def add(self, index: int, salt: str, leaf: str, proof: list[str], **values: str) -> None:
        """Check the next leaf; raise an error if it is not in the tree, or its values are not those that it commits to."""
        content = parse_canonical(leaf.encode())
        check_shape(content, LEAF)
        trial, item = content["trial"], leaf_hash(bytes.fromhex(salt) + leaf.encode())
        order = content["case"], content["variant"], content["repeat"]

        if self._indexes and (index <= self._indexes[-1] or order <= self._order):
            raise InvalidClaim(f"leaf {index!r:.40} ({trial!r:.80}) occurs twice, or is out of order")
        if self._is_complete and (index != self._tree.size or proof):
            raise InvalidClaim(f"leaf {self._tree.size:,} is missing, or has a proof, which a bundle of all leaves has not")
        if not self._is_complete and root_of_path(item, index, self._size, list(map(bytes.fromhex, proof))) != self._root:
            raise InvalidClaim(f"leaf {index:,} ({trial!r:.80}) is not in the tree of the statement, or was changed")
        if content["output"] is None and (content["scores"] or content["unscored"] or content["labels"]):
            raise InvalidClaim(f"leaf {trial!r:.80} has scores or labels, but no output")

        self._order = order
        self._indexes.append(index)
        self._tree.add(item)

        for name in VALUES:
            if name not in values:
                self._undisclosed[name] += content[name] is not None
            elif sha256(values[name].encode()).hexdigest() != content[name]:
                raise InvalidClaim(f"the {name} of leaf {index:,} is not the one that it commits to")

        if self._recorded is not None:  # Both are in ascending order.
            own = next((own for number, own in self._recorded.leaves if number == index), None)
            if canonical(own) != leaf.encode():
                raise InvalidClaim(f"leaf {index:,} is not the trial in the journal")

        self._check_scores(content, values)
        self._means.add(content)

    def _check_scores(self, content: Mapping[str, Any], values: Mapping[str, str]) -> None:
        """Recompute scores, and count them by name and reason why they were not recomputed."""
        scores: Mapping[str, Any] = content["scores"]
        if "output" in values and "expected" in values:
            results = self._recompute(scores, values["output"], values["expected"])
        else:
            results = ((name, None, "output or expected output not disclosed") for name in scores)
        for name, value, reason in results:
            stated, trial = scores[name]["value"], content["trial"]
            self._scores[name][reason] += 1
            is_equal = reason or (value.__class__, value) == (stated.__class__, stated)
            if not is_equal and len(self._mismatches) < _MAX_MISMATCHES:
                self._mismatches.append(f"{_scorer_text(name, {})} of {trial!r:.80} is {value!r:.40}, not {stated!r:.40}")
        if len(self._scores) > MAX_NAMES:
            raise InvalidClaim(f"the leaves have scores of more than {MAX_NAMES:,} names")

    def lines(self) -> Iterator[Line]:
        """Yield the result; raise an error if leaves are missing, or are not those of the sample."""
        seen, sample = len(self._indexes), self._header.get("sample")
        leaves = plural(seen, "leaf", "leaves")
        if seen != self._header["leaves"]:
            raise InvalidClaim(f"{leaves} of {self._header['leaves']:,}: the bundle is truncated")

        if not self._is_complete:
            yield Line("root", "ok", f"{leaves} of {self._size:,} proven to be in the tree")
            yield Line("root", "unchecked", f"{self._size - seen:,} leaves are not disclosed")
        elif self._tree.digest() == self._root:
            yield Line("root", "ok", f"recomputed from all {leaves}")
        else:
            raise InvalidClaim("the root of all leaves is not that of the statement: a leaf was changed")

        if sample is not None:  # It is drawn only if it has as many leaves as the bundle, so its size costs no time.
            is_drawn = seen == min(sample["size"], self._size)
            is_drawn = is_drawn and [*self._indexes] == sample_indexes(self._root, self._size, **sample)
            yield Line.comparing("sample", is_drawn, f"the leaves that seed {sample['seed']} draws")
        if self._recorded is not None and seen:
            yield Line("leaves", "ok", f"{seen:,} disclosed: as in the journal")

        for name in VALUES if seen else ():
            number = self._undisclosed[name]
            text = f"{name}: {f'{number:,} not disclosed' if number else 'as committed'}"
            yield Line("values", "unchecked" if number else "ok", text)
        yield from (Line("scores", "failed", text) for text in self._mismatches)
        yield from self._score_lines()
        yield from claim_lines(self._statement, self._means.members(), f"all {leaves}", is_complete=self._is_complete)

        for name, secret in self._header["commitments"].items():
            stated = self._statement.predicate["commitments"][name]["value"]
            is_equal = commitment(bytes.fromhex(secret["salt"]), secret["text"]) == stated
            yield Line.comparing("commitment", is_equal, f"the committed one: {secret['text']}", f"{name}: ")
            if self._recorded is not None:
                is_equal = self._recorded.identities[name] == secret["text"]
                yield Line.comparing("commitment", is_equal, "that of the journal", f"{name}: ")

    def _score_lines(self) -> Iterator[Line]:
        for name, reasons in self._scores.items():
            scorer = _scorer_text(name, self._header["scorers"].get(name, {}))
            for reason, number in reasons.items():
                if reason:
                    yield Line("scores", "unchecked", f"{scorer}: {plural(number, 'score')} not recomputed: {reason}")
                elif not self._mismatches:
                    yield Line("scores", "ok", f"{scorer}: {plural(number, 'score')} recomputed: equal")


def _scorer_text(name: str, definition: Mapping[str, Any]) -> str:
    """Return the name of a score, with scorer and parameters unless it is the plain built-in scorer of this name."""
    parameters = [f"{key}={value!r:.200}" for key, value in definition.items() if key not in {"name", "address"}]
    scorer = " ".join([definition.get("name", name), *parameters])
    shown = name if _PLAIN_NAME.fullmatch(name) else ascii(name)[:200]  # It could look like another name, or like a verdict.
    return shown if scorer == name else f"{shown} ({scorer:.250})"


def claim_lines(statement: Statement, members: Mapping[str, Any], source: str, *, is_complete: bool) -> Iterator[Line]:
    """Yield a line for each claim; `members` are those that follow from `source`, which may be a part of the leaves."""
    stated = {**statement.predicate, MEMBER: {name: statement.own[name] for name in members[MEMBER]}}
    if is_complete and (wrong := [name for name in members if members[name] != stated[name]]):
        yield Line("claim", "failed", f"{', '.join(wrong)}: not what follows from {source}")
    elif not is_complete and any(number > total for number, total in zip(_counts(members), _counts(stated), strict=True)):
        yield Line("claim", "failed", "the disclosed leaves have more values, outputs or errors than are stated for all")
    else:
        checked = f"recomputed from {source}" if is_complete else "stated, not recomputed: that needs all leaves"
        yield from (Line("claim", "ok" if is_complete else "unchecked", f"{x}; {checked}") for x in statement.claim_texts)


def _counts(members: Mapping[str, Any]) -> list[int]:
    own = members[MEMBER]
    return [own["outputs"], own["errors"], *(figure[name] for figure in own["figures"] for name in ("values", "missing"))]


def commitment(salt: bytes, value: str) -> str:
    """Return the salted commitment to the identity of a model or a dataset."""
    return sha256(salt + value.encode()).hexdigest()


def sample_indexes(root: bytes, population: int, size: int, seed: int) -> list[int]:
    """Return the indexes of a random sample: the first `size` that the SHA-256 of root, seed and a counter draw.

    They depend on the root, so who committed to it could not choose what a seed draws that was named afterwards. The time is
    that of the sample, not of the tree: a statement may claim any size.
    """
    drawn, numbers = set[int](), count()
    while len(drawn) < min(size, population):
        drawn.add(int.from_bytes(sha256(f"{root.hex()}\n{seed}\n{next(numbers)}".encode()).digest()) % population)
    return sorted(drawn)
