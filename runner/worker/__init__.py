"""The process of a worker: it calls a task for the session of a run, whose side of the connection is `runner.workers`."""
