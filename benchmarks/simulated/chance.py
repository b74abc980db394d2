"""Random numbers that depend only on a seed and a key.

What happens to the third attempt of trial 17 is the same under every policy, whatever was started before it. So two
policies are compared on the same calls, without noise.
"""

import math
from statistics import NormalDist

_MASK = (1 << 64) - 1
_normal = NormalDist().inv_cdf


def uniform(seed: int, trial: int, attempt: int, purpose: int) -> float:
    """Draw a number between 0 and 1, both excluded (splitmix64 over the key)."""
    x = (
        seed * 0x9E3779B97F4A7C15 + trial * 0xD1342543DE82EF95 + attempt * 0xAF251AF3B0F025B5 + purpose * 0xB564EF22EC7AECE5
    ) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    x = ((x ^ (x >> 31)) * 0xBF58476D1CE4E5B9) & _MASK
    return ((x >> 11) + 0.5) / 2**53


def log_normal(u: float, median: float, sigma: float) -> float:
    """Turn a uniform number into a log-normal one."""
    return median * math.exp(sigma * _normal(u)) if sigma else median
