"""Evaluations: the `@evaluation` decorator, settings, variants, budgets and gates, and loading an evaluation from a file."""
