"""Results as text, for a terminal and for Markdown."""
