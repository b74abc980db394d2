"""What each trial contributes to a claim, as the bytes of its leaf; and the salts that hide it.

A leaf is canonical JSON of one trial: its case, the digests of input, expected output and output, its scores with versions, and
the labels of reviewers without their names. Leaves are ordered by case, variant and repeat, so a checker who reads them one
after the other sees that none of these is in the tree twice, without remembering them.

The hash of a leaf that says `yes` or `no` could be guessed. Each leaf therefore has a salt of 128 bits: the keyed BLAKE2b of
the trial, with a key that depends on the secret of the run and on the heads of its journals. Who gets a leaf and its salt
learns nothing about any other leaf, nor about the same trial in a claim that includes later labels; and the run keeps 32 bytes,
not 16 MB.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Any, Final

from evaljournal.journal.events import AttemptSucceeded, Record, TrialEnqueued
from evaljournal.journal.format.blobs import digest
from evaljournal.replay.review.labels import Label, OutputKey
from evaljournal.replay.state.trial import DONE_STAGES, TrialState

SALT_BYTES: Final = 16
VALUES: Final = ("input", "expected", "output")  # Their digests are in the leaf.
_OUTPUT: Final = 64  # Where the digest of the output begins.

Salter = Callable[[str, str], bytes]
"""Takes a kind, `trial` or `commitment`, and a name, and returns the salt."""


def make_salter(secret: bytes, head: str, review_head: str) -> Salter:
    """Return the function that gives the salts of one state of a run and its review."""
    key = blake2b(f"evaljournal claim 1\n{head}\n{review_head}".encode(), key=secret).digest()
    return lambda kind, name: blake2b(f"{kind}\n{name}".encode(), key=key, digest_size=SALT_BYTES).digest()


class Values:
    """The digests of all inputs, expected outputs and outputs of a run, collected while its records are read."""

    def __init__(self) -> None:
        self._digests: dict[str, bytes] = {}  # Trial → the digests in the order of `VALUES`, 32 bytes each.

    def apply(self, record: Record) -> None:
        """Keep the digests of a record's values; those of a later attempt or case replace earlier ones."""
        event = record.event
        if isinstance(event, TrialEnqueued):
            self._digests[event.trial] = bytes.fromhex(digest(event.input) + digest(event.expected))
        elif isinstance(event, AttemptSucceeded):
            self._digests[event.trial] = self._digests[event.trial][:_OUTPUT] + bytes.fromhex(digest(event.output))

    def leaves(self, trials: Mapping[str, TrialState], labels: Iterable[Label]) -> Iterator[dict[str, Any]]:
        """Yield the leaf of each trial with an output or an error in the order of the leaves; withdrawn ones have none."""
        by_output: dict[OutputKey, list[dict[str, Any]]] = {}
        for label in sorted(labels, key=lambda label: (label.name, str(label.value))):
            by_output.setdefault(label.key, []).append({"name": label.name, "value": label.value})
        done = ((trial.case, trial.variant, trial.repeat, name) for name, trial in trials.items() if trial.stage in DONE_STAGES)
        for case, variant, repeat, name in sorted(done):
            trial, digests = trials[name], self._digests[name]
            output = digests[_OUTPUT:].hex() if trial.stage == "completed" else None
            scores = {} if output is None else trial.scores  # An error has no value that could be part of a mean.
            yield {
                "case": case,
                "expected": digests[_OUTPUT // 2 : _OUTPUT].hex(),
                "fingerprint": trial.fingerprint,
                "input": digests[: _OUTPUT // 2].hex(),
                "labels": [] if output is None else by_output.get(OutputKey(case, trial.fingerprint, output), []),
                "output": output,
                "repeat": repeat,
                "scores": {scorer: {"value": value, "version": version} for scorer, (version, value) in scores.items()},
                "trial": name,
                "unscored": [] if output is None else sorted(trial.unscored),
                "variant": variant,
            }
