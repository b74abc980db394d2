"""The engine: run, resume and re-score an evaluation, and record every event."""
