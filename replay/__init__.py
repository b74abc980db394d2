"""Views of a run, computed from its records: state, summary, timeline, comparison, audit, exports.

Part of evaljournal. Pure functions of the records: no clock, no randomness, no nursery, no network.
"""

from replay.loaded_run import LoadedRun, load
from replay.state import RunState, fold
from replay.summary_types import Summary
from replay.timeline import Timeline
from replay.timeline_columns import Span, Times
from replay.trajectory import StepDetails
from replay.trial_state import TrialState
from replay.views import audit, compare, summarize

__all__ = [
    "LoadedRun",
    "RunState",
    "Span",
    "StepDetails",
    "Summary",
    "Timeline",
    "Times",
    "TrialState",
    "audit",
    "compare",
    "fold",
    "load",
    "summarize",
]
