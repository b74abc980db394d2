"""Views of a run, computed from its records: state, summary, timeline, comparison, audit, exports.

Pure functions of the records: no clock, no randomness, no nursery, no network.
"""

from evaljournal.lazy_names import TYPE_CHECKING, lazy_names

if TYPE_CHECKING:
    from evaljournal.replay.export.frames import load as load
    from evaljournal.replay.results.summary import Summary as Summary
    from evaljournal.replay.runs.loaded_run import LoadedRun as LoadedRun
    from evaljournal.replay.runs.timeline import Span as Span
    from evaljournal.replay.runs.timeline import Timeline as Timeline
    from evaljournal.replay.runs.timeline import Times as Times
    from evaljournal.replay.runs.trajectory import StepDetails as StepDetails
    from evaljournal.replay.state.run import RunState as RunState
    from evaljournal.replay.state.run import fold as fold
    from evaljournal.replay.state.trial import TrialState as TrialState
    from evaljournal.replay.views import audit as audit
    from evaljournal.replay.views import compare as compare
    from evaljournal.replay.views import summarize as summarize

_MODULES = {
    "LoadedRun": "runs.loaded_run",
    "RunState": "state.run",
    "Span": "runs.timeline",
    "StepDetails": "runs.trajectory",
    "Summary": "results.summary",
    "Timeline": "runs.timeline",
    "Times": "runs.timeline",
    "TrialState": "state.trial",
    "audit": "views",
    "compare": "views",
    "fold": "state.run",
    "load": "export.frames",
    "summarize": "views",
}
"""Public name → the module that defines it."""

__all__ = list(_MODULES)  # pyright: ignore[reportUnsupportedDunderAll]  # the names are imported above

if not TYPE_CHECKING:  # Type checkers report an unknown name themselves.
    __getattr__ = lazy_names(__name__, _MODULES)
