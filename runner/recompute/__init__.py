"""Recompute what a policy decided: the rules of the audit."""
