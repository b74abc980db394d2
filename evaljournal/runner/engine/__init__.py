"""The kernel: the executor of a session. It knows facts, jobs and time, and none of the capabilities around it.

    recorder   appends an event to the journal and applies it to the state, in this order and together
    jobs       trials and scorer calls, the lanes in which they wait, and the interface of gates
    queues     the lanes of a session, and the jobs that wait for a delay
    scheduler  which job starts next, and when
    admission  trials are read slightly ahead of need
    executor   consumers take jobs; timeouts and stops cancel their calls
    call       one call: its timeout, its cancellation, and how it ended, as a value
    layers     what surrounds an attempt besides its task: the interface
    attempts   an attempt from its start to what follows from its end
    scoring    the scores of an output
    plain_scorers  the plain functions among its scorers, called together in a thread

Start with `executor`, then `scheduler`. Capabilities are attached by `runner.sessions.assembly`, as gates of lanes or as
layers around calls; nothing here imports them, and a test keeps it so.
"""
