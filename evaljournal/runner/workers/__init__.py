"""Where attempts run besides the process of the run: pools of workers, and the session's side of the connections to them.

The process of a worker, which calls the task, is `runner.sessions.worker`.
"""
