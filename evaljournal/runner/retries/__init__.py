"""Retries: how a failure is classified, whether it is retried, and after which delay."""
