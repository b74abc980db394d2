"""HTTP/1.1: the client of tasks, the server of the gateway and of `view`, and replies. Both sides read messages in one way."""

missing_variable: str | None = None
"""The value of environment variables that are not set; None: they are an error. A run that calls nothing sets it."""
