"""Benchmarks. Most figures are ratios within one run, because absolute times depend on the machine."""
