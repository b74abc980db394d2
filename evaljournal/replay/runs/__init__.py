"""One run in detail: its trials, their steps and waits, and the timeline."""
