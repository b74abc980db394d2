"""The process of a worker: it calls tasks and scorers for a session, whose side of the connection is `runner.workers`."""
