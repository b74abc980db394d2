"""Scorers: the interface of a scorer, the built-in ones, judges, and scorers of an agent's trajectory.

Whatever an output contains, scoring it ends: patterns are searched in a process that can be killed, and numbers, depth and
length are bounded. Start with `scorer`, then `local`. It may import calls, because a judge is a chat model.
"""

from typing import Final

NAMES: Final = (
    *("exact", "iexact", "contains", "one_of", "json_equal", "f1", "regex", "close_to", "similarity"),
    *("tools_used", "tools_in_order", "tool_args", "max_steps"),
)
"""Names of the built-in scorers, here so that the command line imports none of them."""
