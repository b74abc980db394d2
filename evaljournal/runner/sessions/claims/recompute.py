"""Recompute the scores of disclosed leaves with the built-in scorers that make no calls.

A definition in a bundle only selects one of our scorers and its parameters; its version, which the leaf commits to, says
whether it is the one that gave the score. Nothing else is called, and a pattern that might take long is not searched.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

import orjson

from evaljournal.replay.claims.checking import NotRecomputed
from evaljournal.replay.claims.statement import canonical
from evaljournal.runner.scorers.bounded_search import is_quick
from evaljournal.runner.scorers.builtin import PLAIN_SCORERS, CloseTo, Regex, Similarity

_MAX_PATTERN: Final = 200
_MAX_PRODUCT: Final = 100_000_000
"""Maximum product of two lengths for `similarity`: so a check takes no longer than its bundle is long."""
_SCORERS: Final[Mapping[str, Callable[..., Any]]] = {
    **{name: lambda scorer=scorer: scorer for name, scorer in PLAIN_SCORERS.items()},
    "close_to": CloseTo,
    "regex": Regex,
    "similarity": Similarity,
}


def is_recomputable(definition: Any) -> bool:
    """Return whether a recorded definition may be that of a scorer that can be recomputed."""
    return isinstance(definition, dict) and "source" not in definition and definition.get("name") in _SCORERS


@lru_cache(1_000)
def _scorer(definition: bytes) -> Any:
    fields = orjson.loads(definition)
    return _SCORERS[fields["name"]](**{name: value for name, value in fields.items() if name not in {"name", "address"}})


def recompute(definition: Mapping[str, Any], version: str, output: str, expected: str) -> Any:
    """Return a score; raise `NotRecomputed` if that is impossible."""
    if len(str(definition.get("pattern", ""))) > _MAX_PATTERN:  # Not even compiled.
        raise NotRecomputed("its pattern might take long")
    try:
        scorer = _scorer(canonical(definition)) if is_recomputable(definition) else None
        if scorer is None or scorer.fingerprint != version:
            raise NotRecomputed("not a built-in scorer that makes no calls" if scorer is None else "another version of it")
        values = orjson.loads(output), orjson.loads(expected)
        if isinstance(scorer, Regex) and not is_quick(
            str(values[1] if scorer.pattern is None else scorer.pattern), len(output)
        ):
            raise NotRecomputed("its pattern might take long")
        if isinstance(scorer, Similarity) and len(output) * len(expected) > _MAX_PRODUCT:
            raise NotRecomputed("its texts are too long")
        return scorer(*values).value
    except NotRecomputed:
        raise
    except Exception as exc:  # The values are untrusted, and no error of a scorer may end the check.
        raise NotRecomputed(f"it raised {type(exc).__name__}") from exc
