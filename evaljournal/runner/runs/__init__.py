"""Runs as directories: their paths, copies made of them (`fork`, `merge`), what has changed since one was started, and checks.

No session is executed here, and no task is called.
"""
