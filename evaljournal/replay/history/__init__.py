"""The runs of an evaluation over time."""
