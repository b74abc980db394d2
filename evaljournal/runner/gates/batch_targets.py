"""Where the calls of an evaluation's tasks and judges are sent as lines of batches, and why some cannot be."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

import attrs

from evaljournal.replay import RunState
from evaljournal.replay.state.batches import BatchState
from evaljournal.runner.calls.batches.api import BatchApi
from evaljournal.runner.calls.chat import Chat
from evaljournal.runner.data.case import Case
from evaljournal.runner.definition.evaluation import Evaluation
from evaljournal.runner.errors import UsageError, command
from evaljournal.runner.scorers.scorer import Scorer

PREFIX: Final = "ej-"
"""Beginning of the id of every line; the run, the batch and the line follow."""


@attrs.frozen
class BatchTarget:
    """Where the calls of a job are sent as lines of a batch; lines with the same target may be in one batch."""

    api: BatchApi
    model: str
    scorer: str = ""
    """Name of the judge; empty: the calls are those of the task."""
    version: str = ""


@attrs.frozen
class BatchTargets:
    _tasks: Mapping[str, tuple[Chat, BatchTarget]]
    """Variant → model and target; the model of a target may contain fields of the case."""
    _judges: Mapping[str, BatchTarget]

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


def open_batch_apis(state: RunState, targets: Iterable[BatchTarget], path: Path, *, rescores: bool) -> dict[int, BatchApi]:
    """Return the APIs of the open batches of a run by number; raise a `UsageError` if `targets` do not include one of them.

    The batches of a re-scoring belong only to a session that `rescores`.
    """
    open_apis: dict[int, BatchApi] = {}
    targets = list(targets)
    for number in state.batches.lines.open:
        batch, is_rescored = state.batches[number], state.batches.is_rescored(number)
        prepared = batch.prepared
        owners = [target.api for target in targets if (target.scorer, target.version) == (prepared.scorer, prepared.version)]
        owners = owners if rescores or not is_rescored else []
        apis = [api for api in owners if is_same_account(api, batch)]
        if batch.id:  # The provider knows whether another key may see it; a search needs the same account.
            apis += [api for api in owners if api.address == prepared.address]

        if not apis:
            owner = f"the judge {prepared.scorer!r}" if prepared.scorer else "the task"
            problem = f"has calls of {owner}, which is not part of this session or has changed"
            hint = f"{command('resume', path, ' --wait')} collects it, {command('cancel', path)} cancels it"
            if owners:
                problem = f"was submitted to {prepared.address} with another API key or project, or to another endpoint"
                hint = "use the endpoint and API key that submitted it"
            elif is_rescored:
                hint = "the `rescore` command that submitted it collects it; with --cancel, it cancels it"
            raise UsageError(f"batch {number} of {path} is open and {problem}", hint=hint)
        open_apis[number] = apis[0]
    return open_apis


def is_same_account(api: BatchApi, batch: BatchState) -> bool:
    """Return whether a batch was prepared with the endpoint and the API key of an API."""
    run = batch.prepared.prefix.removeprefix(PREFIX).partition("-")[0]  # Another one, if this run is a fork.
    return api.account(run) == batch.prepared.account


def _target(task: object, label: str, *, required: bool) -> BatchTarget | None:
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
