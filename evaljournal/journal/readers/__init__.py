"""Read a journal: scan, follow, verify, and recover after a crash."""
