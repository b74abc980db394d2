"""Shards of a dataset: a hash of a case's content decides its shard, so that a new case does not move the others."""

from evaljournal.replay.state.shards import Shard
from evaljournal.runner.data.case import Case
from evaljournal.runner.errors import UsageError


def parse_shard(value: Shard | str | None) -> Shard | None:
    """Return a shard, or None for all cases; raise a `UsageError` if the text is not `K/N`."""
    if value is None or isinstance(value, Shard):
        return value
    try:
        return Shard.parse(value)
    except ValueError as exc:
        raise UsageError(str(exc), setting="shard", value=value) from exc


def is_in_shard(case: Case, shard: Shard | None) -> bool:
    """Return whether a case belongs to the shard; all of its variants and repeats do."""
    return shard is None or int(case.fingerprint, 16) % shard.count == shard.number - 1
