"""What is claimed and committed: exact means, Merkle trees, statements. The whole way is in `tests.runner.test_claims`."""

from decimal import Decimal
from fractions import Fraction
from hashlib import sha256
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaljournal.replay.claims.checking import sample_indexes
from evaljournal.replay.claims.leaves import make_salter
from evaljournal.replay.claims.merkle import Root, leaf_hash, levels, path, root_of_path
from evaljournal.replay.claims.statement import Claim, InvalidClaim, Means, canonical, parse_canonical

SIZES = [*range(1, 40), 63, 64, 65, 100]


def defined_root(hashes: list[bytes]) -> bytes:
    """Return the root as RFC 6962 defines it, recursively."""
    if len(hashes) == 1:
        return hashes[0]
    split = 1 << (len(hashes) - 1).bit_length() - 1
    return sha256(b"\1" + defined_root(hashes[:split]) + defined_root(hashes[split:])).digest()


def leaf_hashes(size: int) -> list[bytes]:
    return [leaf_hash(str(number).encode()) for number in range(size)]


def root_of(hashes: list[bytes]) -> bytes:
    root = Root()
    for item in hashes:
        root.add(item)
    return root.digest()


def leaf(value: Any, *, variant: str = "", labels: tuple[Any, ...] = ()) -> dict[str, Any]:
    """Return what a trial with a score contributes."""
    scores = {} if value is None else {"exact": {"value": value, "version": "v"}}
    own_labels = [{"name": "exact", "value": label} for label in labels]
    return {"trial": "t", "output": "0", "variant": variant, "scores": scores, "labels": own_labels}


def passes(text: str, values: list[Any]) -> bool:
    means = Means([Claim.parse(text)])
    for value in values:
        means.add(leaf(value))
    return bool(means.members()["claims"][0]["passed"])


@pytest.mark.parametrize("size", SIZES)
def test_the_root_is_that_of_rfc_6962(size: int) -> None:
    """Leaves that are added one after the other, and all levels at once, give the root that the RFC defines."""
    hashes = leaf_hashes(size)

    assert defined_root(hashes) == root_of(hashes) == levels(b"".join(hashes))[-1]


def test_known_roots() -> None:
    """The roots of the test vectors of Certificate Transparency."""
    data = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"]
    hashes = [leaf_hash(bytes.fromhex(text)) for text in data]

    assert "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d" == root_of(hashes[:1]).hex()
    assert "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328" == root_of(hashes).hex()
    assert sha256().digest() == Root().digest()


@pytest.mark.parametrize("size", SIZES)
def test_a_path_proves_one_leaf_at_one_index(size: int) -> None:
    """A path gives the root for its leaf and index only; a shorter or longer one gives none."""
    hashes = leaf_hashes(size)
    tree, root = levels(b"".join(hashes)), root_of(hashes)
    for index, item in enumerate(hashes):
        own = path(tree, index)

        assert root == root_of_path(item, index, size, own)
        others = {root_of_path(item, other, size, own) for other in range(-1, size + 1) if other != index}
        assert root not in others
        assert root not in {
            root_of_path(item, index, size, own[:-1]) if own else None,
            root_of_path(item, index, size, [*own, root]),
        }


def test_a_node_is_no_leaf() -> None:
    """The children of a node, presented as the data of a leaf, do not have the hash of the node."""
    hashes = leaf_hashes(4)
    tree = levels(b"".join(hashes))
    node = tree[1][:32]

    assert node == root_of_path(hashes[0], 0, 2, [hashes[1]])
    assert node != leaf_hash(hashes[0] + hashes[1])
    assert tree[-1] != root_of_path(leaf_hash(hashes[0] + hashes[1]), 0, 2, [tree[1][32:]])


@given(
    st.lists(st.one_of(st.booleans(), st.integers(-1000, 1000), st.floats(-1e100, 1e100)), min_size=1, max_size=30),
    st.decimals(-2, 2, places=3),
)
def test_a_mean_is_exact(values: list[Any], threshold: Decimal) -> None:
    """A mean is compared as the fraction that the decimals have."""
    mean = sum(Fraction(str(+value if isinstance(value, bool) else value)) for value in values) / len(values)
    bound = Fraction(str(threshold))

    assert (mean >= bound) == passes(f"exact>={threshold:f}", values)
    assert (mean < bound) == passes(f"exact<{threshold:f}", values)


def test_a_mean_of_a_decimal_reaches_it() -> None:
    """0.7 is 0.7, although the float is a little less; and a sum of tenths has no rounding error."""
    assert passes("exact>=0.7", [0.7] * 3)
    assert not passes("exact>0.1", [0.1] * 10)
    assert passes("exact>=70%", [0.7, True, 0.4])
    assert not passes("exact>=0.700000000000000000000001", [0.7])


def test_a_claim_without_values_does_not_hold() -> None:
    """Nothing follows from no values, not even what all of them would have."""
    assert not passes("exact<=1", [None, None])


@pytest.mark.parametrize("value", ["yes", float("inf"), 1e101, None])
def test_what_has_no_part_in_a_mean_is_rejected(value: Any) -> None:
    """A claim on texts, and on numbers that no mean of ours includes, is rejected."""
    means = Means([Claim.parse("label:exact>=0")])
    with pytest.raises(InvalidClaim, match="has no part in a mean"):
        means.add(leaf(1, labels=(value,)))


def test_variants_and_labels_are_counted_separately() -> None:
    """A claim on a variant is about its trials only; one on labels about every label."""
    means = Means(map(Claim.parse, ("exact@a>=0.5", "exact@b>=0.5", "label:exact>=0.5")))
    for item in (leaf(1, variant="a"), leaf(0, variant="b", labels=(True, True, False)), leaf(None, variant="b")):
        means.add(item)
    members = means.members()

    assert [("exact@a", True), ("exact@b", False), ("label:exact", True)] == [
        (item["metric"], item["passed"]) for item in members["claims"]
    ]
    assert [(1, 0), (1, 1), (3, 2)] == [(figure["values"], figure["missing"]) for figure in members["evaljournal"]["figures"]]
    assert 1 == members["sampleSize"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "exact",
        "exact=0.9",
        "exact>=",
        "exact>=1e3",
        "exact>=nan",
        "a b>=1",
        "exact>=0.9@lower",
        ">=1",
        f"exact>={'9' * 50}",
        "x" * 10_000,
    ],
)
def test_what_is_no_claim_is_rejected(text: str) -> None:
    """A claim is NAME, a comparator and a decimal number."""
    with pytest.raises(InvalidClaim, match="is not a claim: expected NAME>=NUMBER"):
        Claim.parse(text)


@pytest.mark.parametrize(
    "text", [b'{"a":1,"a":2}', b'{"b":1,"a":2}', b'{"a": 1}', b'{"a":1.0e0}', b'"\\u0041"', b"[18446744073709551616]"]
)
def test_only_canonical_json_is_parsed(text: bytes) -> None:
    """JSON with a duplicate key, in another order, or in another notation is rejected: readers could differ."""
    with pytest.raises(ValueError, match="canonical"):
        parse_canonical(text)
    assert {"a": [1, 0.5, "ä"]} == parse_canonical(canonical({"a": [1, 0.5, "ä"]}))


def test_salts_depend_on_everything() -> None:
    """The secret, the heads, the kind and the name each change a salt."""
    states = [(b"a" * 32, "1", "2"), (b"b" * 32, "1", "2"), (b"a" * 32, "12", ""), (b"a" * 32, "1", "")]
    values = [
        make_salter(*state)(kind, name) for state in states for kind in ("trial", "commitment") for name in ("model", "dataset")
    ]

    assert len(values) == len(set(values))
    assert {16} == set(map(len, values))


def test_a_sample_can_be_drawn_again() -> None:
    """A sample has distinct indexes in order, depends on root and seed, and a larger one contains it, also of a huge tree."""
    root = bytes(32)
    drawn = sample_indexes(root, 1000, 50, 7)

    assert 50 == len(drawn)
    assert all(a < b for a, b in pairwise(drawn))
    assert drawn == sample_indexes(root, 1000, 50, 7) != sample_indexes(root, 1000, 50, 8)
    assert set(drawn) < set(sample_indexes(root, 1000, 60, 7))
    assert list(range(20)) == sample_indexes(root, 20, 50, 7)
    assert 3 == len(sample_indexes(root, 10**7, 3, 7))
    assert [] == sample_indexes(root, 0, 3, 7)
