"""Recompute the scores of disclosed leaves with the built-in scorers that make no calls.

A definition in a bundle only selects one of our scorers and its parameters; its version, which the leaf commits to, says
whether it is the one that gave the score. Nothing else is called, in particular no command.

The values are untrusted, and some scorers take time by the product of two lengths. So a pattern that might take long is not
searched, a long output is not compared with many expected outputs, and all scores together take at most half a minute of CPU,
and a second per megabyte of values: whatever a bundle contains, the time of a check grows with its size.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, Final

import orjson

from evaljournal.runner.data.fingerprint import definition_of
from evaljournal.runner.errors import UsageError
from evaljournal.runner.scorers.bounded_search import is_quick
from evaljournal.runner.scorers.builtin import PLAIN_SCORERS, CloseTo, Regex, Similarity

MAX_VALUE: Final = 4 << 20
"""Bytes of the longest value that is disclosed, and of a longest output times the number of its expected outputs."""
_MAX_PATTERN: Final = 200
_NO_SCORER: Final = "not recorded as a built-in scorer that makes no calls"
_SECONDS: Final = 30
_BYTES_PER_SECOND: Final = 1_000_000
_WITH_PARAMETERS: Final[Mapping[str, Callable[..., Any]]] = {"close_to": CloseTo, "regex": Regex, "similarity": Similarity}


def definitions(recorded: Any, versions: Mapping[str, str]) -> dict[str, Any]:
    """Return the definitions by which scores can be recomputed; `versions` are those of the scores, by name.

    `rescore` records no definitions, but a scorer without parameters is known by its version.
    """
    scorers: list[Any] = [*PLAIN_SCORERS.values()]
    for with_parameters in _WITH_PARAMETERS.values():
        with suppress(UsageError):  # An extra is not installed.
            scorers.append(with_parameters())
    built_in = {scorer.fingerprint: definition_of(scorer) for scorer in scorers}
    own = {name: item for name, item in dict(recorded or {}).items() if isinstance(item, dict) and _scorer(item) != _NO_SCORER}
    return own | {name: built_in[version] for name, version in versions.items() if version in built_in}


class Recomputation:
    def __init__(self, definitions: Mapping[str, Mapping[str, Any]], clock: Callable[[], float] = time.process_time) -> None:
        self._scorer = cache(lambda name: _scorer(definitions.get(name, {"name": ""})))  # It takes time to compile patterns.
        self._clock, self._seconds_left = clock, float(_SECONDS)

    def __call__(self, scores: Mapping[str, Any], output: str, expected: str) -> Iterator[tuple[str, Any, str]]:
        """Yield the name and the value of each score of a trial, or why it is not recomputed."""
        self._seconds_left += (len(output) + len(expected)) / _BYTES_PER_SECOND
        for name, score in scores.items():
            start, value, reason = self._clock(), None, "the scores before it took too long"
            try:
                if self._seconds_left >= 0:
                    reason = _obstacle(self._scorer(name), score["version"], output, orjson.loads(expected))
                if not reason:
                    value = self._scorer(name)(orjson.loads(output), orjson.loads(expected)).value
            except Exception as exc:  # noqa: BLE001  # the values are untrusted, and no error of a scorer may end the check
                reason = f"it raised {type(exc).__name__}"
            self._seconds_left -= self._clock() - start
            yield name, value, reason


def _obstacle(scorer: Any, version: str, output: str, expected: Any) -> str:
    """Return why a score is not recomputed; empty if it can be."""
    if isinstance(scorer, str) or scorer.fingerprint != version:
        return scorer if isinstance(scorer, str) else "another version of it"
    if len(output) * (len(expected) if isinstance(expected, list) else 1) > MAX_VALUE:
        return "its texts are too long"
    if isinstance(scorer, Regex) and not is_quick(str(expected) if scorer.pattern is None else scorer.pattern, len(output)):
        return "its pattern might take long"
    return ""


def _scorer(definition: Mapping[str, Any]) -> Any:
    """Return the scorer that a definition selects, or why it selects none."""
    name = str(definition.get("name"))
    parameters = {key: value for key, value in definition.items() if key not in {"name", "address"}}
    if name in PLAIN_SCORERS and not parameters:
        return PLAIN_SCORERS[name]
    if len(str(parameters.get("pattern"))) > _MAX_PATTERN:  # Not even compiled.
        return "its pattern is too long"
    with suppress(Exception):  # The parameters are untrusted.
        return _WITH_PARAMETERS[name](**parameters)
    return _NO_SCORER
