"""The servers of `view` and `review`: pages at an address with a token."""
