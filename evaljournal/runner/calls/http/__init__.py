"""HTTP/1.1: the client of tasks, the server of the gateway and of `view`, and replies. Both sides read messages in one way."""
