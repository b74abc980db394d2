"""The HTML page of a run: its data, and the scripts that show it."""
