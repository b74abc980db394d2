"""Views computed from records: the public names of the package `replay`."""

import evaljournal._own_packages
from replay import *
from replay import __all__ as __all__
