"""The files of a run: system calls, the lock, and the names of segments."""
