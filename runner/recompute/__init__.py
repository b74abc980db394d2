"""Recompute what a policy decided or would have decided: the audit's rules and `simulate`."""
