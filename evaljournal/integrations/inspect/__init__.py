"""Inspect: a run as an `.eval` log."""
