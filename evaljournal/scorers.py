"""Built-in scorers: the public names of the package `runner.scorers`."""

import evaljournal._own_packages
from runner.scorers import *
from runner.scorers import __all__ as __all__
