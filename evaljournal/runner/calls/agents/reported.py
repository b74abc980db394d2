"""What an agent reports while it works: lines, and the steps in them. Both are bounded: a program may print without end.

A step is recorded when it ends, so that an attempt that is killed or runs into its timeout shows how far it came. Steps inside
another one, as those of a subagent, are held until that ends, because a step is recorded with its parent. The number of steps
is bounded, and with it what is held.
"""

import math
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Final

import attrs
import trio

from evaljournal.journal.events import StepKind
from evaljournal.runner.calls import ReportedStep
from evaljournal.runner.calls.gateway_env import gateway_env
from evaljournal.runner.calls.http.reply import MAX_BYTES, ReplyTooLarge
from evaljournal.runner.calls.notes import note, record_steps
from evaljournal.runner.data.fingerprint import canonical
from evaljournal.runner.errors import UsageError

MAX_LINE: Final = 16 * 1024 * 1024
"""Maximum bytes of a line, which is kept in memory."""
MAX_STEPS: Final = 10_000
_MAX_NAME: Final = 200


async def read_lines(stream: trio.abc.ReceiveStream) -> AsyncGenerator[bytes]:
    """Yield the lines of a stream without line breaks; the last one need not have any.

    Raises `ReplyTooLarge` if a line has more than `MAX_LINE` bytes, or all together more than `MAX_BYTES`: their steps are
    recorded, and an endless stream must not fill the disk.
    """
    pending = bytearray()
    size = 0

    async for chunk in stream:
        size += len(chunk)
        if size > MAX_BYTES:
            raise ReplyTooLarge(f"the agent has printed more than {MAX_BYTES // 1024 // 1024} MiB; it may be endless")
        for number, line in enumerate(bytes(chunk).split(b"\n")):
            if number:
                yield bytes(pending)
                pending.clear()
            if len(pending) + len(line) > MAX_LINE:
                raise ReplyTooLarge(f"the agent has printed a line of more than {MAX_LINE // 1024 // 1024} MiB")
            pending += line

    if pending:
        yield bytes(pending)


@attrs.define
class AgentSteps:
    """The steps of one attempt, which are recorded unless the model calls of the agent go through the gateway."""

    record: Callable[[Sequence[ReportedStep], float], None] | None = attrs.field(
        factory=lambda: None if gateway_env() else record_steps
    )
    """Records steps that ended, with the seconds since the start of the agent; None: the gateway records the calls."""
    _start: float = attrs.field(init=False, factory=trio.current_time)
    _last_end: float = attrs.field(init=False, factory=trio.current_time)
    """When the last step ended, and the next reply of the model began."""
    _count: int = attrs.field(init=False, default=0)
    _open: dict[str, ReportedStep] = attrs.field(init=False, factory=dict[str, ReportedStep])
    """Id → step that has not ended."""
    _inner_steps: dict[str, list[ReportedStep]] = attrs.field(init=False, factory=dict[str, list[ReportedStep]])
    """Id of an open step → steps inside it that have ended."""

    def count(self) -> None:
        """Count something that is kept until it is recorded."""
        self._count += 1
        if self._count > MAX_STEPS:
            raise ReplyTooLarge(f"the agent has reported more than {MAX_STEPS:,} steps")

    def start(self, step_id: str, name: str, value: Any, parent: str = "") -> None:
        """Start a tool call; one that has started already gets another name and input."""
        if (step := self._open.get(step_id)) is None:
            self.count()
            step = ReportedStep(step_id, parent, name, "tool", trio.current_time(), 0.0, value, None, None)
        self._open[step_id] = attrs.evolve(step, name=name, input=value)

    def end(self, step_id: str, output: Any) -> None:
        """End a tool call; nothing happens if it has not started."""
        if (step := self._open.pop(step_id, None)) is not None:
            self._add(attrs.evolve(step, output=output), trio.current_time())

    def add(
        self, name: str, kind: StepKind, value: Any, output: Any, parent: str = "", *, ended_at: float | None = None
    ) -> None:
        """Add a step that has lasted since the last one ended, such as a reply of the model."""
        self.count()
        start = self._last_end
        if (outer := self._open.get(parent)) is not None:
            start = max(start, math.nextafter(outer.start, math.inf))  # Steps begin in the order of their starts.
        step = ReportedStep(f"#{self._count}", parent, name, kind, start, 0.0, value, output, None)
        self._add(step, trio.current_time() if ended_at is None else ended_at)

    def close(self, usage: Mapping[str, float | str]) -> None:
        """End the tool calls that the agent has not ended, and note the usage that it has stated."""
        for step_id in reversed(list(self._open)):
            self.end(step_id, {"status": "not ended"})
        if usage and self.record is not None:
            note(usage=usage)

    def _add(self, step: ReportedStep, end: float) -> None:
        self._last_end = end
        elapsed, name = max(0.0, end - step.start), step.name[:_MAX_NAME] or step.kind
        step = attrs.evolve(step, name=name, elapsed=elapsed, input=_storable(step.input), output=_storable(step.output))
        steps = [*self._inner_steps.pop(step.id, ()), step]
        if step.parent in self._open:
            self._inner_steps.setdefault(step.parent, []).extend(steps)
        elif self.record is not None:
            self.record(steps, trio.current_time() - self._start)


def _storable(value: Any) -> Any:
    try:
        canonical(value, "a step")
    except (UsageError, TypeError, RecursionError):
        return "(nested too deeply)"
    return value


def text_blocks(text: str, *calls: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message of a model as it is recorded: its text, and the tool calls that it requests."""
    return {"role": "assistant", "content": [*([{"type": "text", "text": text}] if text else []), *calls]}
