"""The concurrency history on a report: the scrubber agrees with `replay --at`, and the chart names what kept slots idle."""

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from evaljournal.journal import Event, read
from evaljournal.journal.events import (
    AttemptStarted,
    AttemptSucceeded,
    IntakePaused,
    IntakeResumed,
    LimitChanged,
    PaceChanged,
    RateLimitSeen,
)
from evaljournal.replay import LoadedRun
from evaljournal.replay.results.summary import summarize
from tests.browser.conftest import OpenTab
from tests.browser.pages import capitals, command_json, random_run
from tests.journal.samples import session, started, write_sync
from tests.replay.agent_run import agent_run
from tests.replay.eventful_run import eventful_run
from tests.replay.trial_events import enqueued

COUNTERS = ("running", "queued", "backing_off", "scoring", "completed", "failed", "recovered")
MARKUP = "<img src=x onerror=alert(1)>"


def stages(trials: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers of trials without those of answers, which the concurrency history does not have."""
    return {name: value for name, value in trials.items() if name not in {"declined", "truncated", "excluded"}}


@pytest.mark.parametrize("seed", [1, 2])
def test_scrubber_agrees_with_replay(seed: int, tmp_path: Path, open_report: OpenTab) -> None:
    """The counters at ten random records are those of `replay --at SEQ --json`."""
    run = random_run(tmp_path / "run", seed)
    last = command_json("status", str(run))["seq"]
    tab = open_report(run, execution=True)

    for seq in random.Random(seed).sample(range(2, last + 1), 10):
        replayed = command_json("replay", str(run), "--at", str(seq))
        tab.go_to(seq)

        expected = {name: replayed["trials"][name] for name in COUNTERS} | {"attempts": replayed["attempts"]["started"]}
        assert expected | {"limit": replayed["limit"]} == tab.counters()
        state = tab.evaluate("seq => page.run.stateAt(seq)", seq)
        assert (stages(replayed["trials"]), replayed["attempts"]) == (state["trials"], state["attempts"])
        scores = {name: (score["scored"], score["mean"]) for name, score in replayed["scores"].items() if score["scored"]}
        assert scores == {name: (score["scored"], score["mean"]) for name, score in state["scores"].items() if score["scored"]}
        assert replayed["trials"]["running"] == len(tab.evaluate("seq => page.run.runningAt(seq)", seq))
        assert replayed["trials"]["backing_off"] == len(tab.evaluate("seq => page.run.backoffsAt(seq)", seq))
    assert [] == tab.messages


@pytest.mark.parametrize("write", [eventful_run, agent_run])
def test_every_record_of_two_sessions(write: Callable[[Path], Path], tmp_path: Path, open_report: OpenTab) -> None:
    """At every record of a run with a crash, retries, pauses and a withdrawal, or with steps, the page has that state."""
    run = write(tmp_path / "run")
    tab = open_report(run, execution=True)

    states = tab.evaluate("() => Array.from({length: page.run.seq}, (_, index) => page.run.stateAt(index + 1))")

    replayed = LoadedRun(run)
    for record, state in zip(read(run), states, strict=True):
        replayed.apply(record)
        summary = attrs.asdict(summarize(replayed.state))
        expected = stages(summary["trials"]), summary["attempts"], summary["limit"]
        assert expected == (state["trials"], state["attempts"], state["limit"])
        steps = replayed.state.steps
        assert {"completed": steps.completed, "failed": steps.failed, "reused": steps.reused} == state["steps"]


def test_keys_and_dragging_move_the_scrubber(tmp_path: Path, open_report: OpenTab) -> None:
    """Arrow keys move by one record; dragging over the lanes moves to the pointer."""
    tab = open_report(eventful_run(tmp_path / "run"), execution=True)
    last = tab.evaluate("() => page.run.seq")

    tab.page.keyboard.press("ArrowLeft")
    tab.page.keyboard.press("ArrowLeft")
    tab.page.keyboard.press("ArrowRight")
    assert last - 1 == tab.evaluate("() => page.history.seq")

    lanes = tab.page.locator(".timeline canvas").first
    lanes.scroll_into_view_if_needed()
    box = lanes.bounding_box()
    assert box is not None
    tab.page.mouse.move(box["x"] + box["width"] - 5, box["y"] + 5)
    tab.page.mouse.down()
    tab.page.mouse.move(box["x"] + 60, box["y"] + 5, steps=5)
    tab.page.mouse.up()
    assert 10 > tab.evaluate("() => page.history.seq")


def test_zoom_keeps_the_scrubber_in_view(tmp_path: Path, open_report: OpenTab) -> None:
    """Zooming shows the time around the scrubber and follows it; `0` shows all of it again."""
    tab = open_report(random_run(tmp_path / "run", 5), execution=True)
    full = tab.evaluate("() => page.history.view")

    tab.go_to(100)
    tab.page.keyboard.press("Escape")
    for key in "+++":
        tab.page.keyboard.press(key)
    low, high = tab.evaluate("() => page.history.view")
    assert high - low < (full[1] - full[0]) / 3
    assert low <= tab.evaluate("() => page.run.x[99]") <= high
    last = tab.evaluate("() => page.run.seq")
    tab.go_to(last)
    low, high = tab.evaluate("() => page.history.view")
    assert low <= tab.evaluate("seq => page.run.x[seq - 1]", last) <= high
    tab.page.keyboard.press("Escape")
    tab.page.keyboard.press("0")
    assert full == tab.evaluate("() => page.history.view")
    assert [] == tab.messages


def test_labels_of_the_time_axis(tmp_path: Path, open_report: OpenTab) -> None:
    """The labels have one form, with enough decimals to differ."""
    tab = open_report(capitals(tmp_path / "run"), execution=True)

    for expected, splits in {
        ("0 s", "10 s"): [0, 10],
        ("0.0 s", "2.5 s"): [0, 2.5],
        ("12.3410 s", "12.3415 s"): [12.341, 12.3415],
        ("0:50", "1:00"): [50, 60],
        ("0:59.5", "1:00.0"): [59.5, 60],
        ("0:50:00", "1:00:00"): [3000, 3600],
    }.items():
        assert list(expected) == tab.evaluate("splits => timeLabels(splits)", splits)
    assert 15 < tab.evaluate("() => EDGE")


def test_last_decision(tmp_path: Path, open_report: OpenTab) -> None:
    """Each record shows the last policy decision with its evidence; the pointer over a pause shows its reason."""
    run = eventful_run(tmp_path / "run")
    pause = next(record for record in read(run) if isinstance(record.event, IntakePaused))
    tab = open_report(run, execution=True)

    tab.go_to(pause.seq)
    assert f"last decision: seq {pause.seq} · paused for" in tab.text("#decision")
    assert isinstance(pause.event, IntakePaused)
    assert pause.event.evidence in tab.text("#decision")
    tab.evaluate("""() => {
        const [from, to] = page.run.pauseRange(page.run.pauses[0]), view = page.history.view;
        const box = page.history.lanes.getBoundingClientRect(), wide = box.width - GUTTER - EDGE;
        const x = box.left + GUTTER + (((from + to) / 2 - view[0]) / (view[1] - view[0])) * wide;
        page.history.spanAt = () => -1;
        page.history.hover({ clientX: x, clientY: box.top + 3 });
    }""")
    assert tab.text(".tip").startswith("429, short pause: ")


def paused_run(path: Path, *, queued: int = 0) -> Path:
    """Write a run that is paced, then paused, then probes an unavailable endpoint, with some trials queued."""
    timed: list[tuple[float, Event]] = [
        (0.0, LimitChanged(before=0, after=4, reason="start")),
        (0.1, enqueued("a")),
        *((0.1, enqueued(f"queued-{number}")) for number in range(queued)),
        (0.2, AttemptStarted(trial="a", attempt=1, slot=0)),
        (2.0, PaceChanged(after=4.21, reason="rate_limit", evidence=MARKUP)),
        (10.0, IntakePaused(until=22.0, reason="retry_after", evidence=MARKUP)),
        (22.0, IntakeResumed(reason="retry_after")),
        (40.0, IntakePaused(until=41.0, reason="unavailable", evidence="12 in a row")),
        (45.0, IntakePaused(until=46.0, reason="unavailable", evidence="probe failed")),
        (60.0, IntakeResumed(reason="unavailable")),
        (70.0, IntakePaused(until=90.0, reason=MARKUP)),
        (80.0, AttemptSucceeded(trial="a", attempt=1, output="Lima", elapsed=79.8)),
    ]
    times = itertools.chain([0.0, 0.0, 0.0], (t for t, _ in timed), itertools.repeat(80.0))
    write_sync(
        path, [started(), session(), *(event for _, event in timed)], clock=lambda: ("2026-11-15T00:00:00Z", next(times))
    )
    return path


def limited_run(path: Path) -> Path:
    """Write a run of 60 trials, one per second, behind two rate limits; texts in them are markup."""
    timed: list[tuple[float, Event]] = [
        (0.0, LimitChanged(before=0, after=4, reason="start")),
        (0.0, RateLimitSeen(unit="requests", size=120, window=60.0, source="declared", header="rpm")),
        (0.0, RateLimitSeen(unit="tokens", size=60_000, window=60.0, source="advertised", header=MARKUP)),
        *((0.0, enqueued(f"trial-{number}")) for number in range(60)),
    ]
    for number in range(60):
        trial, need = f"trial-{number}", {"requests": 1, "tokens": 800}
        timed.append((number + 0.1, AttemptStarted(trial=trial, attempt=1, slot=0, need=need)))
        timed.append((number + 0.9, AttemptSucceeded(trial=trial, attempt=1, output="Lima", elapsed=0.8)))
    times = itertools.chain([0.0, 0.0, 0.0], (t for t, _ in timed), itertools.repeat(60.0))
    write_sync(
        path, [started(), session(), *(event for _, event in timed)], clock=lambda: ("2026-11-15T00:00:00Z", next(times))
    )
    return path


def test_rate_limits(tmp_path: Path, open_report: OpenTab) -> None:
    """The chart of rate limits has a line for the used share of each, and the one that is used most kept slots idle."""
    tab = open_report(limited_run(tmp_path / "run"), execution=True)

    shares = tab.evaluate("() => page.run.rateLimits.map(({ name }) => page.run.series[name].value.at(-1))")
    labels = tab.evaluate("() => [...page.history.limitKey.querySelectorAll('.key')].map((key) => key.textContent)")
    assert [50, 80] == shares
    assert ["120 requests per minute (declared)", "60k tokens per minute (advertised)"] == labels
    assert tab.evaluate("() => page.history.limits.querySelector('canvas') !== null")
    assert "rate limit: 60k tokens per minute (advertised), 5" in tab.text("#idle")
    assert [] == tab.messages


def test_no_rate_limits(tmp_path: Path, open_report: OpenTab) -> None:
    """Without known rate limits there is no chart of them."""
    tab = open_report(paused_run(tmp_path / "run"), execution=True)

    assert tab.evaluate("() => page.history.limits.hidden && page.history.limitKey.hidden")


def test_pauses_and_pace_at_the_pointer(tmp_path: Path, open_report: OpenTab) -> None:
    """The chart names a pause, an open breaker as one range, and the pace at the pointer; causes are shown as text."""
    tab = open_report(paused_run(tmp_path / "run"), execution=True)
    hover = """x => {
        const { history } = page, box = history.upper.getBoundingClientRect(), view = history.view;
        const left = box.left + GUTTER + ((x - view[0]) / (view[1] - view[0])) * (box.width - GUTTER - EDGE);
        history.hover({ clientX: left, clientY: box.top + 20 });
        return history.tip.hidden ? "" : history.tip.querySelector("strong").textContent;
    }"""

    ranges = tab.evaluate("() => pauseRanges(page.run).map(({ from, to, text }) => [from, to, text])")
    assert [
        [10, 22, "Retry-After: 12 s"],
        [40, 60, "endpoint unavailable; probing"],
        [70, 80, f"{MARKUP}: 20 s"],
    ] == ranges
    texts = {x: tab.evaluate(hover, x) for x in (1, 5, 15, 43, 75)}
    assert {
        1: "",
        5: "pace: 4.2 starts/s",
        15: "Retry-After: 12 s",
        43: "endpoint unavailable; probing",
        75: f"{MARKUP}: 20 s",
    } == texts
    assert 0 == tab.evaluate("() => document.querySelectorAll('img').length")
    assert [] == tab.messages


def test_why_slots_were_idle(tmp_path: Path, open_report: OpenTab) -> None:
    """Below the chart are the reasons for idle slots, with the numbers; each label fits on the chart in full or short."""
    tab = open_report(paused_run(tmp_path / "run", queued=3), execution=True)

    assert (
        f"Slots were idle: pace: 4.2 starts/s, 36 s · endpoint unavailable; probing: 20 s · Retry-After: 12 s · {MARKUP}: 10 s"
    ) == tab.text("#idle")
    labels = tab.evaluate("""async () => {
        const texts = [];
        window.drawLabel = (pen, text) => texts.push(text);
        page.history.draw();
        await new Promise((done) => setTimeout(done)); // uPlot draws in a microtask.
        return texts;
    }""")
    assert ["Retry-After: 12 s", "endpoint unavailable; probing", "20 s", "pace: 4.2 starts/s"] == labels
    other = open_report(paused_run(tmp_path / "other"), execution=True)
    assert "rate limit" not in other.text("#idle")


def test_record_shows_pause_and_pace(tmp_path: Path, open_report: OpenTab) -> None:
    """A record shows the pause and the pace in force; the list of decisions has the pace."""
    tab = open_report(paused_run(tmp_path / "run"), execution=True)

    tab.go_to(8)
    assert tab.text("#event").endswith("· Retry-After: 12 s · pace: 4.2 starts/s")
    assert "pace unlimited → 4.21/s" in tab.text("table.decisions")
