"""Views of a run, computed from its records: state, summary, timeline, comparison, audit, exports.

Pure functions of the records: no clock, no randomness, no nursery, no network.
"""

from evaljournal.replay.results.summary_types import Summary
from evaljournal.replay.runs.loaded_run import LoadedRun, load
from evaljournal.replay.runs.timeline import Span, Timeline, Times
from evaljournal.replay.runs.trajectory import StepDetails
from evaljournal.replay.state.run import RunState, fold
from evaljournal.replay.state.trial import TrialState
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
