"""What an evaluation is: the `@evaluation` decorator, its settings, variants, budgets and gates, and loading it from a file."""
