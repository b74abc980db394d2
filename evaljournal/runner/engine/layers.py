"""Layers: what surrounds the attempts of a session, besides the task itself.

A layer is attached by the assembly when the definition of the run needs it. The kernel calls the methods that a layer
overrides, and no others: a method that no layer of a session has is not on the path of its trials.

**The order of an attempt**, from its start to its record:

    fields       what the record of the start has about the layer
    prepare      after that record, and after it is on disk if it must be; not part of the timeout
    wrap         around the call itself, inside its timeout: a task around a task, made once per session
    attach       during the call: what its code asks for, made when it is asked for the first time
    noted        during the call: a note that the layer processes instead of recording it
    leave        the call has ended, or was cancelled; only if something was attached
    change       another output for the record, such as one without secrets; not part of the timeout
    check        whether the output is accepted, immediately before its record
    convert      another event for an output that JSON cannot represent
    over_limit   whether the trial may continue at all: before its output is accepted, and before it is retried

**What must never happen.** A layer records nothing between the end of a call and its record, and does not await there but in
`change`: a stop in between would lose the output. A layer does not decide about a retry; an error that it raises in `wrap` is
classified as any other. What it knows about a trial is in `TrialWork.permits` or in the objects that it attached, not in fields
of the job.

Layers are applied in the order in which they are attached: the first is the innermost.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evaljournal.journal.events import AttemptSucceeded
from evaljournal.journal.fact import fact
from evaljournal.runner.calls import Task
from evaljournal.runner.engine.call import CallOutcome, CallScope, Returned

if TYPE_CHECKING:
    from evaljournal.runner.engine.jobs import TrialWork


@fact
class Rejected:
    """The trial fails with this error, whatever its call returned."""

    error: str
    """Type of the error."""
    message: str


class Layer:
    """What surrounds the attempts of a session; this one changes nothing. Override what the layer needs."""

    def wrap(self, task: Task, variant: str) -> Task:  # noqa: ARG002
        """Return a task that calls `task`; called once per session for each variant."""
        return task

    def fields(self, work: "TrialWork") -> Mapping[str, Any]:  # noqa: ARG002
        """Return what the record of a start has about this layer."""
        return {}

    async def prepare(self, work: "TrialWork", scope: CallScope, objects: dict[type, Any]) -> None:
        """Prepare an attempt whose start is recorded; `objects` may be attached to its call."""

    def attach(self, kind: type, work: "TrialWork", attempt: int, scope: CallScope) -> Any:  # noqa: ARG002
        """Return what an attempt asks for, or None if this layer has none; in any thread, also after the attempt has ended."""
        return None

    def noted(self, work: "TrialWork", scope: CallScope, values: Mapping[str, Any]) -> bool:  # noqa: ARG002
        """Process notes of the call in flight; return whether they need no record. Called where the task sends them."""
        return False

    def leave(self, objects: dict[type, Any], outcome: CallOutcome | None) -> CallOutcome | None:  # noqa: ARG002
        """Process that a call with attached objects has ended; return its outcome, or another one. None: it was cancelled."""
        return outcome

    def change(self, work: "TrialWork", outcome: Returned) -> Awaitable[Returned] | None:  # noqa: ARG002
        """Return what returns another output, or None if nothing is to be changed. Numbers are never changed."""
        return None

    def check(self, work: "TrialWork", output: Any) -> Rejected | None:  # noqa: ARG002
        """Return why an output is not accepted; None: it is."""
        return None

    def convert(self, work: "TrialWork", event: AttemptSucceeded) -> AttemptSucceeded:  # noqa: ARG002
        """Return an event that JSON can represent, in place of one that it cannot."""
        return event

    def over_limit(self, work: "TrialWork", usage: Any) -> Rejected | None:  # noqa: ARG002
        """Return why a trial may not continue; `usage` is that of an output which is not recorded yet."""
        return None


async def unless_failed(call: Awaitable[Any], failures: Sequence[Exception]) -> Any:
    """Return what a call returns; if there are failures when it ends, raise the first, whatever the call made of it."""
    try:
        output = await call
    except Exception as exc:
        if not failures or exc is failures[0]:
            raise
        raise failures[0] from exc
    if failures:
        raise failures[0]
    return output


class Layers:
    """The layers of a session: for each method, those that override it."""

    def __init__(self, layers: Sequence[Layer] = ()) -> None:
        def overriding(method: Callable[..., Any]) -> tuple[Any, ...]:
            name = method.__name__
            return tuple(getattr(layer, name) for layer in layers if getattr(type(layer), name) is not method)

        self.fields: tuple[Callable[[TrialWork], Mapping[str, Any]], ...] = overriding(Layer.fields)
        self.prepare: tuple[Callable[[TrialWork, CallScope, dict[type, Any]], Awaitable[None]], ...] = overriding(Layer.prepare)
        self.attach: tuple[Callable[[type, TrialWork, int, CallScope], Any], ...] = overriding(Layer.attach)
        self.noted: tuple[Callable[[TrialWork, CallScope, Mapping[str, Any]], bool], ...] = overriding(Layer.noted)
        self.leave: tuple[Callable[[dict[type, Any], CallOutcome | None], CallOutcome | None], ...] = overriding(Layer.leave)
        self.change: tuple[Callable[[TrialWork, Returned], Awaitable[Returned] | None], ...] = overriding(Layer.change)
        self.check: tuple[Callable[[TrialWork, Any], Rejected | None], ...] = overriding(Layer.check)
        self.convert: tuple[Callable[[TrialWork, AttemptSucceeded], AttemptSucceeded], ...] = overriding(Layer.convert)
        self.over_limit: tuple[Callable[[TrialWork, Any], Rejected | None], ...] = overriding(Layer.over_limit)


def surround(tasks: Mapping[str, Task], layers: Sequence[Layer]) -> dict[str, Task]:
    """Return the tasks of the variants with all layers around them; the first layer is the innermost."""
    surrounded = dict(tasks)
    for layer in layers:
        surrounded = {variant: layer.wrap(task, variant) for variant, task in surrounded.items()}
    return surrounded
