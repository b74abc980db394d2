"""Logs in the schema of Every Eval Ever."""
