"""The phases of an attempt: each has a timeout of its own, as the task reports where it is (`start_phase`)."""

from collections.abc import Mapping
from typing import Any

from evaljournal.runner.calls.notes import PHASE_NOTE
from evaljournal.runner.engine.call import CallScope
from evaljournal.runner.engine.jobs import TrialWork
from evaljournal.runner.engine.layers import Layer


class PhasesLayer(Layer):
    """What a layer has in common that does something before and after the task, such as a set-up."""

    def __init__(self, timeout: float | None) -> None:
        """A set-up may take `timeout` seconds, as an attempt may."""
        self.timeout = timeout

    def noted(self, work: TrialWork, scope: CallScope, values: Mapping[str, Any]) -> bool:
        """Start the timeout of a phase of the attempt; a teardown has a limit of its own."""
        match values.get(PHASE_NOTE):  # Sent in the loop of the run.
            case None:
                return False
            case "setup":
                scope.restart(self.timeout)
            case "task":
                scope.restart(work.timeout)
            case "teardown":
                scope.restart(None)
            case _:
                pass  # A worker sent something else.
        return True
