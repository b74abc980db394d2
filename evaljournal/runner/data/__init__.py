"""Cases and where they come from: datasets, columns, templates, JSON conversion and fingerprints.

A case is the same, with the same name and fingerprint, from whichever format it was read; values are kept exactly. Start with
`case`, then `dataset`. Everything read here is untrusted: bounded, never evaluated. It may import errors and signals.
"""
