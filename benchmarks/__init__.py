"""Figures that we claim, measured: `python -m benchmarks NAME`."""
