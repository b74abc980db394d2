"""Check the rules that the records of a run must follow."""
