"""Fakes and helpers for testing an evaluation: the public names of `runner.testing`."""

import evaljournal._own_packages
from runner.testing import *
from runner.testing import __all__ as __all__
