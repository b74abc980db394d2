"""What a recorded run would have cost, and how long it would have taken, under other prices and limits; nothing is called.

    recorded    the calls of a run as its journal has them: seconds, tokens, failures; filled by one pass over the records
    repricing   the usage of a recorded call under other prices
    recompute   a session on a virtual clock, with the real gates and policies, whose calls take their recorded seconds

Start with `recompute`. It may import what sessions may.
"""
