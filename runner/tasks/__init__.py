"""What a trial can be put to: a function, and later an endpoint, a chat model or a command.

A task is asked through one small door: given an input, return an output or raise. Whoever asks does the timing, the retrying
and the recording; nothing else may be assumed about where the task runs.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Literal, Protocol

Ending = Literal["succeeded", "failed"]
"""How a call that nobody waited for any more came to its end."""


class Task(Protocol):
    """Something that answers an input."""

    def ask(self, value: Any, late: Callable[[Ending], None], /) -> Awaitable[Any]:
        """Answer, or raise; if it is abandoned and ends all the same, say so to `late`."""
        ...
