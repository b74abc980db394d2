"""The review of a run on its report: the corrected score, the agreement, and the disagreements."""

from pathlib import Path

from tests.browser.conftest import OpenTab
from tests.browser.pages import capitals
from tests.browser.test_report_page import HOSTILE, assert_harmless
from tests.journal.samples import flip, segment
from tests.replay.reviewed_run import annotation, sampled, write_review, write_reviewed_run, write_run


def test_review(tmp_path: Path, open_report: OpenTab) -> None:
    """The tile of the judge has the corrected score; the section has the tables, and a disagreement opens its trial."""
    names = write_reviewed_run(tmp_path / "run", (40, 3, 8, 15), (70, 30))
    tab = open_report(tmp_path / "run")
    tiles = dict(zip(tab.texts(".tile h3"), tab.texts(".tile"), strict=True))

    assert "corrected 6" in tiles["judge"]
    assert "66 of 166 reviewed, uniform sample 1" in tiles["judge"].replace("\u00a0", " ")
    assert ["pass408", "fail315"] == tab.texts("table.confusion tbody tr")
    assert tab.texts("table.agreement th[scope=row]")[:3] == ["Gwet's AC1", "Cohen's κ", "Krippendorff's α"]
    assert names[40:51] == tab.texts("table.disagreements td:first-child")
    tab.page.click("table.disagreements button >> nth=0")
    assert names[40] in tab.text("#drawer")


def test_no_review(tmp_path: Path, open_report: OpenTab) -> None:
    """A run without a review has no such section."""
    tab = open_report(capitals(tmp_path / "run"))

    assert 0 == tab.page.locator("#review-title").count()


def test_hostile_labels(tmp_path: Path, open_report: OpenTab) -> None:
    """Notes, names and labels of reviewers are shown as text, never as markup."""
    names = write_run(tmp_path / "run", ["good"] * len(HOSTILE))
    pairs = [(name, text[:5_000]) for name, text in zip(names, HOSTILE, strict=True)]
    events = [annotation(name, text, output=f"out {name} 1", note=text, reviewer=text) for name, text in pairs]
    write_review(tmp_path / "run", [sampled(dict.fromkeys(names, 1.0)), *events])
    tab = open_report(tmp_path / "run")

    assert len(HOSTILE) == len(tab.texts("table.disagreements td:first-child"))
    assert_harmless(tab)


def test_a_damaged_review(tmp_path: Path, open_report: OpenTab) -> None:
    """The report of a run with a damaged review shows the run, and the damage."""
    write_reviewed_run(tmp_path / "run", (40, 3, 8, 15), (70, 30))
    flip(segment(tmp_path / "run" / "review"), 400)
    tab = open_report(tmp_path / "run")

    assert "judge" in tab.texts(".tile h3")
    assert "review" in tab.texts(".review .hint")[0]
