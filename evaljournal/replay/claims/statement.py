"""What is claimed: a comparison of a mean with a threshold, in an in-toto Statement, in a DSSE envelope.

The predicate is the draft `eval-result` (in-toto/attestation#575, as of 2026-09-28). Members of ours are in its member
`evaljournal`, which other readers ignore. An optional member that is absent claims nothing, and nothing here fills it in.

A mean is compared without rounding: each number counts as the decimal that the leaf contains, so anyone who can add decimals
gets the same verdict, and a mean of 0.7 reaches the threshold 0.7.
"""

import decimal
import operator
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from hashlib import sha256
from typing import Any, Final, Self

import attrs
import orjson

from evaljournal.journal import JournalError
from evaljournal.replay.claims.shapes import ENVELOPE, PAYLOAD_TYPE, PLAN, PLAN_TYPE, RESULT, check_shape
from evaljournal.replay.state.tally import is_summable
from evaljournal.replay.text import plural

HEAD: Final = "evaljournalHead"  # The digest of a journal that is the hash of its last record.
MEMBER: Final = "evaljournal"  # Our member of the predicate.

_CLAIM: Final = re.compile(
    r"\s*+(?P<label>label\s*+:\s*+)?(?P<name>\w[\w.-]{0,199}+)(?:@(?P<variant>[A-Za-z0-9._-]{1,200}+))?\s*+(?P<comparator>>=|<=|>|<)\s*+"
    r"(?P<threshold>-?[0-9]{1,40}+(?:\.[0-9]{1,40}+)?+)\s*+(?P<percent>%?)\s*+"
)
_COMPARATORS: Final = {">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt}
_EXACT: Final = decimal.Context(prec=1_000, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN, traps=[decimal.Inexact])
# Sums of a million decimals between 1e-324 and 1e100 need fewer than 450 digits.
_HISTORY: Final = {
    "withdrawn": ("withdrawn trial", "withdrawn trials"),
    "adopted": ("change of the definition", "changes of the definition"),
    "replayed": ("replayed reply", "replayed replies"),
    "forks": ("fork", "forks"),
    "shards": ("merged shard", "merged shards"),
    "salvages": ("salvage of a damaged journal", "salvages of damaged journals"),
    "what_if": ("run of what-if", "runs of what-if"),
}
"""What a reader should know of how the results came about → one of it, several of it; shown unless there are none."""


class InvalidClaim(JournalError):
    """A claim, a statement or a bundle is not what it has to be."""


@attrs.frozen(kw_only=True)
class Claim:
    """A comparison of the mean of a score, or of the labels of this name, with a decimal number."""

    name: str
    is_label: bool = False
    variant: str = ""  # Empty: all trials count.
    comparator: str
    threshold: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a claim, such as `exact>=0.9`, `f1>0.5`, `exact@mini>=90%` or `label:judge>=0.9`."""
        match = _CLAIM.fullmatch(text)
        if match is None:
            raise InvalidClaim(f"{text!r:.100} is not a claim: expected NAME>=NUMBER, such as 'exact>=0.9'")
        threshold = _EXACT.scaleb(Decimal(match["threshold"]), Decimal(-2 if match["percent"] else 0))
        return cls(
            name=match["name"],
            is_label=match["label"] is not None,
            variant=match["variant"] or "",
            comparator=match["comparator"],
            threshold=f"{threshold:f}",
        )

    @property
    def metric(self) -> str:
        """Its name in the predicate: `exact`, `exact@mini`, `label:judge`."""
        return f"{'label:' if self.is_label else ''}{self.name}{self.variant and '@'}{self.variant}"

    def __str__(self) -> str:
        return f"{self.metric} {self.comparator} {self.threshold}"

    def values(self, leaf: Mapping[str, Any]) -> list[Any]:
        """Return the values that a trial contributes."""
        if self.is_label:
            return [label["value"] for label in leaf["labels"] if label["name"] == self.name]
        return [leaf["scores"][self.name]["value"]] if self.name in leaf["scores"] else []


class Means:
    """The means of several claims over the leaves of a tree, which are added one after the other."""

    def __init__(self, claims: Iterable[Claim]) -> None:
        # Of each claim: the number of its values, of trials without one, and the sum of the values.
        self._sums: list[tuple[Claim, list[Any]]] = [(claim, [0, 0, Decimal()]) for claim in claims]
        self._ends = [0, 0]  # Errors and outputs.

    def add(self, leaf: Mapping[str, Any]) -> None:
        """Add what a trial contributes; raise `InvalidClaim` if a value is no number."""
        self._ends[leaf["output"] is not None] += 1
        for claim, sums in self._sums:
            if claim.variant and leaf["variant"] != claim.variant:
                continue
            values = claim.values(leaf)
            for value in values:
                if not is_summable(value):
                    raise InvalidClaim(f"{claim.metric}: {value!r:.40} of trial {leaf['trial']!r:.80} has no part in a mean")
                sums[2] = _EXACT.add(sums[2], Decimal(value) if isinstance(value, int) else Decimal(repr(value)))
            sums[0] += len(values)
            sums[1] += not values

    def members(self) -> dict[str, Any]:
        """Return the members of the predicate and, in `MEMBER`, of ours that follow from the leaves."""
        claims = [
            {
                "metric": claim.metric,
                "comparator": claim.comparator,
                "threshold": claim.threshold,
                "passed": number > 0
                and _COMPARATORS[claim.comparator](total, _EXACT.multiply(Decimal(claim.threshold), Decimal(number))),
            }
            for claim, (number, _, total) in self._sums
        ]
        figures = [{"values": number, "missing": missing} for _, (number, missing, _) in self._sums]
        own = {"figures": figures, "outputs": self._ends[1], "errors": self._ends[0]}
        return {"claims": claims, "sampleSize": min(figure["values"] for figure in figures), MEMBER: own}


@attrs.frozen(kw_only=True)
class Statement:
    payload: bytes
    signatures: Sequence[bytes]
    content: Mapping[str, Any]
    predicate: Mapping[str, Any]
    own: Mapping[str, Any]  # Our member of the predicate.
    claims: Sequence[Claim]
    is_plan: bool  # Whether it says what will be claimed.

    @property
    def claim_texts(self) -> list[str]:
        if self.is_plan:
            return [f"{claim} planned" for claim in self.claims]
        notes = [f", {plural(count, *texts)}" for name, texts in _HISTORY.items() if (count := self.own["history"].get(name))]
        return [
            f"{claim} {'holds' if item['passed'] else 'does not hold'}: {figure['values']:,} values, "
            f"{figure['missing']:,} missing{''.join(notes)}"
            + ("" if claim.name.isascii() else f" (the score is {claim.name!a})")  # A letter may look like another.
            for claim, item, figure in zip(self.claims, self.predicate["claims"], self.own["figures"], strict=True)
        ]

    @property
    def commitment_texts(self) -> list[str]:
        """What it commits to, and who signed it; the signatures are not verified here."""
        commitments = {} if self.is_plan else self.predicate["commitments"]
        texts = [] if self.is_plan else [f"root {self.own['tree']['root']} of {self.own['tree']['size']:,} trials"]
        texts += [f"commitment to {name} {value['value']}" for name, value in commitments.items()]
        return [*texts, *(f"signature by {key_id(signature)}" for signature in self.signatures)] or ["unsigned"]

    def digest(self, name: str, algorithm: str) -> str:
        """Return a digest of a subject: the journal of the `run` or of its `review`, or the planned `cases`; empty without."""
        subjects = (item for item in self.content["subject"] if item["name"].partition("/")[0] == name)
        return next((item["digest"][algorithm] for item in subjects), "")


def pre_authentication_encoding(payload: bytes) -> bytes:
    """Return the bytes that a signature of an envelope is about: the PAE of DSSE version 1."""
    return b"DSSEv1 %d %b %d %b" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(payload), payload)


def key_id(signature: bytes) -> str:
    """Return the fingerprint of the public key in an SSH signature, as `ssh-keygen -l` prints it."""
    key = signature[14 : 14 + int.from_bytes(signature[10:14])]
    return (
        f"SHA256:{b64encode(sha256(key).digest()).decode().rstrip('=')}" if signature.startswith(b"SSHSIG") else "unknown key"
    )


def envelope(payload: bytes, signatures: Iterable[bytes]) -> dict[str, Any]:
    """Return an envelope, without a signature if there is none."""
    items = [{"keyid": key_id(signature), "sig": b64encode(signature).decode()} for signature in signatures]
    return {"payload": b64encode(payload).decode(), "payloadType": PAYLOAD_TYPE, "signatures": items}


def canonical(value: Any) -> bytes:
    """Return JSON without blanks, with sorted keys."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def parse_canonical(text: bytes) -> Any:
    """Parse JSON that is written as `canonical` writes it: no key occurs twice, and every reader reads the same."""
    value = orjson.loads(text)
    if canonical(value) != text:
        raise ValueError("not canonical JSON, or a key occurs twice")
    return value


def parse_envelope(fields: Any) -> Statement:
    """Read a statement from an envelope; raise `InvalidClaim` if it is not one that can be checked."""
    try:
        check_shape(fields, ENVELOPE)
        payload = b64decode(fields["payload"], validate=True)
        signatures = [b64decode(item["sig"], validate=True) for item in fields["signatures"]]

        content = parse_canonical(payload)
        is_plan = content["predicateType"] == PLAN_TYPE
        check_shape(content, PLAN if is_plan else RESULT)
        predicate, own = content["predicate"], content["predicate"][MEMBER]

        texts = [f"{item['metric']} {item['comparator']} {item['threshold']}" for item in predicate["claims"]]
        claims = list(map(Claim.parse, texts))
        if texts != list(map(str, claims)):
            raise ValueError("a claim is not in its shortest form")
        if not is_plan:
            _check_result(content["subject"], predicate, own)
    except (LookupError, TypeError, ValueError, AttributeError, decimal.DecimalException, InvalidClaim) as exc:
        raise InvalidClaim(f"not a statement of evaljournal ({type(exc).__name__}: {exc!s:.400})") from exc
    return Statement(
        payload=payload, signatures=signatures, content=content, predicate=predicate, own=own, claims=claims, is_plan=is_plan
    )


def _check_result(subjects: Sequence[Mapping[str, Any]], predicate: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Raise an error unless the subjects of a result are a run and its review, and its counts add up."""
    if [item["name"].partition("/")[0] for item in subjects] != ["run", "review"][: len(subjects)]:
        raise ValueError("its subjects are not a run and its review")
    size, values = own["tree"]["size"], [figure["values"] for figure in own["figures"]]
    figures = list(zip(predicate["claims"], own["figures"], strict=True))
    trials = [figure["missing"] + figure["values"] for item, figure in figures if not item["metric"].startswith("label:")]
    if size != own["outputs"] + own["errors"] or predicate["sampleSize"] != min(values) or max(trials, default=0) > size:
        raise ValueError("its counts do not add up")
    if any(item["passed"] and not figure["values"] for item, figure in figures):
        raise ValueError("a claim without values has passed")
