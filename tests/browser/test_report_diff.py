"""The words of two texts that differ, as a report marks them."""

import random
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import OpenTab, Tab
from tests.browser.pages import capitals, write_report

Pieces = list[tuple[str, bool]]


@pytest.fixture
def tab(tmp_path: Path, open_tab: OpenTab) -> Tab:
    """Open a report, which has the function."""
    return open_tab(write_report(tmp_path / "report.html", capitals(tmp_path / "run")))


def word_difference(tab: Tab, a: str, b: str) -> list[Pieces] | None:
    """Return both texts in pieces."""
    sides: Any = tab.evaluate("([a, b]) => wordDifference(a, b)", [a, b])
    return None if sides is None else [[(text, is_common) for text, is_common in side] for side in sides]


def test_words_differ(tab: Tab) -> None:
    """Whole words differ, not letters; whitespace between two words that differ belongs to the difference."""
    assert [
        [("The capital of Peru is ", True), ("Cusco Alto", False), (".", True)],
        [("The capital of Peru is ", True), ("Lima Sur", False), (".", True)],
    ] == word_difference(tab, "The capital of Peru is Cusco Alto.", "The capital of Peru is Lima Sur.")
    assert [[("Lima", True), ("\n", False)], [("Lima", True)]] == word_difference(tab, "Lima\n", "Lima")
    assert [[], [("Lima", False)]] == word_difference(tab, "", "Lima")


def test_random_texts(tab: Tab) -> None:
    """The pieces are the texts, and what both have in common, apart from whitespace, is the same in both."""
    choice = random.Random(7)
    for _ in range(100):
        a, b = ("".join(choice.choices(["Lima", "Oslo", "é", "-", " ", "\n"], k=choice.randint(0, 30))) for _ in range(2))
        sides = word_difference(tab, a, b)

        assert sides is not None
        assert [a, b] == ["".join(text for text, _ in side) for side in sides]
        in_common = ["".join("".join(text.split()) for text, is_common in side if is_common) for side in sides]
        assert in_common[0] == in_common[1]


def test_size_is_bounded(tab: Tab) -> None:
    """Long texts are compared if they differ in a part of them only; otherwise not at all."""
    words = "word " * 20_000
    assert [[(words, True), ("a", False)], [(words, True), ("b", False)]] == word_difference(tab, f"{words}a", f"{words}b")
    numbers = " ".join(map(str, range(4_000)))
    assert word_difference(tab, f"a {numbers} a", f"b {numbers} b") is None
