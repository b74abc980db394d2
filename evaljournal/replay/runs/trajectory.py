"""Trajectories: the steps of the attempts at a trial, each with its complete input."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import attrs

from evaljournal.journal import Record, events
from evaljournal.journal.disk.files import Files
from evaljournal.journal.readers.reader import RecordReader
from evaljournal.replay.provider.messages import ToolCall, reply_of
from evaljournal.replay.state.trial import unpack_location


@attrs.frozen
class StepDetails:
    number: int
    """From 1, in the order in which the attempt's steps started."""
    name: str
    kind: str
    """`model`, `tool` or `other`."""
    parent: int
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
    continues: int = 0
    """Number of the earlier step of the attempt whose lists are the beginning of those in `input`; 0: none, or reused."""
    at: str = ""
    """When it ended, in wall time."""
    need: Any = None
    """What it took from known rate limits: unit → amount; None: none was known, or it was reused."""
    waited: float = 0.0
    """Seconds that it waited for them before it started; not part of `elapsed`."""
    is_replayed: bool = False
    """Whether it got the reply that another run has recorded."""

    @property
    def start(self) -> float:
        """When it started, in seconds of its session; `elapsed` of a foreign record may be any number."""
        return max(0.0, self.t - self.elapsed)

    @property
    def outcome(self) -> str:
        """`completed`, `failed`, `reused` or `replayed`."""
        return "reused" if self.is_reused else "replayed" if self.is_replayed else "failed" if self.error else "completed"

    @property
    def is_reused(self) -> bool:
        return self.reused_from > 0


class Trajectory:
    """Rebuilds the steps of a trial from those that are recorded, which leave out what they share with earlier ones."""

    def __init__(self) -> None:
        self._completed_steps: dict[int, tuple[int, StepDetails]] = {}
        """Record → the attempt and the step that it completed."""
        self._inputs: dict[int, Any] = {}
        """Number of a step of the attempt in flight → its input."""
        self._attempt = 0
        self._places: set[tuple[int, int]] = set()
        """Attempt and number of each step that was reused, or completed and may be reused."""
        self._callers: dict[int, tuple[int, int]] = {}
        """Record of a completed step → attempt and number of the step that used it last."""
        self._unused_seqs: set[int] = set()

    @property
    def unused_steps(self) -> int:
        """Completed steps that the attempt in flight may reuse and has not reused; those inside another one do not count."""
        return len(self._unused_seqs)

    def unused_step(self, name: str) -> StepDetails | None:
        """Return the first completed step of this name, or of any, that the attempt in flight may reuse and has not reused."""
        steps = [self._completed_steps[seq][1] for seq in sorted(self._unused_seqs)]
        return next((step for step in steps if step.name == name), steps[0] if steps else None)

    def start(self, reuses: int) -> None:
        """Start an attempt that may reuse the steps of attempt `reuses` and those after it; needed only for `unused_steps`."""
        steps = self._completed_steps.items() if reuses else ()
        self._unused_seqs = {
            seq
            for seq, (attempt, step) in steps
            if attempt >= reuses and step.reusable and self._callers[seq] not in self._places
        }

    def add(self, attempt: int, step: StepDetails, completed_seq: int | None = None) -> StepDetails | None:
        """Add the next step of an attempt as it is recorded; return it with its complete input.

        `completed_seq` is the record of the completed step that it reuses; if that is unknown, return None.
        """
        if attempt != self._attempt:
            self._attempt = attempt
            self._inputs.clear()

        if completed_seq is not None:
            if completed_seq not in self._completed_steps:
                return None
            executed_by, completed = self._completed_steps[completed_seq]
            position = {name: getattr(step, name) for name in ("number", "parent", "seq", "t", "at")}
            step = attrs.evolve(completed, **position, elapsed=0.0, reused_from=executed_by, continues=0, need=None, waited=0.0)
            self._use(completed_seq, attempt, step, is_reusable=True)
        else:
            if step.continues:
                step = attrs.evolve(step, input=complete_input(self._inputs.get(step.continues), step.input))
            if not step.error:
                self._completed_steps[step.seq] = attempt, step
                self._use(step.seq, attempt, step, is_reusable=step.reusable)

        self._inputs[step.number] = step.input
        return step

    def _use(self, seq: int, attempt: int, step: StepDetails, *, is_reusable: bool) -> None:
        self._callers[seq] = attempt, step.parent
        if is_reusable:
            self._places.add((attempt, step.number))
        self._unused_seqs.discard(seq)


def recorded_step(record: Record) -> tuple[int, StepDetails, int | None]:
    """Return the attempt of a step, the step as it is recorded, and the record of the completed step that it reuses."""
    event = record.event
    assert isinstance(event, events.StepEvent)
    fields = dict[str, Any](number=event.step, parent=event.parent, seq=record.seq, t=record.t, at=record.at)
    if isinstance(event, events.StepReused):
        return event.attempt, StepDetails(**fields, name="", kind="", elapsed=0.0, input=None), event.completed_seq
    names = ("error", "message") if isinstance(event, events.StepFailed) else ("output", "usage", "reusable")
    names = ("name", "kind", "elapsed", "continues", "need", "waited", "input", *names)
    fields["is_replayed"] = isinstance(event, events.StepReplayed)
    return event.attempt, StepDetails(**fields, **{name: getattr(event, name) for name in names}), None


def steps_with_depth(steps: Iterable[StepDetails]) -> Iterator[tuple[int, StepDetails]]:
    """Yield steps in the order in which they started, each after the one that called it, with its depth from 0.

    If the caller of a step has no record, because it had not ended, the step is at depth 0.
    """
    sorted_steps = sorted(steps, key=lambda step: step.number)
    numbers = {step.number for step in sorted_steps}
    inner_steps: defaultdict[int, list[StepDetails]] = defaultdict(list)
    for step in sorted_steps:
        inner_steps[step.parent if step.parent in numbers else 0].append(step)
    stack = [(0, step) for step in reversed(inner_steps.pop(0, ()))]
    while stack:
        depth, step = stack.pop()
        yield depth, step
        stack += [(depth + 1, inner_step) for inner_step in reversed(inner_steps.pop(step.number, ()))]


def complete_input(previous_input: Any, tail: Any) -> Any:
    """Return the complete input of a step: its lists are appended to those of the step that it continues."""
    if not isinstance(previous_input, Mapping) or not isinstance(tail, dict):
        return tail
    previous_fields = cast("Mapping[str, Any]", previous_input)
    return {
        key: previous_fields[key] + value if isinstance(value, list) and isinstance(previous_fields.get(key), list) else value
        for key, value in cast("dict[str, Any]", tail).items()
    }


def tool_calls(steps: Iterable[StepDetails]) -> list[ToolCall]:
    """Return the tool calls of a trajectory: those that model replies request, and the steps of kind `tool`.

    A tool step with the name of a requested call executes that call and is not counted again.
    """
    calls: list[ToolCall] = []
    request_counts: Counter[str] = Counter()
    for step in steps:
        if step.kind == "tool":
            if request_counts[step.name]:
                request_counts[step.name] -= 1
            else:
                calls.append(ToolCall(step.name, step.input))
        elif step.kind == "model" and not step.error and (reply := reply_of(step.output)) is not None:
            calls += reply.tool_calls
            request_counts.update(call.name for call in reply.tool_calls)
    return calls


def read_trajectory(path: Path, locations: Iterable[int], attempt: int, files: Files) -> list[StepDetails]:
    """Return the steps of an attempt, without set-up and teardown, in the order in which they started.

    `locations` are those of the records of its steps, and of the attempts whose steps it may reuse; see `RunSteps.records`.
    """
    trajectory, steps = Trajectory(), list[StepDetails]()
    with RecordReader(path, files=files) as reader:
        for location in locations:
            record = reader.find(*unpack_location(location))
            number, recorded, completed_seq = recorded_step(record)
            step = trajectory.add(number, recorded, completed_seq)
            if step is not None and number == attempt and getattr(record.event, "phase", "task") == "task":
                steps.append(step)
    return sorted(steps, key=lambda step: step.number)
