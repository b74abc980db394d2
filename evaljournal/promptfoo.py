"""Functions of imported promptfoo projects: providers and assertions in Python."""

from evaljournal.integrations.promptfoo.python_calls import *
from evaljournal.integrations.promptfoo.python_calls import __all__ as __all__
