"""Facts: what happened, in order, on disk, provably unchanged."""
