"""Suites: several evaluations that run in one process, share their limits and budget, and are resumed together."""
