"""Durable steps: calls inside a task whose results are recorded, and can be reused by the next attempt at the trial."""
