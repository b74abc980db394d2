"""promptfoo beside evaljournal: generated tests, runs of promptfoo, and what it returned in an earlier run."""
