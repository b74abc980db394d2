"""The results of runs: summary, comparison, gates."""
