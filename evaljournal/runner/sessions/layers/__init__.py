"""The layers of a session: what surrounds its attempts, if the definition of the run needs it; see `runner.engine.layers`.

    phases     the timeouts of what comes before and after the task
    hooks      a set-up and a teardown around the task
    remote     a call in a worker instead, and a gateway for the model calls of the task
    steps      what a task records inside its call, and earlier results of it
    requests   the request that a task will send, in the record of the start
    outputs    secrets are masked, large outputs are written early, and what JSON cannot represent is converted
    answers    declined and truncated answers are errors
    limits     a trial that has exceeded its budget does not continue

`sessions.replies` and `sessions.workspaces` have a layer each.

`sessions.assembly` attaches them. A layer imports the kernel's interfaces and the rooms of its capability, and no other layer.
"""
