"""How fast it is, as ratios within one run; never a timed test."""
