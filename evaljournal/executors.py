"""The executor interface of Phoenix evals."""

from evaljournal.runner.executors import *
from evaljournal.runner.executors import __all__ as __all__
