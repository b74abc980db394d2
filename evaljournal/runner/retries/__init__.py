"""Retries: how a failure is classified, whether it is retried, and after which delay.

All decisions are pure: `verify` makes them again from the journal. Start with `retry.settle`. It may import errors and secrets.
"""
