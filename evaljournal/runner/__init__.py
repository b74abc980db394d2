"""Run evaluations and record every attempt. The public names are in `evaljournal`."""
