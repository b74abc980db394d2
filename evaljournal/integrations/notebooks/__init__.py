"""Notebooks: live progress of a run in the cell."""
