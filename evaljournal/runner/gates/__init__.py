"""Gates: what may keep a job from starting, besides the policy of its lane.

Each is attached to the lanes of a session by `runner.sessions.assembly`, only if the definition of the run needs it. Gates know
the kernel (`runner.engine`), which knows only their interface, `runner.engine.jobs.StartGate`.
"""
