"""The report of a merged run: shards side by side on one axis of wall time, each with its own labeled lanes."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import OpenTab, Tab
from tests.browser.pages import write_report
from tests.cases.test_golden_merge import GOLDEN


@pytest.fixture
def tab(tmp_path: Path, open_tab: OpenTab) -> Tab:
    """The report of the golden merged run: shard 1/3 in two sessions, 2/3 in one, and the session that resumed it."""
    return open_tab(write_report(tmp_path / "report.html", GOLDEN), execution=True)


def drag(tab: Tab, lane: int, time: float) -> int:
    """Press the mouse in a lane at a time on the axis; return the record that is shown."""
    script = """([lane, time]) => {
        const { history, run } = page, box = history.lanes.getBoundingClientRect(), view = history.view;
        const x = box.left + GUTTER + ((time - view[0]) / (view[1] - view[0])) * (box.width - GUTTER - EDGE);
        history.area.setPointerCapture = () => {};
        const y = box.top + 2 + (lane + 0.5) * laneHeight(run.lanes.length);
        history.grab({ button: 0, pointerId: 1, clientX: x, clientY: y });
        history.isDragging = false;
        return history.seq;
    }"""
    seq: int = tab.evaluate(script, [lane, time])
    return seq


def test_shards_are_side_by_side(tab: Tab) -> None:
    """Sessions of two shards overlap, attempts of one lane do not, and the axis ends with the run."""
    sessions = tab.evaluate(
        "() => page.run.sessions.map(({ start, end }, i) => [page.run.base[i] + start, page.run.base[i] + end])"
    )
    lanes: list[list[tuple[float, float]]] = tab.evaluate(
        "() => page.run.lanes.map((lane) => lane.map((span) => [page.run.startOf(span), page.run.endOf(span)]))"
    )
    gaps = [(before[1], after[0]) for lane in lanes for before, after in itertools.pairwise(lane)]

    assert [[0, 6], [6, 6.44], [0, 6], [6.44, 15.36]] == [[round(time, 2) for time in session] for session in sessions]
    assert all(before <= after + 1e-6 for before, after in gaps)
    assert sorted(lane[0][0] for lane in lanes)[:2] == [0, 0]
    assert 15.361 == round(tab.evaluate("() => page.run.endX"), 3)
    assert [] == tab.messages


def test_lanes_and_records_have_the_name_of_their_shard(tab: Tab) -> None:
    """Each group of lanes has the name of its shard; so have a record, an attempt in flight, and the header."""
    labels = tab.evaluate("() => laneLabels(page.run, 20 * UNIT).filter(({ isShard }) => isShard).map(({ text }) => text)")
    tab.go_to(70)

    assert ["1/3", "2/3", "resumed"] == labels
    assert tab.text("#event").endswith("session 3 (shard 2/3)")
    assert all(text.startswith("shard 2/3, slot") for text in tab.texts(".slots[aria-label='Attempts in flight'] .slot"))
    assert "4 sessions, merged from 2 shards" in tab.text(".eyebrow")


def test_dragging_in_a_lane_selects_records_of_its_shard(tab: Tab) -> None:
    """The record under the pointer is one of the lane's shard; the lanes of later shards are dimmed."""
    shards: list[dict[str, Any]] = tab.evaluate("() => page.run.shards.map(({ from, firstLane }) => ({ from, firstLane }))")
    seqs = [drag(tab, shard["firstLane"], 3.0) for shard in shards[:2]]
    tab.page.wait_for_function("() => page.history.frame === 0")

    assert shards[0]["from"] < seqs[0] < shards[1]["from"] < seqs[1] < shards[2]["from"]
    assert [False, True] == tab.evaluate(
        "() => [page.history.laterShards.hidden, page.history.laterShards.offsetTop > page.history.veil.offsetTop]"
    )


def test_series_are_sums_over_the_shards(tab: Tab) -> None:
    """At every point, the attempts in flight are those whose bars cover the time, over all shards."""
    differing = tab.evaluate("""() => {
        const { run } = page, { x, value } = run.series.in_flight, spans = [...run.spans.seq.keys()], wrong = [];
        x.forEach((from, index) => {
            const to = x[index + 1] ?? run.endX, middle = (from + to) / 2;
            if (to - from < 1e-5) return;
            const bars = spans.filter((span) => run.startOf(span) <= middle && middle < run.endOf(span)).length;
            if (bars !== value[index]) wrong.push([middle, bars, value[index]]);
        });
        return [wrong, Math.max(...value)];
    }""")
    assert differing[0] == []
    assert differing[1] > 3
