"""Durable steps: calls inside a task whose results are recorded, and reused by the next attempt after an interruption."""
