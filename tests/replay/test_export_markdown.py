"""The Markdown export: what it contains, its size, and that texts of a run cannot break out of their cells."""

import html
import re
from collections import Counter
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from evaljournal.journal import Event, verify
from evaljournal.replay.export import Source
from evaljournal.replay.export.markdown import MAX_CHARS, markdown
from evaljournal.replay.results.comparison import NothingInCommon
from tests.journal import samples
from tests.journal.samples import examples, finished, forge, opened, session, started, write_sync
from tests.replay.eventful_run import export_of
from tests.replay.trial_events import answered, failed

FAILED = False
UNSAFE = "| x | <b>x</b> [a](javascript:b) ![i](http://e/i.png) @octocat #1 `c` **d**\n\n# h\n| a |\n<!-- & \\| www.e"


def cells(text: str) -> list[list[str]]:
    """Return the cells of the rows about trials."""
    rows = [line for line in text.splitlines() if line.startswith("| <code>")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_results(run: Path) -> None:
    """The scores, the trials that did not pass, and the head that `verify` prints."""
    text = export_of(run, "markdown").decode()
    names = [row[0] for row in cells(text) if len(row) == 4]

    assert ["<code>chad</code>", "<code>oslo</code>", "<code>chad&#35;2</code>"] == names
    assert "3 of 5 trials did not pass" in text
    assert f"head `{verify(run).head}`" in text


@given(st.text(max_size=300) | st.just(UNSAFE))
@examples(60)
def test_text_stays_in_its_cell(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """A table has as many columns and rows as before, and no character of a text is markup."""
    path = tmp_path_factory.mktemp("run") / "run"
    write_sync(path, [started(), session(), *answered("a", {"exact": FAILED}, output=text)])
    rows = cells(export_of(path, "markdown").decode())

    assert [2, 4] == [len(row) for row in rows]
    for cell in rows[1]:
        if cell:
            assert re.fullmatch(r"<code>(?:[\w %,;()-]|[^\x00-\x7f]|&#\d+;)*</code>", cell), cell


def test_size(tmp_path: Path) -> None:
    """As many trials are listed as fit; the others are counted."""
    trials = [answered(f"t{index}", {"exact": FAILED}, output="|" * 500) for index in range(300)]
    write_sync(tmp_path / "run", [started(), session(), *(event for events in trials for event in events)])
    text = export_of(tmp_path / "run", "markdown").decode()
    listed = len(cells(text)) - 1

    assert 40 < listed < 300
    assert len(text) <= MAX_CHARS
    assert f"and {300 - listed} more" in text


def write(path: Path, *trials: list[Event], **options: Any) -> Path:
    """Write a finished run with these trials."""
    write_sync(path, [started(), session(), *(event for trial in trials for event in trial), finished(len(trials))], **options)
    return path


def compared_markdown(run: Path, baseline: Path) -> str:
    """Return the Markdown of a run compared with a baseline."""
    return b"".join(markdown(Source(run), Source(baseline))).decode()


def tables(text: str) -> list[list[list[str]]]:
    """Return the tables of a document as a Markdown parser reads them: rows of cells, each as the text that is shown."""
    result: list[list[list[str]]] = []
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type == "table_open":
            result.append([])
        elif token.type == "tr_open":
            result[-1].append([])
        elif token.type == "inline" and result and token.level > 3:
            children = token.children or []
            result[-1][-1].append("".join(child.content for child in children if child.type in {"text", "text_special"}))
    return result


def markup(text: str) -> Counter[str]:
    """Count the elements of a document as a Markdown parser reads it; raw HTML is counted by its content."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    inline = [child for token in tokens for child in token.children or []]
    return Counter(
        token.content if token.type.startswith("html") else token.type
        for token in (*tokens, *inline)
        if token.type not in {"text", "text_special", "inline"}
    )


def test_broken_and_fixed_trials_have_both_outputs(tmp_path: Path) -> None:
    """With a baseline: the differences, the trials that broke, then those that were fixed, and both heads."""
    passing, failing = {"exact": True}, {"exact": False}
    a = write(tmp_path / "a", answered("peru", passing), answered("chad", failing, output="Abéché"), answered("oslo", passing))
    b = write(
        tmp_path / "b", answered("peru", failing, output="Cusco"), answered("chad", passing, output="N'Djamena"), failed("oslo")
    )
    text = compared_markdown(b, a)
    _, differences, broken, fixed = tables(text)

    assert ["exact", "50.0 %", "50.0 %"] == differences[1][:3]
    assert [["peru", "peru", "", "Lima", "Cusco"], ["oslo", "oslo", "", "Lima", "not retried: ValueError: no"]] == broken[1:]
    assert [["chad", "chad", "", "Abéché", "N'Djamena"]] == fixed[1:]
    assert "3 trials compared with the baseline&#58; 2 broken, 1 fixed, 0 changed, 0 unchanged" in text
    assert [verify(b).head, verify(a).head] == re.findall(r"head `(\w+)`", text)


def test_open_trials_are_counted(tmp_path: Path) -> None:
    """Trials that are open in one of the runs, after damage for example, are counted as not compared."""
    b = write(tmp_path / "b", answered("peru"), answered("chad"), answered("oslo"))
    write_sync(tmp_path / "a", [started(), session(), *answered("peru"), *answered("chad")[:2]])

    assert "1 trial compared" in compared_markdown(b, tmp_path / "a")
    assert "not compared&#58; 1 not done in both, 1 only in the run" in compared_markdown(b, tmp_path / "a")


def test_trials_of_variants_are_compared_within_their_variant(tmp_path: Path) -> None:
    """The baseline's output of a trial is that of its variant."""

    def trials(*, large: bool) -> list[list[Event]]:
        return [
            answered("peru", {"exact": True}, variant="mini", output="mini says Lima"),
            answered("peru", {"exact": large}, variant="large", output=f"large says {large}"),
        ]

    text = compared_markdown(write(tmp_path / "b", *trials(large=False)), write(tmp_path / "a", *trials(large=True)))

    assert ["variant", "mini", "large"] == [row[0] for row in tables(text)[0]]
    assert [["peru@large", "peru", "", "large says True", "large says False"]] == tables(text)[3][1:]


def test_runs_without_a_common_trial(tmp_path: Path) -> None:
    """Runs without a common trial cannot be compared."""
    with pytest.raises(NothingInCommon):
        compared_markdown(write(tmp_path / "a", answered("peru")), write(tmp_path / "b", answered("chad")))


UNSAFE_TEXTS = st.text(max_size=200) | st.text("|`\\<>&[]()!*_#~-=+:@.\n\r\t\x0b\x85\u2028 $ah1", max_size=80) | st.just(UNSAFE)


def comparison_of(directory: Path, before: str, after: str, name: str) -> str:
    """Return the comparison of two runs of one trial; with these outputs and this name for everything."""
    start = attrs.evolve(started(), evaluation=name, scorers={name: "v1"})  # type: ignore[misc]  # an event is an attrs class
    for path, output, passed in (("a", before, True), ("b", after, False)):
        trial = answered(name, {name: passed}, output=output, usage={name: 1})
        write_sync(directory / path, [start, session(), *trial, finished(1)])
    return compared_markdown(directory / "b", directory / "a")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a comparison without special characters."""
    return comparison_of(tmp_path_factory.mktemp("plain"), "Lima", "Cusco", "peru")


@given(UNSAFE_TEXTS, UNSAFE_TEXTS, UNSAFE_TEXTS.filter(str.strip))
@examples(25)
def test_no_text_is_markup_in_a_comparison(
    tmp_path_factory: pytest.TempPathFactory, plain: str, before: str, after: str, name: str
) -> None:
    """Whatever the names and outputs are, a parser finds the elements that it finds with plain ones."""
    unsafe = comparison_of(tmp_path_factory.mktemp("runs"), before, after, name)
    missing = (not before) + (not after)  # An empty cell has no <code>.

    assert markup(plain) - Counter({"<code>": missing, "</code>": missing}) == markup(unsafe)
    assert [[len(row) for row in table] for table in tables(plain)] == [[len(row) for row in table] for table in tables(unsafe)]


def test_the_id_of_a_foreign_run_is_not_markup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal may be written by any program, with any id."""
    events = [session(), *answered("peru", {"exact": True}), finished(1)]
    plain = export_of(forge(tmp_path / "plain", [opened(), started(), *events]), "markdown").decode()
    monkeypatch.setattr(samples, "RUN", UNSAFE)
    unsafe = export_of(forge(tmp_path / "run", [opened(), started(), *events]), "markdown").decode()

    assert UNSAFE.splitlines()[0] in html.unescape(unsafe)
    assert markup(plain) == markup(unsafe)


@pytest.mark.parametrize(("trials", "scorers", "units"), [(100, 1, 1), (2, 200, 1), (2, 1, 2_000)])
def test_size_of_a_comparison(tmp_path: Path, trials: int, scorers: int, units: int) -> None:
    """A comparison has at most 65,000 characters, however many trials, scorers or units there are; omitted rows are counted."""
    long = "|" * 500
    usage = {f"{unit} tokens {long[:20]}": 1 for unit in range(units)}

    def run(path: Path, remainder: int) -> Path:
        names = [f"{scorer}{long}" for scorer in range(scorers)]
        scores = [dict.fromkeys(names, index % 2 == remainder) for index in range(trials)]
        return write(path, *(answered(f"t{index}{long}", scores[index], output=long, usage=usage) for index in range(trials)))

    text = compared_markdown(run(tmp_path / "b", 0), run(tmp_path / "a", 1))
    broken, fixed = tables(text)[2:]
    omitted = [int(number) for number in re.findall(r"and (\d+) more", text)]

    assert len(text) <= MAX_CHARS
    assert ["run", "baseline"] == [line.split()[0] for line in text.splitlines()[-3:] if line]
    assert min(len(broken), len(fixed)) > 1
    if trials > 2:
        assert [trials // 2 - len(broken) + 1, trials // 2 - len(fixed) + 1] == omitted
    elif scorers > 1:
        assert [scorers - len(tables(text)[0]) + 1, scorers + 2 - len(tables(text)[1]) + 1] == omitted
    else:
        assert [] == omitted
