"""The format of a journal: lines with their hashes, events as JSON, blobs, and the legal order of events."""
