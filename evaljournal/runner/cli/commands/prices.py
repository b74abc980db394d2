"""The command `evaljournal prices`."""

from pathlib import Path

import attrs
import click

from evaljournal.replay.text import or_dash
from evaljournal.runner.calls.dialects import split_model
from evaljournal.runner.calls.prices import DEFAULT_PRICES, Price, date_of_prices, price_of, read_prices
from evaljournal.runner.cli.terminal.display import print_json, print_table
from evaljournal.runner.cli.terminal.output import echo


@click.command()
@click.argument("models", metavar="[MODEL]...", nargs=-1)
@click.option("--prices", "path", type=click.Path(path_type=Path), metavar="FILE", help="TOML file (default: built-in table).")
@click.option("--json", "as_json", is_flag=True, help="Print an object as JSON.")
def prices(models: tuple[str, ...], path: Path | None, as_json: bool) -> None:
    """Show the prices of all models, or of each MODEL, in dollars per million tokens, and their date.

    A dash is a missing price: a call with such tokens, or in such a service tier, has no cost. Each MODEL without a price is
    named.

    \b
    evaljournal prices
    evaljournal prices gpt-5.4-mini claude-haiku-5-5
    """
    table, day = read_prices(path or DEFAULT_PRICES), date_of_prices(path or DEFAULT_PRICES)
    prices_by_model = {model: price_of(split_model(model)[1], table) for model in models} if models else dict(table)
    known_prices = {model: price for model, price in prices_by_model.items() if price is not None}
    missing = [model for model in prices_by_model if model not in known_prices]

    if as_json:
        rows = {model: attrs.asdict(price) for model, price in known_prices.items()}
        print_json({"date": None if day is None else day.isoformat(), "models": rows, "missing": missing})
        return

    if known_prices:
        tiers = sorted({tier for price in known_prices.values() for tier in price.tiers})
        header = ["model", "input", "cached", "cache write", "1 h", "output", *tiers, "above"]
        print_table([header, *([model, *_cells(price, tiers)] for model, price in known_prices.items())])
        echo(f"dollars per million tokens, {'without a date' if day is None else f'as of {day}'}; service tiers are factors")
    for model in missing:
        echo(f"no price: {model}; add it to a table and pass the table with --prices")


def _cells(price: Price, tiers: list[str]) -> list[str]:
    rates = [price.input, price.cached, price.cache_write, price.cache_write_1h, price.output]
    above = "" if price.above is None else f"{price.above[0]:,} tokens: {price.above[1].input:g} / {price.above[1].output:g}"
    return [*(or_dash(rate, "{:g}".format) for rate in (*rates, *(price.tiers.get(tier) for tier in tiers))), above]
