"""A trial in hand: what is to be done for it, and what it has had so far."""

from typing import Any

import attrs

from replay.text import as_text
from runner.case import Case
from runner.retry import Spent
from runner.templates import Fields


@attrs.define
class Work:
    """A trial that is taken in, and not at its end."""

    trial: str
    case: Case
    attempts: int = 0
    """How many it has had, in all sessions; the one under way is the last of them."""
    began: float = 0.0
    """When that began, in the seconds of `t`."""
    spent: Spent = Spent()  # noqa: RUF009  # it never changes
    is_answered: bool = False
    """Whether it has an output already, and is only to be scored."""
    output: Any = None
    scored: frozenset[str] = frozenset()
    """The scorers that have had their turn."""
    delay: float = 0.0
    """Seconds until it may be taken."""
    is_last: bool = False
    """Whether others come first then: it has made a probe, and the next is another's turn."""
    key: str = ""
    """Which back end it is put to, where there are several."""


def key_of(case: Case, field: str) -> str:
    """Find in a case which back end it is put to."""
    return as_text(Fields(case).get(field))
