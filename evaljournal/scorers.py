"""Built-in scorers."""

from evaljournal.runner.scorers.builtin import *
from evaljournal.runner.scorers.builtin import __all__ as __all__
