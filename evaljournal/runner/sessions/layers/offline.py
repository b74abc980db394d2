"""An attempt or a scorer call fails if it tried to connect to another machine, whatever it made of the error."""

from collections.abc import Iterable

import attrs

from evaljournal.runner.calls import Task
from evaljournal.runner.engine.layers import Layer
from evaljournal.runner.scorers.scorer import OpenScorer
from evaljournal.runner.steps.replies.offline import offline_task


class OfflineLayer(Layer):
    """Watches the connections of tasks."""

    def wrap(self, task: Task, variant: str) -> Task:  # noqa: ARG002  # as in `Layer`
        """Return a task that fails with the error of its first connection."""
        return offline_task(task, "a call of the task")


def offline_scorers(scorers: Iterable[OpenScorer]) -> list[OpenScorer]:
    """Return scorers whose calls fail with the error of their first connection."""
    return [
        attrs.evolve(scorer, task=offline_task(scorer.task, f"a call of the scorer {scorer.scorer.name!r}"))
        for scorer in scorers
    ]
