"""Sessions of a run: what one needs is prepared, opened, executed and ended; start with `session`.

`plan` is what a session is about to do, `open_tasks` holds the tasks and scorers that are open, `rescore` is a session that
only scores. The execution itself is `runner.engine`, which `runner.sessions.assembly` puts together with the capabilities that
the definition needs.
"""
