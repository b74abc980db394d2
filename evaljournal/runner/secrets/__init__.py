"""Secrets: what is recognized as one (`shapes`), and how it is replaced (`masking`)."""
