"""Views: what the facts mean, the same for ever.

Pure functions of the records: no clock, no chance, no nursery, no network. `fold` gives the state that a journal describes.
"""

from replay.state import RunState, TrialState, fold

__all__ = ["RunState", "TrialState", "fold"]
