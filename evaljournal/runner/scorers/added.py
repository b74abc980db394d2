"""Scorers that other packages add: entry points of the group `evaljournal.scorers`.

Each is a function of the text after the colon in `--score NAME:TEXT`, or of None, that returns a scorer. If it has a parameter
`judge`, the judge of the command line becomes part of it, instead of being a scorer of its own.
"""

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import attrs

from evaljournal import entry_points
from evaljournal.runner.errors import UsageError
from evaljournal.runner.scorers import NAMES

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from evaljournal.runner.scorers.llm_judge import Judge

GROUP: Final = "scorers"


@attrs.frozen
class AddedScorer:
    """A scorer that was named, and is not created yet."""

    argument: str | None
    _entry: "EntryPoint"
    _function: Callable[..., Any]

    @property
    def takes_judge(self) -> bool:
        """Whether the judge of the command line becomes part of it."""
        return "judge" in inspect.signature(self._function).parameters

    def create(self, judge: "Judge | None" = None) -> Callable[..., Any]:
        """Return the scorer; raise a `UsageError` if it rejects its argument."""
        options = {} if judge is None else {"judge": judge}
        scorer: Callable[..., Any] = entry_points.checked(
            self._entry,
            UsageError,
            lambda: self._function(self.argument, **options),
            Callable,
            noun="a scorer",
            verb="returned",
        )
        return scorer


def added_scorer(text: str) -> AddedScorer | None:
    """Return the scorer that another package adds under this name; None if there is none: it may be `file.py:function`."""
    name, colon, argument = text.partition(":")
    if name in NAMES or not name.isidentifier():
        return None
    entry = entry_points.find(GROUP, name)
    if entry is None:
        return None
    with entry_points.using(entry, UsageError):
        return AddedScorer(argument if colon else None, entry, entry.load())
