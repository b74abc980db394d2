"""Fakes and helpers for testing an evaluation."""

from evaljournal.runner.testing import *
from evaljournal.runner.testing import __all__ as __all__
