"""`evaljournal prices`: the table, its date, and what is missing."""

from pathlib import Path

import pytest

from tests.runner_cli.commands import evaljournal, printed, rejected

TABLE = """\
date = 2026-11-01

[models."small"]
input = 1.0
output = 2.5
tiers = { flex = 0.5 }
above = { tokens = 200_000, input = 2.0, output = 4.0 }
"""


def test_a_table_is_printed() -> None:
    """Each price is in its column, also for `gemini:MODEL`; a dash is a missing one, and a model without any is named."""
    Path("prices.toml").write_text(TABLE)

    lines = evaljournal("prices", "--prices", "prices.toml", "gemini:small-latest", "large").stdout.splitlines()

    assert ["gemini:small-latest", "1", "-", "-", "-", "2.5", "0.5", "200,000", "tokens:", "2", "/", "4"] == lines[1].split()
    assert "dollars per million tokens, as of 2026-11-01; service tiers are factors" == lines[2]
    assert "no price: large; add it to a table and pass the table with --prices" == lines[3]


def test_the_built_in_table_as_json() -> None:
    """All built-in prices are printed as one object, with their date."""
    table = printed("prices")

    assert (0.125, []) == (table["models"]["claude-haiku-5-5"]["cache_write"], table["missing"])
    assert table["date"] >= "2026-11-17"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("models = 1", "prices.toml: no prices; add a table [models"),
        ("[models.a", "not valid TOML"),
        ("[models.a]\ninput = 1\n", "price of 'a' needs input and output"),
        ("[models.a]\ninput = 1\noutput = nan\n", "price of 'a': output = nan; expected dollars per million tokens, 0 or more"),
        ("[models.a]\ninput = 1\noutput = 1\ntiers = 2\n", "price of 'a': tiers = 2; expected a table"),
        ("[models.a]\ninput = 1\noutput = 1\ntiers = { flex = -1 }\n", "price of 'a': flex = -1; expected"),
        ("[models.a]\ninput = 1\noutput = 1\nabove = { input = 1 }\n", "price of 'a': above needs tokens, a whole number"),
        ("[models.a]\ninput = 1\noutput = 1\nabove = { tokens = 9 }\n", "price of 'a' above 9 tokens needs input and output"),
        ("[models.a]\ninput = 1\noutput = 1\nbatch = 1\n", "price of 'a': unknown keys ['batch']; use input, output, cached"),
        ("date = 7\n[models.a]\ninput = 1\noutput = 1\n", "date = 7; expected a date: 2026-11-17"),
    ],
)
def test_an_invalid_table(text: str, error: str) -> None:
    """An invalid price is a usage error that names it."""
    Path("prices.toml").write_text(text)

    assert error in rejected("prices", "--prices", "prices.toml")
