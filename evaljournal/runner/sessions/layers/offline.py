"""An attempt or a scorer call fails if it tried to connect to another machine, whatever it made of the error."""

from collections.abc import Iterable
from functools import partial
from typing import Any, Final

import attrs

from evaljournal.runner.calls import OnLateResult, Task, WrappedTask
from evaljournal.runner.engine.layers import Layer, unless_failed
from evaljournal.runner.scorers.scorer import OpenScorer
from evaljournal.runner.steps.replies.offline import OfflineError, watched_call

_MAX_CAUSES: Final = 20


class OfflineTask(WrappedTask):
    """A task, or a scorer, whose call fails with the error of its first connection."""

    def __init__(self, task: Task, label: str) -> None:
        super().__init__(task, partial(_call_offline, label), takes_trial=task.takes_trial)
        self.is_answered = getattr(task, "is_answered", None)


async def _call_offline(label: str, task: Task, value: Any, on_late: OnLateResult) -> Any:
    errors: list[OfflineError] = []
    watched_call.set((f"{label} is ", errors))
    try:
        return await unless_failed(task.call(value, on_late), errors)
    except Exception as exc:
        link: BaseException | None = exc
        for _ in range(_MAX_CAUSES):  # A connection of a thread that does not know which call it belongs to.
            if isinstance(link, OfflineError) and link is not exc:
                raise link from exc
            link = link and (link.__cause__ or link.__context__)
        raise


class OfflineLayer(Layer):
    def wrap(self, task: Task, variant: str) -> Task:  # noqa: ARG002  # as in `Layer`
        return OfflineTask(task, "a call of the task")


def offline_scorers(scorers: Iterable[OpenScorer]) -> list[OpenScorer]:
    return [
        attrs.evolve(scorer, task=OfflineTask(scorer.task, f"a call of the scorer {scorer.scorer.name!r}"))
        for scorer in scorers
    ]
