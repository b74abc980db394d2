"""The built-in prices have the models that the SDKs of OpenAI and Anthropic list.

models_of_sdks.json has these lists, so that a new release of an SDK changes no result; a difference is found when the file is
updated for a newer version.
"""

import json
import re
import typing
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import pytest

from evaljournal.runner.calls.prices import DEFAULT_PRICES, price_of, read_prices
from tests.programs import import_optional

LISTS: Final = json.loads(Path(__file__).with_name("models_of_sdks.json").read_text())
OTHER_UNITS: Final = re.compile(r"audio|-search|deep-research")
"""Models that also charge for audio tokens or for each search: a price of text tokens would be too low."""
UNKNOWN: Final = {
    *("chatgpt-4o-latest", "codex-mini-latest", "gpt-4-0125-preview", "gpt-4-32k", "gpt-4-32k-0314", "gpt-4-32k-0613"),
    *("gpt-4-turbo-preview", "gpt-4-vision-preview", "o1-mini", "o1-mini-2024-09-12", "o1-preview", "o1-preview-2024-09-12"),
    *("claude-fable-5-2", "claude-mythos-5-2", "gpt-5.1-mini", "gpt-6-cyber", "gpt-6-rosalind", "gpt-6.1-terra"),
}
"""Models without a price in the list that ours are from: withdrawn ones, new ones, and those for selected customers."""


def test_listed_models_have_a_price() -> None:
    """Each listed model has a price, or is known to have none: prices are not guessed."""
    prices = read_prices(DEFAULT_PRICES)
    models = [model for sdk in LISTS.values() for model in sdk["models"]]
    unpriced = {model for model in models if price_of(model, prices) is None and not OTHER_UNITS.search(model)}

    assert len(models) > 100
    assert UNKNOWN == unpriced
    assert [] == [model for model in models if OTHER_UNITS.search(model) and price_of(model, prices) is not None]


@pytest.mark.parametrize(
    ("name", "module", "attribute"),
    [("openai", "openai.types.shared.all_models", "AllModels"), ("anthropic", "anthropic.types.model", "Model")],
)
def test_the_lists_are_those_of_the_sdks(name: str, module: str, attribute: str) -> None:
    """The lists are complete for their version of the SDK."""
    names = getattr(import_optional(module), attribute)
    if version(name) != LISTS[name]["version"]:
        pytest.skip(f"the list is that of {name} {LISTS[name]['version']}")

    assert LISTS[name]["models"] == sorted(set(_literals(names)))


def _literals(annotation: Any) -> list[str]:
    arguments = typing.get_args(annotation)
    return [text for item in arguments for text in ([item] if isinstance(item, str) else _literals(item))]
