"""Built-in scorers, and the interface of a scorer."""

from evaljournal.runner.scorers.builtin import *  # noqa: F403  # its `__all__` are the public names
from evaljournal.runner.scorers.builtin import __all__ as __all__
