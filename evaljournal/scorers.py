"""Built-in scorers."""

from evaljournal.integrations.promptfoo.scorer import assertions as assertions
from evaljournal.runner.scorers.builtin import *
from evaljournal.runner.scorers.builtin import __all__ as _names

__all__ = [*_names, "assertions"]  # pyright: ignore[reportUnsupportedDunderAll]  # the names are imported above
