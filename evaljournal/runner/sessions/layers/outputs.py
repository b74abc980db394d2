"""What is recorded of an output: without the run's secrets, a large one early, and never what JSON cannot represent."""

from collections.abc import Awaitable
from functools import partial
from typing import Final

from evaljournal.journal.errors import Unserializable
from evaljournal.journal.events import NOTE_PREFIX, AttemptSucceeded
from evaljournal.journal.fact import evolve_fact
from evaljournal.journal.format.blobs import LIMIT
from evaljournal.journal.threads import InThread
from evaljournal.runner.calls.usage import usage_of_response
from evaljournal.runner.data.to_json import is_large, to_json
from evaljournal.runner.engine.call import Returned
from evaljournal.runner.engine.jobs import TrialWork
from evaljournal.runner.engine.layers import Layer
from evaljournal.runner.engine.recorder import LateRecorder, Recorder
from evaljournal.runner.secrets.masking import mask_output, sent_secrets

_LARGE_OUTPUT: Final = LIMIT // 6
"""Characters from which an output may need a blob: JSON has at most six bytes per character."""


class MaskingLayer(Layer):
    """Masks the secrets that the run has sent; which ones these are may change during the session."""

    def __init__(self, late_recorder: LateRecorder, in_thread: InThread) -> None:
        self._late_recorder = late_recorder
        self._in_thread = in_thread

    def change(self, work: TrialWork, outcome: Returned) -> Awaitable[Returned] | None:
        """Mask secrets in an output, and note that it was changed."""
        return self._mask(work, outcome) if sent_secrets.values else None

    async def _mask(self, work: TrialWork, outcome: Returned) -> Returned:
        mask = partial(mask_output, outcome.output)
        masked_output = await self._in_thread(mask) if is_large(outcome.output, LIMIT) else mask()
        if masked_output is outcome.output:
            return outcome
        self._late_recorder.sink(work)({f"{NOTE_PREFIX}masked": {"output": True}})
        return Returned(output=masked_output)


class LargeOutputsLayer(Layer):
    """Writes a large output before it is recorded, so that no other record waits for a slow disk."""

    def __init__(self, recorder: Recorder) -> None:
        self._journal = recorder.journal

    def change(self, work: TrialWork, outcome: Returned) -> Awaitable[Returned] | None:
        """Write an output if it is large, and the disk was slow lately."""
        is_slow = self._journal.has_slow_blobs and is_large(outcome.output, _LARGE_OUTPUT)
        return self._write(work, outcome) if is_slow else None

    async def _write(self, work: TrialWork, outcome: Returned) -> Returned:
        event = AttemptSucceeded(trial=work.trial, attempt=work.state.attempts, output=outcome.output, elapsed=0.0)
        try:
            return Returned(output=outcome.output, in_blobs=await self._journal.write_blobs(event))
        except (Unserializable, RecursionError):
            return outcome  # It is converted when it is recorded, or the attempt fails.


class ConversionLayer(Layer):
    """Converts an output that is an object, such as the reply of an SDK; what it says about usage counts."""

    def __init__(self, recorder: Recorder) -> None:
        self._trials = recorder.state.trials

    def convert(self, work: TrialWork, event: AttemptSucceeded) -> AttemptSucceeded:
        """Return the event with an output that JSON can represent, and with its usage, unless the attempt has noted it."""
        output = mask_output(to_json(event.output))
        usage = None if self._trials.has_noted_tokens(work.trial) else usage_of_response(output) or None
        return evolve_fact(event, output=output, usage=usage)
