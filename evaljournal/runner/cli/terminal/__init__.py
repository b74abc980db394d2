"""What the commands print: output, screens, progress, errors and the end of a run."""
