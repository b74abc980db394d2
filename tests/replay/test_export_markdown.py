"""The Markdown export: what it contains, its size, and that texts of a run cannot break out of their cells."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal import verify
from replay.export.markdown import MAX_CHARS
from tests.journal.samples import examples, session, started, write_sync
from tests.replay.eventful_run import exported
from tests.replay.trial_events import answered

FAILED = False
HOSTILE = "| x | <b>x</b> [a](javascript:b) ![i](http://e/i.png) @octocat #1 `c` **d**\n\n# h\n| a |\n<!-- & \\| www.e"


def cells(text: str) -> list[list[str]]:
    """Return the cells of the rows about trials."""
    rows = [line for line in text.splitlines() if line.startswith("| <code>")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_results(run: Path) -> None:
    """The scores, the trials that did not pass, and the head that `verify` prints."""
    text = exported(run, "markdown").decode()
    names = [row[0] for row in cells(text) if len(row) == 4]

    assert ["<code>chad</code>", "<code>oslo</code>", "<code>chad&#35;2</code>"] == names
    assert "3 of 5 trials did not pass" in text
    assert f"head `{verify(run).head}`" in text


@given(st.text(max_size=300) | st.just(HOSTILE))
@examples(60)
def test_no_text_leaves_its_cell(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """A table has as many columns and rows as before, and no character of a text is markup."""
    path = tmp_path_factory.mktemp("run") / "run"
    write_sync(path, [started(), session(), *answered("a", {"exact": FAILED}, output=text)])
    rows = cells(exported(path, "markdown").decode())

    assert [2, 4] == [len(row) for row in rows]
    for cell in rows[1]:
        if cell:
            assert re.fullmatch(r"<code>(?:[\w %,;()-]|[^\x00-\x7f]|&#\d+;)*</code>", cell), cell


def test_size(tmp_path: Path) -> None:
    """As many trials are listed as fit; the others are counted."""
    trials = [answered(f"t{at}", {"exact": FAILED}, output="|" * 500) for at in range(300)]
    write_sync(tmp_path / "run", [started(), session(), *(event for events in trials for event in events)])
    text = exported(tmp_path / "run", "markdown").decode()
    listed = len(cells(text)) - 1

    assert 40 < listed < 300
    assert len(text) <= MAX_CHARS
    assert f"and {300 - listed} more" in text
