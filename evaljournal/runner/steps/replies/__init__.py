"""Recorded replies: the calls of a run are answered from what other runs have recorded (`run --replies`).

A source is a run or a packed file: which replies does it have for a trial? Start with `recorded`.
What calls a task with replies is in `runner.sessions.replies`. A run without `--replies` imports nothing of this room.
"""
