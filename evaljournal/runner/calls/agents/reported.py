"""The steps that an agent reports while it works.

A step is recorded when it ends, so that an attempt that is killed or runs into its timeout shows how far it came. Steps inside
another one, as those of a subagent, are held until that ends, because a step is recorded with its parent. The number of steps
is bounded, and with it what is held.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs
import trio

from evaljournal.journal.events import StepKind
from evaljournal.runner.calls import ReportedStep
from evaljournal.runner.calls.http.reply_memory import ReplyTooLarge
from evaljournal.runner.data.fingerprint import canonical
from evaljournal.runner.errors import UsageError

MAX_STEPS: Final = 10_000
_MAX_NAME: Final = 200


@attrs.define
class _OpenStep:
    name: str
    input: Any
    parent: str
    start: float


@attrs.define
class AgentSteps:
    """The steps of one attempt."""

    _record: Callable[[Sequence[ReportedStep], float], None] | None
    """Records steps that ended, with the seconds since the start of the agent; None: the gateway records the calls."""
    _start: float = attrs.field(factory=trio.current_time)
    _last_end: float = attrs.field(init=False, factory=trio.current_time)
    """When the last step ended, and the next reply of the model began."""
    _count: int = attrs.field(init=False, default=0)
    _open: dict[str, _OpenStep] = attrs.field(init=False, factory=dict[str, _OpenStep])
    """Id → step that has not ended."""
    _inner_steps: dict[str, list[ReportedStep]] = attrs.field(init=False, factory=dict[str, list[ReportedStep]])
    """Id of an open step → steps inside it that have ended."""

    @property
    def is_recorded(self) -> bool:
        """Whether steps are recorded here, not by the gateway."""
        return self._record is not None

    def count(self) -> None:
        """Count something that is kept until it is recorded."""
        self._count += 1
        if self._count > MAX_STEPS:
            raise ReplyTooLarge(f"the agent has reported more than {MAX_STEPS:,} steps")

    def start(self, step_id: str, name: str, value: Any, parent: str = "") -> None:
        """Start a tool call; one that has started already gets another name and input."""
        if (step := self._open.get(step_id)) is not None:
            step.name, step.input = name, value
            return
        self.count()
        self._open[step_id] = _OpenStep(name, value, parent, trio.current_time())

    def has_started(self, step_id: str) -> bool:
        """Return whether a tool call has started and not ended."""
        return step_id in self._open

    def end(self, step_id: str, output: Any) -> None:
        """End a tool call; nothing happens if it has not started."""
        if (step := self._open.pop(step_id, None)) is not None:
            self._add(step_id, step.name, "tool", step.input, output, step.parent, step.start)

    def add(
        self, name: str, kind: StepKind, value: Any, output: Any, parent: str = "", *, ended_at: float | None = None
    ) -> None:
        """Add a step that has lasted since the last one ended, such as a reply of the model."""
        self.count()
        start = self._last_end
        if (outer := self._open.get(parent)) is not None:
            start = max(start, math.nextafter(outer.start, math.inf))  # Steps begin in the order of their starts.
        self._add(f"#{self._count}", name, kind, value, output, parent, start, ended_at)

    def close(self) -> None:
        """End the tool calls that the agent has not ended."""
        for step_id in reversed(list(self._open)):
            self.end(step_id, {"status": "not ended"})

    def _add(  # noqa: PLR0917  # the parts of a step
        self,
        step_id: str,
        name: str,
        kind: StepKind,
        value: Any,
        output: Any,
        parent: str,
        start: float,
        ended_at: float | None = None,
    ) -> None:
        now = trio.current_time()
        self._last_end = end = now if ended_at is None else ended_at
        name, value, output = name[:_MAX_NAME] or kind, _storable(value), _storable(output)
        step = ReportedStep(step_id, parent, name, kind, start, max(0.0, end - start), value, output, None)
        steps = [*self._inner_steps.pop(step_id, ()), step]
        if parent in self._open:
            self._inner_steps.setdefault(parent, []).extend(steps)
        elif self._record is not None:
            self._record(steps, now - self._start)


def _storable(value: Any) -> Any:
    """Return a JSON value that the journal can store."""
    try:
        canonical(value, "a step")
    except (UsageError, TypeError, RecursionError):
        return "(nested too deeply)"
    return value


def text_blocks(text: str, *calls: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message of a model as it is recorded: its text, and the tool calls that it requests."""
    return {"role": "assistant", "content": [*([{"type": "text", "text": text}] if text else []), *calls]}
