"""Built-in scorers, and the interface of a scorer."""

from typing import Final

NAMES: Final = (
    *("exact", "iexact", "contains", "one_of", "json_equal", "f1", "regex", "close_to", "similarity"),
    *("tools_used", "tools_in_order", "tool_args", "max_steps"),
)
"""Names of the built-in scorers, here so that the command line imports none of them."""
