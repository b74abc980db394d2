"""What the recorded steps of a run from some step on would cost: the estimate of a counterfactual run.

The steps of a trial are those of the attempt that returned its output. Steps inside another one count like those of the task.
"""

from collections import Counter
from collections.abc import Collection

import attrs

from evaljournal.replay.state.usage import add
from evaljournal.runner.errors import UsageError
from evaljournal.runner.sessions.what_if.repricing import Repricing
from evaljournal.runner.steps.replies.recorded import RecordedReply
from evaljournal.runner.steps.replies.rewrite import DIALECTS, Rewrite
from evaljournal.runner.steps.replies.source import HOW_TO_RECORD

_ENDPOINTS = {endpoint.replace("/", "."): endpoint for endpoint in DIALECTS}
"""Name of a step → its endpoint."""


@attrs.define(eq=False)
class LiveEstimate:
    """What a run from some step on is expected to call."""

    rewrite: Rewrite
    trials: int = 0
    """Trials that have the step."""
    calls: int = 0
    """Their model calls from that step on."""
    usage: Counter[str] = attrs.field(factory=Counter[str])
    """As it is priced for the other model."""
    _endpoints: set[str] = attrs.field(factory=set[str])
    """Of these calls; empty for one that is no request over HTTP."""
    _longest: int = 0

    def add(self, steps: Collection[RecordedReply], repricing: Repricing) -> None:
        """Add the steps of a trial."""
        length = max((step.step for step in steps), default=0)
        self._longest = max(self._longest, length)
        self.trials += length >= self.rewrite.from_step
        for step in steps:
            if step.step >= self.rewrite.from_step and step.kind == "model":
                self.calls += 1
                self._endpoints.add(_ENDPOINTS.get(step.name.partition(" ")[0], ""))
                add(self.usage, repricing.usage_of(step))

    def check(self, path: object) -> None:
        """Raise a `UsageError` if no trial has the step, or the calls cannot be sent as the rewrite wants it."""
        rewrite = self.rewrite
        if not self._longest:
            raise UsageError(f"{path} has recorded no steps, so nothing can start from one", hint=HOW_TO_RECORD)
        if rewrite.from_step > self._longest:
            raise UsageError(
                f"--from-step {rewrite.from_step} is beyond the last step of {path}; its longest trial has {self._longest}"
            )
        if rewrite.model is None and rewrite.system is None:
            return
        if "" in self._endpoints or not self._endpoints:
            problem = "are no requests over HTTP, which could be changed" if self._endpoints else "are none"
            raise UsageError(f"the model calls of {path} from step {rewrite.from_step} on {problem}", hint=HOW_TO_RECORD)
        for endpoint in sorted(self._endpoints):
            rewrite.check(endpoint)
