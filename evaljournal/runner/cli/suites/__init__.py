"""Suites on the command line: which evaluations they have, how they run, and how they are shown."""
