"""The hash chain: what a hash covers."""

import hashlib

import pytest

from evaljournal.journal.format import chain


@pytest.mark.parametrize("size", [0, 1, 1_950, 2_046, 2_047, 2_048, 4_094, 16_311, 16_312, 16_313, 100_000])
def test_a_hash_covers_the_run_the_previous_hash_and_the_body(size: int) -> None:
    """Long lines are hashed in pieces; the hash is that of the whole."""
    run, previous, body = b"r" * 32, b"0" * 32, bytes(index % 251 for index in range(size))

    assert chain.link(run, previous, body) == hashlib.sha256(run + previous + body).hexdigest()[: chain.HASH_LENGTH]
