"""The state of a run: the fold of its records that the engine and the views share."""
