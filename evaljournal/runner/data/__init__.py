"""Cases and where they come from: datasets, columns, templates, JSON conversion and fingerprints."""
