"""The outputs of a few trials in each variant, to find variants that gave the same outputs."""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any, Final

from evaljournal.journal import Blob
from evaljournal.replay.state.trial import TrialState

_MAX_TRIALS: Final = 200
"""Trials of each variant in the sample: enough for `_MIN_TOTAL`, if half of them have no output."""
_MAX_VARIANTS: Final = 20
"""Variants that are compared, each with each other."""
_MIN_LENGTH: Final = 200
"""Characters of an output that is compared: labels and short answers may be the same for good reasons."""
_MIN_TOTAL: Final = 20_000
"""Characters, about 5,000 tokens: if sampling changes one token in 700 (temperature 0 and 0.2, in a text where few words have
an alternative), two variants have the same 5,000 tokens with a probability of e ** -7, below 0.1 %."""
_MAX_LENGTH: Final = 40_000
"""A longer output is unknown: readers of the journal may not have loaded it."""


class OutputSample:
    """The first cases with an output, and their outputs in each variant, as hashes; at most one per trial."""

    def __init__(self) -> None:
        self._outputs: dict[tuple[str, int], dict[str, tuple[int, int]]] = {}
        """Case and repeat → variant → hash and length of the output."""

    def add(self, trial: TrialState, output: Any) -> None:
        """Add a trial's output, or replace its earlier one."""
        key = trial.case, trial.repeat
        outputs = self._outputs.get(key)
        if outputs is None:
            if len(self._outputs) >= _MAX_TRIALS:
                return
            outputs = self._outputs[key] = {}
        text = output if output.__class__ is str else repr(output)
        outputs[trial.variant] = (hash(text), output.bytes if isinstance(output, Blob) else len(text))

    def same_variants(self, variants: Sequence[str]) -> Iterator[tuple[str, str, int]]:
        """Yield each pair of variants with identical long outputs, and the number of these outputs."""
        for one, other in combinations(variants[:_MAX_VARIANTS], 2):
            if count := self._same_outputs(one, other):
                yield one, other, count

    def _same_outputs(self, one: str, other: str) -> int:
        """Return the number of trials in which two variants have the same long output; 0 if that is no evidence."""
        total = count = 0
        for outputs in self._outputs.values():
            output, other_output = outputs.get(one), outputs.get(other)
            if output is None or other_output is None or max(output[1], other_output[1]) > _MAX_LENGTH:
                continue
            if output != other_output:
                return 0
            if output[1] >= _MIN_LENGTH:
                total, count = total + output[1], count + 1
        return count if total >= _MIN_TOTAL else 0
