"""The options of the commands: their table, configuration files, and evaluations without code."""
