"""`python -m evaljournal.worker`: a worker, for a session at the other end of its standard streams."""

from evaljournal.runner.sessions.worker.__main__ import main

if __name__ == "__main__":
    main()
