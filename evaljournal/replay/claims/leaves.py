"""What each trial contributes to a claim, as the bytes of its leaf; and the salts that hide it.

A leaf is canonical JSON of one trial: its case, the digests of input, expected output and output, its scores with versions, and
the labels of reviewers without their names. Leaves are ordered by case, variant and repeat, so a checker who reads them one
after the other sees that none of these is in the tree twice, without remembering them.

The hash of a leaf that says `yes` or `no` could be guessed. Each leaf therefore has a salt of 128 bits: the keyed BLAKE2b of
the trial, with a key that depends on the secret of the run and on the heads of its journals. Who gets a leaf and its salt
learns nothing about any other leaf, nor about the same trial in a claim that includes later labels; and the run keeps 32 bytes,
not 16 MB.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b, sha256
from typing import Any, Final

from evaljournal.journal import Blob, Record
from evaljournal.journal.events import AttemptSucceeded, TrialEnqueued
from evaljournal.replay.claims.statement import canonical
from evaljournal.replay.review.labels import Label, OutputKey
from evaljournal.replay.state.trial import DONE_STAGES, Location, TrialState

SALT_BYTES: Final = 16
VALUES: Final = ("input", "expected", "output")  # Their digests are in the leaf.
_DIGEST: Final = 32


class Salts:
    """The salts of one state of a run and its review."""

    def __init__(self, secret: bytes, head: str, review_head: str) -> None:
        self._key = blake2b(f"evaljournal claim 1\n{head}\n{review_head}".encode(), key=secret).digest()

    def of(self, kind: str, name: str) -> bytes:
        """Return the salt of a `trial`, or of a `commitment`."""
        return blake2b(f"{kind}\n{name}".encode(), key=self._key, digest_size=SALT_BYTES).digest()


class _Digests:
    """Digests by the location of the record that has the values: 8 bytes each beside the digests themselves."""

    def __init__(self, count: int) -> None:
        self._size, self._places, self._digests = count * _DIGEST, array("Q"), bytearray()

    def add(self, record: Record, *values: Any) -> None:
        self._places.append(record.segment << 40 | record.offset)  # Ascending: records are read in order.
        for value in values:
            is_blob = isinstance(value, Blob)
            self._digests += bytes.fromhex(value.sha256) if is_blob else sha256(canonical(value)).digest()

    def of(self, location: Location) -> list[str]:
        start = bisect_left(self._places, location[0] << 40 | location[1]) * self._size
        text = self._digests[start : start + self._size].hex()
        return [text[at : at + 2 * _DIGEST] for at in range(0, len(text), 2 * _DIGEST)]


def leaf_order(trial: Mapping[str, Any]) -> tuple[str, str, int]:
    """Return what leaves are sorted by; no two leaves of a tree have the same."""
    return trial["case"], trial["variant"], trial["repeat"]


class Values:
    """The digests of all inputs, expected outputs and outputs of a run, collected while its records are read."""

    def __init__(self) -> None:
        self._cases, self._outputs = _Digests(2), _Digests(1)

    def apply(self, record: Record) -> None:
        """Keep the digests of a record's values."""
        event = record.event
        if event.__class__ is TrialEnqueued:
            self._cases.add(record, event.input, event.expected)
        elif event.__class__ is AttemptSucceeded:
            self._outputs.add(record, event.output)

    def leaves(self, trials: Mapping[str, TrialState], labels: Iterable[Label]) -> Iterator[dict[str, Any]]:
        """Yield the leaf of each trial with an output or an error in the order of the leaves; withdrawn ones have none."""
        by_output: dict[OutputKey, list[dict[str, Any]]] = {}
        for label in sorted(labels, key=lambda label: (label.name, str(label.value))):
            by_output.setdefault(label.key, []).append({"name": label.name, "value": label.value})
        done = ((trial.case, trial.variant, trial.repeat, name) for name, trial in trials.items() if trial.stage in DONE_STAGES)
        for case, variant, repeat, name in sorted(done):
            trial = trials[name]
            location = trial.output_location if trial.stage == "completed" else None
            output = None if location is None else self._outputs.of(location)[0]
            input_, expected = self._cases.of(trial.input_location)
            scores = {} if output is None else trial.scores  # An error has no value that could be part of a mean.
            yield {
                "case": case,
                "expected": expected,
                "fingerprint": trial.fingerprint,
                "input": input_,
                "labels": [] if output is None else by_output.get(OutputKey(case, trial.fingerprint, output), []),
                "output": output,
                "repeat": repeat,
                "scores": {scorer: {"value": value, "version": version} for scorer, (version, value) in scores.items()},
                "trial": name,
                "unscored": [] if output is None else sorted(trial.unscored),
                "variant": variant,
            }
