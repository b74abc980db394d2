"""Views: what the facts mean, the same for ever.

Pure functions of the records: no clock, no chance, no nursery, no network. `load` takes in a run as it stands, or as it stood
after any record; `fold` gives the state that records describe, and a `Timeline` tells what happened when.
"""

from replay.loaded_run import History, load
from replay.state import RunState, TrialState, fold
from replay.summary import Summary
from replay.timeline import Span, Timeline, Times

__all__ = ["History", "RunState", "Span", "Summary", "Timeline", "Times", "TrialState", "fold", "load"]
