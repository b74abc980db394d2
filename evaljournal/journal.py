"""The append-only journal: the public names of the package `journal`."""

import evaljournal._own_packages
from journal import *
from journal import __all__ as __all__
from journal import errors as errors
from journal import events as events
