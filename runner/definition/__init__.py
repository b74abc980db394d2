"""What an evaluation is: the `@evaluation` decorator, its gates, and loading it from a file."""
