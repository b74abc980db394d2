"""Generated tests for promptfoo and for our scorer `assertions`: outputs with assertions that often nearly pass."""

import json
import random
from pathlib import Path
from typing import Any

_PARTS = json.loads(Path(__file__).with_name("parts.json").read_text(encoding="utf-8"))
_TYPES = (
    *("equals", "contains", "icontains", "contains-any", "contains-all", "icontains-any", "icontains-all", "starts-with"),
    *("regex", "regex", "is-json", "is-json", "contains-json", "contains-json", "levenshtein", "cost", "latency"),
)
_VALUES: tuple[Any, ...] = (1, 0, 1.5, True, 1e21, 1e-7, {"a": 1}, {"a": 1.0, "b": [True, None]}, [1, 2], [], {"a": {"b": {}}})
"""Values of `equals` that are not texts."""

Test = dict[str, Any]
"""A test: `output`, `assert` and perhaps `threshold`."""


def _literal(text: str) -> str:
    """Return a text without templates, which promptfoo would render; it is not empty."""
    while "{{" in text:
        text = text.replace("{{", "{")
    return text.replace("{%", "{").replace("{#", "{") or "x"


class _Generator:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # reproducible

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def _choose(self, *values: Any) -> Any:
        return self._random.choice(values)

    def _value(self, output: str) -> str:
        """Return a part of an output, perhaps changed, or any text; it is not empty and no template."""
        text: str = self._choose(*_PARTS["texts"])
        if output and self._chance(0.6):
            start = self._random.randrange(len(output))
            text = output[start : start + self._random.randint(1, 12)]
        if self._chance(0.25):
            text = self._choose(text.upper(), text.lower(), text.swapcase(), text.strip())
        return _literal(text)

    def _assertion(self, output: str) -> dict[str, Any]:
        name = self._choose(*_TYPES)
        assertion = {"type": name if self._chance(0.75) else f"not-{name}", **self._parameters(name, output)}
        if self._chance(0.3):
            assertion["weight"] = self._choose(0, 0.5, 2, 3)
        if self._chance(0.3):
            assertion["metric"] = self._choose("tone", "facts")
        return assertion

    def _parameters(self, name: str, output: str) -> dict[str, Any]:  # noqa: PLR0911  # one return for each type
        match name:
            case "equals":
                return {"value": self._choose(_literal(output), self._value(output), self._choose(*_VALUES))}
            case "contains" | "icontains":
                return {"value": self._choose(self._value(output), self._value(output), 1, 2.5)}
            case "starts-with":
                return {"value": self._choose(_literal(output[: self._random.randint(1, 5)]), self._value(output))}
            case "regex":
                return {"value": self._choose(*_PARTS["patterns"])}
            case "is-json" | "contains-json":
                return {"value": self._choose(*_PARTS["schemas"])} if self._chance(0.7) else {}
            case "levenshtein":
                threshold = {"threshold": self._random.randint(0, 12)} if self._chance(0.6) else {}
                return {"value": self._value(output), **threshold}
            case "cost":
                return {"threshold": self._choose(0.001, 0.002, 0.003)}
            case "latency":
                return {"threshold": self._choose(-1, 10**9)}
            case _:
                values = [self._value(output) for _ in range(self._random.randint(1, 3))]
                texts = ", ".join(values), ",".join(f'"{value}"' for value in values), *values
                return {"value": values if self._chance(0.6) else self._choose(*texts)}

    def _set(self, output: str) -> dict[str, Any]:
        inner_set = {"type": "assert-set", "assert": [self._assertion(output) for _ in range(self._random.randint(0, 2))]}
        for key, values in {"threshold": (0.3, 0.5), "weight": (0, 2), "metric": ("set", "tone")}.items():
            if self._chance(0.4):
                inner_set[key] = self._choose(*values)
        return inner_set

    def test(self) -> Test:
        """Return a test."""
        output = self._choose(*_PARTS["texts"])
        if self._chance(0.2):
            output = f"{output} {self._choose(*_PARTS['texts'])}"
        test: Test = {"output": output, "assert": [self._assertion(output)]}
        if self._chance(0.3):
            test["assert"] += [self._assertion(output) for _ in range(self._random.randint(1, 3))]
        if self._chance(0.2):
            test["assert"].append(self._set(output))
        if self._chance(0.3):
            test["threshold"] = self._choose(0, 0.3, 0.5, 0.75, 1)
        return test


def generated_tests(seed: int, count: int) -> list[Test]:
    """Return random tests, a test for each example of a format, and one for each invalid assertion."""
    generator = _Generator(seed)
    formats = [(name, output) for name, outputs in _PARTS["formats"].items() for output in outputs]
    return [
        *(generator.test() for _ in range(count)),
        *({"output": output, "assert": [{"type": "is-json", "value": {"format": name}}]} for name, output in formats),
        *({"output": "{}", "assert": [assertion]} for assertion in _PARTS["invalid"]),
    ]
