"""The report does in a browser what it says: it opens from a file, goes back to any record, and runs nothing but itself."""

import itertools
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import attrs
import orjson
import pytest
from click.testing import CliRunner

from journal import Event
from journal.events import (
    AttemptFailed,
    AttemptStarted,
    AttemptSucceeded,
    FileEvent,
    IntakePaused,
    IntakeResumed,
    JournalRecovered,
    LimitChanged,
    Noted,
    PaceChanged,
    RunFinished,
    RunStarted,
    TrialCompleted,
    TrialEnqueued,
    TrialFailed,
    TrialScored,
)
from replay import LoadedRun
from replay.summary import in_json, summarise
from replay.text import duration
from runner.cli import cli
from tests.browser.conftest import Opens, Tab
from tests.journal.samples import session, started, written
from tests.replay.histories import history
from tests.replay.lives import answered, enqueued, failed
from tests.replay.stories import eventful

SHOWN = ("running", "queued", "backing_off", "being_scored", "completed", "failed", "recovered")


def reported(target: Path, *runs: Path) -> str:
    """Write a report with the command, and give its address."""
    result = CliRunner().invoke(cli, ["report", *map(str, runs), "-o", str(target)], catch_exceptions=False)
    assert 0 == result.exit_code, result.output
    return target.as_uri()


def made_up(path: Path, seed: int, length: int = 400) -> Path:
    """Write a run in which anything happens that may."""
    events = [record.event for record in history(seed, length)]
    written(path, [event for event in events if not isinstance(event, FileEvent | JournalRecovered)])
    return path


def told(*args: str) -> Any:
    """Ask a command for JSON."""
    return orjson.loads(CliRunner().invoke(cli, [*args, "--json"], catch_exceptions=False).stdout)


def capitals(path: Path, *, wrong: Sequence[str] = (), seconds: float = 0.25) -> Path:
    """Write a small run in which one is wrong, one fails, and one recovers."""
    events: list[Event] = []
    for name, level in (("peru", "easy"), ("chad", "hard"), ("oslo", "easy"), ("rome", "hard")):
        scores = {"exact": name not in wrong}
        retries = 1 if name == "oslo" else 0
        events += answered(name, scores, failures=retries, output="Lima", elapsed=seconds, metadata={"level": level})
    written(path, [started(), session(), *events, *failed("gone", message="no such city")])
    return path


def test_numbers_of_several_versions_say_so(tmp_path: Path, opens: Opens) -> None:
    """What was adopted on the way, and whose scores and answers are pooled, stands beside the numbers."""
    path = tmp_path / "run"
    adopted = {"task_fingerprint": "t2", "scorers": {"exact": "v2"}}
    second = attrs.evolve(session(2), adopted=adopted)  # type: ignore[misc]  # a fact is an attrs class
    written(path, [started(), session(), *answered("peru", {"exact": True})])
    written(path, [second, *answered("oslo", {"exact": False}, version="v2")], new=False)
    tab = opens(reported(tmp_path / "report.html", path))

    tiles = tab.text("body")
    assert "by 2 versions of the scorer, 1 by an older one" in tiles
    assert "1 by an older version of the task" in tiles


def test_outputs_without_a_score_are_told(tmp_path: Path, opens: Opens) -> None:
    """How many outputs a scorer has said nothing of stands beside its mean."""
    path = tmp_path / "run"
    written(path, [started(), session(), *answered("peru", {"exact": True}), *answered("oslo")])

    assert "not in it: 1 without a score" in opens(reported(tmp_path / "report.html", path)).text("body")


def test_answers_that_were_cut_short_are_told(tmp_path: Path, opens: Opens) -> None:
    """How many answers the limit of tokens has cut short stands beside how long they took."""
    path, note = tmp_path / "run", Noted(name="finish", value="length", trial="peru", attempt=1)
    life = answered("peru")
    written(path, [started(), session(), *life[:2], note, *life[2:]])

    assert "1 cut short by the limit of tokens" in opens(reported(tmp_path / "report.html", path)).text("body")


def test_times_are_told_as_the_commands_tell_them(tmp_path: Path, opens: Opens) -> None:
    """The page has the words of the command line for a time, short or long, and for whole minutes and hours."""
    times = [0.0123, 0.5, 12.4, 59.6, 200, 600, 3600, 7500, 9_000_000]

    tab = opens(reported(tmp_path / "report.html", eventful(tmp_path / "run")))

    assert [duration(seconds) for seconds in times] == tab.ask("times => times.map(duration)", times)


def test_opens_from_a_file_in_silence(tmp_path: Path, opens: Opens) -> None:
    """The page opens from a file without a message in the console, and asks for nothing but itself."""
    address = reported(tmp_path / "report.html", eventful(tmp_path / "run"))

    tab = opens(address)

    assert [] == tab.said
    assert [address] == tab.requests
    assert "capitals: interrupted. 4 trials done, 50.0 % exact, 1 failed." == tab.text("h1")
    assert "The log and the rules" in tab.text("footer")


@pytest.mark.parametrize("seed", [1, 2])
def test_scrubber_agrees_with_replay(seed: int, tmp_path: Path, opens: Opens) -> None:
    """The numbers at ten random records are those that `replay --at SEQ --json` tells."""
    run = made_up(tmp_path / "run", seed)
    last = told("status", str(run))["seq"]
    tab = opens(reported(tmp_path / "report.html", run))

    for seq in random.Random(seed).sample(range(2, last + 1), 10):
        then = told("replay", str(run), "--at", str(seq))
        tab.go(seq)

        expected = {name: then["trials"][name] for name in SHOWN} | {"attempts": then["attempts"]["started"]}
        assert expected | {"limit": then["limit"]} == tab.numbers()
        state = tab.ask("seq => page.run.stateAt(seq)", seq)
        assert (then["trials"], then["attempts"]) == (state["trials"], state["attempts"])
        means = {name: (score["scored"], score["mean"]) for name, score in then["scores"].items() if score["scored"]}
        assert means == {name: (said["scored"], said["mean"]) for name, said in state["scores"].items() if said["scored"]}
        assert then["trials"]["running"] == len(tab.ask("seq => page.run.runningAt(seq)", seq))
        assert then["trials"]["backing_off"] == len(tab.ask("seq => page.run.backingOffAt(seq)", seq))
    assert [] == tab.said


def test_every_record_of_two_sessions(tmp_path: Path, opens: Opens) -> None:
    """At every record of a run with a crash, retries, pauses and a withdrawal, the page has the state that replay has."""
    run = eventful(tmp_path / "run")
    tab = opens(reported(tmp_path / "report.html", run))

    states = tab.ask("() => Array.from({length: page.run.seq}, (_, at) => page.run.stateAt(at + 1))")

    known = LoadedRun(run)
    for record, state in zip(_records(run), states, strict=True):
        known.take(record)
        summary = in_json(summarise(known.state))
        assert (summary["trials"], summary["attempts"], summary["limit"]) == (
            state["trials"],
            state["attempts"],
            state["limit"],
        )


def _records(run: Path) -> Iterable[Any]:
    from journal import read

    return read(run)


def test_keys_and_dragging_move_the_scrubber(tmp_path: Path, opens: Opens) -> None:
    """Arrow keys go from record to record, dragging over the lanes goes to where the pointer is."""
    tab = opens(reported(tmp_path / "report.html", eventful(tmp_path / "run")))
    last = tab.ask("() => page.run.seq")

    tab.page.keyboard.press("ArrowLeft")
    tab.page.keyboard.press("ArrowLeft")
    tab.page.keyboard.press("ArrowRight")
    assert last - 1 == tab.ask("() => page.history.seq")

    box = tab.page.locator(".timeline canvas").first.bounding_box()
    assert box is not None
    tab.page.mouse.move(box["x"] + box["width"] - 5, box["y"] + 5)
    tab.page.mouse.down()
    tab.page.mouse.move(box["x"] + 60, box["y"] + 5, steps=5)
    tab.page.mouse.up()
    assert 10 > tab.ask("() => page.history.seq")


def test_zoom_keeps_the_scrubber_in_view(tmp_path: Path, opens: Opens) -> None:
    """Zooming shows a part of the time around the scrubber, which takes it along; `0` shows all of it again."""
    tab = opens(reported(tmp_path / "report.html", made_up(tmp_path / "run", 5)))
    whole = tab.ask("() => page.history.view")

    tab.go(100)
    tab.page.keyboard.press("Escape")
    for key in "+++":
        tab.page.keyboard.press(key)
    low, high = tab.ask("() => page.history.view")
    assert high - low < (whole[1] - whole[0]) / 3
    assert low <= tab.ask("() => page.run.x[99]") <= high
    last = tab.ask("() => page.run.seq")
    tab.go(last)
    low, high = tab.ask("() => page.history.view")
    assert low <= tab.ask("seq => page.run.x[seq - 1]", last) <= high
    tab.page.keyboard.press("Escape")
    tab.page.keyboard.press("0")
    assert whole == tab.ask("() => page.history.view")
    assert [] == tab.said


def test_filters_search_and_sort(tmp_path: Path, opens: Opens) -> None:
    """The table shows what is wrong, failed or recovered, what is found, and what has a value in its metadata."""
    tab = opens(reported(tmp_path / "report.html", capitals(tmp_path / "run", wrong=["chad"])))
    assert ["peru", "chad", "oslo", "rome", "gone"] == tab.rows()

    for name, expected in {"wrong": ["chad"], "failed": ["gone"], "recovered": ["oslo"]}.items():
        tab.page.click(f"[data-filter={name}]")
        assert expected == tab.rows()
    tab.page.click("[data-filter=all]")
    tab.page.select_option("#metadata", label="level: hard (2)")
    assert ["chad", "rome"] == tab.rows()
    tab.page.select_option("#metadata", index=0)
    tab.page.keyboard.press("/")
    tab.page.keyboard.type("no such CITY")
    assert ["gone"] == tab.rows()
    tab.page.fill("#search", "")
    tab.page.click("[role=columnheader] >> text=attempts")
    tab.page.click("[role=columnheader] >> text=attempts")
    assert "oslo" == tab.rows()[0]
    assert [] == tab.said


def test_keys_walk_the_rows(tmp_path: Path, opens: Opens) -> None:
    """`j` and `k` choose a row, Enter opens it, Esc closes it; the address says what is open."""
    tab = opens(reported(tmp_path / "report.html", capitals(tmp_path / "run")))

    for key in "jjj":
        tab.page.keyboard.press(key)
    tab.page.keyboard.press("k")
    tab.page.keyboard.press("Enter")
    assert "chad" == tab.text("#drawer h2")
    tab.page.wait_for_function("() => location.hash === '#trial=chad'")

    tab.page.keyboard.press("j")
    assert "oslo" == tab.text("#drawer h2")
    assert "OSError: no" in tab.text("#drawer .attempts")

    tab.page.keyboard.press("Escape")
    assert tab.page.is_hidden("#drawer")


def test_deep_link(tmp_path: Path, opens: Opens) -> None:
    """An address that names a trial and a record opens them."""
    address = reported(tmp_path / "report.html", eventful(tmp_path / "run"))

    tab = opens(f"{address}#trial=chad%232&seq=20")
    tab.page.wait_for_function("() => document.getElementById('what').textContent.startsWith('seq 20 ·')")

    assert "chad#2" == tab.text("#drawer h2")
    assert "20" == tab.page.input_value("#seq")
    assert "chad" == opens(f"{address}#trial=chad").text("#drawer h2")


def test_difference_is_marked(tmp_path: Path, opens: Opens) -> None:
    """Of what was expected and what came, the words that differ are marked."""
    asked = TrialEnqueued(trial="a", case="a", repeat=1, input="?", expected="Lima is the capital", fingerprint="f")
    life: list[Event] = [
        asked,
        AttemptStarted(trial="a", attempt=1, slot=0),
        AttemptSucceeded(trial="a", attempt=1, output="Cusco is the capital", elapsed=1.0),
        TrialScored(trial="a", scorer="exact", version="1", value=False, reason="another city", elapsed=0.0),
        TrialCompleted(trial="a", attempts=1),
    ]
    written(tmp_path / "run", [started(), session(), *life])

    tab = opens(reported(tmp_path / "report.html", tmp_path / "run") + "#trial=a")

    assert ["Lima"] == tab.page.locator("mark.gone").all_text_contents()
    assert ["Cusco"] == tab.page.locator("mark.new").all_text_contents()
    assert "another city" in tab.text("#drawer .scores")


def test_two_runs(tmp_path: Path, opens: Opens) -> None:
    """Two runs are told side by side: the paired difference, what was fixed and what broke, and both outputs of a trial."""
    a = capitals(tmp_path / "a", wrong=["chad", "oslo"])
    b = capitals(tmp_path / "b", wrong=["rome"], seconds=0.5)

    tab = opens(reported(tmp_path / "report.html", a, b))

    assert ["chad", "oslo"] == tab.page.locator("[data-list=fixed] button").all_text_contents()
    assert ["rome"] == tab.page.locator("[data-list=broke] button").all_text_contents()
    assert "50.0 %" in tab.text(".paired tbody tr")
    assert "75.0 %" in tab.text(".paired tbody tr")
    tab.page.click("[data-list=broke] button")
    assert "Run A beside run B" in tab.text("#drawer")
    tab.page.keyboard.press("Escape")
    tab.page.click("[data-run=A]")
    tab.page.click("[data-filter=wrong]")
    assert ["chad", "oslo"] == tab.rows()
    assert [] == tab.said


HOSTILE = [
    "<script>window.pwned = 1; alert('pwned')</script>",
    "</script><script>window.pwned = 2</script>",
    "<img src=x onerror='window.pwned = 3'>",
    "![image](http://127.0.0.1:9/steal.png)",
    "<!--<script>",
    "]]> --> \u0000 \u202egnitrow\u202c \u200f \ufeff \x1b[31m",
    "javascript:window.pwned=4",
    "__proto__",
    "constructor",
    "</style></textarea></title><svg onload=window.pwned=5>",
    "x" * 1_000_000,
    "\U0001f600" * 5_000,
]


def hostile_run(path: Path) -> Path:
    """Write a run in which every text that may come from elsewhere is as nasty as can be."""
    begun = started()
    assert isinstance(begun, RunStarted)
    events: list[Event] = [
        RunStarted(
            evaluation=HOSTILE[1],
            task=HOSTILE[0],
            task_fingerprint=HOSTILE[1],
            scorers={HOSTILE[2]: HOSTILE[1], "__proto__": "1"},
            dataset=HOSTILE[2],
            dataset_fingerprint="",
            settings={HOSTILE[1]: HOSTILE[2], "__proto__": 1},
            settings_fingerprint="",
            durability="sync",
            environment={HOSTILE[0]: HOSTILE[1]},
        ),
        session(),
        LimitChanged(before=0, after=2, cause=HOSTILE[0], evidence=HOSTILE[1], key=HOSTILE[2]),
    ]
    for number, text in enumerate(HOSTILE):
        name = text[:1_000] + f" {number}" if number % 2 else text[:1_000]
        meta = {text[:200]: text[:200], "__proto__": {"polluted": True}}
        events += [
            TrialEnqueued(trial=name, case=name, repeat=1, input=text, expected=[text], metadata=meta, fingerprint="f"),
            AttemptStarted(trial=name, attempt=1, slot=0),
            Noted(name=text[:100], value=text[:100], trial=name, attempt=1),
        ]
        if number % 3:
            events += [
                AttemptSucceeded(trial=name, attempt=1, output={"answer": text}, elapsed=0.5, usage={text[:50]: 1}),
                TrialScored(trial=name, scorer=HOSTILE[2], version="1", value=text[:100], reason=text, elapsed=0.0),
                TrialCompleted(trial=name, attempts=1),
            ]
        else:
            trace = f"Traceback {text[:10_000]}"
            events += [
                AttemptFailed(
                    trial=name, attempt=1, error=text[:100], message=text, traceback=trace, category="fatal", elapsed=0.5
                ),
                TrialFailed(trial=name, attempts=1, cause="fatal"),
            ]
    written(path, [*events, RunFinished(completed=8, failed=4, withdrawn=0, head="")])
    return path


def look_everywhere(tab: Tab) -> None:
    """Open every trial, every list, and search for every text."""
    tab.ask("() => { for (const details of document.querySelectorAll('details')) details.open = true; }")
    for number in range(len(HOSTILE)):
        tab.ask("number => page.open(number)", number)
        tab.ask("() => { for (const details of document.querySelectorAll('details')) details.open = true; }")
    for text in HOSTILE[:4]:
        tab.page.fill("#search", text)
    tab.page.fill("#search", "")


def test_hostile_text_is_only_text(tmp_path: Path, opens: Opens) -> None:
    """Scripts, closing tags, marks that turn text around, NULs, megabytes and Markdown images do nothing and load nothing."""
    target = tmp_path / "report.html"
    address = reported(target, hostile_run(tmp_path / "run"))

    tab = opens(address)
    look_everywhere(tab)

    assert [] == tab.said
    assert [address] == tab.requests
    assert tab.ask("() => window.pwned === undefined && ({}).polluted === undefined")
    assert 0 == tab.page.locator("main img, main svg, main script, #drawer img, #drawer script, main iframe").count()
    assert len(HOSTILE) == tab.ask("() => page.run.trials.name.length")
    assert "\u202e" not in tab.ask("() => document.body.innerText")
    assert 2_000_000 > target.stat().st_size


def test_long_values_are_cut_with_a_command(tmp_path: Path, opens: Opens) -> None:
    """Of a value of a megabyte the page has the beginning, says how long it is, and which command shows it whole."""
    run = hostile_run(tmp_path / "run")

    tab = opens(reported(tmp_path / "report.html", run))
    tab.ask("number => page.open(number)", 10)

    cut = tab.text("#drawer .block .cut")
    assert cut.startswith("the first 16,384 of 1,000,002; the whole: evaljournal show")
    assert cut.endswith("--json")


def test_policy_forbids_everything(tmp_path: Path, opens: Opens) -> None:
    """Were somebody to get a script, an image or a connection into the page, the browser would refuse it."""
    tab = opens(reported(tmp_path / "report.html", eventful(tmp_path / "run")))

    refused = tab.ask("""async () => {
        const seen = [];
        document.addEventListener("securitypolicyviolation", (event) => seen.push(event.effectiveDirective));
        const script = document.createElement("script");
        script.textContent = "window.pwned = 1";
        document.body.append(script);
        const image = document.createElement("img");
        image.src = "http://127.0.0.1:9/x.png";
        document.body.append(image);
        await fetch("http://127.0.0.1:9/").catch(() => {});
        await new Promise((done) => setTimeout(done));
        return [window.pwned === undefined, seen.sort()];
    }""")

    assert [True, ["connect-src", "img-src", "script-src-elem"]] == refused


@pytest.mark.parametrize(("width", "scheme"), [(400, "light"), (1280, "dark"), (3840, "light")])
def test_fits_the_screen(width: int, scheme: Any, tmp_path: Path, opens: Opens) -> None:
    """Nothing is wider than the screen, be it a telephone's or a wall's; every control has a name for those who cannot see."""
    tab = opens(reported(tmp_path / "report.html", capitals(tmp_path / "run", wrong=["chad"])), width=width, scheme=scheme)

    assert width >= tab.ask("() => document.documentElement.scrollWidth")
    nameless = """() => [...document.querySelectorAll('button, input, select, .timeline > canvas, [role=img]')]
        .filter((each) => !(each.getAttribute('aria-label') || each.textContent.trim() || each.labels?.length)).length"""
    assert 0 == tab.ask(nameless)


def test_theme_can_be_chosen(tmp_path: Path, opens: Opens) -> None:
    """The page is as light or dark as the system, until somebody chooses; the choice stands in the address."""
    address = reported(tmp_path / "report.html", capitals(tmp_path / "run"))
    ground = "() => getComputedStyle(document.body).backgroundColor"
    light, dark = opens(address).ask(ground), opens(address, scheme="dark").ask(ground)

    tab = opens(address)
    tab.page.click("#theme")
    assert dark == tab.ask(ground)
    tab.page.wait_for_function("() => location.hash === '#theme=dark'")
    tab.page.click("#theme")
    assert light == tab.ask(ground)
    assert light != dark == opens(f"{address}#theme=dark").ask(ground)
    assert light == opens(f"{address}#theme=light", scheme="dark").ask(ground)
    assert [] == tab.said


def test_paper_is_light_and_whole(tmp_path: Path, opens: Opens) -> None:
    """A page that is printed from a dark screen is light and laid out for paper, with every row; then it is as it was."""
    events = [event for number in range(60) for event in answered(f"case-{number}", {"exact": True})]
    written(tmp_path / "run", [started(), session(), *events])
    tab = opens(reported(tmp_path / "report.html", tmp_path / "run"), scheme="dark", width=1600)
    tab.ask("""() => {
        window.laid = () => [colour("ground"), document.querySelector(".timeline canvas").clientWidth < 700,
            document.querySelectorAll("[data-trial]").length === 60, document.querySelector("footer details").open];
        addEventListener("beforeprint", () => { window.printed = laid(); });
    }""")
    before = tab.ask("() => laid()")

    tab.page.pdf()

    assert ["#fff", True, True, True] == tab.ask("() => printed")
    tab.page.wait_for_function("before => JSON.stringify(laid()) === JSON.stringify(before)", arg=before)
    assert [False, False, False] == before[1:]


def test_controls_keep_the_focus(tmp_path: Path, opens: Opens) -> None:
    """What is pressed by key has the focus still when the page has drawn itself anew, and closing a trial gives it back."""
    tab = opens(reported(tmp_path / "report.html", capitals(tmp_path / "run", wrong=["chad"])))
    focused = "() => document.activeElement.textContent"

    tab.page.focus("[data-filter=wrong]")
    tab.page.keyboard.press("Enter")
    assert ["chad"] == tab.rows()
    assert "wrong 1" == tab.ask(focused)

    tab.page.keyboard.press("j")
    tab.ask("() => page.open(page.trials.selected)")
    assert "chad" == tab.ask(focused)
    tab.page.keyboard.press("Escape")
    assert "wrong 1" == tab.ask(focused)


def test_axis_tells_moments_apart(tmp_path: Path, opens: Opens) -> None:
    """The labels of the axis are all of one form, with as many places as tell each from the next, and none is cut off."""
    tab = opens(reported(tmp_path / "report.html", capitals(tmp_path / "run")))

    for expected, splits in {
        ("0 s", "10 s"): [0, 10],
        ("0.0 s", "2.5 s"): [0, 2.5],
        ("12.3410 s", "12.3415 s"): [12.341, 12.3415],
        ("0:50", "1:00"): [50, 60],
        ("0:59.5", "1:00.0"): [59.5, 60],
        ("0:50:00", "1:00:00"): [3000, 3600],
    }.items():
        assert list(expected) == tab.ask("splits => moments(splits)", splits)
    assert 15 < tab.ask("() => EDGE")


def test_why_nothing_starts(tmp_path: Path, opens: Opens) -> None:
    """The last decision about the limit and its evidence are told at every record, and where nothing may start."""
    run = eventful(tmp_path / "run")
    pause = next(record for record in _records(run) if isinstance(record.event, IntakePaused))
    tab = opens(reported(tmp_path / "report.html", run))

    tab.go(pause.seq)
    assert f"last decision: seq {pause.seq} · paused for" in tab.text("#decided")
    assert pause.event.evidence in tab.text("#decided")
    tab.ask("""() => {
        const [from, to] = page.run.reachOf(page.run.pauses[0]), view = page.history.view;
        const box = page.history.lanes.getBoundingClientRect(), wide = box.width - GUTTER - EDGE;
        const x = box.left + GUTTER + (((from + to) / 2 - view[0]) / (view[1] - view[0])) * wide;
        page.history.spanAt = () => -1;
        page.history.hover({ clientX: x, clientY: box.top + 3 });
    }""")
    assert tab.text(".tip").startswith("429, short pause: ")


EVIL = "<img src=x onerror=alert(1)>"


def stall_reason(path: Path) -> Path:
    """Write a run that is paced, then paused, then probes an endpoint that is unavailable."""
    decided: list[tuple[float, Event]] = [
        (0.0, LimitChanged(before=0, after=4, cause="start")),
        (0.1, enqueued("a")),
        (0.2, AttemptStarted(trial="a", attempt=1, slot=0)),
        (2.0, PaceChanged(after=4.21, cause="rate_limit", evidence=EVIL)),
        (10.0, IntakePaused(until=22.0, cause="retry_after", evidence=EVIL)),
        (22.0, IntakeResumed(cause="retry_after")),
        (40.0, IntakePaused(until=41.0, cause="unavailable", evidence="12 in a row")),
        (45.0, IntakePaused(until=46.0, cause="unavailable", evidence="probe failed")),
        (60.0, IntakeResumed(cause="unavailable")),
        (70.0, IntakePaused(until=90.0, cause=EVIL)),
        (80.0, AttemptSucceeded(trial="a", attempt=1, output="Lima", elapsed=79.8)),
    ]
    times = itertools.chain([0.0, 0.0, 0.0], (t for t, _ in decided), itertools.repeat(80.0))
    written(path, [started(), session(), *(event for _, event in decided)], stamp=lambda: ("2026-11-15T00:00:00Z", next(times)))
    return path


def test_pace_and_pauses_are_named(tmp_path: Path, opens: Opens) -> None:
    """The concurrency chart names a pause, an open breaker as one stretch, and the pace under the pointer, as text only."""
    tab = opens(reported(tmp_path / "report.html", stall_reason(tmp_path / "run")))
    hover = """x => {
        const { history } = page, box = history.upper.getBoundingClientRect(), view = history.view;
        const left = box.left + GUTTER + ((x - view[0]) / (view[1] - view[0])) * (box.width - GUTTER - EDGE);
        history.hover({ clientX: left, clientY: box.top + 20 });
        return history.tip.hidden ? "" : history.tip.querySelector("strong").textContent;
    }"""

    stretches = tab.ask("() => stretchesOf(page.run).map(({ from, to, text }) => [from, to, text])")
    assert [
        [10, 22, "Retry-After: 12 s"],
        [40, 60, "endpoint unavailable; probing"],
        [70, 80, f"{EVIL}: 20 s"],
    ] == stretches
    texts = {x: tab.ask(hover, x) for x in (1, 5, 15, 43, 75)}
    assert {
        1: "",
        5: "rate limit: 4.2 starts/s",
        15: "Retry-After: 12 s",
        43: "endpoint unavailable; probing",
        75: f"{EVIL}: 20 s",
    } == texts
    assert 0 == tab.ask("() => document.querySelectorAll('img').length")
    assert [] == tab.said


def test_record_shows_what_held_then(tmp_path: Path, opens: Opens) -> None:
    """At a record, the pause and the pace in force are shown, and the decisions list has the pace."""
    tab = opens(reported(tmp_path / "report.html", stall_reason(tmp_path / "run")))

    tab.go(8)
    assert tab.text("#what").endswith("· Retry-After: 12 s · rate limit: 4.2 starts/s")
    assert "pace not paced → 4.21/s" in tab.text("table.facts")


def test_address_says_what_is_filtered(tmp_path: Path, opens: Opens) -> None:
    """A search, a filter and a value of the metadata stand in the address, and an address without them shows all again."""
    address = reported(tmp_path / "report.html", capitals(tmp_path / "run", wrong=["chad", "oslo"]))

    tab = opens(address)
    tab.page.click("[data-filter=wrong]")
    tab.page.select_option("#metadata", label="level: hard (2)")
    tab.page.wait_for_function("() => location.hash.includes('meta=')")
    assert ["chad"] == opens(tab.page.url).rows()
    tab.ask("() => { location.hash = 'seq=4'; }")
    tab.page.wait_for_function("() => page.trials.found.length === 5")
    tab.ask("() => { location.hash = 'meta=nonsense&filter=nonsense&seq=nonsense&trial=nonsense'; }")
    tab.page.wait_for_function("() => page.trials.found.length === 5")
    assert [] == tab.said


def test_page_of_a_run_that_has_not_begun(opens: Opens, tmp_path: Path) -> None:
    """A journal with nothing in it but its first record can be shown."""
    written(tmp_path / "run", [])

    tab = opens(reported(tmp_path / "report.html", tmp_path / "run"))

    assert [] == tab.said
    assert "No trial was taken in yet." in tab.text(".scroller")
