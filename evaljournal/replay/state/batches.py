"""The batches of a run, as `RunState` keeps them: what was sent, what the provider reported, and what is still open."""

from collections import Counter
from typing import Final

import attrs

from evaljournal.journal import events

UNSENT_STATES: Final = frozenset({"not_sent", "forked"})
"""States in `batch_collected` of a batch that was not submitted."""
LOST_STATES: Final = frozenset({"deleted", "archived", "incomplete"})
"""States in `batch_changed` of a batch that the provider does not have, or not with all of its results."""


@attrs.define(eq=False, kw_only=True)
class BatchState:
    """One batch."""

    prepared: events.BatchPrepared
    """What was prepared; without `trials` when it has ended."""
    lines: int
    """Number of lines."""
    prepared_at: str
    """Wall time of its preparation."""
    prepared_seq: int
    """Number of the record of its preparation."""
    submitted_at: str = ""
    """Wall time of its submission; empty: the provider may not have it."""
    ended_at: str = ""
    """Wall time of its end; empty: it is open."""
    id: str = ""
    """The provider's id of the batch."""
    file: str = ""
    """The provider's id of the input file."""
    expires: str = ""
    """When unfinished lines expire, as an ISO time; empty: unknown."""
    state: str = "prepared"
    """`prepared`, `submitted`, then the provider's own word, or the state in `batch_collected`."""
    completed: int = 0
    """Lines with a result, as the provider counts them."""
    failed: int = 0
    """Lines with an error, as the provider counts them."""
    message: str = ""
    """The provider's error."""
    results: int = 0
    """Lines whose result was used."""
    missing: int = 0
    """Lines without a result; set when it has ended."""
    unused: int = 0
    """Results that were not used; set when it has ended."""
    usage: Counter[str] = attrs.field(factory=Counter[str])
    """What its lines used, as far as their results were read; costs are at the batch price."""

    @property
    def is_open(self) -> bool:
        """Whether it was prepared and has not ended."""
        return not self.ended_at

    @property
    def is_lost(self) -> bool:
        """Whether it is open, and its results were not available when they were last asked for; `cancel` ends it."""
        return self.is_open and self.state in LOST_STATES
