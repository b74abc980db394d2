"""Evaluations as tests of pytest."""
