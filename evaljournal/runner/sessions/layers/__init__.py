"""The layers of a session: what surrounds its attempts, if the definition of the run needs it; see `runner.engine.layers`.

    hooks      a set-up and a teardown around the task, and the timeouts of these phases
    remote     a call in a worker instead, and a gateway for the model calls of the task
    steps      what a task records inside its call, and earlier results of it
    outputs    what is recorded: requests, outputs without secrets, which may be large or objects; and what is rejected instead
    budget     what ends a trial that has exceeded its own budget

`sessions.replies` and `sessions.workspaces` have a layer each.

`sessions.assembly` attaches them. A layer imports the kernel's interfaces and the rooms of its capability, and no other layer.
"""
