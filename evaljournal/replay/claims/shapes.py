"""The exact shapes of a statement, a plan, a bundle and a leaf: members, their types, and the bounds of numbers and texts.

What a check does not know, it rejects: an unknown member is signed but not checked, and a value of another type could mean one
thing to a reader and another to a program. So everything is compared with one of these shapes before anything is computed from
it, and what computes needs no checks of its own.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
RESULT_TYPE: Final = "https://in-toto.io/attestation/eval-result/v0.1"
PLAN_TYPE: Final = "urn:evaljournal:eval-plan:1"
PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
VERSION: Final = 1
MAX_TRIALS: Final = 10_000_000
MAX_NAMES: Final = 1_000
_MAX_SIGNATURES: Final = 16
MAX_SAMPLE: Final = 100_000

_HISTORY: Final = ("withdrawn", "adopted", "replayed", "forks", "shards", "salvages?", "what_if?")
_TEXT, _OPTIONAL_INTEGER, _VALUE = (str,), (int, type(None)), (bool, int, float, str)
_HASH: Final = re.compile("[0-9a-f]{64}")
_HEAD: Final = re.compile("[0-9a-f]{32,64}")
_SALT: Final = re.compile("[0-9a-f]{32}")
_VARIANT: Final = re.compile(r"[A-Za-z0-9._-]{0,200}")
_COUNT: Final = range(MAX_TRIALS + 1)
_INTEGERS: Final = range(1 << 63)
_OUTPUT: Final = (_HASH, type(None))
_COMMITMENT: Final[dict[Any, Any]] = {"alg": "sha256-salted-v1", "value": _HASH, "salted": True}


def _time(value: Any) -> bool:
    """Return whether a value is a time with a time zone."""
    try:
        return isinstance(value, str) and datetime.fromisoformat(value).utcoffset() is not None
    except ValueError:
        return False


ENVELOPE: Final[dict[Any, Any]] = {
    "payload": _TEXT,
    "payloadType": PAYLOAD_TYPE,
    "signatures": [{"keyid?": _TEXT, "sig": _TEXT}, range(_MAX_SIGNATURES + 1)],
}
_CLAIM: Final[dict[Any, Any]] = {"metric": _TEXT, "comparator": _TEXT, "threshold": _TEXT}
_SECRET: Final[dict[Any, Any]] = {"salt": _SALT, "text": _TEXT}
_EVALUATOR: Final = {"id": _TEXT}

PLAN: Final[dict[Any, Any]] = {
    "_type": STATEMENT_TYPE,
    "predicateType": PLAN_TYPE,
    "subject": [{"name": "cases", "digest": {"evaljournalCases": _TEXT}}, range(1, 2)],
    "predicate": {
        "claims": [_CLAIM, range(1, 101)],
        "evaluator": _EVALUATOR,
        "plannedAt": _time,
        "suite": {"name": _TEXT},
        "seed": _OPTIONAL_INTEGER,
        "task": _TEXT,
        "scorers": {...: _TEXT},
        "trials": _COUNT,
        "evaljournal": {"version": VERSION},
    },
}
RESULT: Final[dict[Any, Any]] = {
    "_type": STATEMENT_TYPE,
    "predicateType": RESULT_TYPE,
    "subject": [
        {"name": re.compile(r"(run|review)/[\w.-]{1,200}"), "digest": {"evaljournalHead": _HEAD, "sha256": _HASH}},
        range(1, 3),
    ],
    "predicate": {
        "claims": [{**_CLAIM, "passed": (bool,)}, range(1, 101)],
        "sampleSize": _COUNT,
        "evaluator": _EVALUATOR,
        "evaluatedAt": _time,
        "suite": {"name": _TEXT, "version": _TEXT},
        "commitments": {"model": _COMMITMENT, "dataset": _COMMITMENT},
        "assuranceLevel": "self_attested",
        "subjectProfile": "receipt",
        "harness": {"name": "evaljournal", "version": _TEXT, "digest": {"dirHash1": _HASH}},
        "preRegistration?": {"alg": "sha256", "value": _HASH},
        "evaljournal": {
            "version": VERSION,
            "tree": {"hash": "rfc6962-sha256", "size": _COUNT, "root": _HASH},
            "figures": [{"values": _INTEGERS, "missing": _COUNT}, range(1, 101)],
            "outputs": _COUNT,
            "errors": _COUNT,
            "history": dict.fromkeys(_HISTORY, _INTEGERS),
        },
    },
}
HEADER: Final[dict[Any, Any]] = {
    "bundle": VERSION,
    "statement": ENVELOPE,
    "leaves": _COUNT,
    "scorers": {...: {"name": _TEXT, ...: (*_VALUE, type(None))}},
    "sample?": {"size": range(1, MAX_SAMPLE + 1), "seed": _INTEGERS},
    "commitments": {"model?": _SECRET, "dataset?": _SECRET},
}
LINE: Final[dict[Any, Any]] = {
    "index": _COUNT,
    "salt": _SALT,
    "leaf": _TEXT,
    "proof": [_HASH, range(65)],
    "input?": _TEXT,
    "expected?": _TEXT,
    "output?": _TEXT,
}
LEAF: Final[dict[Any, Any]] = {
    "trial": _TEXT,
    "case": _TEXT,
    "variant": _VARIANT,
    "repeat": range(1, MAX_TRIALS + 1),
    "fingerprint": _TEXT,
    "input": _HASH,
    "expected": _HASH,
    "output": _OUTPUT,
    "scores": {...: {"value": _VALUE, "version": _TEXT}},
    "unscored": [_TEXT, range(MAX_NAMES + 1)],
    "labels": [{"name": _TEXT, "value": _VALUE}, range(MAX_TRIALS)],
}


def check_shape(value: Any, shape: Any, path: str = "it") -> None:
    """Raise a ValueError unless a value has a shape.

    A shape is a mapping of members (`name?` may be missing, `...` stands for others), a list of the shape of the items and the
    range of their number, a tuple of alternatives, a range of integers, a pattern, a type, a condition, or the only value.
    """
    match shape:
        case Mapping():
            members = {name.removesuffix("?"): item for name, item in shape.items() if name is not ...}
            if value.__class__ is not dict or len(value) > MAX_NAMES:
                raise ValueError(f"{path} is not an object, or has more than {MAX_NAMES:,} members")
            if missing := [name for name in members if name not in value and name in shape]:
                raise ValueError(f"{path}.{missing[0]} is missing")
            for name, item in value.items():
                if name not in members and ... not in shape:
                    raise ValueError(f"unknown member {name!r:.80} of {path}")
                check_shape(item, members[name] if name in members else shape[...], f"{path}.{name}"[:200])
        case list():
            items, numbers = shape
            if value.__class__ is not list or len(value) not in numbers:
                raise ValueError(f"{path} is not a list of {numbers.start:,} to {numbers.stop - 1:,} items")
            for item in value:
                check_shape(item, items, f"{path}[]")
        case _ if not _fits(value, shape):
            raise ValueError(f"{path} is {value!r:.80}, which is not allowed")


def _fits(value: Any, shape: Any) -> bool:
    match shape:
        case tuple():
            return any(_fits(value, item) for item in shape)
        case range():
            return value.__class__ is int and value in shape
        case re.Pattern():
            return value.__class__ is str and shape.fullmatch(value) is not None
        case type():
            return value.__class__ is shape
        case _ if callable(shape):
            return bool(shape(value))
        case _:
            return value.__class__ is shape.__class__ and bool(value == shape)
