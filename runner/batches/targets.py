"""Where the calls of an evaluation's tasks and judges are sent as lines of batches, and why some cannot be."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import attrs

from evaljournal.runner.batches.batcher import Batcher, BatchTarget, Engine
from evaljournal.runner.data.case import Case
from evaljournal.runner.definition.evaluation import Evaluation
from evaljournal.runner.errors import UsageError
from evaljournal.runner.scorers.scorer import Scorer
from evaljournal.runner.tasks.chat import Chat


@attrs.frozen
class BatchTargets:
    """The tasks and judges whose calls can be lines of batches."""

    _tasks: Mapping[str, tuple[Chat, BatchTarget]]
    """Variant → model and target; the model of a target may contain fields of the case."""
    _judges: Mapping[str, BatchTarget]
    """Scorer → target."""

    @classmethod
    def of(cls, evaluation: Evaluation[Any, Any, Any], *, required: bool = False) -> "BatchTargets":
        """Return the targets; if batches are `required`, raise a `UsageError` if the task or a judge cannot use them."""
        tasks: dict[str, tuple[Chat, BatchTarget]] = {}
        for name, task in evaluation.tasks.items():
            label = f"variant {name!r}" if name else "the task"
            if (target := _target(task, label, required=required)) is not None:
                tasks[name] = cast("Chat", task), target
        if required and evaluation.hooks:
            raise _error("the set-up and the teardown of an attempt need a live call")
        return attrs.evolve(cls.of_scorers(evaluation.scorers, required=required), tasks=tasks)

    @classmethod
    def of_scorers(cls, scorers: Mapping[str, Scorer], *, required: bool = False) -> "BatchTargets":
        """Return the targets of judges; other scorers are called live."""
        judges: dict[str, BatchTarget] = {}
        for name, scorer in scorers.items():
            chat = getattr(scorer.function, "chat", None)
            if not isinstance(chat, Chat) or scorer.workers:
                continue
            if (target := _target(chat, f"the judge {name!r}", required=required)) is not None:
                judges[name] = attrs.evolve(target, scorer=name, version=scorer.version)
        return cls({}, judges)

    def of_attempt(self, case: Case, variant: str) -> BatchTarget | None:
        """Return the target of the attempts at a case with a variant; None: they are live calls."""
        if variant not in self._tasks:
            return None
        chat, target = self._tasks[variant]
        return target if chat.has_one_model else attrs.evolve(target, model=chat.model_for(case))

    def of_scorer(self, name: str) -> BatchTarget | None:
        """Return the target of the calls of a scorer; None: they are live calls."""
        return self._judges.get(name)

    def __iter__(self) -> Iterator[BatchTarget]:
        yield from (target for _, target in self._tasks.values())
        yield from self._judges.values()


@attrs.frozen
class BatchSetup:
    """The batches of a session."""

    targets: BatchTargets
    new_batcher: Callable[[Engine[Any]], Batcher[Any]]


def _target(task: object, label: str, *, required: bool) -> BatchTarget | None:
    problem = ""
    if not isinstance(task, Chat):
        problem = "only chat models (--chat) and judges have batches"
    elif task.turns is not None:
        problem = "a conversation with --turns needs each reply before the next call"
    elif task.stream:
        problem = "a reply in a batch is not streamed; remove --stream"
    else:
        try:
            return BatchTarget(task.batch_api(), task.model_name)
        except UsageError as exc:
            problem = exc.message
    if required:
        raise _error(f"{label}: {problem}")
    return None


def _error(problem: str) -> UsageError:
    return UsageError(problem, setting="batch", value=True)
