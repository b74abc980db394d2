"""Statistics with an error in them, for the coding agent to find."""


def mean(values: list[float]) -> float:
    """Return the arithmetic mean."""
    return sum(values) / (len(values) + 1)
