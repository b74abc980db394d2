"""`evaljournal what-if`: the table, its assumptions, and runs that lack what it needs."""

from pathlib import Path

import pytest

from tests.journal.samples import flip, segment
from tests.runner_cli.commands import evaljournal, printed, rejected

PRICED = """
from evaljournal import evaluation, note

@evaluation(cases=["a", "b", "c", "d"], slots=1)
async def priced(name):
    note(usage={"model": "gpt-5.4", "input_tokens": 1_000_000, "output_tokens": 0, "cost": 8.0})
    return name
"""


@pytest.fixture
def priced_run() -> str:
    """Run four calls with tokens; return the run."""
    Path("priced.py").write_text(PRICED)
    evaljournal("run", "priced.py", "-o", "run", "--plain")
    return "run"


def test_other_prices(priced_run: str) -> None:
    """The cost under other prices is beside the recorded one."""
    Path("prices.toml").write_text('[models."gpt-5.4"]\ninput = 2.0\noutput = 1.0\n')

    lines = evaljournal("what-if", priced_run, "--prices", "prices.toml").stdout.splitlines()

    assert ["cost", "$32.00", "$8.00", "-75%"] == lines[1].split()
    assert "assumed: the model gives the same answers, in the same seconds, whatever the load" in lines


@pytest.mark.parametrize(
    "options", [["--slots", "2"], ["--slots", "2", "--json"], ["--from-step", "1", "--model", "gpt-5.4-mini"]]
)
def test_a_damaged_run(priced_run: str, options: list[str]) -> None:
    """Nothing is computed from a damaged run, or run again; the error names the command that copies its intact records."""
    flip(segment(Path(priced_run)), 3_000)
    result = evaljournal("what-if", priced_run, *options)

    assert (4, "") == (result.exit_code, result.stdout)
    assert result.stderr.startswith("Error: run is damaged at record ")
    assert "`evaljournal salvage run -o NEW` copies the intact records" in result.stderr


def test_limits_as_json(priced_run: str) -> None:
    """The recorded, the recomputed and the other wall time are numbers of seconds; the cost stays."""
    result = printed("what-if", priced_run, "--rpm", "60", "--slots", "4")

    assert result["recomputed_seconds"] <= result["recorded"]["seconds"] < 1 < result["what_if"]["seconds"] < 5
    assert ({"rpm": 60.0}, 4) == (result["limits"], result["slots"])
    assert 32.0 == result["recorded"]["cost"] == result["what_if"]["cost"]


def test_a_batch_takes_up_to_a_day(priced_run: str) -> None:
    """Batches have half the price, and no wall time."""
    result = printed("what-if", priced_run, "--batch", "--model-price", "gpt-5.4-mini")

    assert result["what_if"]["seconds"] is None


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ([], "nothing to change; pass --prices"),
        (["--batch", "--rpm", "5"], "rate limits and slots do not apply to batches"),
        (["--cache-hit", "80"], "80.0 is not in the range 0<=x<=1"),
        (["--rpm", "-1"], "must be a number above 0"),
        (["--model-price", "a="], "expected MODEL, or OLD=NEW"),
        (["--slots", "0"], "0 is not in the range x>=1"),
    ],
)
def test_an_invalid_option(priced_run: str, options: list[str], error: str) -> None:
    """A value that means nothing is a usage error that names the option."""
    assert error in rejected("what-if", priced_run, *options)


def test_a_run_without_tokens() -> None:
    """The error names the options that record tokens."""
    Path("plain.py").write_text(PRICED.replace("note(usage=", "str("))
    evaljournal("run", "plain.py", "-o", "plain", "--plain")

    for options in (["--model-price", "gpt-5.4-mini"], ["--tpm", "5k"]):
        error = rejected("what-if", "plain", *options)
        assert "has no recorded tokens" in error
        assert "durable=http" in error
        assert "--gateway" in error
