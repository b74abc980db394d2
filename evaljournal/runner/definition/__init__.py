"""Evaluations: the `@evaluation` decorator, settings, variants, limits and gates, and loading an evaluation from a file.

A definition says what is to be done, and does nothing. It becomes data when a run starts, so that `resume` can tell what has
changed. Start with `evaluation`, then `settings`. It may import what it describes: data, calls, scorers, steps, policies and
pools of workers.
"""
