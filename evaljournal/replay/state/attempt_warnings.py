"""What attempts noted about themselves that a user should know, although nothing failed because of it."""

from typing import Final

import attrs

from evaljournal.journal import events

BLOCKING_CALLS: Final = f"{events.NOTE_PREFIX}blocking_calls"
"""The note that this number of consecutive `calls` of an async task blocked its event loop from their start to their end."""
SHORT_PROMPT: Final = f"{events.NOTE_PREFIX}short_prompt"
"""The note that a server has counted fewer `input_tokens` than the prompt has `words`."""
TEARDOWN_FAILED: Final = f"{events.NOTE_PREFIX}teardown_failed"
"""The note that the teardown of an attempt failed: `error` and `message`."""


@attrs.define(eq=False)
class AttemptWarnings:
    blocking_calls: int = 0
    """Consecutive calls of an async task that blocked its event loop, although there were slots for several; 0 if not noted."""
    short_prompts: int = 0
    """Calls, also of judges, whose server has counted fewer input tokens than the prompt has words."""
    failed_teardowns: int = 0
    last_failed_teardown: str = ""
    """Trial of the last one."""

    def note_blocking_calls(self, event: events.Noted) -> None:
        if isinstance(event.value, dict) and isinstance(event.value.get("calls"), int):
            self.blocking_calls = event.value["calls"]

    def note_short_prompt(self, _: events.Noted) -> None:
        self.short_prompts += 1

    def note_failed_teardown(self, event: events.Noted) -> None:
        self.failed_teardowns += 1
        self.last_failed_teardown = event.trial
