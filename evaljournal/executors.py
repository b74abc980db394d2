"""The executor interface of Phoenix evals."""

from evaljournal.integrations.phoenix import *
from evaljournal.integrations.phoenix import __all__ as __all__
