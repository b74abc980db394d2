"""The scenarios of `python -m benchmarks faults`, by what goes wrong in them."""
