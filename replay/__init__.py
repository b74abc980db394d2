"""Views of a run, computed from its records: state, summary, timeline, comparison, audit, exports.

Pure functions of the records: no clock, no randomness, no nursery, no network.
"""

from evaljournal.replay.loaded_run import LoadedRun, load
from evaljournal.replay.state import RunState, fold
from evaljournal.replay.summary_types import Summary
from evaljournal.replay.timeline import Span, Timeline, Times
from evaljournal.replay.trajectory import StepDetails
from evaljournal.replay.trial_state import TrialState
from evaljournal.replay.views import audit, compare, summarize

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
