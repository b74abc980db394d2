"""What an executor has in hand: a trial that is not at its end, and a call of a scorer with its output."""

from typing import Any

import attrs

from replay.text import as_text
from runner.data.case import Case
from runner.data.templates import Fields
from runner.retries.retry import Spent
from runner.scorers.scorer import OpenScorer, ScorerInput


@attrs.define(eq=False)
class Work:
    """A trial that was taken in and is not at its end."""

    trial: str
    case: Case
    attempts: int = 0
    """Attempts in all sessions, the one in flight included."""
    began: float = 0.0
    """When the attempt in flight started, in the seconds of `t`."""
    slot: int = -1
    """The slot of the attempt in flight."""
    spent: Spent = Spent()  # noqa: RUF009  # it never changes
    rate_limits: int = 0
    """Consecutive attempts of this session that were rate limited."""
    is_answered: bool = False
    """Whether it has an output, and only scores are missing."""
    completes: bool = True
    """Whether its last score completes it; not where a re-scoring adds scores to a trial that is completed."""
    output: Any = None
    scored: frozenset[str] = frozenset()
    """Scorers that need not be called."""
    unscored: int = 0
    """Scorers whose calls have not come to an end."""
    delay: float = 0.0
    """Seconds until it may start."""
    is_last: bool = False
    """Whether it goes to the end of the queue when its delay is over."""
    key: str = ""
    """Its rate-limit key."""
    epoch: int = 0
    """The lane's epoch when the attempt in flight started."""


@attrs.define(eq=False)
class Call:
    """The calls of one scorer with the output of one trial; at most one is in flight."""

    work: Work
    scorer: OpenScorer
    judged: ScorerInput
    number: int = 0
    """Calls in this session, the one in flight included."""
    began: float = 0.0
    """When the call in flight started, in the seconds of `t`."""
    spent: Spent = Spent()  # noqa: RUF009  # it never changes
    rate_limits: int = 0
    """Consecutive calls that were rate limited."""
    delay: float = 0.0
    """Seconds until the next may start."""
    is_last: bool = False
    """Whether it goes to the end of the queue when its delay is over."""
    epoch: int = 0
    """The lane's epoch when the call in flight started."""

    @property
    def key(self) -> str:
        """The rate-limit key that it counts for."""
        return self.scorer.key


Job = Work | Call
"""What a worker takes: an attempt, the scoring of an output, or a call of a scorer."""


def key_of(case: Case, field: str) -> str:
    """Return the rate-limit key of a case."""
    return as_text(Fields(case).get(field))
