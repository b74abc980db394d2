"""The rules of a gate against a baseline, from a TOML file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import attrs

from replay.gating import GateRules, Limit, ScoreRule
from runner.data.toml_file import read_toml
from runner.errors import UsageError
from runner.suggest import suggest

LIMITS: Final = ("cost", "tokens", "p95")
"""Amounts that a rules file can limit."""

T = TypeVar("T", ScoreRule, Limit)


def read_rules(path: Path) -> GateRules:
    """Read a rules file: a table `[score.NAME]` for each score, and `[cost]`, `[tokens]` and `[p95]`."""
    table = read_toml(path)
    scores: object = table.pop("score", {})
    if not isinstance(scores, dict):
        raise UsageError("`score` must be a table for each score; write [score.NAME]", path=path)
    for name in table:
        if name not in LIMITS:
            raise UsageError(f"unknown key {name!r}{suggest(name, ['score', *LIMITS])}", path=path)
    rules = GateRules(
        {name: _parsed(ScoreRule, rule, f"score.{name}", path) for name, rule in cast("dict[str, Any]", scores).items()},
        {name: _parsed(Limit, rule, name, path) for name, rule in table.items()},
    )
    if not rules.scores and not rules.limits:
        raise UsageError("contains no rule", path=path, hint="write for example [score.exact] with max_drop = 0.02")
    return rules


def _parsed(cls: type[T], rule: object, name: str, path: Path) -> T:
    names = [field.name for field in attrs.fields(cls)]
    if isinstance(rule, list):
        raise UsageError(f"[[{name}]] is a list of tables; write [{name}]", path=path)
    if not isinstance(rule, Mapping) or not rule:
        raise UsageError(f"[{name}] needs {' or '.join(names)}", path=path)
    for key, value in cast("Mapping[str, object]", rule).items():
        if key not in names:
            raise UsageError(f"[{name}] has an unknown key {key!r}{suggest(key, names)}", path=path)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise UsageError(f"[{name}] {key} = {value!r}: expected a number that is not negative", path=path)
    return cls(**{key: float(value) for key, value in cast("Mapping[str, float]", rule).items()})
