"""What a trial can be put to: a function, an endpoint, a chat model, a command, or outputs that are there already.

A task is asked through one small door: given an input, return an output or raise. Whoever asks does the timing, the retrying
and the recording; nothing else may be assumed about where the task runs.
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Protocol, runtime_checkable

from runner.data.case import Case

Ending = Literal["succeeded", "failed"]
"""How a call that nobody waited for any more came to its end."""

OnLateResult = Callable[[Ending], None]
"""Told of that."""


class TrialInput(Protocol):
    """What an attempt is about."""

    @property
    def trial(self) -> str:
        """The trial's id: the same for all attempts at it, in all sessions."""
        ...

    @property
    def case(self) -> Case:
        """What is asked; an answer may be made from more of it than from its input."""
        ...


class Task(Protocol):
    """Something that answers an input."""

    @property
    def takes_trial(self) -> bool:
        """Whether it is asked with the whole trial (`TrialInput`), not with the input alone."""
        ...

    def call(self, value: Any, late: OnLateResult, /) -> Awaitable[Any]:
        """Answer, or raise; if it is abandoned and ends all the same, say so to `late`."""
        ...


@runtime_checkable
class OpenableTask(Protocol):
    """A task, or a scorer, that holds something while a run goes on: connections, say.

    It is written down like a function, and opened once for each session.
    """

    def open_session(self, run: str, /) -> AbstractAsyncContextManager[Task]:
        """Give what is asked in its stead, in the run of this id; a scorer's is asked with a `ScorerInput`."""
        ...
