"""What an observer sees of a run that is in progress."""

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from journal import Journal
from replay import RunState


@attrs.define
class LiveRun:
    """A run in progress, as its observer sees it."""

    state: RunState
    """Kept by the run itself; read only."""
    journal: Journal
    total: int | None
    """Number of trials, if it is known beforehand."""
    now: Callable[[], float]
    """Returns the time in the seconds of `t`."""
    changed: Mapping[str, tuple[Any, Any]]
    """Settings that differ from those of the session before: old and new value."""
    stopping: Callable[[], tuple[str, float] | None]
    """Returns, once the run is being stopped, the reason and the seconds that calls in flight have left."""
