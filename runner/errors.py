"""Whose fault an error is, said by its type.

What the user's definition or data got wrong is a `UsageError`. What a task raises while it runs is never one of these:
that becomes a fact about an attempt, and `runner.retries.classify` says what kind.
"""


class UsageError(Exception):
    """The evaluation, its settings or its data cannot be used as given; the message says where and what to change."""


class Unset(UsageError):
    """A variable of the environment is needed, and is not there."""


class RunChanged(UsageError):
    """A run was to be resumed with another task, other cases or other settings than it was begun with."""
