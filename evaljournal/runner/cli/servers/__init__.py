"""Servers of pages, each at an address with a token."""
