"""Which set-ups have no teardown? A process that was killed leaves its sandboxes; the next session tears them down.

The step of a set-up records its handle: whatever the set-up has returned, if JSON can represent it. A set-up is over with the
completed step of its teardown, or with a note of a later session that has torn it down. A teardown that failed is tried again.
"""

from typing import Any, Final

import attrs

from evaljournal.journal import Record, events

TORN_DOWN: Final = f"{events.NOTE_PREFIX}torn_down"
"""The note that a session has torn down an attempt of an earlier one: empty, or `error` and `message` if that failed. In a
fork, `by` is `source`: the set-ups before it are those of another run, which may still use them."""
HANDLE: Final = "handle"
"""The field of a set-up's output that has its handle; without it, the output is empty: JSON cannot represent the handle."""
Attempt = tuple[str, int]
"""Trial, and number of the attempt."""


@attrs.define(eq=False)
class SetUps:
    """Which set-ups have no teardown, and which attempts died with their process before their set-up had ended?"""

    open: dict[Attempt, Any] = attrs.field(factory=dict[Attempt, Any])
    """Attempt → the output of its set-up, which may be a `Blob`."""
    died: dict[Attempt, None] = attrs.field(factory=dict[Attempt, None])
    """Attempts without a recorded set-up whose process died."""

    def _on_step_completed(self, event: events.StepCompleted, _: Record) -> None:
        # The steps of a workspace have the phases, too, but other names; they need no handle.
        if event.phase == "task" or not event.name.startswith(f"{event.phase} "):
            return
        attempt = event.trial, event.attempt
        if event.phase == "teardown":
            self.open.pop(attempt, None)
        elif event.output is not None:
            self.open[attempt] = event.output

    def note(self, event: events.Noted) -> None:
        if not isinstance(event.value, dict) or "error" not in event.value:
            self.open.pop((event.trial, event.attempt), None)
            self.died.pop((event.trial, event.attempt), None)

    def _on_attempt_interrupted(self, event: events.AttemptInterrupted, _: Record) -> None:
        attempt = event.trial, event.attempt
        if event.reason == "process_died" and attempt not in self.open:
            self.died[attempt] = None
