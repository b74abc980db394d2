"""The executor interface of Phoenix evals: the public names of the package `runner.executors`."""

import evaljournal._own_packages
from runner.executors import *
from runner.executors import __all__ as __all__
