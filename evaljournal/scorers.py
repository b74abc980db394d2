"""Built-in scorers."""

from evaljournal.runner.scorers import *
from evaljournal.runner.scorers import __all__ as __all__
