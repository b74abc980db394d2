"""promptfoo: the import of its configurations, frozen, and the scorer `assertions`, which checks what was imported.

Start with `importing` for the first and with `scorer` for the second. A configuration is untrusted: nothing in it is executed
or fetched when it is imported.
"""
