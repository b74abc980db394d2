"""Trajectories: the steps of the attempts at a trial, each with its complete input."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, cast

import attrs

from journal import Record, events
from replay.model_messages import ToolCall, reply_of


@attrs.frozen
class StepDetails:
    """One step of an attempt."""

    number: int
    """From 1, in the order in which the attempt's steps started."""
    name: str
    kind: str
    """`model`, `tool` or `other`."""
    within: int
    """Number of the step that called it; 0: the task itself."""
    seq: int
    """The record of its end."""
    t: float
    """When it ended, in seconds of its session."""
    elapsed: float
    """Seconds; 0 if it was reused."""
    input: Any
    output: Any = None
    usage: Any = None
    error: str = ""
    """Type of the exception; empty if it was completed."""
    message: str = ""
    reused_from: int = 0
    """The attempt that executed it; 0: this one."""
    reusable: bool = True

    @property
    def is_reused(self) -> bool:
        """Whether the result of an earlier attempt was used."""
        return self.reused_from > 0


class Trajectory:
    """Rebuilds the steps of a trial from its records."""

    def __init__(self) -> None:
        self._completed: dict[int, tuple[int, StepDetails]] = {}
        """Record → the attempt and the step that it completed."""
        self._inputs: dict[int, Any] = {}
        """Number of a step of the attempt in flight → its input."""
        self._attempt = 0

    def apply(self, record: Record) -> StepDetails | None:
        """Return the step that a record completed, failed or reused; None if it is unknown what was reused."""
        event = record.event
        assert isinstance(event, events.StepEvent)
        if event.attempt != self._attempt:
            self._attempt = event.attempt
            self._inputs.clear()
        if isinstance(event, events.StepReused):
            attempt, step = self._completed.get(event.of, (0, None))
            if step is None:
                return None
            details = attrs.evolve(
                step, number=event.step, within=event.within, seq=record.seq, t=record.t, elapsed=0.0, reused_from=attempt
            )
        else:
            details = StepDetails(
                number=event.step,
                name=event.name,
                kind=event.kind,
                within=event.within,
                seq=record.seq,
                t=record.t,
                elapsed=event.elapsed,
                input=continued(self._inputs.get(event.continues), event.input),
                **_result(event),
            )
            if isinstance(event, events.StepCompleted):
                self._completed[record.seq] = event.attempt, details
        self._inputs[event.step] = details.input
        return details


def _result(event: events.StepCompleted | events.StepFailed) -> dict[str, Any]:
    if isinstance(event, events.StepFailed):
        return {"error": event.error, "message": event.message}
    return {"output": event.output, "usage": event.usage, "reusable": event.reusable}


def continued(earlier: Any, tail: Any) -> Any:
    """Return the complete input of a step: its lists follow those of the step that it continues."""
    if not isinstance(earlier, Mapping) or not isinstance(tail, dict):
        return tail
    before = cast("Mapping[str, Any]", earlier)
    return {
        key: before[key] + value if isinstance(value, list) and isinstance(before.get(key), list) else value
        for key, value in cast("dict[str, Any]", tail).items()
    }


def tool_calls(steps: Iterable[StepDetails]) -> list[ToolCall]:
    """Return the tool calls of a trajectory: those that model replies ask for, and the steps of kind `tool`.

    A tool step that carries out a call which a model asked for is not counted again; both have the same name.
    """
    calls: list[ToolCall] = []
    asked: Counter[str] = Counter()
    for step in steps:
        if step.kind == "tool":
            if asked[step.name]:
                asked[step.name] -= 1
            else:
                calls.append(ToolCall(step.name, step.input))
        elif step.kind == "model" and not step.error and (reply := reply_of(step.output)) is not None:
            calls += reply.tool_calls
            asked.update(call.name for call in reply.tool_calls)
    return calls
